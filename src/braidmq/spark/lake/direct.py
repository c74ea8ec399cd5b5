"""Parquet straight from the tasks that read a topic: rows that nobody changes need no way through the JVM.

A task writes what it reads, a file for each date, in the order of the topic, and tells the names. Only names
that were told are taken: what a task that failed or came second has left in the staging folder goes with it.
"""

from __future__ import annotations

import datetime
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from braidmq.spark.batch_reader import plan_batch
from braidmq.spark.columns import arrow_schema
from braidmq.spark.filters import Pushed
from braidmq.spark.lake.schema import DATE, DAY_MICROSECONDS, LAST_DAY, RAW
from braidmq.spark.query import Query
from braidmq.spark.splits import Task, tasks
from braidmq.spark.task import read_task

COLUMNS = tuple(RAW.fieldNames())
ROWS_PER_FILE = 1_000_000
ROWS_PER_TASK_MIN = 100_000
ROW_GROUP_BYTES = 32 * 1024 * 1024
OPEN_FILES_MAX = 16
"""Dates a task has open at once; rows of more dates than that, mixed, make more files."""
CODEC = "zstd"
REPEATING = ["key", "topic", "partition", "timestamp", "timestampType", "headers.list.element.key"]
"""Columns worth a dictionary; one of values would only be given up again."""
SEARCHED = ["partition", "offset", "timestamp"]
"""Columns whose least and greatest stand in the footer, for readers to skip by."""
NO_DATE = -1
NO_DATE_FOLDER = "__HIVE_DEFAULT_PARTITION__"
EPOCH = datetime.date(1970, 1, 1)


@dataclass(frozen=True, slots=True)
class DirectWrite:
    """A range of topics to be written as it is; `day` (since 1970) overrides that of the timestamps."""

    spark: SparkSession
    query: Query
    rows: int
    day: int | None = None

    def stage(self, staging: Path) -> list[Path]:
        """Writes the files, laid out by date, and tells which."""
        rows_per_task = self._rows_per_task()
        splits = plan_batch(replace(self.query, split_records_max=rows_per_task), Pushed())
        planned = tasks(splits, alone=False, records_max=rows_per_task)
        if not planned:
            return []
        numbers = self.spark.range(0, len(planned), 1, len(planned))
        told = numbers.mapInArrow(_writer(self.query, planned, str(staging), self.day), "file string")
        return sorted(staging / row.file for row in told.collect())

    def _rows_per_task(self) -> int:
        share = -(-self.rows // self.spark.sparkContext.defaultParallelism)
        return min(ROWS_PER_FILE, max(ROWS_PER_TASK_MIN, share))


def _writer(
    query: Query, planned: list[Task], staging: str, day: int | None
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def run(numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in numbers:
            for number in batch.column(0).to_pylist():
                files = DatedFiles(Path(staging), f"{number:05d}-{uuid.uuid4().hex}", day)
                for rows in read_task(query, COLUMNS, planned[number]):
                    files.add(rows)
                yield pa.RecordBatch.from_arrays([pa.array(files.close(), pa.string())], ["file"])

    return run


class DatedFiles:
    """The files of one task, by date; `close` tells their names within the staging folder."""

    def __init__(self, staging: Path, stem: str, day: int | None = None) -> None:
        self._staging = staging
        self._stem = stem
        self._day = day
        self._open: dict[int, GroupedFile] = {}
        self._names: list[str] = []

    def add(self, rows: pa.RecordBatch) -> None:
        for day, part in [(self._day, rows)] if self._day is not None else by_day(rows):
            # The one used last goes to the end, so that the first is the one not used for longest.
            file = self._open.pop(day, None) or self._new(day)
            self._open[day] = file
            file.add(part)

    def close(self) -> list[str]:
        for file in self._open.values():
            file.close()
        self._open.clear()
        return self._names

    def _new(self, day: int) -> GroupedFile:
        if len(self._open) == OPEN_FILES_MAX:
            self._open.pop(next(iter(self._open))).close()
        folder = NO_DATE_FOLDER if day == NO_DATE else str(EPOCH + datetime.timedelta(days=day))
        name = f"{DATE}={folder}/{self._stem}-{len(self._names):04d}.parquet"
        path = self._staging / name
        path.parent.mkdir(parents=True, exist_ok=True)
        self._names.append(name)
        return GroupedFile(path)


class GroupedFile:
    """A Parquet file under construction; rows are collected until they make a row group."""

    def __init__(self, path: Path) -> None:
        self._writer = pq.ParquetWriter(
            path,
            arrow_schema(COLUMNS),
            compression=CODEC,
            use_dictionary=REPEATING,
            write_statistics=SEARCHED,
        )
        self._collected: list[pa.RecordBatch] = []
        self._bytes = 0

    def add(self, rows: pa.RecordBatch) -> None:
        self._collected.append(rows)
        self._bytes += rows.nbytes
        if self._bytes >= ROW_GROUP_BYTES:
            self._write_group()

    def close(self) -> None:
        self._write_group()
        self._writer.close()

    def _write_group(self) -> None:
        if self._collected:
            self._writer.write_table(pa.Table.from_batches(self._collected))
        self._collected, self._bytes = [], 0


def by_day(rows: pa.RecordBatch) -> Iterator[tuple[int, pa.RecordBatch]]:
    """The rows of each day (UTC, since 1970) in their order; those of wild timestamps are without a day."""
    microseconds = rows.column("timestamp").cast(pa.int64()).to_numpy()
    days = np.floor_divide(microseconds, DAY_MICROSECONDS)
    days[(days < 0) | (days > LAST_DAY)] = NO_DATE
    first = int(days[0])
    if (days == first).all():
        yield first, rows
        return
    for day in np.unique(days):
        yield int(day), rows.filter(pa.array(days == day))
