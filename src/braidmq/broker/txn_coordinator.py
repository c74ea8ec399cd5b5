"""The transaction coordinator: pure logic on one side; an internal topic, markers and a timer on the other.

`braidmq.txn` decides; this module writes down what it decides, appends the markers that end transactions to
their partitions, and answers when all that is durable. Records go to the internal, compacted topic
`__transaction_state` in Kafka's own format. On start they are read back, and transactions that were decided
but not finished are finished.

The internal topic is made when the first transactional producer appears.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from functools import partial
from typing import TypeVar

from braidmq.broker.alarm import Alarm
from braidmq.broker.group_shards import GroupShards
from braidmq.broker.internal_topic import InternalTopic
from braidmq.broker.producer_ids import ProducerIds
from braidmq.broker.replica import Replica
from braidmq.broker.topics import Topics
from braidmq.log.transactions import EndMarker, MarkerType
from braidmq.platform.clock import Clock
from braidmq.txn.coordinator import Transactions
from braidmq.txn.events import (
    Added,
    AddPartitions,
    Effect,
    End,
    Ended,
    Init,
    Initialized,
    Marker,
    Moment,
    Reply,
    Token,
    TopicPartition,
    WriteMarkers,
    WriteRecord,
)
from braidmq.txn.loading import TransactionLoader
from braidmq.txn.settings import TransactionSettings
from braidmq.txn.transaction import PREPARED, TransactionState
from braidmq.wire.errors import ApiError, ErrorCode

STATE_TOPIC = "__transaction_state"
TOPIC_OPTIONS = {"cleanup.policy": "compact", "segment.bytes": "104857600"}
FINISH_WAIT_MAX_S = 1.0
"""How long the next transaction waits for the one before it, until its client has to ask again."""
LOOK_AGAIN_S = 0.05

log = logging.getLogger("braid.transactions")

A = TypeVar("A", Initialized, Added, Ended)


class TransactionCoordinator:
    """Coordinates every transactional id of this broker."""

    def __init__(
        self,
        topics: Topics,
        clock: Clock,
        settings: TransactionSettings,
        producer_ids: ProducerIds,
        groups: GroupShards,
    ) -> None:
        self._topics = topics
        self._topic = InternalTopic(topics, clock, STATE_TOPIC, TOPIC_OPTIONS)
        self._clock = clock
        self._producer_ids = producer_ids
        self._groups = groups
        self._loop = asyncio.get_running_loop()
        self._alarm = Alarm(clock, self._on_due)
        self._stopped = False
        self._waiting: dict[str, list[Callable[[], None]]] = {}
        self._adding: dict[str, list[asyncio.Future[None]]] = {}
        """Requests that add partitions and are not answered yet."""
        self.transactions = Transactions(settings, producer_ids.take_now)

    # -- start and end --------------------------------------------------------------------------

    async def load(self) -> None:
        """Reads what an earlier run left and finishes what was decided; partitions and groups come first."""
        loading = TransactionLoader()
        for record in self._topic.stored():
            loading.record(*record)
        if loading.unreadable:
            log.warning("cannot read %d records of %s; they are skipped", loading.unreadable, STATE_TOPIC)
        if loading.transactions:
            await self._producer_ids.reserve()
        self._carry_out(self.transactions.load(loading, self.now()))

    def end_orphans(self, partitions: Iterable[Replica]) -> None:
        """Aborts what is open in a partition and over for its coordinator.

        A topic with flush=async may lose the marker of a transaction in a power loss, after the coordinator
        was done with it. Nobody else would ever end it, and no reader at read_committed get past it.
        """
        going_on = {
            (one.producer_id, topic_partition)
            for one in self.transactions
            if one.state is TransactionState.ONGOING or one.state in PREPARED
            for topic_partition in one.partitions
        }
        for partition in partitions:
            topic_partition = (partition.topic, partition.index)
            for producer_id, epoch, first_offset in partition.open_transactions():
                if (producer_id, topic_partition) in going_on:
                    continue
                log.warning(
                    "%s: aborting the transaction at offset %d, whose end was lost", partition, first_offset
                )
                marker = Marker(producer_id, epoch, False, self.transactions.coordinator_epoch, 0)
                self.write_marker(topic_partition, marker, lambda _: None)

    def stop(self) -> None:
        """Writes nothing any more; what is decided and not finished is finished at the next start."""
        self._stopped = True
        self._alarm.stop()

    def now(self) -> Moment:
        return Moment(self._alarm.now_ms(), self._clock.wall_ms())

    # -- what faces ask -------------------------------------------------------------------------

    async def init(self, request: Init) -> Initialized:
        """Gives a transactional id to a producer, fencing the one that had it."""
        await self._topic.open()
        await self._producer_ids.reserve()
        return await self._answer(lambda token: self.transactions.init(request, token, self.now()))

    async def add_partitions(self, request: AddPartitions) -> Added:
        return await self._added(
            request, lambda token: self.transactions.add_partitions(request, token, self.now())
        )

    async def add_offsets(self, request: AddPartitions) -> Added:
        await self._groups.ensure()
        return await self._added(
            request, lambda token: self.transactions.add_offsets(request, token, self.now())
        )

    async def _added(self, request: AddPartitions, call: Callable[[Token], list[Effect]]) -> Added:
        """Asks until the transaction before is finished, which takes a moment.

        A client is answered before its markers are written. It could be made to ask again, but the stock
        ones do that after 20 ms and more, in every transaction.
        """
        answered: asyncio.Future[None] = self._loop.create_future()
        adding = self._adding.setdefault(request.transactional_id, [])
        adding.append(answered)
        try:
            return await self._added_in_time(request, call)
        finally:
            adding.remove(answered)
            if not adding:
                self._adding.pop(request.transactional_id, None)
            answered.set_result(None)

    async def _added_in_time(self, request: AddPartitions, call: Callable[[Token], list[Effect]]) -> Added:
        deadline_s = self._loop.time() + FINISH_WAIT_MAX_S
        while True:
            added: Added = await self._answer(call)
            if added.code is not ErrorCode.CONCURRENT_TRANSACTIONS or self._loop.time() >= deadline_s:
                return added
            changed: asyncio.Future[None] = self._loop.create_future()
            self.when_changed(request.transactional_id, partial(changed.set_result, None))
            await changed

    def when_changed(self, transactional_id: str, then: Callable[[], None]) -> None:
        """Calls back once, when something more was written down about the id, or after a moment."""
        self._waiting.setdefault(transactional_id, []).append(then)
        self._loop.call_later(LOOK_AGAIN_S, self._wake, transactional_id)

    def _wake(self, transactional_id: str) -> None:
        for then in self._waiting.pop(transactional_id, ()):
            try:
                then()
            except Exception:
                log.exception("transactional id %r: a callback failed", transactional_id)

    async def end(self, request: End) -> Ended:
        """Commits or aborts, after the partitions that were to be added before are added.

        librdkafka does not wait for that answer before it aborts. The abort must not overtake it: it would be
        taken for an abort of the transaction before, which is refused with INVALID_TXN_STATE and fatal.
        """
        for answered in tuple(self._adding.get(request.transactional_id, ())):
            await answered
        return await self._answer(lambda token: self.transactions.end(request, token, self.now()))

    def ask(self, request: AddPartitions, then: Callable[[Added], None]) -> None:
        """Adds partitions for a batch that waits; `then` is called in the very moment of the answer."""
        self._carry_out(self.transactions.add_partitions(request, then, self.now()))

    async def expire(self) -> None:
        """Forgets transactional ids that have been idle for too long."""
        self._carry_out(self.transactions.expire(self.now()))

    async def _answer(self, call: Callable[[Token], list[Effect]]) -> A:
        answer: asyncio.Future[A] = self._loop.create_future()

        def settle(given: A) -> None:
            if not answer.done():
                answer.set_result(given)

        self._carry_out(call(settle))
        return await answer

    # -- effects --------------------------------------------------------------------------------

    def _carry_out(self, effects: Iterable[Effect]) -> None:
        if self._stopped:
            return
        for effect in effects:
            if isinstance(effect, Reply):
                assert callable(effect.token)
                effect.token(effect.answer)
            elif isinstance(effect, WriteRecord):
                self._store(effect)
            else:
                self._write_markers(effect)
        self._alarm.set(self.transactions.next_deadline())

    def _store(self, store: WriteRecord) -> None:
        def settled(code: ErrorCode) -> None:
            transactions, now = self.transactions, self.now()
            if code is ErrorCode.NONE:
                self._carry_out(transactions.record_written(store.transactional_id, store.ticket, now))
            else:
                self._carry_out(transactions.record_failed(store.transactional_id, store.ticket, now))
            self._wake(store.transactional_id)

        try:
            durable_at = self._topic.append([store.record])
        except ApiError as error:
            log.error("transactional id %r: cannot write a change: %s", store.transactional_id, error)
            settled(error.code)
        else:
            self._topic.when_durable(durable_at, settled)

    def _write_markers(self, wanted: WriteMarkers) -> None:
        for topic_partition in wanted.partitions:
            self.write_marker(topic_partition, wanted.marker, self._reporter(wanted, topic_partition))

    def _reporter(self, wanted: WriteMarkers, topic_partition: TopicPartition) -> Callable[[ErrorCode], None]:
        transactional_id, marker, _ = wanted

        def report(code: ErrorCode) -> None:
            transactions, now = self.transactions, self.now()
            if code in (ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION):
                self._carry_out(
                    transactions.markers_written(transactional_id, marker, (topic_partition,), now)
                )
            else:
                log.error(
                    "%s-%d: cannot write the marker of %r: %s",
                    *topic_partition,
                    transactional_id,
                    code.name,
                )
                transactions.markers_failed(transactional_id, marker, now)
                self._carry_out(())

        return report

    def write_marker(
        self, topic_partition: TopicPartition, marker: Marker, then: Callable[[ErrorCode], None]
    ) -> None:
        """Ends a transaction in one partition; `then` is called when that is as safe as the topic's records.

        UNKNOWN_TOPIC_OR_PARTITION means that there is nothing left to end.
        """

        partition = self._partition(topic_partition)
        if partition is None:
            then(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            return
        outcome = MarkerType.COMMIT if marker.committed else MarkerType.ABORT
        end = EndMarker(marker.producer_id, marker.producer_epoch, outcome, marker.coordinator_epoch)

        def write() -> None:
            try:
                stored_at = partition.append_marker(end, marker.transaction_version)
            except ApiError as error:
                then(error.code)
            else:
                partition.when_committed(stored_at, then)

        partition.when_open(write)

    def _partition(self, topic_partition: TopicPartition) -> Replica | None:
        topic = self._topics.find(topic_partition[0])
        return None if topic is None else topic.held.get(topic_partition[1])

    def _on_due(self) -> None:
        self._carry_out(self.transactions.tick(self.now()))
