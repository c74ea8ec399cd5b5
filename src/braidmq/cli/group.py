"""`braid group`: list, describe, reset and delete consumer groups."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from braidmq.cli.mistake import UserMistake
from braidmq.cli.moment import parse_moment
from braidmq.cli.options import BOOTSTRAP, AsJson, Bootstrap, Yes, confirm_unless
from braidmq.cli.output import print_json, print_table

if TYPE_CHECKING:
    from braidmq.client.cluster import Cluster, TopicPartition
    from braidmq.client.groups import GroupAdmin

app = typer.Typer(help="List, describe, reset and delete consumer groups.", no_args_is_help=True)

Group = Annotated[str, typer.Argument(metavar="GROUP")]


@app.command("list")
def list_(as_json: AsJson = False, bootstrap: Bootstrap = BOOTSTRAP) -> None:
    """List groups with their state."""
    from braidmq.client.groups import GroupAdmin

    with GroupAdmin(bootstrap) as groups:
        found = groups.all()
    rows = [(group.group_id, group.group_state, group.group_type.lower()) for group in found]
    if as_json:
        print_json([{"group": name, "state": state, "type": kind} for name, state, kind in rows])
    elif rows:
        print_table(("group", "state", "type"), rows)
    else:
        print("no groups yet; they appear when a consumer with a group.id subscribes")


@app.command()
def describe(name: Group, as_json: AsJson = False, bootstrap: Bootstrap = BOOTSTRAP) -> None:
    """Show a group's members, and how far it is behind in each partition.

    Examples:
    braid group describe billing --json
    """
    from braidmq.client.groups import GroupAdmin

    with GroupAdmin(bootstrap) as groups:
        group = groups.describe(name)
    if as_json:
        positions = [{**asdict(position), "lag": position.lag} for position in group.positions]
        print_json({**asdict(group), "positions": positions, "lag": group.lag})
        return
    print(f"{group.group_id}: {group.state}, {len(group.members)} members, lag {group.lag:,}")
    if group.members:
        runs_tasks = group.kind == "streams"
        rows = [
            (m.member_id, m.client_id, m.host.lstrip("/"), " ".join(m.tasks) or m.instance_id or "-")
            for m in group.members
        ]
        print_table(("member", "client", "host", "tasks" if runs_tasks else "instance"), rows)
    if group.positions:
        print_table(
            ("topic", "partition#", "committed#", "end#", "lag#"),
            [(p.topic, p.partition, p.committed, p.end, p.lag) for p in group.positions],
        )
    else:
        print("no offsets committed yet")


@app.command()
def reset(
    name: Group,
    topic: Annotated[
        list[str] | None,
        typer.Option("--topic", "-t", help="Only this topic; may repeat. Default: all committed."),
    ] = None,
    to_earliest: Annotated[bool, typer.Option(help="To the first record there is.")] = False,
    to_latest: Annotated[bool, typer.Option(help="To the end: skip everything.")] = False,
    to_offset: Annotated[int | None, typer.Option(min=0, help="To this offset in every partition.")] = None,
    to_time: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="To the first record since then: 2026-11-15T21:00, 2h, 1d."),
    ] = None,
    shift: Annotated[int | None, typer.Option(help="By this many records, back if negative.")] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", "-n", help="Show what would change, change nothing.")
    ] = False,
    yes: Yes = False,
    as_json: AsJson = False,
    bootstrap: Bootstrap = BOOTSTRAP,
) -> None:
    """Set where a group goes on. Its members must be stopped first.

    Examples:
    braid group reset billing --to-time 2h --dry-run
    braid group reset billing --topic orders --shift -100 --yes
    """
    from braidmq.client.cluster import Cluster
    from braidmq.client.groups import GroupAdmin

    ways = [to_earliest, to_latest, to_offset is not None, to_time is not None, shift is not None]
    if sum(ways) != 1:
        raise UserMistake("say where to: one of --to-earliest, --to-latest, --to-offset, --to-time, --shift")
    with Cluster(bootstrap) as cluster:
        groups = GroupAdmin(cluster)
        now = _partitions(cluster, groups, name, topic)
        since_ms = parse_moment(to_time, cluster.clock.wall_ms()) if to_time is not None else None
        after = _targets(cluster, now, to_latest, to_offset, since_ms, shift)
        rows = [(at.topic, at.partition, now[at], after[at]) for at in sorted(now)]
        if as_json:
            print_json(
                {
                    "group": name,
                    "changed": not dry_run,
                    "offsets": [
                        {"topic": t, "partition": p, "from": before, "to": to} for t, p, before, to in rows
                    ],
                }
            )
        else:
            shown = [(t, p, "-" if before is None else before, to) for t, p, before, to in rows]
            print_table(("topic", "partition#", "from#", "to#"), shown)
        if dry_run:
            return
        confirm_unless(yes or as_json, f"Set these offsets for {name}?")
        groups.commit(name, after)
    if not as_json:
        print(f"reset {name}: {len(after)} partitions")


def _partitions(
    cluster: Cluster, groups: GroupAdmin, name: str, topics: list[str] | None
) -> dict[TopicPartition, int | None]:
    """The partitions to reset with what is committed: those of the named topics, or all with an offset."""
    from braidmq.client.admin import Admin
    from braidmq.client.cluster import TopicPartition

    committed = groups.committed(name)
    if not topics:
        if not committed:
            raise UserMistake(f"group {name} has committed nothing; name the topics with --topic")
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
    """Where each partition goes on, never outside of what it holds."""
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


@app.command()
def delete(
    names: Annotated[list[str], typer.Argument(metavar="GROUP")],
    yes: Yes = False,
    as_json: AsJson = False,
    bootstrap: Bootstrap = BOOTSTRAP,
) -> None:
    """Delete groups without members, and what they have committed.

    On a terminal it asks first; in a script it does not.
    """
    from braidmq.client.groups import GroupAdmin

    confirm_unless(yes, f"Delete {', '.join(names)} and the offsets committed?")
    with GroupAdmin(bootstrap) as groups:
        for name in names:
            groups.delete(name)
    if as_json:
        print_json({"deleted": names})
    else:
        print(f"deleted {', '.join(names)}")
