"""The two inputs of an audit, each a topic or the folder of a lake.

Both are read over fixed ranges of offsets. A topic and its lake are compared where they overlap: records that
are not archived yet, and records that retention has deleted, are only mentioned in notes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as fn

from braidmq.client.cluster import TopicPartition
from braidmq.spark.cluster import open_cluster
from braidmq.spark.lake import ranges
from braidmq.spark.lake.lake import Lake
from braidmq.spark.lake.schema import within
from braidmq.spark.rescue.audit import DEFAULT_COMPARED
from braidmq.spark.rescue.errors import RescueError

WITH_POSITION = (*DEFAULT_COMPARED, "timestamp", "partition", "offset")
"""A lake keeps the position of a record too, so that is compared."""


@dataclass(frozen=True, slots=True)
class AuditInputs:
    """Two DataFrames, the columns to compare, and notes on what was left out."""

    left: DataFrame
    right: DataFrame
    compare: tuple[str, ...] | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TopicOrLake:
    """A topic, or a lake if the folder of that name is one."""

    name: str
    lake: Lake | None = None


@dataclass(frozen=True, slots=True)
class TimeWindow:
    """Only records of this time range, the end excluded."""

    from_ms: int | None = None
    until_ms: int | None = None

    def of(self, rows: DataFrame) -> DataFrame:
        return within(rows, self.from_ms, self.until_ms)


@dataclass(frozen=True, slots=True)
class TopicReader:
    """Reads topics of one cluster."""

    spark: SparkSession
    bootstrap: str
    client_options: Mapping[str, str] = field(default_factory=dict)

    def topic(self, spans: ranges.Ranges) -> DataFrame:
        return ranges.read_ranges(self.spark, self.bootstrap, spans, self.client_options)

    def whole(self, topic: str) -> dict[TopicPartition, tuple[int, int]]:
        with open_cluster(self.bootstrap, self.client_options) as cluster:
            return ranges.whole(cluster, [topic])


def topic_or_lake(name: str) -> TopicOrLake:
    """A name with a slash is a lake, since topics have none; another name is one if that folder is."""
    if "/" in name or (Lake(name).exists and Lake(name).path.is_dir()):
        lake = Lake(name)
        lake.snapshot()
        return TopicOrLake(name, lake)
    return TopicOrLake(name)


def open_inputs(how: TopicReader, left: str, right: str, window: TimeWindow | None = None) -> AuditInputs:
    """The inputs of an audit of `left` against `right`."""
    window = window or TimeWindow()
    first, second = topic_or_lake(left), topic_or_lake(right)
    if (first.lake is None) == (second.lake is None):
        return AuditInputs(window.of(_all(how, first)), window.of(_all(how, second)))
    if first.lake is None:
        rows, archived, notes = _overlap(how, first.name, second)
        return AuditInputs(window.of(rows), window.of(archived), WITH_POSITION, notes)
    rows, archived, notes = _overlap(how, second.name, first)
    return AuditInputs(window.of(archived), window.of(rows), WITH_POSITION, notes)


def _all(how: TopicReader, side: TopicOrLake) -> DataFrame:
    return how.topic(how.whole(side.name)) if side.lake is None else side.lake.read(how.spark)


def _overlap(how: TopicReader, topic: str, side: TopicOrLake) -> tuple[DataFrame, DataFrame, tuple[str, ...]]:
    """The rows of a topic and of its lake, over the offsets that both should have."""
    assert side.lake is not None
    snapshot = side.lake.snapshot()
    positions = snapshot.positions.get(topic)
    if positions is None:
        known = ", ".join(sorted(snapshot.positions)) or "no archived topic"
        raise RescueError(f"{side.name} has no records of {topic} to compare; it has {known}")
    spans, notes = {}, []
    for at, (start, end) in how.whole(topic).items():
        reached = min(positions.get(at.partition, start), end)
        spans[at] = (start, max(start, reached))
        if end > reached:
            notes.append(f"{at}: {end - reached:,} offsets from {reached} on are not archived yet")
        if start > 0 and positions.get(at.partition, 0) > 0:
            notes.append(f"{at}: begins at offset {start}; earlier archived records are not compared")
    rows = [(at.topic, at.partition, *span) for at, span in spans.items()]
    both = how.spark.createDataFrame(rows, "topic string, partition int, first long, end long")
    archived = side.lake.read(how.spark, snapshot=snapshot).join(fn.broadcast(both), ["topic", "partition"])
    archived = archived.filter("offset >= first AND offset < end").drop("first", "end")
    return how.topic(spans), archived, tuple(notes)
