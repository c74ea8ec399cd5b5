"""`braid lake`: topics into Parquet, queries over it, and rows back into topics."""

from __future__ import annotations

import csv
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

from braidmq.cli.mistake import UserMistake
from braidmq.cli.moment import format_moment, parse_moment
from braidmq.cli.options import BOOTSTRAP, AsJson, Bootstrap, Yes, confirm_unless
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
    rows_of,
    spark_session,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from braidmq.spark.lake.archiver import Archive, ArchiveStep
    from braidmq.spark.lake.decode import Decoding
    from braidmq.spark.lake.replay import Selection
    from braidmq.spark.lake.table_formats import Target

app = typer.Typer(help="Archive topics as Parquet, query it, send it back.", no_args_is_help=True)
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


class Layout(StrEnum):
    TABLE = "table"
    CSV = "csv"
    JSON = "json"


Interval = Annotated[float, typer.Option("--interval", min=1, metavar="SECONDS", help="How often to look.")]
RowsPerCommit = Annotated[int, typer.Option(min=1, help="At most this many rows at once.")]
DecodeOption = Annotated[Decode | None, typer.Option("--decode", help="Fields of the value as columns.")]
Columns = Annotated[
    str | None,
    typer.Option(
        "--schema", metavar="SCHEMA", help="Of JSON: 'id BIGINT, name STRING'. Of Avro: a file.avsc."
    ),
]
RegistryId = Annotated[
    int | None,
    typer.Option(
        "--registry-id",
        min=1,
        metavar="N",
        help="Of avro-registry: which id --schema is; else the first.",
    ),
]
DateBy = Annotated[
    str, typer.Option(help="Which day a row lies under: timestamp, archived, or a decoded column.")
]
SkipLost = Annotated[
    bool, typer.Option("--skip-lost", help="Go on though retention was faster than the archive.")
]
Group = Annotated[
    str | None, typer.Option("--group", metavar="GROUP", help="Publish the position here, so that lag shows.")
]
TableFormat = Annotated[
    str, typer.Option("--format", help="parquet; iceberg, delta, … where the session has them.")
]
Checkpoint = Annotated[
    str | None, typer.Option("--checkpoint", metavar="DIR", help="Of a format other than parquet: its place.")
]


@app.command()
def archive(
    topics: Annotated[list[str], typer.Argument(metavar="TOPIC")],
    to: Annotated[str, typer.Option("--to", metavar="DIR", help="The lake; made if it is not there.")],
    once: Annotated[bool, typer.Option("--once", help="Archive what is there now, then end.")] = False,
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
    options: ClientSettings = None,
    command_config: CommandConfig = None,
    master: Master = MASTER,
    config: SparkConfig = None,
    as_json: AsJson = False,
    bootstrap: Bootstrap = BOOTSTRAP,
) -> None:
    """Archive topics as Parquet files by date, each record exactly once.

    It goes on where it stopped, however it stopped. Without --once it runs until Ctrl-C.

    Examples:
    braid lake archive orders --to archive/orders --once
    braid lake archive orders payments --to archive/shop --decode json --interval 300
    """
    if schema is not None and decode is None:
        raise UserMistake("--schema says how to decode; add --decode json")
    if registry_id is not None and decode is not Decode.AVRO_REGISTRY:
        raise UserMistake("--registry-id is for values with an id of a registry; add --decode avro-registry")
    settings = client_options(command_config, options)
    with connected(bootstrap, settings) as cluster:
        check_topics(cluster, topics)
    with spark_session("braid lake archive", master, config) as spark:
        from braidmq.spark.lake.archiver import Archive, follow
        from braidmq.spark.lake.archiver import archive as steps
        from braidmq.spark.lake.lake import Lake
        from braidmq.spark.lake.table_formats import Target

        job = Archive(
            bootstrap,
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


@app.command()
def query(
    folder: FolderOrTable,
    sql: Annotated[str, typer.Argument(metavar="SQL", help="The table is called lake.")],
    layout: Annotated[Layout, typer.Option("--format", help="How to print.")] = Layout.TABLE,
    limit: Annotated[int, typer.Option(min=1, help="Rows of a table; csv and json print all.")] = QUERY_ROWS,
    master: Master = MASTER,
    config: SparkConfig = None,
) -> None:
    """Query a lake with Spark SQL.

    The columns are those of a record (key, value, headers, timestamp, topic, partition, offset), decoded
    fields, and date. key and value are bytes: CAST(value AS STRING) makes text of them.

    Examples:
    braid lake query archive/orders "SELECT date, count(*) FROM lake GROUP BY date ORDER BY date"
    braid lake query archive/orders "SELECT * FROM lake WHERE date = '2026-11-15'" --format json
    """
    _check_lake(folder)
    with spark_session("braid lake query", master, config) as spark:
        from braidmq.spark.lake.reader import open_rows

        open_rows(spark, folder).createOrReplaceTempView("lake")
        _print_rows(spark.sql(sql), layout, limit)


Since = Annotated[
    str | None, typer.Option("--from", metavar="TIME", help="Records of then or later: 2026-11-15, 2h.")
]
Until = Annotated[str | None, typer.Option("--until", metavar="TIME", help="Records before then.")]
Keys = Annotated[str | None, typer.Option("--keys", metavar="K1,K2,…", help="Records of these keys.")]
KeysFrom = Annotated[
    Path | None,
    typer.Option("--keys-from", exists=True, dir_okay=False, help="Keys from a file, one a line."),
]
Where = Annotated[
    str | None, typer.Option("--where", metavar="SQL", help="A condition: \"headers[0].key = 'retry'\".")
]
FromTopics = Annotated[
    list[str] | None, typer.Option("--topic", "-t", help="Only what came from here; may be repeated.")
]
KeepPartitions = Annotated[
    bool, typer.Option("--keep-partitions", help="Into the partitions they came from, not by key.")
]
WriteId = Annotated[
    str | None,
    typer.Option(
        "--id", metavar="NAME", help="Names this reimport; done again after a crash, it sends once."
    ),
]
DryRun = Annotated[bool, typer.Option("--dry-run", "-n", help="Count, send nothing.")]


@app.command()
def reimport(
    folder: FolderOrTable,
    to: Annotated[str, typer.Option("--to", metavar="TOPIC", help="Where the records go.")],
    since: Since = None,
    until: Until = None,
    keys: Keys = None,
    keys_from: KeysFrom = None,
    where: Where = None,
    topic: FromTopics = None,
    keep_partitions: KeepPartitions = False,
    write_id: WriteId = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    options: ClientSettings = None,
    command_config: CommandConfig = None,
    master: Master = MASTER,
    config: SparkConfig = None,
    as_json: AsJson = False,
    bootstrap: Bootstrap = BOOTSTRAP,
) -> None:
    """Send archived records to a topic again, with their keys, headers and timestamps.

    Examples:
    braid lake reimport archive/orders --to orders --from 2026-11-14 --until 2026-11-15 --dry-run
    braid lake reimport archive/orders --to replay --keys table-7,table-9
    """
    settings = client_options(command_config, options)
    with connected(bootstrap, settings) as cluster:
        chosen = _selection(cluster.clock.wall_ms(), since, until, keys, keys_from, where, topic)
        _check_lake(folder)
        if not dry_run:
            check_topics(cluster, [to])
    with spark_session("braid lake reimport", master, config) as spark:
        from braidmq.spark.lake import replay as back

        rows = back.select(spark, folder, chosen)
        counts = back.counts(rows)
        total = sum(each.rows for each in counts)
        if not as_json:
            cells = [(each.topic, each.date, each.rows, each.value_bytes) for each in counts]
            print_table(("topic", "date", "records#", "bytes of values#"), cells)
        sent = bool(total) and not dry_run
        if sent:
            confirm_unless(yes or as_json, f"Send {total:,} records to {to}?")
            write_id = write_id or f"reimport-{uuid4().hex}"
            print(f"to go on after a crash, without sending twice: --id {write_id}", file=sys.stderr)
            sent = back.replay(rows, bootstrap, to, write_id, keep_partitions, settings)
    if as_json:
        print_json({"records": total, "sent": sent, "parts": [*map(asdict, counts)]})
    elif sent or dry_run or not total:
        print(f"{'would send' if dry_run else 'sent'} {total:,} records to {to}")
    else:
        print(f"sent nothing: {write_id} was sent before; to send these as well, give another --id")


@app.command()
def compact(
    folder: Folder,
    target_mb: Annotated[int, typer.Option(min=1, help="About this large should files become.")] = 128,
    keep_commits_days: Annotated[
        int, typer.Option(min=1, help="Commits that a snapshot sums up stay this long.")
    ] = 7,
    master: Master = MASTER,
    config: SparkConfig = None,
    as_json: AsJson = False,
) -> None:
    """Merge small files now; an archiver does so by itself when a day has many.

    Readers are not disturbed: replaced files are deleted an hour later.
    """
    with spark_session("braid lake compact", master, config) as spark:
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


@app.command()
def describe(folder: Folder, as_json: AsJson = False) -> None:
    """Show what a lake holds: days, files, columns, and up to which offsets topics are archived."""
    with needs_spark():
        from braidmq.spark.lake.commits import LakeError
        from braidmq.spark.lake.reader import describe as described

    try:
        found = described(folder)
    except LakeError as error:
        raise UserMistake(str(error)) from None
    if as_json:
        print_json(asdict(found))
        return
    print(f"{folder}: commit {found.version}, {found.rows:,} rows, {found.size_bytes:,} bytes")
    print_table(("date", "files#", "rows#", "bytes#"), [tuple(asdict(day).values()) for day in found.days])
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
    """A misspelt folder is told before Spark is started."""
    try:
        from braidmq.spark.lake.commits import LakeError
        from braidmq.spark.lake.reader import check_name
    except ImportError:
        # Without Spark there is another thing to say, and the session says it.
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


def _print_rows(asked: DataFrame, layout: Layout, limit: int) -> None:
    found, names = _with_times_as_text(asked), asked.columns
    if layout is Layout.TABLE:
        shown = found.limit(limit + 1).collect()
        print_table(names, [[str(cell) for cell in row] for row in rows_of(shown[:limit])])
        if len(shown) > limit:
            print(f"the first {limit:,} rows; --limit shows more, --format csv or json all", file=sys.stderr)
        return
    if layout is Layout.CSV:
        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerow(names)
        for row in found.toLocalIterator():
            writer.writerows(rows_of([row]))
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
            "say which records: --from, --until, --keys, --where or --topic (or --from 1970-01-01)"
        )
    from_ms = None if since is None else parse_moment(since, now_ms)
    until_ms = None if until is None else parse_moment(until, now_ms)
    if from_ms is not None and until_ms is not None and from_ms >= until_ms:
        raise UserMistake(f"--from {format_moment(from_ms)} is not before --until {format_moment(until_ms)}")
    return Selection(from_ms, until_ms, tuple(topics or ()), tuple(chosen), where)
