"""Letting batches into transactions: the coordinator is asked before the first one of a partition.

A transactional batch may be appended without a question where its producer's transaction is open already.
Otherwise a guard is taken, the coordinator is asked, and the batch is appended if the guard still holds
(see `braidmq.log.transactions`). Older clients have announced the partition themselves, so the answer is
there at once. Newer ones leave that to the broker (KIP-890): the partition is added to the transaction, which
is a write, and while it is under way everything else the producer sends waits in a queue, or batches would
overtake each other.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import NamedTuple

from braidmq.broker.replica import Replica
from braidmq.broker.txn_coordinator import TransactionCoordinator
from braidmq.log.transactions import Guard
from braidmq.txn.events import Added, AddPartitions, TopicPartition
from braidmq.wire.errors import ErrorCode
from braidmq.wire.records import BatchHeader

ADDED_BY_BROKER = 5
"""The version of AddPartitionsToTxn that stands for a broker asking on behalf of a client."""
WAIT_MAX_S = 5.0
"""How long a batch waits for the transaction before to be finished."""

log = logging.getLogger("braid.transactions")

Then = Callable[[ErrorCode, Guard | None], None]


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

    __slots__ = ("asked", "queued", "since_s")

    def __init__(self, now_s: float) -> None:
        self.asked: list[_HeldBatch] = []
        self.queued: list[_HeldBatch] = []
        self.since_s = now_s

    def has(self, partition: Replica) -> bool:
        return any(waiting.partition is partition for waiting in (*self.asked, *self.queued))


class TxnGate:
    """Decides for every transactional batch of this broker whether it may be appended."""

    def __init__(self, coordinator: TransactionCoordinator) -> None:
        self._coordinator = coordinator
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
        if not producer.adds:
            codes = self._coordinator.transactions.verify(_request(producer, {topic_partition}))
            self._finish([waiting], producer, codes[topic_partition])
            return
        queue = self._queues.get(producer)
        if queue is not None:
            queue.queued.append(waiting)
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
        queue.since_s = self._loop.time()
        self._ask(producer, queue)

    def _ask(self, producer: TxnProducer, queue: _ProducerQueue) -> None:
        asked = queue.asked
        request = _request(producer, {waiting.topic_partition for waiting in asked})
        try:
            self._coordinator.ask(request, lambda added: self._on_added(producer, queue, added))
        except Exception:
            log.exception("transactional id %r: asking the coordinator failed", producer.transactional_id)
            if queue.asked is asked:
                self._on_added(producer, queue, Added(ErrorCode.UNKNOWN_SERVER_ERROR))

    def _on_added(self, producer: TxnProducer, queue: _ProducerQueue, added: Added) -> None:
        waited_s = self._loop.time() - queue.since_s
        if added.code is ErrorCode.CONCURRENT_TRANSACTIONS and waited_s < WAIT_MAX_S:
            # The markers of the transaction before are on their way.
            self._coordinator.when_changed(producer.transactional_id, lambda: self._ask(producer, queue))
            return
        self._finish(queue.asked, producer, added.code)
        self._ask_next(producer, queue)

    def _finish(self, waiting: list[_HeldBatch], producer: TxnProducer, code: ErrorCode) -> None:
        for one in waiting:
            try:
                self._answer(one, producer, code)
            except Exception:
                # Its own trouble: the others in the queue still get their answer.
                log.exception("%s: appending a batch of %r failed", one.partition, producer.transactional_id)

    def _answer(self, one: _HeldBatch, producer: TxnProducer, code: ErrorCode) -> None:
        if code is ErrorCode.NONE:
            one.then(code, one.guard)
            return
        one.partition.end_verification(producer.producer_id, one.guard)
        one.then(code, None)


def _request(producer: TxnProducer, partitions: set[TopicPartition]) -> AddPartitions:
    return AddPartitions(
        producer.transactional_id,
        producer.producer_id,
        producer.producer_epoch,
        frozenset(partitions),
        ADDED_BY_BROKER,
    )
