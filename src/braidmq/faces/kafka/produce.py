"""Produce: each partition's batch checked and appended, and the answer given when acks is met.

Appending is synchronous; the received bytes are on their way to the disk when `handle` returns. acks=0 gets
no answer; if something is refused, the connection is closed, as in Kafka: the client could not learn of it
otherwise. For others the partition says whether something has to be committed before the answer: with
acks=all on a topic with flush=sync, the group commit must have put the records on disk. The first batch of a
transaction in a partition waits for the coordinator as well. A batch whose partition is being opened, or
that takes long to recompress, waits in the partition's line. How many bytes wait for either is limited.
"""

from __future__ import annotations

import logging
from typing import NamedTuple, Protocol

from braidmq.broker.append_queue import Turn
from braidmq.broker.batch_preparation import Prepared
from braidmq.broker.broker import Broker
from braidmq.broker.housekeeping import DiskLevel
from braidmq.broker.outcomes import Acks, Appended
from braidmq.broker.partition import CommittedCallback
from braidmq.broker.replica import Replica
from braidmq.broker.topic import Topic
from braidmq.broker.txn_gate import TxnGate, TxnProducer
from braidmq.faces.kafka.redirects import ELSEWHERE, moved
from braidmq.log.transactions import Guard
from braidmq.net.connection import PendingReply
from braidmq.net.outbox import Parts
from braidmq.txn.versions import code_for
from braidmq.wire import produce as wire
from braidmq.wire.api import Api
from braidmq.wire.compress import Codec
from braidmq.wire.errors import ApiError, ErrorCode, RecordsRefused
from braidmq.wire.produce import ProduceRequest, ProduceResult
from braidmq.wire.records import HEADER_BYTES, TRANSACTIONAL, check_produced, parse_header

log = logging.getLogger("braid.produce")

_new = tuple.__new__  # the constructor of a named tuple is slow, and every request passes here

_OK = int(ErrorCode.NONE)
_ACKS = {0: Acks.NONE, 1: Acks.LEADER, -1: Acks.ALL}
_REFUSED_ANYWAY = Acks.NONE
# KIP-110: a client of an older version could not read back what it asks to store.
_ZSTD_FROM = 7
_CODEC_AT = _ATTRIBUTES_AT = 22
_CODEC_MASK = 0x07
# KIP-890: from this version on the broker announces the partitions of a transaction itself.
_ADDS_FROM = 12
_RETRIED_AS = ErrorCode.NOT_ENOUGH_REPLICAS
_RETRIED = (
    ErrorCode.CONCURRENT_TRANSACTIONS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.NOT_COORDINATOR,
)


Answer = list[tuple[str | None, bytes | None, list[ProduceResult]]]


class Closable(Protocol):
    """The connection a request came on."""

    def close(self, reason: str) -> None: ...


class _Wait(NamedTuple):
    """A partition that must commit an offset before the answer, and where its result goes."""

    partition: Replica
    offset: int
    results: list[ProduceResult]
    at: int


class _Question(NamedTuple):
    """A batch that the coordinator must let into its transaction before it is appended."""

    partition: Replica
    producer: TxnProducer
    batch: bytearray
    results: list[ProduceResult]
    at: int


class _Held(NamedTuple):
    """A batch that waits in its partition's queue, and where its result goes."""

    partition: Replica
    batch: bytearray
    results: list[ProduceResult]
    at: int


class _RequestState(NamedTuple):
    """What holds for every partition of a request."""

    acks: Acks
    version: int
    now_ms: int
    transactional_id: str | None
    waits: list[_Wait]
    questions: list[_Question]
    held: list[_Held]


class ProduceHandler:
    """Serves Produce for all connections."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._in_cluster = broker.in_cluster
        self._topics = broker.topics
        self._wall_ms = broker.clock.wall_ms
        self.waiting_bytes = 0
        """Of batches that the coordinator is being asked about, or that wait in the queue of a partition."""

    def handle(
        self, request: ProduceRequest, version: int, correlation_id: int, connection: Closable
    ) -> Parts | PendingReply | None:
        refusal = self._refusal(request)
        acks = _ACKS.get(request.acks, _REFUSED_ANYWAY)
        state = _RequestState(acks, version, self._wall_ms(), request.transactional_id, [], [], [])
        answer: Answer = []
        for name, topic_id, partitions in request.topics:
            topic, missing = self._find(name, topic_id)
            results: list[ProduceResult] = []
            answer.append((name, topic_id, results))
            for index, records in partitions:
                error = refusal or missing
                if error is not None:
                    results.append(_refused(index, error))
                else:
                    assert topic is not None
                    results.append(self._append(topic, index, records, state, results))
        unanswered = connection if request.acks == 0 else None
        if state.waits or state.questions or state.held:
            waiting = _WaitingProduce(self, state, answer, correlation_id, unanswered)
            return None if unanswered else waiting.pending
        if unanswered:
            _close_if_refused(unanswered, answer)
            return None
        return [self.encoded(version, correlation_id, answer)]

    def encoded(self, version: int, correlation_id: int, answer: Answer) -> bytes:
        """The answer; in a cluster with who leads the partitions that are led elsewhere."""
        if not self._in_cluster or version < wire.MOVED_FROM:
            return wire.encode_response(version, correlation_id, answer)
        refused = [
            (name, topic_id, result.index)
            for name, topic_id, results in answer
            for result in results
            if result.code in ELSEWHERE
        ]
        redirects = moved(self._broker, refused) if refused else None
        return wire.encode_response(version, correlation_id, answer, moved=redirects)

    @property
    def txn_gate(self) -> TxnGate:
        return self._broker.txn_gate

    def _refusal(self, request: ProduceRequest) -> ApiError | None:
        """Why the whole request cannot be served, or None."""
        if request.acks not in _ACKS:
            return ApiError(
                ErrorCode.INVALID_REQUIRED_ACKS, f"acks={request.acks}; it must be 0, 1 or -1 (all)"
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
                ErrorCode.INVALID_TOPIC_EXCEPTION, f"only the broker writes to topic {topic.name!r}"
            )
        if topic is not None:
            return topic, None
        return None, ApiError(
            code, f"there is no topic {(name or '')[:60]!r}; create it, or refresh the metadata"
        )

    def _append(
        self,
        topic: Topic,
        index: int,
        records: bytes | memoryview | None,
        state: _RequestState,
        results: list[ProduceResult],
    ) -> ProduceResult:
        """Appends to one partition; `results` is where the caller puts what this returns."""
        try:
            partition = topic.leading(index)
            batch = _batch(partition, records, state.version)
            if not partition.ready and partition.append_waits(batch):
                self._hold(len(batch))
                state.held.append(_Held(partition, bytearray(batch), results, len(results)))
                return _UNDECIDED
            producer = None if state.transactional_id is None else _producer(batch, state)
            if producer is not None and not self._broker.txn_gate.is_admitted(partition, producer):
                self._hold(len(batch))
                # Copied, as the buffer in which it came belongs to the connection.
                state.questions.append(
                    _Question(partition, producer, bytearray(batch), results, len(results))
                )
                return _UNDECIDED
            appended = partition.append_leader(batch, state.now_ms, state.acks)
        except ApiError as error:
            return _refused(index, error)
        if appended.wait_offset is not None:
            state.waits.append(_Wait(partition, appended.wait_offset, results, len(results)))
        return _accepted(index, appended)

    def _hold(self, size: int) -> None:
        """Counts a batch that waits. ApiError if there is no room; a single one always finds some."""
        most = self._broker.config.produce_waiting_bytes_max
        if self.waiting_bytes and self.waiting_bytes + size > most:
            raise ApiError(
                _RETRIED_AS, f"produce.waiting.bytes.max={most} bytes already wait to be appended; try again"
            )
        self.waiting_bytes += size


def _close_if_refused(connection: Closable, answer: Answer) -> None:
    """Tells a producer that waits for no answer that records of its were refused."""
    refused = [result for _, _, results in answer for result in results if result.code != _OK]
    if refused:
        connection.close(f"a batch with acks=0 was refused: {refused[0].message}")


def _producer(batch: memoryview, state: _RequestState) -> TxnProducer | None:
    """Whose transaction a batch belongs to; None if to none, or if it is no batch at all."""
    if len(batch) < HEADER_BYTES or not batch[_ATTRIBUTES_AT] & TRANSACTIONAL:
        return None
    header = parse_header(batch)
    assert state.transactional_id is not None
    return TxnProducer(
        state.transactional_id, header.producer_id, header.producer_epoch, state.version >= _ADDS_FROM
    )


def _batch(partition: Replica, records: bytes | memoryview | None, version: int) -> memoryview:
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
    """A request some of whose batches wait: to be let into a transaction, or to be on disk."""

    __slots__ = ("_answer", "_correlation_id", "_handler", "_left", "_state", "_unanswered", "pending")

    def __init__(
        self,
        handler: ProduceHandler,
        state: _RequestState,
        answer: Answer,
        correlation_id: int,
        unanswered: Closable | None,
    ) -> None:
        self.pending = PendingReply()
        self._handler = handler
        self._unanswered = unanswered
        self._state = state
        self._answer = answer
        self._correlation_id = correlation_id
        self._left = len(state.waits) + len(state.questions) + len(state.held)
        for wait in state.waits:
            wait.partition.when_committed(wait.offset, self._settler(wait))
        for question in state.questions:
            self._ask(question)
        for held in state.held:
            held.partition.enqueue(held.batch, state.now_ms, self._turn(held))

    def _turn(self, held: _Held) -> Turn:
        partition, batch, results, at = held

        def turn(outcome: Prepared | ApiError | None) -> None:
            try:
                if isinstance(outcome, ApiError):
                    raise outcome
                state = self._state
                producer = None if state.transactional_id is None else _producer(memoryview(batch), state)
                admitted = producer is None or self._handler.txn_gate.is_admitted(partition, producer)
            except ApiError as error:
                self._handler.waiting_bytes -= len(batch)
                results[at] = _refused(partition.index, error)
                self._done()
                return
            if producer is not None and not admitted:
                self._ask(_Question(partition, producer, batch, results, at), outcome)
            else:
                self._handler.waiting_bytes -= len(batch)
                self._append(held, None, outcome)

        return turn

    def _ask(self, question: _Question, prepared: Prepared | None = None) -> None:
        partition, producer, batch, results, at = question

        def decided(code: ErrorCode, guard: Guard | None) -> None:
            self._handler.waiting_bytes -= len(batch)
            if code is ErrorCode.NONE:
                self._append(_Held(partition, batch, results, at), guard, prepared)
                return
            code = _RETRIED_AS if code in _RETRIED else code_for(code, Api.PRODUCE, self._state.version)
            why = f"{partition}: the batch is not part of a transaction of {producer.transactional_id!r}"
            results[at] = _refused(partition.index, ApiError(code, why))
            self._done()

        try:
            # Before the coordinator is asked: a batch that is broken must not become part of a transaction.
            header = check_produced(batch, partition.config.max_message_bytes)
            self._handler.txn_gate.admit(partition, producer, header, decided)
        except ApiError as error:
            self._handler.waiting_bytes -= len(batch)
            results[at] = _refused(partition.index, error)
            self._done()

    def _append(self, held: _Held, guard: Guard | None, prepared: Prepared | None) -> None:
        partition, batch, results, at = held
        try:
            state = self._state
            appended = partition.append_leader(memoryview(batch), state.now_ms, state.acks, guard, prepared)
        except ApiError as error:
            results[at] = _refused(partition.index, error)
            self._done()
            return
        except Exception:
            # Nobody else would answer: the request has left its connection's hands.
            log.exception("%s: appending a batch failed", partition)
            why = ApiError(ErrorCode.UNKNOWN_SERVER_ERROR, f"{partition}: the batch could not be appended")
            results[at] = _refused(partition.index, why)
            self._done()
            return
        results[at] = _accepted(partition.index, appended)
        offset = appended.wait_offset
        if offset is None:
            self._done()
        else:
            partition.when_committed(offset, self._settler(_Wait(partition, offset, results, at)))

    def _settler(self, wait: _Wait) -> CommittedCallback:
        def settled(code: ErrorCode) -> None:
            if code is not ErrorCode.NONE:
                wait.results[wait.at] = _refused(
                    wait.partition.index,
                    ApiError(code, f"{wait.partition}: the records could not be written to disk"),
                )
            self._done()

        return settled

    def _done(self) -> None:
        self._left -= 1
        if self._left:
            return
        if self._unanswered is not None:
            _close_if_refused(self._unanswered, self._answer)
        else:
            version = self._state.version
            self.pending.complete([self._handler.encoded(version, self._correlation_id, self._answer)])


def _accepted(index: int, appended: Appended) -> ProduceResult:
    base_offset, append_time_ms, log_start_offset, _ = appended
    return _new(ProduceResult, (index, _OK, base_offset, append_time_ms, log_start_offset, None, ()))


def _refused(index: int, error: ApiError) -> ProduceResult:
    blamed = error.records if isinstance(error, RecordsRefused) else ()
    return ProduceResult(index, int(error.code), -1, -1, -1, error.message, blamed)


_UNDECIDED = _refused(
    -1, ApiError(ErrorCode.UNKNOWN_SERVER_ERROR, "the transaction coordinator did not answer")
)
"""Stands for a result until there is one."""
