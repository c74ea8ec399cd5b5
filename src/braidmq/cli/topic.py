"""`braid topic`: create, list, describe, alter and delete topics."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from braidmq.cli.mistake import UserMistake
from braidmq.cli.options import BOOTSTRAP, AsJson, Bootstrap, Settings, Yes, confirm_unless, parse_settings
from braidmq.cli.output import print_json, print_table
from braidmq.config import check_topic_overrides

if TYPE_CHECKING:
    from braidmq.client.admin import ConfigEntry, TopicDescription

app = typer.Typer(help="Create, list, describe, alter and delete topics.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(metavar="TOPIC")]


@app.command()
def create(
    name: Name,
    partitions: Annotated[
        int | None, typer.Option("--partitions", "-p", min=1, help="Default: the broker's num.partitions.")
    ] = None,
    settings: Settings = None,
    if_not_exists: Annotated[bool, typer.Option(help="Do nothing if the topic exists.")] = False,
    as_json: AsJson = False,
    bootstrap: Bootstrap = BOOTSTRAP,
) -> None:
    """Create a topic.

    Examples:
    braid topic create orders -p 8 -o retention.ms=86400000
    """
    from braidmq.client.admin import Admin
    from braidmq.wire.errors import ApiError, ErrorCode

    configs = parse_settings(settings)
    check_topic_overrides(configs)
    created = True
    with Admin(bootstrap) as admin:
        try:
            admin.create_topic(name, partitions or -1, configs=configs)
        except ApiError as error:
            if not (if_not_exists and error.code is ErrorCode.TOPIC_ALREADY_EXISTS):
                raise
            created = False
    if as_json:
        print_json({"topic": name, "created": created})
    else:
        print(f"created {name}" if created else f"{name} exists already")


@app.command("list")
def list_(as_json: AsJson = False, bootstrap: Bootstrap = BOOTSTRAP) -> None:
    """List topics with their partitions and records, counted by offsets: ends of transactions have one."""
    from braidmq.client.admin import Admin

    with Admin(bootstrap) as admin:
        topics = admin.describe_topics()
    rows = [(topic.name, len(topic.partitions), topic.records) for topic in topics]
    if as_json:
        print_json(
            [{"topic": name, "partitions": count, "records": records} for name, count, records in rows]
        )
    elif rows:
        print_table(("topic", "partitions#", "records#"), rows)
    else:
        print("no topics yet; braid topic create NAME makes one")


@app.command()
def describe(name: Name, as_json: AsJson = False, bootstrap: Bootstrap = BOOTSTRAP) -> None:
    """Show a topic's partitions, offsets and options.

    Records are counted by their offsets, of which the ends of transactions have one each.

    Examples:
    braid topic describe orders --json
    """
    from braidmq.client.admin import Admin

    with Admin(bootstrap) as admin:
        topic = admin.describe_topics([name])[0]
        configs = admin.topic_configs(name)
    if as_json:
        print_json(_as_json(topic, configs))
    else:
        _print_description(topic, configs)


@app.command()
def alter(
    name: Name,
    settings: Settings = None,
    reset: Annotated[
        list[str] | None,
        typer.Option("--reset", metavar="NAME", help="Back to the broker's default; may repeat."),
    ] = None,
    partitions: Annotated[
        int | None, typer.Option("--partitions", "-p", min=1, help="Grow to this many.")
    ] = None,
    as_json: AsJson = False,
    bootstrap: Bootstrap = BOOTSTRAP,
) -> None:
    """Change a topic's options, or grow it.

    Examples:
    braid topic alter orders -o retention.ms=3600000 --reset segment.bytes -p 16
    """
    from braidmq.client.admin import Admin

    changes = parse_settings(settings)
    check_topic_overrides(changes)
    if not (changes or reset or partitions):
        raise UserMistake("nothing to alter; give -o NAME=VALUE, --reset NAME or --partitions N")
    with Admin(bootstrap) as admin:
        if changes or reset:
            admin.alter_topic_configs(name, changes, reset or ())
        if partitions:
            admin.add_partitions(name, partitions)
    if as_json:
        print_json({"topic": name, "set": changes, "reset": reset or [], "partitions": partitions})
    else:
        print(f"altered {name}")


@app.command()
def delete(
    names: Annotated[list[str], typer.Argument(metavar="TOPIC")],
    yes: Yes = False,
    as_json: AsJson = False,
    bootstrap: Bootstrap = BOOTSTRAP,
) -> None:
    """Delete topics and everything in them.

    On a terminal it asks first; in a script it does not.
    """
    from braidmq.client.admin import Admin

    confirm_unless(yes, f"Delete {', '.join(names)} and everything in it?")
    with Admin(bootstrap) as admin:
        for name in names:
            admin.delete_topic(name)
    if as_json:
        print_json({"deleted": names})
    else:
        print(f"deleted {', '.join(names)}")


def _as_json(topic: TopicDescription, configs: list[ConfigEntry]) -> dict[str, Any]:
    return {
        "topic": topic.name,
        "id": topic.topic_id.hex(),
        "records": topic.records,
        "partitions": [asdict(partition) for partition in topic.partitions],
        "options": {entry.name: entry.value for entry in configs},
        "overridden": [entry.name for entry in configs if entry.overridden],
    }


def _print_description(topic: TopicDescription, configs: list[ConfigEntry]) -> None:
    print(f"{topic.name}: {len(topic.partitions)} partitions, {topic.records:,} records")
    rows = [
        (
            p.index,
            p.leader,
            ",".join(map(str, p.in_sync)),
            p.start_offset,
            p.end_offset,
            p.end_offset - p.start_offset,
        )
        for p in topic.partitions
    ]
    print_table(("partition#", "leader#", "in sync", "start#", "end#", "records#"), rows)
    own = [(entry.name, entry.value) for entry in configs if entry.overridden]
    if own:
        print_table(("option", "value"), own, "Set on this topic")
    else:
        print("options: all as the broker's defaults (braid topic describe --json lists them)")
