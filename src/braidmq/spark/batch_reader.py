"""Batch reads: offsets are settled once on the driver, and each task reads its own range of a partition."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition

from braidmq.client.cluster import Cluster, TopicPartition
from braidmq.spark import filters, positions
from braidmq.spark.filters import EVERYTHING, Pushed
from braidmq.spark.plan import directories, plan
from braidmq.spark.positions import Offsets
from braidmq.spark.query import Query
from braidmq.spark.splits import Split, Task, tasks
from braidmq.spark.task import read_task
from braidmq.spark.told import told


class BatchReader(DataSourceReader):
    """Reads what lies between the starting and the ending offsets of a query."""

    def __init__(self, query: Query, columns: tuple[str, ...]) -> None:
        self.query = query
        self.columns = columns
        self.pushed = EVERYTHING

    @told()
    def partitions(self) -> Sequence[InputPartition]:
        return tasks(plan_batch(self.query, self.pushed), self.query.tasks_are_counted)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        # Spark hands a partition without a value to a query that has none.
        if isinstance(partition, Task):
            yield from read_task(self.query, self.columns, partition, self.pushed)


class FilteringBatchReader(BatchReader):
    """The same, told by Spark which rows a query keeps."""

    def pushFilters(self, filters_: list[Filter]) -> Iterable[Filter]:  # noqa: N802
        self.pushed, left = filters.push(filters_)
        return left


def plan_batch(query: Query, pushed: Pushed) -> list[Split]:
    """The splits of a batch read: offsets as asked for, narrowed by the filters that were pushed down."""
    with positions.connect(query) as cluster:
        topology = positions.topology(cluster, query)
        starts, ends = settle(cluster, query, topology.partitions)
        starts, ends = filters.narrow(cluster, pushed, starts, ends)
        return plan(cluster, query, starts, ends, directories(cluster, query, topology))


def settle(cluster: Cluster, query: Query, some: list[TopicPartition]) -> tuple[Offsets, Offsets]:
    """Where these partitions begin and end for the query, as the cluster has them now."""
    starts = positions.resolve(cluster, query, some, query.start, "starting")
    return starts, positions.resolve(cluster, query, some, query.end, "ending")
