"""What a task does on an executor: rows in, an open transaction out.

Connections and metadata are kept between the tasks of a worker process, which Spark reuses: a micro-batch of
a thousand rows takes less time than looking up its brokers again.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

from braidmq.client.batch_sender import BatchSender
from braidmq.client.cluster import Cluster, TopicPartition
from braidmq.client.errors import ClientError
from braidmq.client.producer import Acks
from braidmq.client.transactional import PROTOCOL_2, Identity, TransactionalClient
from braidmq.client.transactions import ONGOING
from braidmq.spark.sink.batches import Batches, Records
from braidmq.spark.sink.columns import ColumnLayout
from braidmq.spark.sink.commit import (
    TaskOutcome,
    TaskResult,
    check_not_ahead,
    check_same_rows,
    finish_task,
)
from braidmq.spark.sink.ledger import Decision, Ledger, sink_error
from braidmq.spark.sink.options import Guarantee, SinkOptions, connect
from braidmq.wire.errors import ApiError, ErrorCode
from braidmq.wire.messages.producers import InitProducerIdRequest, InitProducerIdResponse
from braidmq.wire.records import NO_PRODUCER, NO_SEQUENCE, seal_batch

METADATA_AGE_MAX_S = 30.0
SESSIONS_MAX = 8


@dataclass(frozen=True)
class TaskAttempt:
    """Which attempt of which task of which batch; `scope` is None for a write without a name."""

    family: str
    """The prefix of the transactional ids of all attempts; a write without a name has its own."""
    scope: str | None
    batch: int
    run: str
    task: int
    number: int
    attempt_id: int
    """Spark counts attempts from 0 again when it retries a stage; this number is unique."""

    @property
    def transactional_id(self) -> str:
        return f"{self.family}{self.task}-{self.number}"


class SinkSession:
    """A cluster and what is known of it, kept in a worker process; `lines` is for batches only."""

    def __init__(self, options: SinkOptions) -> None:
        self.cluster = connect(options)
        self.lines = connect(options)
        self.client = TransactionalClient(self.cluster)
        self._asked_s: dict[str, float] = {}

    def partition_count(self, topic: str) -> int:
        """At most half a minute old: partitions may be added while a query runs."""
        now_s = self.cluster.clock.monotonic()
        if now_s - self._asked_s.get(topic, 0.0) > METADATA_AGE_MAX_S:
            self.cluster.forget(topic)
            self._asked_s[topic] = now_s
        return self.cluster.partition_count(topic)

    def close(self) -> None:
        self.cluster.close()
        self.lines.close()


_sessions: dict[str, SinkSession] = {}


def session_for(options: SinkOptions) -> SinkSession:
    """The session of this process for these options."""
    key = repr(options)
    found = _sessions.get(key)
    if found is None:
        while len(_sessions) >= SESSIONS_MAX:
            _drop(next(iter(_sessions)))
        found = _sessions[key] = SinkSession(options)
    return found


def close_sessions() -> None:
    """Closes all connections of this process."""
    for key in list(_sessions):
        _drop(key)


def _drop(key: str) -> None:
    if dropped := _sessions.pop(key, None):
        dropped.close()


def write_task(
    options: SinkOptions, where: ColumnLayout, rows: Iterator[pa.RecordBatch], attempt: TaskAttempt
) -> TaskResult:
    """Writes a task's rows with the delivery guarantee; the result has the open transaction."""
    first = next((batch for batch in rows if batch.num_rows), None)
    if first is None:
        return TaskResult(attempt.task, TaskOutcome.EMPTY, attempt.scope, attempt.number)
    try:
        return _write(session_for(options), options, where, _chain(first, rows), attempt)
    except (ApiError, ClientError) as error:
        _drop(repr(options))
        raise sink_error(error, _explained(error, options)) from None


def _write(
    session: SinkSession,
    options: SinkOptions,
    where: ColumnLayout,
    rows: Iterator[pa.RecordBatch],
    attempt: TaskAttempt,
) -> TaskResult:
    if options.guarantee is Guarantee.AT_LEAST_ONCE:
        return _send(session, options, where, rows, attempt)
    known = None
    if attempt.scope is not None:
        known = Ledger(session.cluster, session.client, attempt.scope, options.transaction_timeout_ms).read()
        check_not_ahead(attempt.scope, known, attempt.batch)
    if known is None or known.batch < attempt.batch:
        return _write_in_transaction(session, options, where, rows, attempt, None)
    if not finish_task(session.client, known, attempt.task):
        return _write_in_transaction(session, options, where, rows, attempt, known)
    for _ in rows:
        # Spark expects all rows to be read.
        pass
    return TaskResult(attempt.task, TaskOutcome.DECIDED, attempt.scope, attempt.number)


def _write_in_transaction(
    session: SinkSession,
    options: SinkOptions,
    where: ColumnLayout,
    rows: Iterator[pa.RecordBatch],
    attempt: TaskAttempt,
    lost: Decision | None,
) -> TaskResult:
    """Writes the rows in a transaction that stays open; it replaces the lost one of a decision, if given."""
    client = session.client
    noted_ms = None if lost is None else lost.tasks[attempt.task].written_ms
    now_ms = session.cluster.clock.wall_ms() if noted_ms is None else noted_ms
    identity = client.take(_free_id(client, attempt), options.transaction_timeout_ms)
    try:
        sender = BatchSender(
            session.lines,
            transactional_id=identity.transactional_id,
            announces=client.protocol >= PROTOCOL_2,
            first_use=lambda partitions: client.add_partitions(identity, partitions),
            delivery_timeout_s=options.delivery_timeout_s,
        )
        batches = _pour(session, options, where, rows, attempt, sender, identity, now_ms)
        if lost is not None:
            check_same_rows(lost, attempt.task, batches.digest)
    except BaseException:
        _abort(client, identity)
        raise
    return TaskResult(
        attempt.task,
        TaskOutcome.WRITTEN if lost is None else TaskOutcome.REWRITTEN,
        attempt.scope,
        attempt.number,
        batches.rows,
        batches.digest,
        identity,
        min(at.topic for at in sender.partitions),
        now_ms,
    )


def _free_id(client: TransactionalClient, attempt: TaskAttempt) -> str:
    """The transactional id of this attempt; a new one if another attempt of that number holds it.

    That attempt belongs to an earlier run of the query or stage, and its driver may still commit it: taking
    its id would abort its rows.
    """
    usual = attempt.transactional_id
    state = client.described([usual]).get(usual)
    if state is None or state.transaction_state != ONGOING:
        return usual
    return f"{usual}-{attempt.run}-{attempt.attempt_id}"


def _send(
    session: SinkSession,
    options: SinkOptions,
    where: ColumnLayout,
    rows: Iterator[pa.RecordBatch],
    attempt: TaskAttempt,
) -> TaskResult:
    """Writes the rows without a transaction; with acks=all a batch that is sent twice is stored once."""
    identity = _idempotent(session.cluster) if options.acks is Acks.ALL else None
    sender = BatchSender(session.lines, acks=options.acks, delivery_timeout_s=options.delivery_timeout_s)
    now_ms = session.cluster.clock.wall_ms()
    batches = _pour(session, options, where, rows, attempt, sender, identity, now_ms)
    return TaskResult(attempt.task, TaskOutcome.SENT, rows=batches.rows)


def _pour(
    session: SinkSession,
    options: SinkOptions,
    where: ColumnLayout,
    rows: Iterator[pa.RecordBatch],
    attempt: TaskAttempt,
    sender: BatchSender,
    identity: Identity | None,
    now_ms: int,
) -> Batches:
    """Sends every row and waits for acknowledgement; rows without a time get `now_ms`."""

    def send(at: TopicPartition, records: Records) -> bool:
        content = seal_batch(
            records.close(),
            records.count,
            records.base_timestamp_ms,
            records.max_timestamp_ms,
            codec=options.codec,
            base_sequence=NO_SEQUENCE if identity is None else sender.next_sequence(at, records.count),
            producer_id=NO_PRODUCER if identity is None else identity.producer_id,
            producer_epoch=-1 if identity is None else identity.producer_epoch,
            transactional=options.guarantee is Guarantee.EXACTLY_ONCE,
        )
        sender.send(at, content)
        return content is not records.out

    batches = Batches(
        where,
        send,
        session.partition_count,
        batch_bytes=options.batch_bytes,
        record_bytes_max=options.request_bytes_max,
        first_partition=attempt.batch + attempt.task,
        digests=options.guarantee is Guarantee.EXACTLY_ONCE,
    )
    for batch in rows:
        batches.add(batch, now_ms)
    batches.finish()
    sender.flush()
    return batches


def _idempotent(cluster: Cluster) -> Identity:
    request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=60_000)
    answer = cluster.call(request, InitProducerIdResponse)
    if answer.error_code != ErrorCode.NONE:
        raise ApiError(ErrorCode(answer.error_code), "the broker returned no producer id")
    return Identity("", answer.producer_id, answer.producer_epoch)


def _abort(client: TransactionalClient, identity: Identity) -> None:
    """Aborts, so that readers do not wait for a failed task."""
    try:
        client.end(identity, commit=False)
    except (ApiError, ClientError):
        # It ends by timeout, or by the sweep of a driver.
        return


def _chain(first: pa.RecordBatch, rest: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield first
    yield from (batch for batch in rest if batch.num_rows)


def _explained(error: ApiError | ClientError, options: SinkOptions) -> str:
    advice = ""
    if isinstance(error, ApiError):
        advice = ADVICE.get(error.code, "")
    return f"writing to {options.bootstrap}: {error}{advice}"


ADVICE = {
    ErrorCode.INVALID_TRANSACTION_TIMEOUT: (
        "; the broker allows less than kafka.transaction.timeout.ms (its transaction.max.timeout.ms):"
        " set the option lower"
    ),
    ErrorCode.MESSAGE_TOO_LARGE: (
        "; the topic takes smaller batches (max.message.bytes): set kafka.batch.size and"
        " kafka.max.request.size below that, or raise it"
    ),
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: (
        "; allow WRITE on transactional ids that begin with the option transactionalIdPrefix, or add"
        ' .option("deliveryGuarantee", "at-least-once")'
    ),
    ErrorCode.GROUP_AUTHORIZATION_FAILED: (
        "; allow READ on groups that begin with the option transactionalIdPrefix"
    ),
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: "; create the topic: braid topic create NAME --partitions 8",
}
