"""`braid group`: list, describe, reset and delete consumer groups."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from braidmq.cli.broker import Broker
from braidmq.cli.command import command
from braidmq.cli.mistake import UserMistake
from braidmq.cli.moment import parse_moment
from braidmq.cli.options import DryRun, Yes, confirm, require_terminal_or
from braidmq.cli.output import AsJson, Output, print_json, print_table

if TYPE_CHECKING:
    from braidmq.client.cluster import Cluster, TopicPartition
    from braidmq.client.groups import GroupAdmin

app = typer.Typer(help="List, describe, reset and delete consumer groups.", no_args_is_help=True)

Group = Annotated[str, typer.Argument(metavar="GROUP")]


@command(app, "list", examples=("braid group list", "braid group list --output csv"))
def list_(broker: Broker, output: Output) -> None:
    """List groups with their state."""
    from braidmq.client.groups import GroupAdmin

    with broker.connect() as cluster:
        found = GroupAdmin(cluster).all()
    columns = ("group", "state", "type")
    rows = [(group.group_id, group.group_state, group.group_type.lower()) for group in found]
    if output.printed([dict(zip(columns, row, strict=True)) for row in rows], columns, rows):
        return
    if rows:
        print_table(columns, rows)
    else:
        print("no groups yet; a group appears when a consumer with a group.id subscribes")


@command(app, examples=("braid group describe billing", "braid group describe billing --json"))
def describe(broker: Broker, output: Output, name: Group) -> None:
    """Show a group's members, committed offsets and lag. CSV has the offsets."""
    from braidmq.client.groups import GroupAdmin

    with broker.connect() as cluster:
        group = GroupAdmin(cluster).describe(name)
    columns = ("topic", "partition#", "committed#", "end#", "lag#")
    rows = [(p.topic, p.partition, p.committed, p.end, p.lag) for p in group.positions]
    positions = [{**asdict(position), "lag": position.lag} for position in group.positions]
    if output.printed({**asdict(group), "positions": positions, "lag": group.lag}, columns, rows):
        return
    print(f"{group.group_id}: {group.state}, {len(group.members)} members, lag {group.lag:,}")
    if group.members:
        runs_tasks = group.kind == "streams"
        members = [
            (m.member_id, m.client_id, m.host.lstrip("/"), " ".join(m.tasks) or m.instance_id or None)
            for m in group.members
        ]
        print_table(("member", "client", "host", "tasks" if runs_tasks else "instance"), members)
    if rows:
        print_table(columns, rows)
    else:
        print("no offsets committed yet")


@command(
    app,
    examples=(
        "braid group reset billing --to-time 2h --dry-run",
        "braid group reset billing --to-time 2h",
        "braid group reset billing --topic orders --shift -100 --yes",
    ),
)
def reset(
    broker: Broker,
    output: Output,
    name: Group,
    topic: Annotated[
        list[str] | None,
        typer.Option(
            "--topic",
            "-t",
            metavar="TOPIC",
            help="Only this topic; may repeat. Default: all it has committed.",
        ),
    ] = None,
    to_earliest: Annotated[bool, typer.Option("--to-earliest", help="To the first record.")] = False,
    to_latest: Annotated[bool, typer.Option("--to-latest", help="To the end: skip all records.")] = False,
    to_offset: Annotated[int | None, typer.Option(min=0, help="To this offset in every partition.")] = None,
    to_time: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="To the first record at or after: 2026-11-15T21:00, 2h, 1d."),
    ] = None,
    shift: Annotated[
        int | None, typer.Option(help="By this many records; a negative number goes back.")
    ] = None,
    dry_run: DryRun = False,
    yes: Yes = False,
) -> None:
    """Set the offsets a group continues from. Stop its members first.

    Shows the old and new offsets, then asks.
    """
    from braidmq.client.groups import GroupAdmin

    ways = [to_earliest, to_latest, to_offset is not None, to_time is not None, shift is not None]
    if sum(ways) != 1:
        raise UserMistake("give one of --to-earliest, --to-latest, --to-offset, --to-time or --shift")
    if not dry_run:
        require_terminal_or(yes)
    with broker.connect() as cluster:
        groups = GroupAdmin(cluster)
        now = _partitions(cluster, groups, name, topic)
        since_ms = parse_moment(to_time, cluster.clock.wall_ms()) if to_time is not None else None
        after = _targets(cluster, now, to_latest, to_offset, since_ms, shift)
        columns = ("topic", "partition#", "from#", "to#")
        rows = [(at.topic, at.partition, now[at], after[at]) for at in sorted(now)]
        if output.is_table:
            print_table(columns, rows)
        if not dry_run:
            confirm(yes, f"Set these offsets for {name}?")
            groups.commit(name, after)
    named = [dict(zip(("topic", "partition", "from", "to"), row, strict=True)) for row in rows]
    if output.printed({"group": name, "changed": not dry_run, "offsets": named}, columns, rows):
        return
    print(f"dry run: {name} is unchanged" if dry_run else f"reset {name}: {len(after)} partitions")


def _partitions(
    cluster: Cluster, groups: GroupAdmin, name: str, topics: list[str] | None
) -> dict[TopicPartition, int | None]:
    """Committed offsets by partition: of the named topics, or of all that have one."""
    from braidmq.client.admin import Admin
    from braidmq.client.cluster import TopicPartition

    committed = groups.committed(name)
    if not topics:
        if not committed:
            raise UserMistake(f"group {name} has committed nothing; add --topic TOPIC")
        return dict(committed)
    admin = Admin(cluster)
    wanted = [TopicPartition(topic, index) for topic in topics for index in admin.partition_indexes(topic)]
    return {at: committed.get(at) for at in wanted}


def _targets(
    cluster: Cluster,
    now: dict[TopicPartition, int | None],
    to_latest: bool,
    to_offset: int | None,
    since_ms: int | None,
    shift: int | None,
) -> dict[TopicPartition, int]:
    """The new offset of each partition, never outside of what it holds."""
    from braidmq.client.consumer import Start
    from braidmq.client.offsets import list_offsets

    starts = list_offsets(cluster, dict.fromkeys(now, int(Start.EARLIEST)))
    ends = list_offsets(cluster, dict.fromkeys(now, int(Start.LATEST)))
    found = list_offsets(cluster, dict.fromkeys(now, since_ms)) if since_ms is not None else {}
    targets = {}
    for at, before in now.items():
        start, end = starts[at].offset, ends[at].offset
        if to_latest:
            wanted = end
        elif to_offset is not None:
            wanted = to_offset
        elif since_ms is not None:
            wanted = end if found[at].offset < 0 else found[at].offset
        elif shift is not None:
            wanted = (start if before is None else before) + shift
        else:
            wanted = start
        targets[at] = min(max(wanted, start), end)
    return targets


@command(app, examples=("braid group delete billing", "braid group delete billing kitchen --yes"))
def delete(
    broker: Broker,
    names: Annotated[list[str], typer.Argument(metavar="GROUP")],
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Delete groups and their committed offsets. A group must have no members."""
    from braidmq.client.groups import GroupAdmin

    confirm(yes, f"Delete {', '.join(names)} with all committed offsets?")
    with broker.connect() as cluster:
        for name in names:
            GroupAdmin(cluster).delete(name)
    if as_json:
        print_json({"deleted": names})
    else:
        print(f"deleted {', '.join(names)}")
