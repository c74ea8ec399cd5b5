"""Sending: records gather per partition, and go out together when enough have gathered or on `flush`.

With acks=all the producer is idempotent: the broker gives it an id, every batch carries a sequence number,
and a batch that is sent again after a lost answer is stored once. One batch per partition is under way at a
time, so the order of `send` is the order in the log.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import IntEnum
from types import TracebackType
from typing import NamedTuple, Self

from braidmq.client.cluster import Cluster, TopicPartition
from braidmq.client.connection import Connection
from braidmq.client.errors import ClientError, DeliveryFailed, TimedOut, Unreachable
from braidmq.wire.compress import Codec
from braidmq.wire.errors import ApiError, ErrorCode
from braidmq.wire.kernel import murmur2
from braidmq.wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from braidmq.wire.messages.producers import InitProducerIdRequest, InitProducerIdResponse
from braidmq.wire.records import build_batch

# From version 13 on topics are named by id; names spare us a lookup.
PRODUCE_VERSION_MAX = 12
BATCH_BYTES = 524_288
BUFFER_BYTES = 8_388_608
RECORD_OVERHEAD_BYTES = 24
DELIVERY_TIMEOUT_S = 120.0
SEQUENCE_MODULUS = 2**31

Headers = Sequence[tuple[str, bytes | None]]


class Acks(IntEnum):
    """What the broker has done when it answers."""

    NONE = 0
    """It does not answer at all."""
    LEADER = 1
    """Written to the leader's log."""
    ALL = -1
    """On disk (flush=sync), on every in-sync replica."""


class Receipt:
    """What became of one record. `offset` is known once it is acknowledged (-1 for acks=0)."""

    __slots__ = ("_error", "_offset", "_producer", "at", "done")

    def __init__(self, producer: Producer, at: TopicPartition) -> None:
        self.at = at
        self.done = False
        self._producer = producer
        self._offset = -1
        self._error: ApiError | ClientError | None = None

    @property
    def error(self) -> ApiError | ClientError | None:
        return self._error

    def result(self) -> int:
        """The record's offset; sends what is still buffered, and raises if this record was not delivered."""
        if not self.done:
            self._producer._deliver()
        if self._error is not None:
            raise self._error
        return self._offset

    def _resolve(self, offset: int, error: ApiError | ClientError | None) -> None:
        self.done = True
        self._offset = offset
        self._error = error


OnDelivery = Callable[[Receipt], None]


class _Row(NamedTuple):
    key: bytes | None
    value: bytes | None
    headers: Headers
    timestamp_ms: int


class _Batch:
    """Records for one partition, and their encoded form once they are on their way."""

    __slots__ = ("at", "callbacks", "encoded", "receipts", "rows", "size_bytes")

    def __init__(self, at: TopicPartition) -> None:
        self.at = at
        self.rows: list[_Row] = []
        self.receipts: list[Receipt] = []
        self.callbacks: dict[int, OnDelivery] = {}
        self.size_bytes = 0
        self.encoded: bytearray | None = None

    def resolve(self, base_offset: int, error: ApiError | ClientError | None) -> None:
        for index, receipt in enumerate(self.receipts):
            receipt._resolve(base_offset + index if base_offset >= 0 else -1, error)
            if index in self.callbacks:
                self.callbacks[index](receipt)


_Route = tuple[Connection, list[_Batch]]


class Producer:
    """Sends records; `flush` or the end of the `with` block returns when every one is acknowledged."""

    def __init__(
        self,
        cluster: Cluster | str,
        *,
        acks: Acks = Acks.ALL,
        codec: Codec = Codec.NONE,
        batch_bytes: int = BATCH_BYTES,
        delivery_timeout_s: float = DELIVERY_TIMEOUT_S,
    ) -> None:
        self._owns_cluster = isinstance(cluster, str)
        self._cluster = Cluster(cluster) if isinstance(cluster, str) else cluster
        self._acks = acks
        self._codec = codec
        self._batch_bytes = batch_bytes
        self._delivery_timeout_s = delivery_timeout_s
        self._batches: dict[TopicPartition, _Batch] = {}
        self._buffered_bytes = 0
        self._sticky: dict[str, int] = {}
        self._producer_id = -1
        self._producer_epoch = -1
        self._sequences: dict[TopicPartition, int] = {}
        self._failed_count = 0
        self._first_failure: ApiError | ClientError | None = None

    def send(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Headers = (),
        partition: int | None = None,
        timestamp_ms: int | None = None,
        on_delivery: OnDelivery | None = None,
    ) -> Receipt:
        """Buffers one record, to go out with others; `send(...).result()` sends it at once."""
        at = TopicPartition(topic, self._partition(topic, key) if partition is None else partition)
        batch = self._batches.get(at)
        if batch is None:
            batch = self._batches[at] = _Batch(at)
        now_ms = self._cluster.clock.wall_ms() if timestamp_ms is None else timestamp_ms
        receipt = Receipt(self, at)
        if on_delivery is not None:
            batch.callbacks[len(batch.rows)] = on_delivery
        batch.rows.append(_Row(key, value, headers, now_ms))
        batch.receipts.append(receipt)
        size_bytes = _size_bytes(key, value, headers)
        batch.size_bytes += size_bytes
        self._buffered_bytes += size_bytes
        if batch.size_bytes >= self._batch_bytes or self._buffered_bytes >= BUFFER_BYTES:
            self._deliver()
        return receipt

    def flush(self) -> None:
        """Sends what is buffered. DeliveryFailed if any record since the last flush was not acknowledged."""
        self._deliver()
        count, cause = self._failed_count, self._first_failure
        self._failed_count, self._first_failure = 0, None
        if cause is not None:
            raise DeliveryFailed(count, cause)

    def close(self) -> None:
        try:
            self.flush()
        finally:
            if self._owns_cluster:
                self._cluster.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
        elif self._owns_cluster:
            self._cluster.close()

    def _partition(self, topic: str, key: bytes | None) -> int:
        count = self._cluster.partition_count(topic)
        if key is not None:
            return (murmur2(key) & 0x7FFFFFFF) % count
        # Keyless records stick to one partition until its batch is sent: few large batches, not many small.
        # They go around partitions without a leader, as long as others have one.
        start = self._sticky.setdefault(topic, 0)
        for partition in range(start, start + count):
            if not self._cluster.is_leaderless(TopicPartition(topic, partition % count)):
                return partition % count
        return start % count

    def _deliver(self) -> None:
        """Sends every batch and resolves every receipt, one way or the other."""
        waiting, self._batches = list(self._batches.values()), {}
        self._buffered_bytes = 0
        for topic in {batch.at.topic for batch in waiting}:
            self._sticky[topic] = self._sticky.get(topic, 0) + 1
        try:
            for attempt in self._cluster.attempts(self._delivery_timeout_s):
                waiting, error = self._send_round(waiting)
                if error is None:
                    return
                attempt.failed(error, retriable=True)
        except (ApiError, ClientError) as error:
            for batch in waiting:
                self._fail(batch, error)

    def _send_round(self, batches: list[_Batch]) -> tuple[list[_Batch], ApiError | ClientError | None]:
        """Sends each batch to its leader once; those to try again, and why."""
        sent: list[tuple[Connection, int, list[_Batch]]] = []
        try:
            self._cluster.renew()
            if self._acks is Acks.ALL and self._producer_id < 0:
                self._become_idempotent()
        except (Unreachable, TimedOut) as error:
            return batches, error
        routes, again, reason = self._route(batches)
        for connection, group in routes:
            try:
                sent.append((connection, self._send(connection, group), group))
            except ClientError as error:
                again, reason = again + group, error
        for connection, version, group in sent:
            try:
                refused, why = self._receive(connection, version, group)
                again, reason = again + refused, why or reason
            except ClientError as error:
                again, reason = again + group, error
        for batch in again:
            self._cluster.forget(batch.at.topic)
        return again, reason

    def _route(
        self, batches: list[_Batch]
    ) -> tuple[list[_Route], list[_Batch], ApiError | ClientError | None]:
        """Batches by leader; and those whose leader is away, to be tried again, and why."""
        groups: dict[int, _Route] = {}
        again: list[_Batch] = []
        reason: ApiError | ClientError | None = None
        silent: set[int] = set()
        for batch in batches:
            node_id, _ = self._cluster.leader_of(batch.at) or (-1, None)
            if node_id in silent:
                again.append(batch)
                continue
            try:
                connection = self._cluster.leader(batch.at)
            except (Unreachable, TimedOut) as error:
                silent.add(node_id)
                again, reason = [*again, batch], error
                continue
            except ApiError as error:
                if error.code is ErrorCode.LEADER_NOT_AVAILABLE:
                    again, reason = [*again, batch], error
                else:
                    self._fail(batch, error)
                continue
            groups.setdefault(id(connection), (connection, []))[1].append(batch)
        return list(groups.values()), again, reason

    def _send(self, connection: Connection, batches: list[_Batch]) -> int:
        topics: dict[str, TopicProduceData] = {}
        for batch in batches:
            topic, partition = batch.at
            entry = topics.setdefault(topic, TopicProduceData(name=topic, partition_data=[]))
            records = bytes(self._encode(batch))
            entry.partition_data.append(PartitionProduceData(index=partition, records=records))
        timeout_ms = int(self._cluster.timeout_s * 1000)
        request = ProduceRequest(acks=self._acks, timeout_ms=timeout_ms, topic_data=list(topics.values()))
        version = connection.version(ProduceRequest, PRODUCE_VERSION_MAX)
        connection.send(request, version)
        return version

    def _encode(self, batch: _Batch) -> bytearray:
        if batch.encoded is None:
            sequence = self._sequences.get(batch.at, 0) if self._producer_id >= 0 else -1
            batch.encoded = build_batch(
                batch.rows,
                codec=self._codec,
                base_sequence=sequence,
                producer_id=self._producer_id,
                producer_epoch=self._producer_epoch,
            )
            if self._producer_id >= 0:
                self._sequences[batch.at] = (sequence + len(batch.rows)) % SEQUENCE_MODULUS
        return batch.encoded

    def _receive(
        self, connection: Connection, version: int, batches: list[_Batch]
    ) -> tuple[list[_Batch], ApiError | None]:
        if self._acks is Acks.NONE:
            for batch in batches:
                batch.resolve(-1, None)
            return [], None
        answer = connection.receive(ProduceResponse, version)
        waiting = {batch.at: batch for batch in batches}
        again: list[_Batch] = []
        reason: ApiError | None = None
        for topic in answer.responses:
            for result in topic.partition_responses:
                batch = waiting.pop(TopicPartition(topic.name, result.index))
                code = ErrorCode(result.error_code)
                if code is ErrorCode.NONE:
                    batch.resolve(result.base_offset, None)
                    continue
                error = ApiError(code, f"{batch.at}: {result.error_message or code.name}")
                if code.retriable:
                    again.append(batch)
                    reason = error
                else:
                    self._fail(batch, error)
        return again, reason

    def _fail(self, batch: _Batch, error: ApiError | ClientError) -> None:
        self._failed_count += len(batch.rows)
        self._first_failure = self._first_failure or error
        # The broker never saw these sequence numbers, so what follows must start a new series under a new id.
        self._producer_id = -1
        self._sequences.clear()
        batch.resolve(-1, error)

    def _become_idempotent(self) -> None:
        request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=60_000)
        answer = self._cluster.call(request, InitProducerIdResponse)
        if answer.error_code != ErrorCode.NONE:
            raise ApiError(ErrorCode(answer.error_code), "the broker gave no producer id")
        self._producer_id, self._producer_epoch = answer.producer_id, answer.producer_epoch


def _size_bytes(key: bytes | None, value: bytes | None, headers: Headers) -> int:
    size_bytes = RECORD_OVERHEAD_BYTES + len(key or b"") + len(value or b"")
    for name, content in headers:
        size_bytes += len(name) + len(content or b"") + 4
    return size_bytes
