"""Jobs on Spark under `braid topic`: audit, report, reshard, redrive."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from braidmq.cli.broker import Broker
from braidmq.cli.command import Function, command
from braidmq.cli.mistake import UserMistake
from braidmq.cli.moment import parse_moment
from braidmq.cli.options import DryRun, From, Until, Yes, confirm, require_terminal_or
from braidmq.cli.output import (
    AsJson,
    Form,
    Output,
    print_csv_of_tables,
    print_json,
    print_table,
    text_of,
)
from braidmq.cli.spark import Spark, check_topics, connected, needs_spark, spark_session
from braidmq.spark.partitioner import Partitioner

EXIT_DIFFERENT = 1
TABLE_ROWS = 20
TEXT_COLUMNS = ("topic", "key", "group", "codec")


DIFFERENCES = ("missing", "extra", "duplicated", "reordered", "scattered")
PANEL = "Jobs on Spark"


def attach(app: typer.Typer) -> None:
    """Adds the jobs to the commands of `braid topic`."""
    for job, examples in EXAMPLES.items():
        command(app, examples=examples, panel=PANEL)(job)


def audit(
    broker: Broker,
    output: Output,
    runs_on: Spark,
    left: Annotated[str, typer.Argument(metavar="A", help="A topic, or the folder of a lake.")],
    right: Annotated[str, typer.Argument(metavar="B", help="The topic or lake to compare it with.")],
    compare: Annotated[
        str | None,
        typer.Option(metavar="COLUMNS", help="The columns to compare: key,value,headers,timestamp,…"),
    ] = None,
    since: From = None,
    until: Until = None,
    examples: Annotated[int, typer.Option(min=0, help="Show this many of each difference.")] = 20,
) -> None:
    """Compare two topics, or a topic and a lake: missing, extra, duplicated, reordered within a key.

    Exit code 0 if they hold the same messages, 1 if not. Headers named braid.… are ignored. CSV has
    the counts.
    """
    from braidmq.platform.clock import SystemClock

    now_ms = SystemClock().wall_ms()
    from_ms = None if since is None else parse_moment(since, now_ms)
    until_ms = None if until is None else parse_moment(until, now_ms)
    settings = _checked(broker, filter(_is_topic, (left, right)))
    chosen = None if compare is None else [each.strip() for each in compare.split(",")]
    with spark_session("braid topic audit", runs_on) as spark:
        from braidmq.spark.rescue.audit import audit as audited
        from braidmq.spark.rescue.audit_inputs import TimeWindow, TopicReader, open_inputs

        how = TopicReader(spark, broker.bootstrap, settings)
        sides = open_inputs(how, left, right, TimeWindow(from_ms, until_ms))
        try:
            found = audited(sides.left, sides.right, chosen or sides.compare, examples)
        except ValueError as error:
            raise UserMistake(f"--compare: {error}") from None
    counts = [getattr(found, kind) for kind in DIFFERENCES]
    row = (",".join(found.compared), found.left_rows, found.right_rows, *counts)
    value = {"left": left, "right": right, "notes": sides.notes, **found.as_json()}
    if not output.printed(value, ("compared", "left", "right", *DIFFERENCES), [row]):
        for note in sides.notes:
            print(f"note: {note}")
        columns = ("compared", f"{left}#", f"{right}#", *(f"{kind}#" for kind in DIFFERENCES))
        print_table(columns, [row])
        if found.examples:
            rows = [
                (each.kind, f"{each.topic}-{each.partition}", each.offset, text_of(each.key), each.count)
                for each in found.examples
            ]
            print_table(("difference", "partition", "offset#", "key", "count#"), rows)
        print("the same messages" if found.equal else "not the same messages")
    if not found.equal:
        raise typer.Exit(EXIT_DIFFERENT)


def report(
    broker: Broker,
    output: Output,
    runs_on: Spark,
    topics: Annotated[list[str], typer.Argument(metavar="TOPIC")],
    to: Annotated[
        Path | None,
        typer.Option("--to-dir", metavar="DIR", help="Write report.md, report.json and plots to DIR."),
    ] = None,
    since: From = None,
    hot_keys: Annotated[int, typer.Option(min=1, help="Show this many of the hottest keys.")] = 20,
) -> None:
    """Show throughput, delays, hot keys, skew between partitions and lag of groups.

    The delay from produce to append is known for topics with message.timestamp.type=LogAppendTime; for others
    only a lower bound. CSV has all tables; its first column names the table.
    """
    from braidmq.platform.clock import SystemClock

    from_ms = None if since is None else parse_moment(since, SystemClock().wall_ms())
    settings = _checked(broker, topics)
    with spark_session("braid topic report", runs_on) as spark:
        from braidmq.spark.rescue import summary

        names = tuple(dict.fromkeys(topics))
        wanted = summary.ReportRequest(broker.bootstrap, names, from_ms, hot_keys, settings)
        made = summary.summarise(spark, wanted, _show_stage)
        files = summary.write(made, to) if to is not None else []
    if output.form is Form.JSON:
        print_json(made.as_json())
        return
    if output.form is Form.CSV:
        print_csv_of_tables(made.tables)
        return
    for name, rows in made.tables.items():
        title = name.replace("_", " ")
        if not rows:
            print(f"{title}: {summary.EMPTY.get(name, 'nothing')}\n")
            continue
        headings = [heading if heading in TEXT_COLUMNS else f"{heading}#" for heading in rows[0]]
        # Throughput by the second is long, and the latest matters most; other tables are shown whole.
        latest = rows[-TABLE_ROWS:] if name == "throughput" else rows
        print_table(headings, [[summary.shown(cell) for cell in row.values()] for row in latest], title)
        if len(latest) < len(rows):
            print(f"the last {len(latest)} of {len(rows)} rows; --to-dir DIR writes all\n")
    for finding in made.findings:
        print(f"- {finding}")
    for path in files:
        print(f"wrote {path}")


Checkpoint = Annotated[
    Path | None,
    typer.Option(
        "--checkpoint", metavar="DIR", help="Where the job keeps its position. Default: checkpoints/…"
    ),
]


def reshard(
    broker: Broker,
    output: Output,
    runs_on: Spark,
    topic: Annotated[str, typer.Argument(metavar="TOPIC")],
    partitions: Annotated[
        int, typer.Option("--partitions", "-p", min=1, help="Partitions of the new topic.")
    ],
    to: Annotated[
        str | None, typer.Option("--to-topic", metavar="TOPIC", help="The new topic. Default: TOPIC-pN.")
    ] = None,
    switch: Annotated[
        bool, typer.Option("--switch", help="Copy the rest and move the groups. Stop producers first.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="With --switch: copy, and show where groups would continue.")
    ] = False,
    partitioner: Annotated[
        Partitioner, typer.Option(help="How the topic's producers choose a partition for a key.")
    ] = Partitioner.MURMUR2,
    checkpoint: Checkpoint = None,
    yes: Yes = False,
) -> None:
    """Copy a topic into a new one with more partitions, in order within each key, and move its groups.

    Without --switch it copies until it has caught up, while producers and consumers keep running. Stop it at
    any time; it continues where it stopped. With --switch it copies the rest and sets each group to the first
    unread record of each new partition: no record is lost, some may be read again. --switch asks first.

    Set --partitioner to that of your producers, or they write a key to another partition: murmur2_random for
    Kafka's own client, consistent_random for librdkafka (confluent-kafka), unless they set another.
    """
    if dry_run and not switch:
        raise UserMistake("--dry-run shows where --switch would move the groups; add --switch")
    moves_groups = switch and not dry_run
    if moves_groups:
        require_terminal_or(yes)
    name = to or f"{topic}-p{partitions}"
    place = checkpoint or Path("checkpoints") / f"reshard-{topic}-{name}"
    settings = _checked(broker, [topic])
    if moves_groups:
        confirm(yes, f"Copy the rest of {topic} to {name} and move the groups? Producers must be stopped.")
    with spark_session("braid topic reshard", runs_on) as spark:
        from braidmq.spark.rescue import reshard as resharding

        job = resharding.Reshard(
            broker.bootstrap, topic, name, partitions, place.absolute(), settings, partitioner
        )
        made = resharding.prepare(job)
        _say(output, f"{'created' if made else 'continuing with'} {name}, {partitions} partitions")
        copied = 0
        for step in resharding.copy(spark, job, until_still=switch):
            copied = step.copied
            _show_stage(f"copied {step.copied:,}, {step.ahead:,} to go")
        _say(output, f"copied {copied:,} records from {topic} to {name}")
        moves = []
        if switch:
            moves = resharding.switch(spark, job, dry_run, lambda note: _say(output, f"note: {note}"))
    columns = ("group", "not read yet#", "will read again#")
    rows = [(each.group, each.unread, each.again) for each in moves]
    value = {"to": name, "copied": copied, "switched": moves_groups, "groups": [*map(asdict, moves)]}
    if output.printed(value, columns, rows):
        return
    if switch:
        print_table(columns, rows, "Groups that would move" if dry_run else "Groups moved")
        if dry_run:
            print("dry run: no group was moved")
        else:
            print(f"now start producers and consumers on {name}; {topic} is unchanged")
    else:
        print(f"next: stop the producers and consumers of {topic}, run this again with --switch,")
        print(f"then start them on {name}. Until then you can run it again at any time.")


def redrive(
    broker: Broker,
    runs_on: Spark,
    dead_letters: Annotated[str, typer.Argument(metavar="DLQ", help="The topic of dead letters.")],
    to: Annotated[str, typer.Option("--to-topic", metavar="TOPIC", help="The topic to write to.")],
    where: Annotated[
        str | None,
        typer.Option(
            metavar="SQL", help="Only rows that match: \"header\\['braid.reason'] LIKE '%timeout%'\"."
        ),
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="At most this many, oldest first.")] = None,
    again: Annotated[bool, typer.Option("--again", help="Include those that were sent before.")] = False,
    now: Annotated[
        bool, typer.Option("--now", help="Use the current time instead of each record's timestamp.")
    ] = False,
    dry_run: DryRun = False,
    checkpoint: Checkpoint = None,
    as_json: AsJson = False,
) -> None:
    """Send dead letters back to a topic, all or those that match, each once however often it is run.

    Records keep key, value, headers and timestamp; the header braid.redriven says where each came from. A
    condition can use key, value, headers, timestamp, topic, partition, offset, and header, a map of text.
    """
    place = checkpoint or Path("checkpoints") / f"redrive-{dead_letters}-{to}"
    settings = _checked(broker, [dead_letters, to])
    with spark_session("braid topic redrive", runs_on) as spark:
        from braidmq.spark.lake.lake import Lake
        from braidmq.spark.rescue import redrive as redriving

        journal = Lake(place)
        job = redriving.Redrive(
            broker.bootstrap, dead_letters, to, journal, where, limit, again, now, settings
        )
        done = redriving.redrive(spark, job, dry_run)
    if as_json:
        print_json({**asdict(done), "sent": not dry_run})
        return
    if done.resumed:
        print(f"finished an interrupted run: {done.resumed:,} records")
    print(f"{dead_letters} holds {done.there:,} dead letters, {done.before:,} of them sent before")
    print(f"{'would send' if dry_run else 'sent'} {done.chosen:,} to {to}")


EXAMPLES: dict[Function, tuple[str, ...]] = {
    audit: ("braid topic audit orders orders-copy", "braid topic audit orders archive/orders --json"),
    report: ("braid topic report orders payments --from 1d --to-dir reports/today",),
    reshard: (
        "braid topic reshard orders --partitions 64",
        "braid topic reshard orders --partitions 64 --switch",
    ),
    redrive: (
        "braid topic redrive orders.dead --to-topic orders --dry-run",
        "braid topic redrive orders.dead --to-topic orders --where \"header['braid.reason'] = 'timeout'\"",
    ),
}


def _checked(broker: Broker, topics: Iterable[str]) -> dict[str, str]:
    """The client's settings; UserMistake if a topic does not exist."""
    with needs_spark():
        import pyspark.sql  # noqa: F401
    settings = broker.settings()
    with connected(broker, settings) as cluster:
        check_topics(cluster, topics)
    return settings


def _is_topic(side: str) -> bool:
    """Whether one side of an audit is a topic and not a lake; UserMistake if a lake cannot be read."""
    with needs_spark():
        from braidmq.spark.lake.commits import LakeError
        from braidmq.spark.rescue.audit_inputs import topic_or_lake
    try:
        return topic_or_lake(side).lake is None
    except LakeError as error:
        raise UserMistake(str(error)) from None


def _say(output: Output, text: str) -> None:
    if output.is_table:
        print(text, flush=True)


def _show_stage(stage: str) -> None:
    if sys.stderr.isatty():
        print(f"{stage} …", file=sys.stderr)
