"""Streams: the driver plans offsets for each micro-batch, and Spark writes them to its checkpoint as JSON.

The JSON is that of Spark's Kafka source: {"orders": {"0": 1200, "1": 980}}, the next offset to read. The
empty name, which no topic can have, holds the ids of the topics: a recreated topic has another id, and
offsets of the old one mean nothing for it. It also holds the first offsets of partitions that are new in a
batch ({"orders/2": 40}): a batch that is planned again must begin where it did the first time, and what
retention removed in between is lost.

When Spark asks what is new since `start`, everything before `start` has been processed and recorded, so that
is the moment to publish positions (`commit` comes a batch later, and never for the last one of an
available-now run).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from braidmq.client.cluster import Cluster, TopicPartition
from braidmq.client.consumer import Start
from braidmq.spark.errors import without_traceback
from braidmq.spark.options import OptionError
from braidmq.spark.source import limits, positions
from braidmq.spark.source.data_loss import RecordsLost, report_loss
from braidmq.spark.source.group_positions import GroupPositions
from braidmq.spark.source.plan import directories, plan
from braidmq.spark.source.positions import Missing, Offsets, PartitionMap
from braidmq.spark.source.query import ReadQuery
from braidmq.spark.source.splits import ReadTask, tasks
from braidmq.spark.source.task import read_task

NO_LIMIT = 2**62
"""A limit without effect: with none at all, Spark asks for everything at once."""

Json = dict[str, dict[str, Any]]
IDS = ""


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """One streaming query's view of its partitions; on the driver, and copied into tasks."""

    def __init__(self, query: ReadQuery, columns: tuple[str, ...]) -> None:
        self.query = query
        self.columns = columns
        self._cluster: Cluster | None = None
        self._group: GroupPositions | None = None
        self._topology = PartitionMap({}, {})
        self._directories: dict[TopicPartition, str] = {}
        self._ends_now = False
        self._target: Offsets | None = None
        self._ends: Offsets = {}
        self._pace = limits.BatchPace(query)

    @without_traceback()
    def initialOffset(self) -> Json:  # noqa: N802
        some = self._refresh(Missing.IS_AN_ERROR).partitions
        return self._to_json(
            positions.resolve(self._connected(), self.query, some, self.query.start, "starting")
        )

    @without_traceback()
    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """The first call for new offsets fixes the target: Spark asks for the start in between, and a start
        at the latest offset must not be after the target."""
        self._ends_now = True

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        if self.query.trigger_offsets_max is not None:
            return ReadMaxRows(self.query.trigger_offsets_max)
        if self.query.trigger_bytes_max is not None:
            return ReadMaxBytes(self.query.trigger_bytes_max)
        if self.query.trigger_offsets_min is not None:
            return ReadMaxRows(NO_LIMIT)
        return ReadAllAvailable()

    @without_traceback()
    def latestOffset(self, start: Json, limit: ReadLimit) -> Json:  # noqa: N802
        if self._target is None:
            self._ends = self._latest(self._refresh().partitions)
            self._target = self._ends if self._ends_now else None
        known, ends = self._still_meant(start, self._ids()), self._ends
        begins = self._starts(known, ends)
        self._publish(known)
        if not isinstance(limit, ReadAllAvailable):
            if self._target is None and self._pace.waits(begins, ends):
                return start
            ends = limits.limited(self._connected(), self.query, begins, ends)
        # A new partition is added with its first record; before that it would only make an empty batch.
        new = {at: begins[at] for at, end in ends.items() if at not in known and end > begins[at]}
        for at, first in new.items():
            if first > 0:
                lost = RecordsLost(at, 0, first, first)
                report_loss(lost, self.query.fail_on_data_loss)
        reached = self._to_json({at: end for at, end in ends.items() if at in known or at in new}, new)
        return start if _is_same_place(start, reached) else reached

    def reportLatestOffset(self) -> Json | None:  # noqa: N802
        """The latest offsets when Spark last asked, without limits; the lag is counted up to them."""
        return to_json(self._ends) if self._ends else None

    @without_traceback()
    def partitions(self, start: Json, end: Json) -> Sequence[InputPartition]:
        begins, ends = self._still_meant(start, end.get(IDS, {})), from_json(end)
        if not ends.keys() <= self._topology.leaders.keys():
            # After a restart Spark first plans the batch that was under way.
            self._refresh()
        recreated_topics = _recreated(end, self._ids())
        for at in [at for at in ends if at not in self._topology.leaders or at.topic in recreated_topics]:
            lost = RecordsLost(at, begins.pop(at, 0), ends.pop(at), recreated=at.topic in recreated_topics)
            report_loss(lost, self.query.fail_on_data_loss)
        starts = self._starts(begins, ends, _firsts(end))
        splits = plan(self._connected(), self.query, starts, ends, self._directories)
        return tasks(splits, self.query.tasks_are_counted)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if isinstance(partition, ReadTask):
            yield from read_task(self.query, self.columns, partition)

    def stop(self) -> None:
        for each in (self._cluster, self._group):
            if each is not None:
                each.close()
        self._cluster = self._group = None

    def _connected(self) -> Cluster:
        if self._cluster is None:
            self._cluster = positions.connect(self.query)
        return self._cluster

    def _refresh(self, missing: Missing | None = None) -> PartitionMap:
        """Looks up new topics, partitions, leaders and local directories."""
        if missing is None:
            missing = Missing.IS_AN_ERROR if self.query.fail_on_data_loss else Missing.IS_LEFT_OUT
        known, self._topology = self._topology, positions.topology(self._connected(), self.query, missing)
        if known != self._topology:
            self._directories = directories(self._connected(), self.query, self._topology)
        return self._topology

    def _ids(self) -> dict[str, str]:
        return {topic: found.hex() for topic, found in self._topology.topic_ids.items()}

    def _to_json(self, offsets: Offsets, new: Mapping[TopicPartition, int] | None = None) -> Json:
        written, ids = to_json(offsets), self._ids()
        known: dict[str, Any] = {topic: ids[topic] for topic in written if topic in ids}
        known |= {f"{at.topic}/{at.partition}": first for at, first in (new or {}).items()}
        return written | ({IDS: known} if known else {})

    def _still_meant(self, start: Json, ids: Mapping[str, str]) -> Offsets:
        """The offsets of `start`, without those of recreated topics.

        A recreated topic begins at its first record. Records of the old one after `start` are lost, if there
        were any; that can no longer be known.
        """
        recreated_topics = _recreated(start, ids)
        offsets = from_json(start)
        for at in [at for at in offsets if at.topic in recreated_topics]:
            offset = offsets.pop(at)
            report_loss(RecordsLost(at, offset, offset, recreated=True), self.query.fail_on_data_loss)
        return offsets

    def _latest(self, some: list[TopicPartition]) -> Offsets:
        return positions.edges(self._connected(), some, Start.LATEST, self.query.isolation)

    def _starts(self, begins: Offsets, ends: Offsets, said: Offsets | None = None) -> Offsets:
        """Where each partition of `ends` begins: at Spark's offset; a new one at the offset that its batch
        `said` when it was first planned, or else at its first record now.

        A partition that ends before that has lost records. If that is no failure, it continues at its end, as
        in Spark's Kafka source: earlier records may be another topic's, or were read before.
        """
        for at, offset in begins.items():
            if ends.get(at, -1) < offset:
                lost = RecordsLost(at, offset, offset, ends=ends.get(at))
                report_loss(lost, self.query.fail_on_data_loss)
        new = [at for at in ends if at not in begins]
        if said is not None:
            # Older checkpoints do not have it; as in Spark's Kafka source, such a partition begins at 0.
            firsts = {at: said.get(at, 0) for at in new}
        else:
            firsts = (
                positions.edges(self._connected(), new, Start.EARLIEST, self.query.isolation) if new else {}
            )
        return {at: min(begins.get(at, firsts.get(at, end)), end) for at, end in ends.items()}

    def _publish(self, processed: Offsets) -> None:
        if self._group is None:
            self._group = GroupPositions(self.query)
        self._group.publish(processed)
        if self._target is not None and all(processed.get(at, 0) >= end for at, end in self._target.items()):
            self._group.settle()

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_cluster": None, "_group": None}


class RefusedStream(DataSourceStreamReader):
    """Replaces a reader that cannot be created, and raises the reason on first use.

    If it were raised while Spark creates the reader, it would be lost: Spark then stops the reader it lacks.
    """

    def __init__(self, reason: OptionError) -> None:
        self.reason = reason

    @without_traceback()
    def initialOffset(self) -> Json:  # noqa: N802
        raise self.reason

    @without_traceback()
    def latestOffset(self, start: Json, limit: ReadLimit) -> Json:  # noqa: ARG002, N802
        raise self.reason

    @without_traceback()
    def partitions(self, start: Json, end: Json) -> Sequence[InputPartition]:  # noqa: ARG002
        raise self.reason

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:  # noqa: ARG002
        raise self.reason


def _recreated(written: Json, ids: Mapping[str, str]) -> set[str]:
    """The topics whose ids have changed; older checkpoints and brokers have no ids."""
    return {topic for topic, before in _topic_ids(written).items() if ids.get(topic, before) != before}


def _firsts(written: Json) -> Offsets:
    """The first offsets of partitions that are new in the batch that ends there."""
    found = {}
    for name, first in written.get(IDS, {}).items():
        topic, _, partition = name.partition("/")
        if partition:
            found[TopicPartition(topic, int(partition))] = first
    return found


def _is_same_place(one: Json, other: Json) -> bool:
    """Whether nothing is between two offsets; Spark compares texts, and would run an empty batch."""
    return {**one, IDS: _topic_ids(one)} == {**other, IDS: _topic_ids(other)}


def _topic_ids(written: Json) -> dict[str, str]:
    return {name: found for name, found in written.get(IDS, {}).items() if "/" not in name}


def to_json(offsets: Mapping[TopicPartition, int]) -> Json:
    """As Spark writes it to the checkpoint."""
    found: Json = {}
    for at, offset in sorted(offsets.items()):
        found.setdefault(at.topic, {})[str(at.partition)] = offset
    return found


def from_json(written: Mapping[str, Mapping[str, Any]]) -> Offsets:
    return {
        TopicPartition(topic, int(partition)): offset
        for topic, partitions in written.items()
        if topic != IDS
        for partition, offset in partitions.items()
    }
