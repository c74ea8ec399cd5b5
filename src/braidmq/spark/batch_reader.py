"""Batch reads: offsets are settled once on the driver, and each task reads its own range of a partition."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition

from braidmq.spark import positions
from braidmq.spark.query import Query
from braidmq.spark.splits import Split, split
from braidmq.spark.task import read_split


class BatchReader(DataSourceReader):
    """Reads what lies between the starting and the ending offsets of a query."""

    def __init__(self, query: Query, columns: tuple[str, ...]) -> None:
        self.query = query
        self.columns = columns

    def partitions(self) -> Sequence[InputPartition]:
        with positions.connect(self.query) as cluster:
            some = positions.partitions(cluster, self.query)
            starts = positions.resolve(cluster, self.query, some, self.query.start, "starting")
            ends = positions.resolve(cluster, self.query, some, self.query.end, "ending")
        return list(split(starts, ends))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        # Spark hands a partition without a value to a query that has none.
        if isinstance(partition, Split):
            yield from read_split(self.query, self.columns, partition)


class FilteringBatchReader(BatchReader):
    """The same, told by Spark which rows a query keeps."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802
        return filters
