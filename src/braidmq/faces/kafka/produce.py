"""Produce: each partition's batch checked and appended, and the answer given when acks is met.

Appending is synchronous; the received bytes are on their way to the disk when `handle` returns. acks=0 gets
no answer. acks=1 is answered at once. acks=all waits, on topics with flush=sync, until the group commit has
put the records on disk.
"""

from __future__ import annotations

from typing import NamedTuple

from braidmq.broker.broker import Broker
from braidmq.broker.partition import DurableCallback, Partition
from braidmq.broker.topic import Topic
from braidmq.net.connection import Pending
from braidmq.net.outbox import Parts
from braidmq.wire import produce as wire
from braidmq.wire.errors import ApiError, ErrorCode
from braidmq.wire.produce import PartitionResult, ProduceRequest

_OK = int(ErrorCode.NONE)
_ACKS_ALL = -1


class _Wait(NamedTuple):
    """A partition that must become durable before the answer, and where its result stands."""

    partition: Partition
    offset: int
    results: list[PartitionResult]
    at: int


class ProduceHandler:
    """Serves Produce for all connections."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._topics = broker.topics
        self._wall_ms = broker.clock.wall_ms

    def handle(self, request: ProduceRequest, version: int, correlation_id: int) -> Parts | Pending | None:
        acks = request.acks
        refusal = self._refusal(request)
        now_ms = self._wall_ms()
        waits: list[_Wait] = []
        answer: list[tuple[str | None, bytes | None, list[PartitionResult]]] = []
        for name, topic_id, partitions in request.topics:
            topic, missing = self._find(name, topic_id)
            results: list[PartitionResult] = []
            answer.append((name, topic_id, results))
            for index, records in partitions:
                error = refusal or missing
                if error is not None:
                    results.append(_refused(index, error))
                    continue
                assert topic is not None
                self._append(topic, index, records, now_ms, acks, results, waits)
        if acks == 0:
            return None
        if not waits:
            return [wire.encode_response(version, correlation_id, answer)]
        return _WaitingProduce(waits, answer, version, correlation_id).pending

    def _append(
        self, topic: Topic, index: int, records: bytes | memoryview | None, now_ms: int, acks: int,
        results: list[PartitionResult], waits: list[_Wait],
    ) -> None:  # fmt: skip
        try:
            if not 0 <= index < len(topic.partitions):
                raise ApiError(
                    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                    f"topic {topic.name!r} has {len(topic.partitions)} partitions, {index} is not one",
                )
            if records is None:
                raise ApiError(ErrorCode.INVALID_RECORD, f"no records were sent for {topic.name}-{index}")
            partition = topic.partitions[index]
            appended, end = partition.append(memoryview(records), now_ms)
        except ApiError as error:
            results.append(_refused(index, error))
            return
        if acks == _ACKS_ALL and partition.syncs and partition.log.durable_offset < end:
            waits.append(_Wait(partition, end, results, len(results)))
        results.append(
            PartitionResult(
                index, _OK, appended.base_offset, appended.append_time_ms, partition.log.start_offset, None
            )
        )

    def _refusal(self, request: ProduceRequest) -> ApiError | None:
        """Why the whole request cannot be served, or None."""
        if request.acks not in (0, 1, _ACKS_ALL):
            return ApiError(
                ErrorCode.INVALID_REQUIRED_ACKS, f"acks={request.acks}; it must be 0, 1 or -1 (all)"
            )
        if request.transactional_id is not None:
            return ApiError(
                ErrorCode.INVALID_TXN_STATE,
                "this broker has no transactions; produce without transactional.id",
            )
        full = self._broker.refuses_writes()
        return ApiError(ErrorCode.KAFKA_STORAGE_ERROR, full) if full else None

    def _find(self, name: str | None, topic_id: bytes | None) -> tuple[Topic | None, ApiError | None]:
        if name is not None:
            topic = self._topics.find(name)
            code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        else:
            topic = self._topics.find_by_id(topic_id or b"")
            code = ErrorCode.UNKNOWN_TOPIC_ID
        if topic is not None:
            return topic, None
        return None, ApiError(
            code, f"there is no topic {(name or '')[:60]!r} here; create it, or refresh the metadata"
        )


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
