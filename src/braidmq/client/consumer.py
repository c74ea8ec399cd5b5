"""Reading: partitions are assigned, each has a position, and `poll` moves the positions.

There is no group and nothing is committed: the caller says where to begin, as an offset, as `Start`, or
as a time. Every batch's CRC is checked before its records are handed out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from enum import IntEnum
from types import TracebackType
from typing import NamedTuple, Self

from braidmq.client.cluster import LEADERLESS_S_MAX, Cluster, LeaderGroup, TopicPartition
from braidmq.client.connection import Connection
from braidmq.client.errors import ClientError, TimedOut, Unreachable
from braidmq.client.offsets import list_offsets
from braidmq.wire.errors import ApiError, ErrorCode
from braidmq.wire.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic, PartitionData
from braidmq.wire.records import HEADER_BYTES, BatchHeader, fault, parse_header, records

# From version 13 on topics are named by id; names spare us a lookup.
FETCH_VERSION_MAX = 12
POLL_TIMEOUT_S = 1.0
FETCH_BYTES = 52_428_800
PARTITION_BYTES = 1_048_576
NO_SESSION_EPOCH = -1
NOBODY_PAUSE_S = 0.1
"""Before the next poll, if no leader could be asked."""


class Start(IntEnum):
    """Where to begin in a partition; the values are those ListOffsets uses."""

    EARLIEST = -2
    LATEST = -1


class Message(NamedTuple):
    """One record with the place it was read from."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]


class FetchedBatch(NamedTuple):
    """One stored record batch as it came, still compressed."""

    at: TopicPartition
    header: BatchHeader
    view: memoryview


class Consumer:
    """Reads assigned partitions. `reset` says where to continue when a position is gone; None raises."""

    def __init__(
        self,
        cluster: Cluster | str,
        *,
        reset: Start | None = None,
        min_bytes: int = 1,
        max_bytes: int = FETCH_BYTES,
        partition_max_bytes: int = PARTITION_BYTES,
    ) -> None:
        self._owns_cluster = isinstance(cluster, str)
        self._cluster = Cluster(cluster) if isinstance(cluster, str) else cluster
        self._reset = reset
        self._min_bytes = min_bytes
        self._max_bytes = max_bytes
        self._partition_max_bytes = partition_max_bytes
        self._positions: dict[TopicPartition, int] = {}
        self._undecided: dict[TopicPartition, int] = {}
        self.high_watermarks: dict[TopicPartition, int] = {}

    def assign(
        self, topic: str, partitions: Iterable[int] | None = None, start: Start | int = Start.EARLIEST
    ) -> None:
        """Reads these partitions too (None: all of the topic), from `start` on."""
        if partitions is None:
            partitions = range(self._cluster.partition_count(topic))
        for partition in partitions:
            self.seek(topic, partition, start)

    def seek(self, topic: str, partition: int, offset: Start | int) -> None:
        """The next `poll` reads this partition from `offset` on."""
        at = TopicPartition(topic, partition)
        self._positions.pop(at, None)
        self._undecided.pop(at, None)
        if isinstance(offset, Start):
            self._undecided[at] = offset
        else:
            self._positions[at] = offset

    def seek_to_time(self, timestamp_ms: int) -> None:
        """Moves every assigned partition to its first record of this time or later, or to its end."""
        assigned = [*self._positions, *self._undecided]
        found = list_offsets(self._cluster, dict.fromkeys(assigned, timestamp_ms))
        for at in assigned:
            self.seek(*at, found[at].offset if found[at].offset >= 0 else Start.LATEST)

    def position(self, topic: str, partition: int) -> int:
        """The offset of the next record `poll` will return from a partition."""
        at = TopicPartition(topic, partition)
        if at in self._undecided:
            self._settle([at])
        return self._positions[at]

    def poll(self, timeout_s: float = POLL_TIMEOUT_S) -> list[Message]:
        """The next records, at most one fetch of them; empty when none arrive in time."""
        messages = []
        for batch in self.poll_batches(timeout_s):
            position = self._positions[batch.at]
            for record in records(batch.view):
                # A batch is fetched whole even when the position lies inside it.
                if record.offset >= position:
                    messages.append(Message._make((*batch.at, *record)))
            self._positions[batch.at] = batch.header.next_offset
        return messages

    def poll_batches(self, timeout_s: float = POLL_TIMEOUT_S) -> Iterator[FetchedBatch]:
        """The next batches unopened, for those who only count or copy; positions move as they are taken."""
        if not self._positions and not self._undecided:
            raise ClientError("nothing is assigned; call assign first")
        self._cluster.renew()
        self._decide()
        readable = [at for at in self._positions if not self._cluster.is_leaderless(at)]
        if not readable:
            self._cluster.clock.sleep(min(timeout_s, LEADERLESS_S_MAX))
            return
        for at, answer in self._fetch(readable, int(timeout_s * 1000)):
            yield from self._take(at, answer)

    def close(self) -> None:
        if self._owns_cluster:
            self._cluster.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _decide(self) -> None:
        """Turns `Start` positions into offsets; of partitions without a leader once they have one."""
        for topic in dict.fromkeys(at.topic for at in self._undecided):
            self._cluster.partition_count(topic)
        if undecided := [at for at in self._undecided if not self._cluster.is_leaderless(at)]:
            try:
                self._settle(undecided)
            except ApiError as error:
                if error.code is not ErrorCode.LEADER_NOT_AVAILABLE:
                    raise

    def _settle(self, undecided: list[TopicPartition]) -> None:
        found = list_offsets(self._cluster, {at: self._undecided[at] for at in undecided})
        for at, spot in found.items():
            self._positions[at] = spot.offset
            del self._undecided[at]

    def _fetch(
        self, readable: list[TopicPartition], wait_ms: int
    ) -> list[tuple[TopicPartition, PartitionData]]:
        """One fetch from every leader, all under way at once; routes to one that is gone are forgotten."""
        asked: list[tuple[Connection, int, list[TopicPartition]]] = []
        for connection, some in self._reachable(readable):
            try:
                asked.append((connection, self._ask(connection, some, wait_ms), some))
            except (Unreachable, TimedOut):
                self._forget_routes(some)
        if not asked:
            self._cluster.clock.sleep(min(wait_ms / 1000, NOBODY_PAUSE_S))
        answers: list[tuple[TopicPartition, PartitionData]] = []
        refusal: ApiError | None = None
        for connection, version, some in asked:
            try:
                answer = connection.receive(FetchResponse, version, wait_ms / 1000 + self._cluster.timeout_s)
            except (Unreachable, TimedOut):
                self._forget_routes(some)
                continue
            if answer.error_code != ErrorCode.NONE:
                refusal = ApiError(ErrorCode(answer.error_code), f"fetch refused by {connection.address}")
            for topic in answer.responses:
                for partition in topic.partitions:
                    answers.append((TopicPartition(topic.topic, partition.partition_index), partition))
        if refusal is not None:
            # Only now: an answer that nobody has read would be taken for that of the next request.
            raise refusal
        return answers

    def _reachable(self, readable: list[TopicPartition]) -> list[LeaderGroup]:
        """Partitions by leader, without those whose leader cannot be reached at the moment."""
        groups: dict[int, LeaderGroup] = {}
        gone: list[TopicPartition] = []
        silent: set[int] = set()
        for at in readable:
            node_id, _ = self._cluster.leader_of(at) or (-1, None)
            try:
                if node_id in silent:
                    gone.append(at)
                    continue
                connection = self._cluster.leader(at)
            except (Unreachable, TimedOut):
                gone.append(at)
                silent.add(node_id)
                continue
            except ApiError as error:
                if error.code is not ErrorCode.LEADER_NOT_AVAILABLE:
                    raise
                continue
            groups.setdefault(id(connection), (connection, []))[1].append(at)
        self._forget_routes(gone)
        return list(groups.values())

    def _ask(self, connection: Connection, some: list[TopicPartition], wait_ms: int) -> int:
        topics: dict[str, FetchTopic] = {}
        for at in some:
            topics.setdefault(at.topic, FetchTopic(topic=at.topic, partitions=[])).partitions.append(
                FetchPartition(
                    partition=at.partition,
                    fetch_offset=self._positions[at],
                    partition_max_bytes=self._partition_max_bytes,
                )
            )
        request = FetchRequest(
            max_wait_ms=wait_ms,
            min_bytes=self._min_bytes,
            max_bytes=self._max_bytes,
            session_epoch=NO_SESSION_EPOCH,
            topics=list(topics.values()),
        )
        version = connection.version(FetchRequest, FETCH_VERSION_MAX)
        connection.send(request, version)
        return version

    def _take(self, at: TopicPartition, answer: PartitionData) -> Iterator[FetchedBatch]:
        code = ErrorCode(answer.error_code)
        if code is ErrorCode.OFFSET_OUT_OF_RANGE and self._reset is not None:
            self.seek(*at, self._reset)
            return
        if code is not ErrorCode.NONE:
            # Damage on the broker's disk does not pass, unlike a batch that was damaged on its way there.
            if not code.retriable or code is ErrorCode.CORRUPT_MESSAGE:
                raise ApiError(code, f"{at} at offset {self._positions[at]}: {code.name}")
            self._cluster.forget(at.topic)
            return
        self.high_watermarks[at] = answer.high_watermark
        if answer.records:
            # Next time this partition comes last, so that a busy one cannot fill every answer.
            self._positions[at] = self._positions.pop(at)
            yield from self._batches(at, memoryview(answer.records))

    def _batches(self, at: TopicPartition, view: memoryview) -> Iterator[FetchedBatch]:
        start, end = 0, len(view)
        while end - start >= HEADER_BYTES:
            header = parse_header(view, start)
            if header.size > end - start:
                # The broker sends whole pages of the log; the last batch may be cut.
                return
            if trouble := fault(view, start, end):
                raise ClientError(f"{at}: damaged batch at offset {header.base_offset}: {trouble}")
            if header.next_offset > self._positions[at]:
                if not header.is_control:
                    yield FetchedBatch(at, header, view[start : start + header.size])
                self._positions[at] = header.next_offset
            start += header.size

    def _forget_routes(self, of: list[TopicPartition]) -> None:
        for topic in dict.fromkeys(at.topic for at in of):
            self._cluster.forget(topic)
