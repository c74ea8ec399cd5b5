"""Raw records of topics as files of a lake, written by the tasks that read them, one file for each date."""

from __future__ import annotations

import datetime
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyspark.sql import SparkSession

from braidmq.spark.lake.schema import DATE, DAY_MICROSECONDS, LAST_DAY, RAW
from braidmq.spark.parquet.files import GroupedFile, WrittenFile, written_by_tasks
from braidmq.spark.source.batch_reader import plan_batch
from braidmq.spark.source.filters import Pushed
from braidmq.spark.source.query import ReadQuery
from braidmq.spark.source.splits import tasks

COLUMNS = tuple(RAW.fieldNames())
ROWS_PER_FILE = 1_000_000
ROWS_PER_TASK_MIN = 100_000
OPEN_FILES_MAX = 16
"""Open dates of a task; rows of more dates, mixed, make more files."""
CODEC = "zstd"
NO_DATE = -1
NO_DATE_FOLDER = "__HIVE_DEFAULT_PARTITION__"
EPOCH = datetime.date(1970, 1, 1)


@dataclass(frozen=True, slots=True)
class DirectWrite:
    """A range of topics to write as it is; `day` (since 1970) overrides that of the timestamps."""

    spark: SparkSession
    query: ReadQuery
    rows: int
    day: int | None = None

    def stage(self, staging: Path) -> list[Path]:
        """Writes the files by date, and returns them."""
        rows_per_task = self._rows_per_task()
        splits = plan_batch(replace(self.query, split_records_max=rows_per_task), Pushed())
        planned = tasks(splits, alone=False, records_max=rows_per_task)
        if not planned:
            return []
        day = self.day

        def files_of(number: int) -> DatedFiles:
            return DatedFiles(staging, f"{number:05d}-{uuid.uuid4().hex}", day)

        written = written_by_tasks(self.spark, self.query, COLUMNS, planned, files_of)
        return [staging / each.file for each in written]

    def _rows_per_task(self) -> int:
        share = -(-self.rows // self.spark.sparkContext.defaultParallelism)
        return min(ROWS_PER_FILE, max(ROWS_PER_TASK_MIN, share))


class DatedFiles:
    """The files of one task by date; `close` returns their names in the staging folder."""

    def __init__(self, staging: Path, stem: str, day: int | None = None) -> None:
        self._staging = staging
        self._stem = stem
        self._day = day
        self._open: dict[int, GroupedFile] = {}
        self._written: list[WrittenFile] = []

    def add(self, rows: pa.RecordBatch) -> None:
        for day, part in [(self._day, rows)] if self._day is not None else by_day(rows):
            # Moved to the end, so that the first is the least recently used.
            file = self._open.pop(day, None) or self._new(day)
            self._open[day] = file
            file.add(part)

    def close(self) -> list[WrittenFile]:
        while self._open:
            self._close_first()
        return self._written

    def _new(self, day: int) -> GroupedFile:
        if len(self._open) == OPEN_FILES_MAX:
            self._close_first()
        folder = NO_DATE_FOLDER if day == NO_DATE else str(EPOCH + datetime.timedelta(days=day))
        number = len(self._written) + len(self._open)
        path = self._staging / f"{DATE}={folder}" / f"{self._stem}-{number:04d}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        return GroupedFile(path, COLUMNS, CODEC)

    def _close_first(self) -> None:
        file = self._open.pop(next(iter(self._open)))
        file.close()
        self._written.append(WrittenFile(str(file.path.relative_to(self._staging)), file.rows))


def by_day(rows: pa.RecordBatch) -> Iterator[tuple[int, pa.RecordBatch]]:
    """The rows by day (UTC, since 1970), in order; rows with timestamps beyond the calendar have none."""
    microseconds = rows.column("timestamp").cast(pa.int64()).to_numpy()
    days = np.floor_divide(microseconds, DAY_MICROSECONDS)
    days[(days < 0) | (days > LAST_DAY)] = NO_DATE
    first = int(days[0])
    if (days == first).all():
        yield first, rows
        return
    for day in np.unique(days):
        yield int(day), rows.filter(pa.array(days == day))
