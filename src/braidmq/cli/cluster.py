"""`braid cluster`: brokers, topics and clients of a running cluster; its metadata between stores."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from braidmq.cli import cluster_transfer
from braidmq.cli.broker import Broker
from braidmq.cli.command import command
from braidmq.cli.mistake import UserMistake
from braidmq.cli.moment import format_duration, format_moment
from braidmq.cli.output import Output, print_table

if TYPE_CHECKING:
    from braidmq.client.cluster import Cluster
    from braidmq.client.live import Assignment, BrokerView, Member
    from braidmq.wire.messages.live import DescribeBrokerResponse, LiveClient

STALE_MS = 10_000
"""An image that has heard nothing for this long is old: a cluster's store speaks every 2 s."""
GROUPS_MAX = 500
"""Groups whose assignments are asked for; of more, members are listed without."""
BROKER_COLUMNS = (
    "broker#", "address", "rack", "machine", "version", "state", "since", "epoch#", "leaders#",
    "partitions#", "connections#", "isolated",
)  # fmt: skip
CLIENT_COLUMNS = (
    "broker#", "address", "client id", "software", "as", "group", "member", "assigned", "writes", "reads",
    "since", "last active", "in#", "out#",
)  # fmt: skip

TABLE_COLUMNS = ("broker#", "address", "client", "as", "uses", "active", "in#", "out#")
"""What fits a terminal; CSV and JSON have all of it."""

app = typer.Typer(
    help="Show brokers, topics and clients of a cluster; move its metadata between stores.",
    no_args_is_help=True,
)


@command(app, examples=("braid cluster status", "braid cluster status --json"))
def status(broker: Broker, output: Output) -> None:
    """Show the state of the cluster: brokers, controller, store, partitions without a leader.

    CSV has the brokers.
    """
    from braidmq.cli.doctor_cluster import clocks_apart

    with broker.connect() as cluster:
        found = _views(cluster)
    newest = _newest(found)
    up = sum(known.epoch >= 0 for known in newest.brokers)
    columns = ("broker#", "state", "image revision#", "image age", "isolated", "problem")
    rows = []
    for known in newest.brokers:
        answer, problem = _answer_of(found, known.node_id)
        if answer is not None and not problem and answer.image_age_ms > STALE_MS:
            problem = "the metadata store does not answer"
        rows.append(
            (
                known.node_id,
                known.state,
                None if answer is None else answer.image_revision,
                None if answer is None else format_duration(answer.image_age_ms),
                None if answer is None else _yes(answer.isolated),
                problem or None,
            )
        )
    value = {
        "cluster_id": newest.cluster_id,
        "name": newest.cluster_name,
        "format": newest.format_level,
        "store": newest.store,
        "store_reachable": newest.image_age_ms <= STALE_MS,
        "controller": None if newest.controller_id < 0 else newest.controller_id,
        "controller_epoch": None if newest.controller_epoch < 0 else newest.controller_epoch,
        "brokers_up": up,
        "brokers_known": len(newest.brokers),
        "topics": newest.topics,
        "partitions": newest.partitions,
        "without_leader": newest.leaderless,
        "warnings": clocks_apart(found),
        "brokers": _named(columns, rows),
    }
    if output.printed(value, columns, rows):
        return
    reachable = "" if value["store_reachable"] else ", which does not answer"
    print(f"cluster     {newest.cluster_name}, id {newest.cluster_id}, format {newest.format_level}")
    print(f"store       {newest.store}{reachable}")
    print(f"controller  {'none' if newest.controller_id < 0 else f'broker {newest.controller_id}'}")
    print(f"brokers     {up} of {len(newest.brokers)} up")
    print(f"topics      {newest.topics:,}")
    print(f"partitions  {newest.partitions:,}, {newest.leaderless:,} without leader")
    for warning in clocks_apart(found):
        print(f"warning     {warning}")
    print_table(columns, rows)


@command(app, examples=("braid cluster brokers", "braid cluster brokers --output csv"))
def brokers(broker: Broker, output: Output) -> None:
    """List every broker that has ever joined, with its address, place, state and load."""
    with broker.connect() as cluster:
        found = _views(cluster)
    rows = []
    for known in _newest(found).brokers:
        answer, problem = _answer_of(found, known.node_id)
        is_up = known.epoch >= 0
        rows.append(
            (
                known.node_id,
                f"{known.host}:{known.port}" if is_up else None,
                known.rack,
                known.machine or None,
                known.version or None,
                "no answer" if is_up and problem else known.state,
                None if answer is None else format_moment(answer.since_ms),
                known.epoch if is_up else None,
                known.leaders,
                known.replicas,
                None if answer is None else answer.connections,
                None if answer is None else _yes(answer.isolated),
            )
        )
    if not output.printed(_named(BROKER_COLUMNS, rows), BROKER_COLUMNS, rows):
        print_table(BROKER_COLUMNS, rows)


@command(app, examples=("braid cluster topics", "braid cluster topics --json"))
def topics(broker: Broker, output: Output) -> None:
    """List topics with how many of their partitions each broker leads."""
    columns = ("topic", "partitions#", "leaders", "without leader#")
    rows: list[tuple[object, ...]] = []
    value = []
    with broker.connect() as cluster:
        described = cluster.refresh(None)
    for topic in sorted(described.topics, key=lambda topic: topic.name or ""):
        led = Counter(partition.leader_id for partition in topic.partitions)
        missing = led.pop(-1, 0)
        leaders = " ".join(f"{node_id}:{led[node_id]}" for node_id in sorted(led))
        rows.append((topic.name, len(topic.partitions), leaders, missing))
        value.append(
            {
                "topic": topic.name,
                "partitions": len(topic.partitions),
                "leaders": {str(node_id): led[node_id] for node_id in sorted(led)},
                "without_leader": missing,
            }
        )
    if output.printed(value, columns, rows):
        return
    if rows:
        print_table(columns, rows)
    else:
        print("no topics yet; create one with braid topic create NAME")


@command(
    app,
    examples=(
        "braid cluster clients",
        "braid cluster clients --topic orders",
        "braid cluster clients --group billing --json",
    ),
)
def clients(
    broker: Broker,
    output: Output,
    topic: Annotated[
        str | None, typer.Option("--topic", "-t", metavar="TOPIC", help="Only clients of this topic.")
    ] = None,
    group: Annotated[
        str | None, typer.Option("--group", metavar="GROUP", help="Only members of this group.")
    ] = None,
    on: Annotated[int | None, typer.Option("--on", help="Only connections to this broker.")] = None,
) -> None:
    """List connected clients: where, what software, as what, and what they read and write.

    One row for each connection. A client has one to each broker that it uses, and a consumer's group is known
    on the one to the broker that coordinates the group. CSV and JSON show more columns than the table.
    """
    with broker.connect() as cluster:
        cluster.refresh([])
        if on is not None and on not in cluster.brokers:
            raise UserMistake(f"broker {on} is not up; braid cluster brokers lists them")
        nodes = sorted(cluster.brokers) if on is None else [on]
        found, assigned, failures = _clients(cluster, nodes)
        now_ms = cluster.clock.wall_ms()
    found = [
        (node_id, one)
        for node_id, one in found
        if (group is None or one.group_id == group) and (topic is None or topic in _topics_of(one, assigned))
    ]
    value = [_client_json(node_id, one, _assigned_to(one, assigned)) for node_id, one in found]
    rows = [_client_row(node_id, one, _assigned_to(one, assigned), now_ms) for node_id, one in found]
    if not output.printed(value, CLIENT_COLUMNS, rows):
        print_table(TABLE_COLUMNS, [_short_row(row) for row in rows])
    for failure in failures:
        typer.echo(f"braid: {failure}", err=True)
    if failures:
        raise typer.Exit(1)


cluster_transfer.attach(app)


# -- asking -------------------------------------------------------------------------------------


def _views(cluster: Cluster) -> list[BrokerView]:
    from braidmq.client.errors import ClientError
    from braidmq.client.live import views

    found = views(cluster)
    if all(view.answer is None for view in found):
        why = found[0].failure if found else "the cluster names no broker"
        raise ClientError(f"no broker describes itself: {why}; is this a Braid cluster of this release?")
    return found


def _newest(found: Sequence[BrokerView]) -> DescribeBrokerResponse:
    """The answer of the broker that has seen most."""
    return max((view.answer for view in found if view.answer is not None), key=lambda one: one.image_revision)


def _answer_of(found: Sequence[BrokerView], node_id: int) -> tuple[DescribeBrokerResponse | None, str]:
    for view in found:
        if view.node_id == node_id:
            return view.answer, view.failure
    return None, ""


def _clients(
    cluster: Cluster, nodes: Sequence[int]
) -> tuple[list[tuple[int, LiveClient]], dict[Member, Assignment], list[str]]:
    """Connections by broker, what members have, and which brokers could not be asked."""
    from braidmq.client import live
    from braidmq.client.errors import ClientError
    from braidmq.wire.errors import ApiError

    found: list[tuple[int, LiveClient]] = []
    assigned: dict[Member, Assignment] = {}
    failures = []
    for node_id in nodes:
        try:
            connection = cluster.connection(node_id)
            here = list(live.clients(connection))
            found += [(node_id, one) for one in here]
            groups = {one.group_id: _kind(one) for one in here if one.group_id}
            if len(groups) <= GROUPS_MAX:
                assigned |= live.assignments(connection, groups)
        except (ApiError, ClientError) as error:
            failures.append(f"broker {node_id}: {error}")
    return found, assigned, failures


def _kind(one: LiveClient) -> str:
    return "share" if "share" in one.role.split(",") else "consumer"


def _assigned_to(one: LiveClient, assigned: dict[Member, Assignment]) -> Assignment:
    return assigned.get((one.group_id or "", one.member_id or ""), {})


def _topics_of(one: LiveClient, assigned: dict[Member, Assignment]) -> set[str]:
    return {topic.name for topic in (*one.writes, *one.reads)} | _assigned_to(one, assigned).keys()


# -- showing ------------------------------------------------------------------------------------


def _client_row(node_id: int, one: LiveClient, assigned: Assignment, now_ms: int) -> tuple[object, ...]:
    return (
        node_id,
        one.address,
        one.client_id or None,
        f"{one.software_name} {one.software_version}".strip() or None,
        one.role or None,
        one.group_id,
        one.member_id or None,
        " ".join(f"{name}:{','.join(map(str, held))}" for name, held in sorted(assigned.items())) or None,
        " ".join(topic.name for topic in one.writes) or None,
        " ".join(topic.name for topic in one.reads) or None,
        format_moment(one.since_ms),
        f"{format_duration(max(now_ms - one.last_ms, 0))} ago",
        one.bytes_in,
        one.bytes_out,
    )


def _short_row(row: tuple[object, ...]) -> tuple[object, ...]:
    broker, address, client, software, role, group, _, assigned, writes, reads, _, active, *counts = row
    uses = (("writes", writes), ("reads", assigned or reads))
    return (
        broker,
        address,
        " ".join(str(each) for each in (client, f"({software})" if software else None) if each),
        " ".join(str(each) for each in (role, group) if each) or None,
        ", ".join(f"{verb} {what}" for verb, what in uses if what) or None,
        active,
        *counts,
    )


def _client_json(node_id: int, one: LiveClient, assigned: Assignment) -> dict[str, Any]:
    return {
        "broker": node_id,
        "address": one.address,
        "client_id": one.client_id,
        "software": {"name": one.software_name, "version": one.software_version},
        "as": one.role.split(",") if one.role else [],
        "group": one.group_id,
        "member": one.member_id,
        "assigned": assigned,
        "transactional_id": one.transactional_id,
        "writes": {topic.name: topic.last_ms for topic in one.writes},
        "reads": {topic.name: topic.last_ms for topic in one.reads},
        "since_ms": one.since_ms,
        "last_ms": one.last_ms,
        "bytes_in": one.bytes_in,
        "bytes_out": one.bytes_out,
    }


def _named(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> list[dict[str, object]]:
    names = [heading.rstrip("#").replace(" ", "_") for heading in columns]
    return [dict(zip(names, row, strict=True)) for row in rows]


def _yes(flag: bool) -> str:
    return "yes" if flag else "no"
