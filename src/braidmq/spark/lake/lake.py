"""A lake: rows of topics as Parquet, partitioned by date, with a log of commits (`commits.py`) beside them.

    lake = Lake("archive/orders")
    lake.read(spark).groupBy("date").count().show()

Rows keep everything a record has: key, value, headers, timestamp, and the topic, partition and offset it came
from. Columns may be added over time (decoded fields of the value); files written before show null there.

Files are written into a staging folder, synced, moved to their date, and then committed. Readers follow the
commits, so they never see half a batch. The driver and all executors must share the folder: a local disk with
a local master, a shared file system otherwise.
"""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlparse

import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from braidmq.platform.clock import Clock, SystemClock
from braidmq.platform.disk import RealDisk
from braidmq.spark.lake.commits import (
    FOLDER,
    Commit,
    CommitConflict,
    CommitLog,
    LakeError,
    LakeOperation,
    ParquetFile,
    Positions,
    Snapshot,
    TopicIds,
)
from braidmq.spark.lake.schema import DATE, RAW, dated, evolve, with_date, within

ROWS_PER_FILE_MAX = 5_000_000
CODEC = "zstd"
SORTED_BY = ("topic", "partition", "offset")
TIMESTAMPS = "spark.sql.parquet.outputTimestampType"
COMMIT_ATTEMPTS = 10
Stage = Callable[[Path], list[Path]]
"""Writes Parquet files into the given folder, below `date=…`, and returns them."""


class Lake:
    """One lake folder. The object holds only the path: every call sees the newest commit."""

    def __init__(self, path: str | Path, clock: Clock | None = None) -> None:
        self.path = _local(str(path))
        self.clock = clock or SystemClock()
        self._log = CommitLog(self.path)
        self._disk = RealDisk()

    @property
    def exists(self) -> bool:
        return self._log.exists

    def snapshot(self) -> Snapshot:
        """The files, positions and schema of the newest commit; LakeError if there is no lake."""
        if not self.exists:
            raise LakeError(f"{self.path} is not a lake; braid lake archive TOPIC --to-dir DIR creates one")
        return self._log.snapshot()

    def create(self, schema: StructType = RAW) -> Snapshot:
        """The table; created with these columns if it does not exist."""
        snapshot = self._log.snapshot()
        if snapshot.version >= 0:
            return snapshot
        # A writer that was killed early may have left our own folder, empty.
        if self.path.exists() and any(entry.name != FOLDER for entry in self.path.iterdir()):
            raise LakeError(f"{self.path} holds files and is not a lake; choose an empty or a new folder")
        first = Commit(LakeOperation.CREATE, self.clock.wall_ms(), schema=with_date(schema).jsonValue())
        try:
            return self._log.commit(snapshot, first)
        except CommitConflict:
            return self._log.snapshot()

    def schema(self, snapshot: Snapshot | None = None) -> StructType:
        """Every column that any file may have, the date last."""
        stored = (snapshot or self.snapshot()).schema
        return StructType.fromJson(stored) if stored else with_date(RAW)

    # Reading

    def read(
        self,
        spark: SparkSession,
        from_ms: int | None = None,
        until_ms: int | None = None,
        snapshot: Snapshot | None = None,
    ) -> DataFrame:
        """The rows of a snapshot, of a time range if given (`until_ms` excluded); other files are skipped."""
        snapshot = snapshot or self.snapshot()
        files = [file for file in snapshot.files.values() if _overlaps(file, from_ms, until_ms)]
        return within(self.frame(spark, files, self.schema(snapshot)), from_ms, until_ms)

    def frame(self, spark: SparkSession, files: Sequence[ParquetFile], schema: StructType) -> DataFrame:
        """The rows of these files, with null in columns that were added later."""
        if not files:
            return spark.createDataFrame([], schema)
        paths = [str(self.path / file.path) for file in files]
        return spark.read.schema(schema).option("basePath", str(self.path)).parquet(*paths)

    # Writing

    def append(
        self,
        rows: DataFrame,
        *,
        onto: Snapshot | None = None,
        writer: str | None = None,
        batch: int | None = None,
        reached: Positions | None = None,
        topic_ids: TopicIds | None = None,
        alone: str | None = None,
        files_max: int | None = None,
    ) -> Snapshot:
        """Adds rows as one commit and returns the table after it.

        `writer` and `batch` name a unit of work, such as a streaming query and its batch: repeating it
        changes nothing. `reached` are the offsets up to which topics are archived now, continuing those of
        `onto`; if another archiver has moved them meanwhile, nothing is added. `topic_ids` are the ids of the
        topics of the rows. With `alone`, nothing is added either if a unit of work with that prefix was added
        after `onto`.
        """
        snapshot = onto or self.create(rows.schema)
        if _is_done(snapshot, writer, batch):
            return snapshot
        evolved = self._evolved(snapshot, rows.schema)
        commit = Commit(
            LakeOperation.APPEND if reached is None else LakeOperation.ARCHIVE,
            self.clock.wall_ms(),
            added=tuple(self.write(dated(rows), files_max)),
            positions=reached or {},
            topic_ids=topic_ids or {},
            writer=writer,
            batch=batch,
            schema=evolved,
        )
        return self._add(snapshot, commit, alone)

    def append_staged(
        self, stage: Stage, *, onto: Snapshot, reached: Positions, topic_ids: TopicIds | None = None
    ) -> Snapshot:
        """Adds files of raw rows that `stage` writes into the given folder; otherwise like `append`."""
        evolved = self._evolved(onto, RAW)
        files = tuple(self._staged(stage))
        commit = Commit(
            LakeOperation.ARCHIVE,
            self.clock.wall_ms(),
            added=files,
            positions=reached,
            topic_ids=topic_ids or {},
            schema=evolved,
        )
        return self._add(onto, commit)

    def _evolved(self, snapshot: Snapshot, rows: StructType) -> dict[str, Any] | None:
        """The new schema of the table if these rows change it; LakeError if they do not fit."""
        schema = self.schema(snapshot)
        evolved = evolve(schema, rows)
        return evolved.jsonValue() if evolved != schema else None

    def mark(self, writer: str, batch: int = 0) -> Snapshot:
        """Records that a unit of work is done, without rows."""
        return self._add(
            self.create(), Commit(LakeOperation.APPEND, self.clock.wall_ms(), writer=writer, batch=batch)
        )

    def _add(self, snapshot: Snapshot, commit: Commit, alone: str | None = None) -> Snapshot:
        return self.commit(snapshot, commit, lambda now: self._still_fits(snapshot, now, commit, alone))

    def _still_fits(
        self, before: Snapshot, now: Snapshot, commit: Commit, alone: str | None
    ) -> Commit | None:
        """The commit for a table that others changed meanwhile; None if its work is already done."""
        if _is_done(now, commit.writer, commit.batch):
            return None
        if alone and any(name.startswith(alone) for name in now.batches.keys() - before.batches.keys()):
            raise CommitConflict(
                f"{self.path}: another run began meanwhile; this one changed nothing; run it again"
            )
        for topic, partitions in commit.positions.items():
            for partition in partitions:
                was = before.positions.get(topic, {}).get(partition)
                if was != now.positions.get(topic, {}).get(partition):
                    raise CommitConflict(
                        f"{self.path}: another archiver also archives {topic}-{partition};"
                        " stop one of the two (nothing was written twice)"
                    )
        if commit.schema is not None:
            ours = StructType.fromJson(commit.schema)
            return replace(commit, schema=evolve(self.schema(now), ours).jsonValue())
        return commit

    def commit(
        self, snapshot: Snapshot, commit: Commit, again: Callable[[Snapshot], Commit | None]
    ) -> Snapshot:
        """Commits; if others committed first, asks `again` what to commit after theirs."""
        wanted: Commit | None = commit
        for _ in range(COMMIT_ATTEMPTS):
            if wanted is None:
                return snapshot
            try:
                return self._log.commit(snapshot, wanted)
            except CommitConflict:
                snapshot = self._log.snapshot()
                wanted = again(snapshot)
        raise CommitConflict(f"{self.path}: too many other writers; run it again")

    def forget_old_commits(self, kept_ms: int) -> int:
        return self._log.forget_before_last_snapshot(self.clock.wall_ms() - kept_ms)

    def write(self, rows: DataFrame, files_max: int | None = None) -> list[ParquetFile]:
        """Writes rows as files of their date, synced; no reader sees them before a commit."""
        return self._staged(lambda staging: self._stage(rows, files_max, staging))

    def _staged(self, stage: Stage) -> list[ParquetFile]:
        staging = self.path / FOLDER / "staging" / uuid.uuid4().hex
        try:
            return self._move_in(staging.name, stage(staging))
        finally:
            shutil.rmtree(staging, ignore_errors=True)

    def _stage(self, rows: DataFrame, files_max: int | None, staging: Path) -> list[Path]:
        order = [name for name in SORTED_BY if name in rows.columns]
        if files_max is not None:
            rows = rows.repartition(files_max, DATE, *order[:-1])
        rows = rows.sortWithinPartitions(DATE, *order)
        with _setting(rows.sparkSession, TIMESTAMPS, "TIMESTAMP_MICROS"):
            writer = rows.write.partitionBy(DATE).option("compression", CODEC)
            writer.option("maxRecordsPerFile", ROWS_PER_FILE_MAX).parquet(str(staging))
        return sorted(staging.glob(f"{DATE}=*/*.parquet"))

    def _move_in(self, stem: str, staged: list[Path]) -> list[ParquetFile]:
        files: list[ParquetFile] = []
        folders = {self.path}
        for written in staged:
            self._disk.sync_file(written)
            folder = self.path / written.parent.name
            folder.mkdir(exist_ok=True)
            folders.add(folder)
            target = folder / f"{stem}-{len(files):04d}.parquet"
            files.append(self._described(written, f"{folder.name}/{target.name}"))
            written.rename(target)
        for each in folders:
            self._disk.sync_directory(each)
        return files

    def _described(self, written: Path, path: str) -> ParquetFile:
        """Describes a Parquet file from its footer."""
        footer = pq.read_metadata(written)
        first_ms, last_ms = _time_range_ms(footer)
        return ParquetFile(path, footer.num_rows, written.stat().st_size, first_ms, last_ms)


def _time_range_ms(footer: pq.FileMetaData) -> tuple[int | None, int | None]:
    """The earliest and the latest timestamp of a file, if its footer has them."""
    columns = {footer.schema.column(number).path: number for number in range(footer.num_columns)}
    number = columns.get("timestamp")
    # In a lake of a pipeline a column of that name may have any type.
    if number is None or footer.schema.column(number).logical_type.type != "TIMESTAMP":
        return None, None
    found = []
    for index in range(footer.num_row_groups):
        times = footer.row_group(index).column(number).statistics
        if times is None or not times.has_min_max:
            return None, None
        # Raw, in microseconds: a datetime cannot hold every timestamp.
        found.append((times.min_raw // 1000, times.max_raw // 1000))
    if not found:
        return None, None
    return min(first for first, _ in found), max(last for _, last in found)


def _overlaps(file: ParquetFile, from_ms: int | None, until_ms: int | None) -> bool:
    if file.first_ms is None or file.last_ms is None:
        return True
    return (from_ms is None or file.last_ms >= from_ms) and (until_ms is None or file.first_ms < until_ms)


def _is_done(snapshot: Snapshot, writer: str | None, batch: int | None) -> bool:
    return writer is not None and batch is not None and snapshot.batches.get(writer, -1) >= batch


def _local(path: str) -> Path:
    """The folder of a path or a file: URL."""
    parsed = urlparse(path)
    if parsed.scheme == "file":
        return Path(unquote(parsed.path))
    if "://" in path:
        raise LakeError(
            f"{path}: a lake of plain Parquet needs a file system with hard links, local or mounted;"
            " for object stores and HDFS use --format iceberg or --format delta"
        )
    return Path(path).absolute()


@contextmanager
def _setting(spark: SparkSession, name: str, wanted: str) -> Iterator[None]:
    """Changes a setting of the session for a block: the type of Parquet's timestamps is no write option."""
    before = spark.conf.get(name, None)
    spark.conf.set(name, wanted)
    try:
        yield
    finally:
        if before is None:
            spark.conf.unset(name)
        else:
            spark.conf.set(name, before)
