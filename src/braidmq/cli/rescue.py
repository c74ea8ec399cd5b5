"""Rescue jobs under `braid pipeline`: audit, report, reshard, redrive; `attach` adds them to its commands."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from braidmq.cli.mistake import UserMistake
from braidmq.cli.moment import parse_moment
from braidmq.cli.options import BOOTSTRAP, AsJson, Bootstrap
from braidmq.cli.output import print_json, print_table, text_of
from braidmq.cli.spark import (
    MASTER,
    ClientSettings,
    CommandConfig,
    Master,
    SparkConfig,
    check_topics,
    client_options,
    connected,
    needs_spark,
    spark_session,
)
from braidmq.spark.partitioner import Partitioner

EXIT_DIFFERENT = 1
TABLE_ROWS = 20
TEXT_COLUMNS = ("topic", "key", "group", "codec")


def attach(app: typer.Typer) -> None:
    """Adds the rescue jobs to the commands of `braid pipeline`."""
    for command in (audit, report, reshard, redrive):
        app.command()(command)


def audit(
    left: Annotated[str, typer.Argument(metavar="A", help="A topic, or the folder of a lake.")],
    right: Annotated[str, typer.Argument(metavar="B", help="What should hold the same messages.")],
    compare: Annotated[
        str | None,
        typer.Option(metavar="COLUMNS", help="What makes a message: key,value,headers,timestamp,…"),
    ] = None,
    since: Annotated[
        str | None, typer.Option("--from", metavar="TIME", help="Only records of then or later.")
    ] = None,
    until: Annotated[str | None, typer.Option("--until", metavar="TIME", help="Only records before.")] = None,
    examples: Annotated[int, typer.Option(min=0, help="How many of each difference to show.")] = 20,
    options: ClientSettings = None,
    command_config: CommandConfig = None,
    master: Master = MASTER,
    config: SparkConfig = None,
    as_json: AsJson = False,
    bootstrap: Bootstrap = BOOTSTRAP,
) -> None:
    """Compare two topics, or a topic and a lake: missing, extra, duplicated, reordered within a key.

    Exit code 0 when they hold the same messages, 1 when not. Headers named braid.… are left out.

    Examples:
    braid pipeline audit orders orders-copy
    braid pipeline audit orders archive/orders --json
    """
    from braidmq.platform.clock import SystemClock

    now_ms = SystemClock().wall_ms()
    from_ms = None if since is None else parse_moment(since, now_ms)
    until_ms = None if until is None else parse_moment(until, now_ms)
    settings = _checked(bootstrap, command_config, options, filter(_is_topic, (left, right)))
    chosen = None if compare is None else [each.strip() for each in compare.split(",")]
    with spark_session("braid pipeline audit", master, config) as spark:
        from braidmq.spark.rescue.audit import audit as audited
        from braidmq.spark.rescue.audit_inputs import TimeWindow, TopicReader, open_inputs

        how = TopicReader(spark, bootstrap, settings)
        sides = open_inputs(how, left, right, TimeWindow(from_ms, until_ms))
        try:
            found = audited(sides.left, sides.right, chosen or sides.compare, examples)
        except ValueError as error:
            raise UserMistake(f"--compare: {error}") from None
    if as_json:
        print_json({"left": left, "right": right, "notes": sides.notes, **found.as_json()})
    else:
        for note in sides.notes:
            print(f"note: {note}")
        kinds = ("missing", "extra", "duplicated", "reordered", "scattered")
        print_table(
            ("compared", f"{left}#", f"{right}#", *(f"{kind}#" for kind in kinds)),
            [
                (
                    ",".join(found.compared),
                    found.left_rows,
                    found.right_rows,
                    *(getattr(found, k) for k in kinds),
                )
            ],
        )
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
    topics: Annotated[list[str], typer.Argument(metavar="TOPIC")],
    to: Annotated[
        Path | None, typer.Option("--to", metavar="DIR", help="Write report.md, report.json and plots here.")
    ] = None,
    since: Annotated[
        str | None, typer.Option("--from", metavar="TIME", help="Only records of then or later: 2h, 1d.")
    ] = None,
    hot_keys: Annotated[int, typer.Option(min=1, help="How many of the hottest keys.")] = 20,
    options: ClientSettings = None,
    command_config: CommandConfig = None,
    master: Master = MASTER,
    config: SparkConfig = None,
    as_json: AsJson = False,
    bootstrap: Bootstrap = BOOTSTRAP,
) -> None:
    """Show throughput, delays, hot keys, skew between partitions and lag of groups.

    The delay from produce to append is known for topics with message.timestamp.type=LogAppendTime; for
    others only how late records were at least.

    Examples:
    braid pipeline report orders payments --from 1d --to reports/today
    """
    from braidmq.platform.clock import SystemClock

    from_ms = None if since is None else parse_moment(since, SystemClock().wall_ms())
    settings = _checked(bootstrap, command_config, options, topics)
    with spark_session("braid pipeline report", master, config) as spark:
        from braidmq.spark.rescue import summary

        names = tuple(dict.fromkeys(topics))
        wanted = summary.ReportRequest(bootstrap, names, from_ms, hot_keys, settings)
        made = summary.summarise(spark, wanted, _tell_stage)
        files = summary.write(made, to) if to is not None else []
    if as_json:
        print_json(made.as_json())
        return
    for name, rows in made.tables.items():
        title = name.replace("_", " ")
        if not rows:
            print(f"{title}: {summary.EMPTY.get(name, 'nothing')}\n")
            continue
        headings = [heading if heading in TEXT_COLUMNS else f"{heading}#" for heading in rows[0]]
        # By the second it is long, and what was last is what people look for; all else is shown whole.
        latest = rows[-TABLE_ROWS:] if name == "throughput" else rows
        print_table(headings, [[summary.shown(cell) for cell in row.values()] for row in latest], title)
        if len(latest) < len(rows):
            print(f"the last {len(latest)} of {len(rows)} rows; --to DIR writes all of them\n")
    for finding in made.findings:
        print(f"- {finding}")
    for path in files:
        print(f"wrote {path}")


Checkpoint = Annotated[
    Path | None,
    typer.Option("--checkpoint", metavar="DIR", help="Where the job keeps its place. Default: checkpoints/…"),
]


def reshard(
    topic: Annotated[str, typer.Argument(metavar="TOPIC")],
    partitions: Annotated[int, typer.Option("--partitions", "-p", min=1, help="Of the new topic.")],
    into: Annotated[str | None, typer.Option(metavar="NEW", help="The new topic. Default: TOPIC-pN.")] = None,
    switch: Annotated[
        bool, typer.Option("--switch", help="Copy the rest and move the groups; stop producers before.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", "-n", help="With --switch: copy, and show where groups would go on.")
    ] = False,
    partitioner: Annotated[
        Partitioner, typer.Option(help="As the producers of the topic choose partitions by key.")
    ] = Partitioner.MURMUR2,
    checkpoint: Checkpoint = None,
    options: ClientSettings = None,
    command_config: CommandConfig = None,
    master: Master = MASTER,
    config: SparkConfig = None,
    as_json: AsJson = False,
    bootstrap: Bootstrap = BOOTSTRAP,
) -> None:
    """Copy a topic into one with more partitions, the order within keys kept, and move its groups.

    Without --switch it copies until it has caught up; producers and consumers go on. It can be stopped, and
    goes on where it was. With --switch it copies the rest and sets each group to the first record in each new
    partition that it has not read: nothing is lost, some records may be read again.

    Producers find their keys in the partitions they expect if --partitioner is theirs: murmur2_random for
    Kafka's own client, consistent_random for librdkafka (confluent-kafka and others), if they set no other.

    Examples:
    braid pipeline reshard orders --partitions 64
    braid pipeline reshard orders --partitions 64 --switch
    """
    if dry_run and not switch:
        raise UserMistake("--dry-run shows where --switch would put groups; add --switch, or leave it out")
    name = into or f"{topic}-p{partitions}"
    place = checkpoint or Path("checkpoints") / f"reshard-{topic}-{name}"
    settings = _checked(bootstrap, command_config, options, [topic])
    with spark_session("braid pipeline reshard", master, config) as spark:
        from braidmq.spark.rescue import reshard as resharding

        job = resharding.Reshard(bootstrap, topic, name, partitions, place.absolute(), settings, partitioner)
        made = resharding.prepare(job)
        _say(as_json, f"{'made' if made else 'going on with'} {name}, {partitions} partitions")
        copied = 0
        for step in resharding.copy(spark, job, until_still=switch):
            copied = step.copied
            _tell_stage(f"copied {step.copied:,}, {step.ahead:,} ahead")
        _say(as_json, f"copied {copied:,} records from {topic} into {name}")
        moves = []
        if switch:
            moves = resharding.switch(spark, job, dry_run, lambda note: _say(as_json, f"note: {note}"))
    if as_json:
        moved = switch and not dry_run
        print_json({"into": name, "copied": copied, "switched": moved, "groups": [*map(asdict, moves)]})
        return
    if switch:
        print_table(
            ("group", "not read yet#", "will read again#"),
            [(each.group, each.unread, each.again) for each in moves],
            "Groups that would go on" if dry_run else "Groups that go on",
        )
        if dry_run:
            print("no group was moved; without --dry-run they are")
        else:
            print(f"now start producers and consumers on {name}; {topic} is left as it is")
    else:
        print(f"next: stop the producers of {topic}; stop the consumers; run this again with --switch;")
        print(f"then start both on {name}. Until then run it again as often as you like.")


def redrive(
    dead_letters: Annotated[str, typer.Argument(metavar="DLQ", help="The topic of dead letters.")],
    to: Annotated[str, typer.Option("--to", metavar="TOPIC", help="Where they go.")],
    where: Annotated[
        str | None,
        typer.Option(metavar="SQL", help="Which: \"header['braid.reason'] LIKE '%timeout%'\"."),
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="At most this many, oldest first.")] = None,
    again: Annotated[bool, typer.Option("--again", help="Also those that were sent back before.")] = False,
    now: Annotated[bool, typer.Option("--now", help="With the present time instead of their own.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", "-n", help="Count, send nothing.")] = False,
    checkpoint: Checkpoint = None,
    options: ClientSettings = None,
    command_config: CommandConfig = None,
    master: Master = MASTER,
    config: SparkConfig = None,
    as_json: AsJson = False,
    bootstrap: Bootstrap = BOOTSTRAP,
) -> None:
    """Send dead letters back, all or those a condition chooses, each once however often it is run.

    They keep key, value, headers and time; the header braid.redriven says where each one lay. A condition may
    name key, value, headers, timestamp, topic, partition, offset, and header, a map of texts.

    Examples:
    braid pipeline redrive orders.dead --to orders --dry-run
    braid pipeline redrive orders.dead --to orders --where "header['braid.reason'] LIKE '%timeout%'"
    """
    place = checkpoint or Path("checkpoints") / f"redrive-{dead_letters}-{to}"
    settings = _checked(bootstrap, command_config, options, [dead_letters, to])
    with spark_session("braid pipeline redrive", master, config) as spark:
        from braidmq.spark.lake.lake import Lake
        from braidmq.spark.rescue import redrive as redriving

        journal = Lake(place)
        job = redriving.Redrive(bootstrap, dead_letters, to, journal, where, limit, again, now, settings)
        done = redriving.redrive(spark, job, dry_run)
    if as_json:
        print_json({**asdict(done), "sent": not dry_run})
        return
    if done.resumed:
        print(f"finished a run that had died: {done.resumed:,} records")
    print(f"{dead_letters} holds {done.there:,} dead letters, {done.before:,} of them sent back before")
    print(f"{'would send' if dry_run else 'sent'} {done.chosen:,} to {to}")


def _checked(
    bootstrap: str, command_config: Path | None, options: list[str] | None, topics: Iterable[str]
) -> dict[str, str]:
    """The client's options; UserMistake where with them a topic is not found."""
    with needs_spark():
        import pyspark.sql  # noqa: F401
    settings = client_options(command_config, options)
    with connected(bootstrap, settings) as cluster:
        check_topics(cluster, topics)
    return settings


def _is_topic(side: str) -> bool:
    """One side of an audit, if it is not a lake; what is wrong with a lake is told here."""
    with needs_spark():
        from braidmq.spark.lake.commits import LakeError
        from braidmq.spark.rescue.audit_inputs import topic_or_lake
    try:
        return topic_or_lake(side).lake is None
    except LakeError as error:
        raise UserMistake(str(error)) from None


def _say(as_json: bool, text: str) -> None:
    if not as_json:
        print(text, flush=True)


def _tell_stage(stage: str) -> None:
    if sys.stderr.isatty():
        print(f"{stage} …", file=sys.stderr)
