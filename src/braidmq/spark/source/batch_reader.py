"""Batch reads: the driver fixes the offsets once, and each task reads its own range of a partition."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition

from braidmq.client.cluster import Cluster, TopicPartition
from braidmq.spark.errors import without_traceback
from braidmq.spark.options import OptionError
from braidmq.spark.source import filters, positions
from braidmq.spark.source.filters import EVERYTHING, Pushed
from braidmq.spark.source.plan import directories, plan
from braidmq.spark.source.positions import Offsets
from braidmq.spark.source.query import ReadQuery
from braidmq.spark.source.splits import ReadTask, Split, tasks
from braidmq.spark.source.task import read_task


class BatchReader(DataSourceReader):
    """Reads what lies between the starting and the ending offsets of a query."""

    def __init__(self, query: ReadQuery, columns: tuple[str, ...]) -> None:
        self.query = query
        self.columns = columns
        self.pushed = EVERYTHING

    @without_traceback()
    def partitions(self) -> Sequence[InputPartition]:
        return tasks(plan_batch(self.query, self.pushed), self.query.tasks_are_counted)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        # For a query without partitions, Spark passes one without a value.
        if isinstance(partition, ReadTask):
            yield from read_task(self.query, self.columns, partition, self.pushed)


class FilteringBatchReader(BatchReader):
    """The same, with the filters that Spark pushes down."""

    def pushFilters(self, filters_: list[Filter]) -> Iterable[Filter]:  # noqa: N802
        self.pushed, left = filters.push(filters_)
        return left


def plan_batch(query: ReadQuery, pushed: Pushed) -> list[Split]:
    """The splits of a batch read: the requested offsets, narrowed by the filters that were pushed down."""
    with positions.connect(query) as cluster:
        topology = positions.topology(cluster, query)
        starts, ends = settle(cluster, query, topology.partitions)
        starts, ends = filters.narrow(cluster, pushed, starts, ends)
        return plan(cluster, query, starts, ends, directories(cluster, query, topology))


def settle(cluster: Cluster, query: ReadQuery, some: list[TopicPartition]) -> tuple[Offsets, Offsets]:
    """Where these partitions begin and end for the query, as the cluster has them now."""
    starts = positions.resolve(cluster, query, some, query.start, "starting")
    ends = positions.resolve(cluster, query, some, query.end, "ending")
    _refuse_backwards(query, starts, ends)
    return starts, ends


def _refuse_backwards(query: ReadQuery, starts: Offsets, ends: Offsets) -> None:
    """OptionError if the start is after the end: the user did not ask to read nothing.

    A start by time may be after the last readable record; that is no mistake.
    """
    if query.end.edge is not None and not query.start.offsets:
        return
    for at, start in starts.items():
        if start <= ends[at]:
            continue
        if query.end.edge is not None:
            raise OptionError(f"option startingOffsets is {start} for {at}, which ends at {ends[at]}")
        if query.start.edge is not None:
            raise OptionError(f"{at}: the ending offset {ends[at]} is before the first offset {start}")
        raise OptionError(f"{at}: the starting offset {start} is after the ending offset {ends[at]}")
