"""`braid topic`: create, list, describe, alter and delete topics; the jobs on Spark are in `rescue`."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from braidmq.cli import rescue
from braidmq.cli.broker import Broker
from braidmq.cli.command import command
from braidmq.cli.mistake import UserMistake
from braidmq.cli.options import TopicOptions, Yes, confirm, parse_settings
from braidmq.cli.output import AsJson, Output, print_json, print_table
from braidmq.cli.placement import parse_placement
from braidmq.config import check_topic_overrides

if TYPE_CHECKING:
    from braidmq.client.admin import ConfigEntry, TopicDescription

app = typer.Typer(
    help="Create, list, describe, alter and delete topics; compare, report, reshard and redrive them.",
    no_args_is_help=True,
)

Name = Annotated[str, typer.Argument(metavar="TOPIC")]
PARTITION_COLUMNS = ("partition#", "leader#", "in sync", "start#", "end#", "records#")


@command(
    app,
    examples=(
        "braid topic create orders",
        "braid topic create orders -p 8 -o retention.ms=86400000",
        "braid topic create users -o cleanup.policy=compact --if-not-exists",
        "braid topic create orders --on-brokers 1=2,3=4",
        "braid topic create orders --replica-assignment 1,2,3,1",
    ),
)
def create(
    broker: Broker,
    name: Name,
    partitions: Annotated[
        int | None,
        typer.Option("--partitions", "-p", min=1, help="How many. Default: num.partitions of the broker."),
    ] = None,
    on_brokers: Annotated[
        str | None,
        typer.Option("--on-brokers", metavar="ID=N,…", help="How many each broker gets; an id alone: one."),
    ] = None,
    replica_assignment: Annotated[
        str | None,
        typer.Option("--replica-assignment", metavar="ID,ID,…", help="The broker of each partition."),
    ] = None,
    options: TopicOptions = None,
    if_not_exists: Annotated[
        bool, typer.Option("--if-not-exists", help="Succeed if the topic exists.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Create a topic. `braid config` explains the options."""
    from braidmq.client.admin import Admin
    from braidmq.wire.errors import ApiError, ErrorCode

    configs = parse_settings(options)
    check_topic_overrides(configs)
    assignment = parse_placement(on_brokers, replica_assignment, partitions)
    created = True
    with broker.connect() as cluster:
        try:
            Admin(cluster).create_topic(name, partitions or -1, configs=configs, assignment=assignment)
        except ApiError as error:
            if not (if_not_exists and error.code is ErrorCode.TOPIC_ALREADY_EXISTS):
                raise
            created = False
    if as_json:
        print_json({"topic": name, "created": created})
    else:
        print(f"created {name}" if created else f"{name} exists already")


@command(app, "list", examples=("braid topic list", "braid topic list --output csv"))
def list_(broker: Broker, output: Output) -> None:
    """List topics with their partitions and records.

    Records are counted by offset; each end of a transaction takes one offset too.
    """
    from braidmq.client.admin import Admin

    with broker.connect() as cluster:
        topics = Admin(cluster).describe_topics()
    columns = ("topic", "partitions#", "records#")
    rows = [(topic.name, len(topic.partitions), topic.records) for topic in topics]
    value = [{"topic": name, "partitions": count, "records": records} for name, count, records in rows]
    if output.printed(value, columns, rows):
        return
    if rows:
        print_table(columns, rows)
    else:
        print("no topics yet; create one with braid topic create NAME")


@command(app, examples=("braid topic describe orders", "braid topic describe orders --json"))
def describe(broker: Broker, output: Output, name: Name) -> None:
    """Show a topic's partitions, offsets and options.

    Records are counted by offset; each end of a transaction takes one offset too. CSV has the partitions.
    """
    from braidmq.client.admin import Admin

    with broker.connect() as cluster:
        admin = Admin(cluster)
        topic = admin.describe_topics([name])[0]
        configs = admin.topic_configs(name)
    rows = _partition_rows(topic)
    if not output.printed(_as_json(topic, configs), PARTITION_COLUMNS, rows):
        _print_description(topic, rows, configs)


@command(
    app,
    examples=(
        "braid topic alter orders -o retention.ms=3600000",
        "braid topic alter orders --reset segment.bytes -p 16",
    ),
)
def alter(
    broker: Broker,
    name: Name,
    options: TopicOptions = None,
    reset: Annotated[
        list[str] | None,
        typer.Option("--reset", metavar="NAME", help="Return an option to the broker's default. May repeat."),
    ] = None,
    partitions: Annotated[
        int | None, typer.Option("--partitions", "-p", min=1, help="Add partitions until there are N.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Change a topic's options, or add partitions."""
    from braidmq.client.admin import Admin

    changes = parse_settings(options)
    check_topic_overrides(changes)
    if not (changes or reset or partitions):
        raise UserMistake("nothing to change; add -o NAME=VALUE, --reset NAME or --partitions N")
    with broker.connect() as cluster:
        admin = Admin(cluster)
        if changes or reset:
            admin.alter_topic_configs(name, changes, reset or ())
        if partitions:
            admin.add_partitions(name, partitions)
    if as_json:
        print_json({"topic": name, "set": changes, "reset": reset or [], "partitions": partitions})
    else:
        print(f"altered {name}")


@command(app, examples=("braid topic delete orders", "braid topic delete orders payments --yes"))
def delete(
    broker: Broker,
    names: Annotated[list[str], typer.Argument(metavar="TOPIC")],
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Delete topics and all their records."""
    from braidmq.client.admin import Admin

    confirm(yes, f"Delete {', '.join(names)} with all records?")
    with broker.connect() as cluster:
        for name in names:
            Admin(cluster).delete_topic(name)
    if as_json:
        print_json({"deleted": names})
    else:
        print(f"deleted {', '.join(names)}")


rescue.attach(app)


def _as_json(topic: TopicDescription, configs: list[ConfigEntry]) -> dict[str, Any]:
    return {
        "topic": topic.name,
        "id": topic.topic_id.hex(),
        "records": topic.records,
        "partitions": [asdict(partition) for partition in topic.partitions],
        "options": {entry.name: entry.value for entry in configs},
        "overridden": [entry.name for entry in configs if entry.overridden],
    }


def _partition_rows(topic: TopicDescription) -> list[tuple[object, ...]]:
    return [
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


def _print_description(
    topic: TopicDescription, rows: list[tuple[object, ...]], configs: list[ConfigEntry]
) -> None:
    print(f"{topic.name}: {len(topic.partitions)} partitions, {topic.records:,} records")
    print_table(PARTITION_COLUMNS, rows)
    own = [(entry.name, entry.value) for entry in configs if entry.overridden]
    if own:
        print_table(("option", "value"), own, "Set on this topic")
    else:
        print("options: the broker's defaults (--json lists them)")
