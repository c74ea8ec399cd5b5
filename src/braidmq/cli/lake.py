"""`braid lake`: archive topics as Parquet, query them, and replay rows into topics."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from uuid import uuid4

import typer

from braidmq.cli.broker import Broker
from braidmq.cli.command import command
from braidmq.cli.mistake import UserMistake
from braidmq.cli.moment import format_moment, parse_moment
from braidmq.cli.options import DryRun, From, Until, Yes, confirm, require_terminal_or
from braidmq.cli.output import AsJson, Form, Output, print_csv, print_json, print_table, text_of
from braidmq.cli.spark import Spark, check_topics, connected, needs_spark, rows_of, spark_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from braidmq.spark.lake.archiver import Archive, ArchiveStep
    from braidmq.spark.lake.decode import Decoding
    from braidmq.spark.lake.replay import Selection
    from braidmq.spark.lake.table_formats import Target

app = typer.Typer(
    help="Archive topics as Parquet, query the archive, replay it into topics.", no_args_is_help=True
)
PARQUET = "parquet"
QUERY_ROWS = 1000
DAY_MS = 86_400_000

Folder = Annotated[str, typer.Argument(metavar="DIR", help="A folder written by braid lake archive.")]
FolderOrTable = Annotated[
    str,
    typer.Argument(metavar="DIR|TABLE", help="What braid lake archive wrote: a folder, or a table's name."),
]


class Decode(StrEnum):
    JSON = "json"
    AVRO = "avro"
    AVRO_REGISTRY = "avro-registry"


Interval = Annotated[
    float, typer.Option("--interval", min=1, metavar="SECONDS", help="Time between two commits.")
]
RowsPerCommit = Annotated[int, typer.Option(min=1, help="At most this many rows in a commit.")]
DecodeOption = Annotated[
    Decode | None, typer.Option("--decode", help="Decode values; their fields become columns.")
]
Columns = Annotated[
    str | None,
    typer.Option("--schema", metavar="SCHEMA", help="For JSON 'id BIGINT, name STRING', for Avro FILE.avsc."),
]
RegistryId = Annotated[
    int | None,
    typer.Option(
        "--registry-id",
        min=1,
        metavar="N",
        help="With avro-registry: the id of --schema. Default: the first id seen.",
    ),
]
DateBy = Annotated[
    str, typer.Option(help="What a row's date comes from: timestamp, archived, or a decoded column.")
]
SkipLost = Annotated[
    bool, typer.Option("--skip-lost", help="Continue if retention deleted records before they were archived.")
]
Group = Annotated[
    str | None, typer.Option("--group", metavar="GROUP", help="Commit offsets to this group, to show lag.")
]
TableFormat = Annotated[
    str,
    typer.Option(
        "--format", metavar="FORMAT", help="parquet; or iceberg, delta, … if the Spark session has it."
    ),
]
Checkpoint = Annotated[
    str | None, typer.Option("--checkpoint", metavar="DIR", help="Required for formats other than parquet.")
]


@command(
    app,
    examples=(
        "braid lake archive orders --to-dir archive/orders --once",
        "braid lake archive orders payments --to-dir archive/shop --decode json --interval 300",
    ),
)
def archive(
    broker: Broker,
    runs_on: Spark,
    topics: Annotated[list[str], typer.Argument(metavar="TOPIC")],
    to: Annotated[
        str, typer.Option("--to-dir", metavar="DIR", help="The lake; created if missing. Or a table's name.")
    ],
    once: Annotated[bool, typer.Option("--once", help="Archive what is there now, then stop.")] = False,
    interval_s: Interval = 60,
    rows_per_commit: RowsPerCommit = 2_000_000,
    decode: DecodeOption = None,
    schema: Columns = None,
    registry_id: RegistryId = None,
    date_by: DateBy = "timestamp",
    skip_lost: SkipLost = False,
    group: Group = None,
    layout: TableFormat = PARQUET,
    checkpoint: Checkpoint = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print each commit as a line of JSON.")] = False,
) -> None:
    """Archive topics as Parquet files by date, each record exactly once.

    It continues where it stopped, even after a crash. Without --once it runs until Ctrl-C.
    """
    if schema is not None and decode is None:
        raise UserMistake("--schema needs --decode; add --decode json")
    if registry_id is not None and decode is not Decode.AVRO_REGISTRY:
        raise UserMistake("--registry-id needs --decode avro-registry")
    settings = broker.settings()
    with connected(broker, settings) as cluster:
        check_topics(cluster, topics)
    with spark_session("braid lake archive", runs_on) as spark:
        from braidmq.spark.lake.archiver import Archive, follow
        from braidmq.spark.lake.archiver import archive as steps
        from braidmq.spark.lake.lake import Lake
        from braidmq.spark.lake.table_formats import Target

        job = Archive(
            broker.bootstrap,
            tuple(dict.fromkeys(topics)),
            rows_per_commit=rows_per_commit,
            date_by=date_by,
            decode=_decoding(spark, decode, schema, registry_id),
            skip_lost=skip_lost,
            group=group,
            client_options=settings,
        )
        if layout != PARQUET:
            target = Target(layout, to, checkpoint)
            _archive_elsewhere(spark, job, target, None if once else interval_s, as_json)
            return
        lake = Lake(to)
        made = steps(spark, lake, job) if once else follow(spark, lake, job, interval_s)
        _show_steps(made, to, as_json)


@command(
    app,
    examples=(
        'braid lake query archive/orders "SELECT date, count(*) FROM lake GROUP BY date ORDER BY date"',
        "braid lake query archive/orders \"SELECT * FROM lake WHERE date = '2026-11-15'\" --output json",
    ),
)
def query(
    output: Output,
    runs_on: Spark,
    folder: FolderOrTable,
    sql: Annotated[str, typer.Argument(metavar="SQL", help="A query of the table lake.")],
    limit: Annotated[int, typer.Option(min=1, help="Rows of a table; JSON and CSV print all.")] = QUERY_ROWS,
) -> None:
    """Query a lake with Spark SQL.

    The columns are those of a record (key, value, headers, timestamp, topic, partition, offset), decoded
    fields, and date. key and value are bytes; CAST(value AS STRING) makes them text. JSON has a row per line.
    """
    _check_lake(folder)
    with spark_session("braid lake query", runs_on) as spark:
        from braidmq.spark.lake.reader import open_rows

        open_rows(spark, folder).createOrReplaceTempView("lake")
        _print_rows(spark.sql(sql), output.form, limit)


Keys = Annotated[str | None, typer.Option("--keys", metavar="K1,K2,…", help="Only these keys.")]
KeysFrom = Annotated[
    Path | None,
    typer.Option(
        "--keys-from", exists=True, dir_okay=False, help="Only the keys in this file, one per line."
    ),
]
Where = Annotated[
    str | None, typer.Option("--where", metavar="SQL", help="Only rows that match: \"value LIKE '%retry%'\".")
]
FromTopics = Annotated[
    list[str] | None,
    typer.Option("--topic", "-t", metavar="TOPIC", help="Only records of this topic. May repeat."),
]
KeepPartitions = Annotated[
    bool, typer.Option("--keep-partitions", help="Write to the original partitions instead of by key.")
]
ReplayId = Annotated[
    str | None,
    typer.Option(
        "--id", metavar="NAME", help="Name of this replay; run again with it to finish, not repeat."
    ),
]


@command(
    app,
    examples=(
        "braid lake replay archive/orders --to-topic orders --from 2026-11-14 --until 2026-11-15 --dry-run",
        "braid lake replay archive/orders --to-topic again --keys table-7,table-9",
    ),
)
def replay(
    broker: Broker,
    output: Output,
    runs_on: Spark,
    folder: FolderOrTable,
    to: Annotated[str, typer.Option("--to-topic", metavar="TOPIC", help="The topic to write to.")],
    since: From = None,
    until: Until = None,
    keys: Keys = None,
    keys_from: KeysFrom = None,
    where: Where = None,
    topic: FromTopics = None,
    keep_partitions: KeepPartitions = False,
    replay_id: ReplayId = None,
    dry_run: DryRun = False,
    yes: Yes = False,
) -> None:
    """Send archived records to a topic again, with their keys, headers and timestamps.

    Shows what it will send, then asks.
    """
    if not dry_run:
        require_terminal_or(yes)
    settings = broker.settings()
    with connected(broker, settings) as cluster:
        chosen = _selection(cluster.clock.wall_ms(), since, until, keys, keys_from, where, topic)
        _check_lake(folder)
        if not dry_run:
            check_topics(cluster, [to])
    columns = ("topic", "date", "records#", "bytes of values#")
    with spark_session("braid lake replay", runs_on) as spark:
        from braidmq.spark.lake import replay as back

        rows = back.select(spark, folder, chosen)
        counts = back.counts(rows)
        cells = [(each.topic, each.date, each.rows, each.value_bytes) for each in counts]
        total = sum(each.rows for each in counts)
        if output.is_table:
            print_table(columns, cells)
        sent = bool(total) and not dry_run
        if sent:
            confirm(yes, f"Send {total:,} records to {to}?")
            replay_id = replay_id or f"replay-{uuid4().hex}"
            print(f"if this is interrupted, finish it with --id {replay_id}", file=sys.stderr)
            sent = back.replay(rows, broker.bootstrap, to, replay_id, keep_partitions, settings)
    if output.printed({"records": total, "sent": sent, "parts": [*map(asdict, counts)]}, columns, cells):
        return
    if sent or dry_run or not total:
        print(f"{'would send' if dry_run else 'sent'} {total:,} records to {to}")
    else:
        print(f"sent nothing: replay {replay_id} was already sent; use another --id to send it again")


@command(app, examples=("braid lake compact archive/orders",))
def compact(
    runs_on: Spark,
    folder: Folder,
    target_mb: Annotated[int, typer.Option(min=1, help="Size of merged files, about.")] = 128,
    keep_commits_days: Annotated[
        int, typer.Option(min=1, help="Keep commits that a snapshot includes for this long.")
    ] = 7,
    as_json: AsJson = False,
) -> None:
    """Merge small files now. An archiver does this by itself when a day has many files.

    No row is deleted. Replaced files are deleted an hour later, so running queries are not affected.
    """
    with spark_session("braid lake compact", runs_on) as spark:
        from braidmq.spark.lake import compaction
        from braidmq.spark.lake.lake import Lake

        lake = Lake(folder)
        done = compaction.compact(lake, spark, target_mb * 1024 * 1024)
        swept = compaction.sweep(lake, commits_kept_ms=keep_commits_days * DAY_MS)
    found = {"merged": done.files_before, "into": done.files_after, "rows": done.rows, "deleted": swept}
    if as_json:
        print_json(found)
    else:
        print(f"merged {done.files_before:,} files into {done.files_after:,}; deleted {swept:,} old files")


@command(app, examples=("braid lake describe archive/orders",))
def describe(output: Output, folder: Folder) -> None:
    """Show a lake's days, files, columns, and the archived offsets of its topics. CSV has the days."""
    with needs_spark():
        from braidmq.spark.lake.commits import LakeError
        from braidmq.spark.lake.reader import describe as described

    try:
        found = described(folder)
    except LakeError as error:
        raise UserMistake(str(error)) from None
    columns = ("date", "files#", "rows#", "bytes#")
    days = [tuple(asdict(day).values()) for day in found.days]
    if output.printed(asdict(found), columns, days):
        return
    print(f"{folder}: commit {found.version}, {found.rows:,} rows, {found.size_bytes:,} bytes")
    print_table(columns, days)
    print_table(("topic", "partition#", "archived up to#"), found.positions)
    print(f"columns: {', '.join(found.columns)}")


def _decoding(
    spark: SparkSession, decode: Decode | None, schema: str | None, registry_id: int | None
) -> Decoding | None:
    from braidmq.spark.avro import AvroSchema, Framing
    from braidmq.spark.lake.decode import Avro, Json, fields_of

    if decode is None:
        return None
    if decode is Decode.JSON:
        return Json(None if schema is None else fields_of(spark, schema))
    if schema is None or not Path(schema).is_file():
        raise UserMistake(f"--decode {decode.value} needs a file with the schema: --schema order.avsc")
    framing = Framing.REGISTRY if decode is Decode.AVRO_REGISTRY else Framing.PLAIN
    return Avro(AvroSchema(Path(schema).read_text(encoding="utf-8"), framing, registry_id))


def _check_lake(folder: str) -> None:
    """UserMistake for a misspelt folder, before Spark starts."""
    try:
        from braidmq.spark.lake.commits import LakeError
        from braidmq.spark.lake.reader import check_name
    except ImportError:
        # Without Spark there is a more important error, which the session raises.
        return
    try:
        check_name(folder)
    except LakeError as error:
        raise UserMistake(str(error)) from None


def _archive_elsewhere(
    spark: SparkSession, job: Archive, target: Target, every_s: float | None, as_json: bool
) -> None:
    from braidmq.spark.lake.table_formats import start

    query = start(spark, job, target, every_s)
    try:
        query.awaitTermination()
    except KeyboardInterrupt:
        # The table holds whole batches, and the checkpoint says which.
        pass
    finally:
        query.stop()
    if as_json:
        print_json({"topics": job.topics, "to": target.to, "format": target.format})
    else:
        print(f"archived {', '.join(job.topics)} into {target.to}")


def _show_steps(steps: Iterator[ArchiveStep] | Iterator[ArchiveStep | None], to: str, as_json: bool) -> None:
    rows = 0
    try:
        with _progress(not as_json) as show:
            for step in steps:
                if step is None:
                    continue
                rows += step.rows
                if as_json:
                    print_json(asdict(step))
                    sys.stdout.flush()
                else:
                    show(step, rows)
    except KeyboardInterrupt:
        # Between two commits or in the middle of one: the lake is whole either way.
        pass
    if not as_json:
        print(f"archived {rows:,} rows into {to}")


@contextmanager
def _progress(wanted: bool) -> Iterator[Callable[[ArchiveStep, int], None]]:
    """A bar on a terminal, a line for each commit elsewhere."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    if not wanted or not console.is_terminal:
        yield _step_line
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console) as bar:
        task = bar.add_task("archiving", total=None)

        def show(step: ArchiveStep, rows: int) -> None:
            bar.update(task, completed=rows, total=rows + step.ahead, description=f"commit {step.version}")

        yield show


def _step_line(step: ArchiveStep, rows: int) -> None:
    print(f"commit {step.version}: {rows:,} rows so far, {step.ahead:,} offsets ahead", file=sys.stderr)


def _print_rows(asked: DataFrame, form: Form, limit: int) -> None:
    found, names = _with_times_as_text(asked), asked.columns
    if form is Form.TABLE:
        shown = found.limit(limit + 1).collect()
        print_table(names, [[str(cell) for cell in row] for row in rows_of(shown[:limit])])
        if len(shown) > limit:
            print(f"first {limit:,} rows; --limit N shows more, --output csv or json all", file=sys.stderr)
        return
    if form is Form.CSV:
        print_csv(names, (rows_of([row])[0] for row in found.toLocalIterator()))
        return
    for row in found.toLocalIterator():
        cells = row.asDict(recursive=True).values()
        print(json.dumps(dict(zip(names, cells, strict=True)), ensure_ascii=False, default=_plain))


def _with_times_as_text(asked: DataFrame) -> DataFrame:
    """As Spark writes them: Python has none past the year 9999. Columns get numbers, as names may repeat."""
    from pyspark.sql.types import TimestampType

    numbered = asked.toDF(*(str(number) for number in range(len(asked.columns))))
    kinds = [field.dataType for field in asked.schema.fields]
    columns = zip((numbered[name] for name in numbered.columns), kinds, strict=True)
    return numbered.select(
        *(column.cast("string") if isinstance(kind, TimestampType) else column for column, kind in columns)
    )


def _plain(value: object) -> str | None:
    """What JSON has no type for."""
    return text_of(bytes(value)) if isinstance(value, bytes | bytearray) else str(value)


def _selection(
    now_ms: int,
    since: str | None,
    until: str | None,
    keys: str | None,
    keys_from: Path | None,
    where: str | None,
    topics: list[str] | None,
) -> Selection:
    with needs_spark():
        from braidmq.spark.lake.replay import Selection

    chosen = [each.encode() for each in (keys or "").split(",") if each]
    if keys_from is not None:
        chosen += [line for line in keys_from.read_bytes().splitlines() if line]
    if not any((since, until, chosen, where, topics)):
        raise UserMistake(
            "choose records with --from, --until, --keys, --where or --topic (all: --from 1970-01-01)"
        )
    from_ms = None if since is None else parse_moment(since, now_ms)
    until_ms = None if until is None else parse_moment(until, now_ms)
    if from_ms is not None and until_ms is not None and from_ms >= until_ms:
        raise UserMistake(f"--from {format_moment(from_ms)} is not before --until {format_moment(until_ms)}")
    return Selection(from_ms, until_ms, tuple(topics or ()), tuple(chosen), where)
