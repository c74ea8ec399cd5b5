"""What is left of a Spark read when nothing is read: the floor under every source that is written in Python.

The same plan, the same tasks and the same rows as `format("braid")`, but each task reads only its first Arrow
batches and hands them to Spark over and over; a few of them, so that a value does not come again too soon.
What that takes is Spark's own: a socket, Arrow, rows, the query.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import closing
from itertools import cycle, islice

import pyarrow as pa
from pyspark import cloudpickle
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from braidmq.spark.batch_reader import BatchReader
from braidmq.spark.source import BraidSource
from braidmq.spark.splits import Split, Task
from braidmq.spark.task import read_split

HELD = 4


class FloorSource(BraidSource):
    """Topics that are hardly read."""

    @classmethod
    def name(cls) -> str:
        return "floor"

    def reader(self, schema: StructType) -> DataSourceReader:
        reads = super().reader(schema)
        assert isinstance(reads, BatchReader)
        return FloorReader(reads.query, reads.columns)


class FloorReader(BatchReader):
    """As many rows as there are, and all of them the first ones."""

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if isinstance(partition, Task):
            for split in partition.splits:
                yield from self._repeated(split)

    def _repeated(self, split: Split) -> Iterator[pa.RecordBatch]:
        with closing(read_split(self.query, self.columns, split)) as batches:
            first = list(islice(batches, HELD))
        left = split.end - split.start
        for batch in cycle(first):
            yield batch.slice(0, left)
            left -= batch.num_rows
            if left <= 0:
                return


def register(spark: SparkSession) -> None:
    """`format("floor")`; workers cannot import this file, so it travels with what they are told to run."""
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    spark.dataSource.register(FloorSource)
