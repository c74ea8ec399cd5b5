"""Produce: each partition's batch checked and appended, and the answer given when acks is met.

Appending is synchronous; the received bytes are on their way to the disk when `handle` returns. acks=0 gets
no answer. acks=1 is answered at once. acks=all waits, on topics with flush=sync, until the group commit has
put the records on disk.
"""

from __future__ import annotations

from typing import NamedTuple

from braidmq.broker.broker import Broker
from braidmq.broker.housekeeping import DiskLevel
from braidmq.broker.partition import DurableCallback, Partition
from braidmq.broker.topic import Topic
from braidmq.net.connection import Pending
from braidmq.net.outbox import Parts
from braidmq.wire import produce as wire
from braidmq.wire.compress import Codec
from braidmq.wire.errors import ApiError, ErrorCode
from braidmq.wire.produce import PartitionResult, ProduceRequest

_OK = int(ErrorCode.NONE)
_ACKS_ALL = -1
_ACKS = (0, 1, _ACKS_ALL)
# KIP-110: a client of an older version could not read back what it asks to store.
_ZSTD_FROM = 7
_CODEC_AT = 22
_CODEC_MASK = 0x07


class _Wait(NamedTuple):
    """A partition that must become durable before the answer, and where its result stands."""

    partition: Partition
    offset: int
    results: list[PartitionResult]
    at: int


class _Asked(NamedTuple):
    """What holds for every partition of a request."""

    acks: int
    version: int
    now_ms: int
    waits: list[_Wait]


class ProduceHandler:
    """Serves Produce for all connections."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._topics = broker.topics
        self._wall_ms = broker.clock.wall_ms

    def handle(self, request: ProduceRequest, version: int, correlation_id: int) -> Parts | Pending | None:
        refusal = self._refusal(request)
        asked = _Asked(request.acks, version, self._wall_ms(), [])
        answer: list[tuple[str | None, bytes | None, list[PartitionResult]]] = []
        for name, topic_id, partitions in request.topics:
            topic, missing = self._find(name, topic_id)
            results: list[PartitionResult] = []
            answer.append((name, topic_id, results))
            for index, records in partitions:
                error = refusal or missing
                if error is not None:
                    results.append(_refused(index, error))
                else:
                    assert topic is not None
                    results.append(_append(topic, index, records, asked, results))
        if request.acks == 0:
            return None
        if not asked.waits:
            return [wire.encode_response(version, correlation_id, answer)]
        return _WaitingProduce(asked.waits, answer, version, correlation_id).pending

    def _refusal(self, request: ProduceRequest) -> ApiError | None:
        """Why the whole request cannot be served, or None."""
        if request.acks not in _ACKS:
            return ApiError(
                ErrorCode.INVALID_REQUIRED_ACKS, f"acks={request.acks}; it must be 0, 1 or -1 (all)"
            )
        if request.transactional_id is not None:
            return ApiError(
                ErrorCode.INVALID_TXN_STATE,
                "this broker has no transactions; produce without transactional.id",
            )
        if self._broker.housekeeping.disk_level is DiskLevel.FULL:
            return ApiError(ErrorCode.KAFKA_STORAGE_ERROR, self._broker.why_writes_are_refused())
        return None

    def _find(self, name: str | None, topic_id: bytes | None) -> tuple[Topic | None, ApiError | None]:
        if name is not None:
            topic = self._topics.find(name)
            code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        else:
            topic = self._topics.find_by_id(topic_id or b"")
            code = ErrorCode.UNKNOWN_TOPIC_ID
        if topic is not None and topic.internal:
            return None, ApiError(
                ErrorCode.INVALID_TOPIC_EXCEPTION, f"topic {topic.name!r} is written by the broker alone"
            )
        if topic is not None:
            return topic, None
        return None, ApiError(
            code, f"there is no topic {(name or '')[:60]!r} here; create it, or refresh the metadata"
        )


def _append(
    topic: Topic,
    index: int,
    records: bytes | memoryview | None,
    asked: _Asked,
    results: list[PartitionResult],
) -> PartitionResult:
    """Appends to one partition; `results` is where the caller puts what this returns."""
    try:
        partition = _partition(topic, index)
        appended, end = partition.append(_batch(partition, records, asked.version), asked.now_ms)
    except ApiError as error:
        return _refused(index, error)
    log = partition.log
    if asked.acks == _ACKS_ALL and partition.syncs and log.durable_offset < end:
        asked.waits.append(_Wait(partition, end, results, len(results)))
    return PartitionResult(index, _OK, appended.base_offset, appended.append_time_ms, log.start_offset, None)


def _partition(topic: Topic, index: int) -> Partition:
    if not 0 <= index < len(topic.partitions):
        raise ApiError(
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            f"topic {topic.name!r} has {len(topic.partitions)} partitions, {index} is not one",
        )
    return topic.partitions[index]


def _batch(partition: Partition, records: bytes | memoryview | None, version: int) -> memoryview:
    if records is None:
        raise ApiError(ErrorCode.INVALID_RECORD, f"no records were sent for {partition}")
    batch = memoryview(records)
    if version < _ZSTD_FROM and len(batch) > _CODEC_AT and batch[_CODEC_AT] & _CODEC_MASK == Codec.ZSTD:
        raise ApiError(
            ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
            f"zstd needs Produce v{_ZSTD_FROM}, this is v{version}; use a newer client or another codec",
        )
    return batch


class _WaitingProduce:
    """An acks=all request whose records are appended and not yet on disk."""

    __slots__ = ("_answer", "_correlation_id", "_left", "_version", "pending")

    def __init__(
        self,
        waits: list[_Wait],
        answer: list[tuple[str | None, bytes | None, list[PartitionResult]]],
        version: int,
        correlation_id: int,
    ) -> None:
        self.pending = Pending()
        self._answer = answer
        self._version = version
        self._correlation_id = correlation_id
        self._left = len(waits)
        for wait in waits:
            wait.partition.when_durable(wait.offset, _settler(self, wait))

    def settle(self, wait: _Wait, code: ErrorCode) -> None:
        if code is not ErrorCode.NONE:
            index = wait.results[wait.at].index
            wait.results[wait.at] = _refused(
                index, ApiError(code, f"{wait.partition}: the records could not be brought to disk")
            )
        self._left -= 1
        if self._left == 0:
            self.pending.complete([wire.encode_response(self._version, self._correlation_id, self._answer)])


def _settler(waiting: _WaitingProduce, wait: _Wait) -> DurableCallback:
    def settled(code: ErrorCode) -> None:
        waiting.settle(wait, code)

    return settled


def _refused(index: int, error: ApiError) -> PartitionResult:
    return PartitionResult(index, int(error.code), -1, -1, -1, error.message)
