"""Streams: offsets are planned on the driver for each micro-batch, and written to Spark's checkpoint as JSON.

The JSON is that of Spark's Kafka source: {"orders": {"0": 1200, "1": 980}}, the next offset to read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from braidmq.client.cluster import Cluster, TopicPartition
from braidmq.client.consumer import Start
from braidmq.spark import positions
from braidmq.spark.positions import Offsets
from braidmq.spark.query import Query
from braidmq.spark.splits import Split, split
from braidmq.spark.task import read_split

Json = dict[str, dict[str, int]]


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """One streaming query's view of its partitions; lives on the driver, and as a copy in tasks."""

    def __init__(self, query: Query, columns: tuple[str, ...]) -> None:
        self.query = query
        self.columns = columns
        self._cluster: Cluster | None = None
        self._target: Offsets | None = None

    def initialOffset(self) -> Json:  # noqa: N802
        cluster = self._connected()
        some = positions.partitions(cluster, self.query)
        return to_json(positions.resolve(cluster, self.query, some, self.query.start, "starting"))

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._target = self._ends()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        if self.query.trigger_offsets_max is not None:
            return ReadMaxRows(self.query.trigger_offsets_max)
        return ReadAllAvailable()

    def latestOffset(self, start: Json, limit: ReadLimit) -> Json:  # noqa: N802, ARG002
        ends = self._target if self._target is not None else self._ends()
        begins = from_json(start)
        return to_json({at: max(end, begins.get(at, 0)) for at, end in ends.items()})

    def partitions(self, start: Json, end: Json) -> Sequence[InputPartition]:
        return list(split(from_json(start), from_json(end)))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if isinstance(partition, Split):
            yield from read_split(self.query, self.columns, partition)

    def stop(self) -> None:
        if self._cluster is not None:
            self._cluster.close()
            self._cluster = None

    def _connected(self) -> Cluster:
        if self._cluster is None:
            self._cluster = positions.connect(self.query)
        return self._cluster

    def _ends(self) -> Offsets:
        cluster = self._connected()
        some = positions.partitions(cluster, self.query)
        return positions.edges(cluster, some, Start.LATEST, self.query.isolation)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_cluster": None}


def to_json(offsets: Mapping[TopicPartition, int]) -> Json:
    """As Spark writes it to the checkpoint."""
    found: Json = {}
    for at, offset in sorted(offsets.items()):
        found.setdefault(at.topic, {})[str(at.partition)] = offset
    return found


def from_json(written: Mapping[str, Mapping[str, int]]) -> Offsets:
    return {
        TopicPartition(topic, int(partition)): offset
        for topic, partitions in written.items()
        for partition, offset in partitions.items()
    }
