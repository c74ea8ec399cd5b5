"""Letting batches into transactions: the coordinator is asked before the first one of a partition.

A transactional batch may be appended without a question where its producer's transaction is open already.
Otherwise a guard is taken, the coordinator is asked, and the batch is appended if the guard still holds
(see `braidmq.log.transactions`). Older clients have announced the partition themselves, so the answer is
there at once. Newer ones leave that to the broker (KIP-890): the partition is added to the transaction, which
is a write, and while it is under way everything else the producer sends waits in a queue, or batches would
overtake each other.

The coordinator may be on another broker. Then every question takes a while, that of an older client, too, and
the queue is the same. The guard makes the delay harmless: an end of the transaction meanwhile withdraws it.
An answer that does not come is a refusal that producers retry.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import NamedTuple

from braidmq.broker.replica import Replica
from braidmq.broker.shards import NOBODY
from braidmq.broker.txn_questions import TxnQuestions
from braidmq.broker.txn_shards import TransactionShards
from braidmq.log.transactions import Guard
from braidmq.net.txn_peer import Question
from braidmq.txn.events import Added, AddPartitions, TopicPartition
from braidmq.wire.errors import ApiError, ErrorCode
from braidmq.wire.records import BatchHeader

ADDED_BY_BROKER = 5
"""The version of AddPartitionsToTxn that stands for a broker asking on behalf of a client."""
WAIT_MAX_S = 5.0
"""How long a batch waits for the transaction before to be finished."""
ASK_AGAIN_S_MIN = 0.005
ASK_AGAIN_S_MAX = 0.05
"""When a coordinator on another broker is asked again, while the transaction before is being finished."""

log = logging.getLogger("braid.transactions")

Then = Callable[[ErrorCode, Guard | None], None]
Codes = Mapping[TopicPartition, ErrorCode]


class TxnProducer(NamedTuple):
    """Who writes, under which transactional id, and whether the broker announces its partitions."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    adds: bool


class _HeldBatch(NamedTuple):
    partition: Replica
    topic_partition: TopicPartition
    guard: Guard
    then: Then


class _ProducerQueue:
    """Batches of one producer: those the coordinator is being asked about, and those that wait after them."""

    __slots__ = ("again_s", "asked", "queued", "since_s")

    def __init__(self, now_s: float) -> None:
        self.again_s = ASK_AGAIN_S_MIN
        self.asked: list[_HeldBatch] = []
        self.queued: list[_HeldBatch] = []
        self.since_s = now_s

    def has(self, partition: Replica) -> bool:
        return any(waiting.partition is partition for waiting in (*self.asked, *self.queued))


class TxnGate:
    """Decides for every transactional batch of this broker whether it may be appended."""

    def __init__(self, shards: TransactionShards, questions: TxnQuestions, node_id: int) -> None:
        self._shards = shards
        self._questions = questions
        self._node_id = node_id
        self._queues: dict[TxnProducer, _ProducerQueue] = {}
        self._loop = asyncio.get_running_loop()

    def is_admitted(self, partition: Replica, producer: TxnProducer) -> bool:
        """Whether a batch needs no question: its transaction is open, and nothing is waiting before it."""
        if not partition.is_in_transaction(producer.producer_id):
            return False
        queue = self._queues.get(producer)
        return queue is None or not queue.has(partition)

    def admit(self, partition: Replica, producer: TxnProducer, header: BatchHeader, then: Then) -> None:
        """Calls `then` with the guard, or with the code of a refusal; in the order of the calls.

        ApiError if the producer's epoch is over.
        """
        topic_partition = (partition.topic, partition.index)
        guard = partition.begin_verification(header)
        waiting = _HeldBatch(partition, topic_partition, guard, then)
        queue = self._queues.get(producer)
        if queue is not None:
            queue.queued.append(waiting)
            return
        if not producer.adds and (codes := self._verified_here(producer, [waiting])) is not None:
            self._finish([waiting], producer, codes)
            return
        queue = self._queues[producer] = _ProducerQueue(self._loop.time())
        queue.queued.append(waiting)
        # Not at once: the other partitions of the same request go with the same question.
        self._loop.call_soon(self._ask_next, producer, queue)

    def _ask_next(self, producer: TxnProducer, queue: _ProducerQueue) -> None:
        queue.asked, queue.queued = queue.queued, []
        if not queue.asked:
            del self._queues[producer]
            return
        queue.since_s, queue.again_s = self._loop.time(), ASK_AGAIN_S_MIN
        self._ask(producer, queue)

    def _ask(self, producer: TxnProducer, queue: _ProducerQueue) -> None:
        asked = queue.asked
        try:
            self._ask_coordinator(producer, queue)
        except ApiError as error:
            code = error.code
        except Exception:
            log.exception("transactional id %r: asking the coordinator failed", producer.transactional_id)
            code = ErrorCode.UNKNOWN_SERVER_ERROR
        else:
            return
        if queue.asked is asked:
            self._on_answer(producer, queue, dict.fromkeys((one.topic_partition for one in asked), code))

    def _ask_coordinator(self, producer: TxnProducer, queue: _ProducerQueue) -> None:
        leader = self._elsewhere(producer.transactional_id)
        request = _request(producer, queue.asked)
        if leader is not None and all(_is_open(one, producer) for one in queue.asked):
            # The batches before these have begun it, so the answer is known.
            self._on_answer(producer, queue, dict.fromkeys(request.partitions, ErrorCode.NONE))
        elif leader is not None:
            question = Question(request, verify_only=not producer.adds)
            self._questions.ask(leader, question, lambda codes: self._on_answer(producer, queue, codes))
        elif (codes := self._verified_here(producer, queue.asked)) is not None:
            self._on_answer(producer, queue, codes)
        else:

            def on_added(added: Added) -> None:
                self._on_answer(producer, queue, dict.fromkeys(request.partitions, added.code))

            self._shards.coordinator(producer.transactional_id).ask(request, on_added)

    def _verified_here(self, producer: TxnProducer, asked: list[_HeldBatch]) -> Codes | None:
        """What the coordinator says of partitions that the client has announced; None if it is not here."""
        if producer.adds:
            return None
        try:
            coordinator = self._shards.coordinator(producer.transactional_id)
        except ApiError as error:
            if error.code is ErrorCode.NOT_COORDINATOR:
                return None
            return dict.fromkeys((one.topic_partition for one in asked), error.code)
        return coordinator.transactions.verify(_request(producer, asked))

    def _elsewhere(self, transactional_id: str) -> int | None:
        """The other broker that coordinates an id; None if it is this one. ApiError if it is nobody."""
        shards = self._shards
        if not shards.exists or (leader := shards.leader_of(transactional_id)) == self._node_id:
            return None
        if leader == NOBODY:
            raise ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "the coordinator does not run")
        return leader

    def _on_answer(self, producer: TxnProducer, queue: _ProducerQueue, codes: Codes) -> None:
        waited_s = self._loop.time() - queue.since_s
        concurrent = producer.adds and ErrorCode.CONCURRENT_TRANSACTIONS in codes.values()
        if concurrent and waited_s < WAIT_MAX_S:
            # The markers of the transaction before are on their way.
            self._ask_again(producer, queue)
            return
        self._finish(queue.asked, producer, codes)
        self._ask_next(producer, queue)

    def _ask_again(self, producer: TxnProducer, queue: _ProducerQueue) -> None:
        """When something has changed at the coordinator; after a while if it is on another broker."""
        try:
            coordinator = self._shards.coordinator(producer.transactional_id)
        except ApiError:
            self._loop.call_later(queue.again_s, self._ask, producer, queue)
            queue.again_s = min(2 * queue.again_s, ASK_AGAIN_S_MAX)
        else:
            coordinator.when_changed(producer.transactional_id, lambda: self._ask(producer, queue))

    def _finish(self, waiting: list[_HeldBatch], producer: TxnProducer, codes: Codes) -> None:
        for one in waiting:
            try:
                self._answer(one, producer, codes[one.topic_partition])
            except Exception:
                # Its own trouble: the others in the queue still get their answer.
                log.exception("%s: appending a batch of %r failed", one.partition, producer.transactional_id)

    def _answer(self, one: _HeldBatch, producer: TxnProducer, code: ErrorCode) -> None:
        if code is ErrorCode.NONE:
            one.then(code, one.guard)
            return
        one.partition.end_verification(producer.producer_id, one.guard)
        one.then(code, None)


def _is_open(one: _HeldBatch, producer: TxnProducer) -> bool:
    return one.partition.is_open and one.partition.is_in_transaction(producer.producer_id)


def _request(producer: TxnProducer, asked: list[_HeldBatch]) -> AddPartitions:
    return AddPartitions(
        producer.transactional_id,
        producer.producer_id,
        producer.producer_epoch,
        frozenset(one.topic_partition for one in asked),
        ADDED_BY_BROKER,
    )
