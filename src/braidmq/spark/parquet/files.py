"""Parquet straight from the tasks that read a topic: unchanged rows need not pass through the JVM.

A task writes what it reads, in the order of the topic, and reports its files. Only reported files are used:
files of failed or duplicate attempts stay where they were written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from braidmq.spark.errors import without_traceback
from braidmq.spark.source.columns import arrow_schema
from braidmq.spark.source.query import ReadQuery
from braidmq.spark.source.splits import ReadTask
from braidmq.spark.source.task import read_task

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROW_GROUP_BYTES = 32 * 1024 * 1024
REPEATING = ("key", "topic", "partition", "timestamp", "timestampType", "headers.list.element.key", "tag")
"""Columns worth a dictionary; values seldom repeat."""
SEARCHED = ("partition", "offset", "timestamp")
"""Columns with minimum and maximum in the footer, by which readers skip row groups."""


class WrittenFile(NamedTuple):
    """A file that a task has finished, by its path in the folder that the task writes to."""

    file: str
    rows: int


WRITTEN = pa.schema([pa.field("file", pa.string()), pa.field("rows", pa.int64())])


class Files(Protocol):
    """What a task writes to."""

    def add(self, rows: pa.RecordBatch) -> None: ...
    def close(self) -> list[WrittenFile]: ...


def written_by_tasks(
    spark: SparkSession,
    query: ReadQuery,
    columns: tuple[str, ...],
    planned: list[ReadTask],
    files_of: Callable[[int], Files],
) -> list[WrittenFile]:
    """Writes each task's rows to the files that its number gets, and returns those files."""
    numbers = spark.range(0, len(planned), 1, max(1, len(planned)))

    def run(numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in numbers:
            for number in batch.column(0).to_pylist():
                with without_traceback():
                    files = files_of(number)
                    for rows in read_task(query, columns, planned[number]):
                        files.add(rows)
                    written = files.close()
                yield pa.RecordBatch.from_pylist([each._asdict() for each in written], WRITTEN)

    found = numbers.mapInArrow(run, "file string, rows bigint").collect()
    return sorted(WrittenFile(row.file, row.rows) for row in found)


def parquet_writer(where: Path | pa.NativeFile, columns: tuple[str, ...], codec: str) -> pq.ParquetWriter:
    return pq.ParquetWriter(
        where,
        arrow_schema(columns),
        compression=codec,
        use_dictionary=[each for each in REPEATING if each.partition(".")[0] in columns],
        write_statistics=[each for each in SEARCHED if each in columns],
    )


class GroupedFile:
    """A Parquet file under construction; rows are collected until they make a row group."""

    def __init__(self, path: Path, columns: tuple[str, ...], codec: str) -> None:
        self.path = path
        self.rows = 0
        self._schema = arrow_schema(columns)
        self._writer = parquet_writer(path, columns, codec)
        self._collected: list[pa.RecordBatch] = []
        self._bytes = 0

    def add(self, rows: pa.RecordBatch) -> None:
        self.rows += rows.num_rows
        self._collected.append(rows)
        self._bytes += rows.nbytes
        if self._bytes >= ROW_GROUP_BYTES:
            self._write_group()

    def close(self) -> None:
        self._write_group()
        self._writer.close()

    def _write_group(self) -> None:
        if self._collected:
            self._writer.write_table(pa.Table.from_batches(self._collected, self._schema))
        self._collected, self._bytes = [], 0
