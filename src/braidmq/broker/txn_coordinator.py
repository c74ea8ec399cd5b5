"""The coordinator of some transactional ids: pure logic on one side, a partition and markers on the other.

`braidmq.txn` decides; this module writes down what it decides, has the markers that end transactions written
to their partitions, and answers when all that is durable. Records go to one partition of the internal,
compacted topic `__transaction_state` in Kafka's own format. A broker that begins to lead the partition reads
them back, and finishes the transactions that were decided but not finished. The leader epoch of the partition
is the coordinator epoch: markers of a coordinator that was replaced are refused where they would be written.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from typing import NamedTuple, TypeVar

from braidmq.broker.alarm import Alarm
from braidmq.broker.internal_partition import InternalPartition
from braidmq.broker.producer_ids import ProducerIds
from braidmq.broker.txn_markers import MarkerWriter
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
    Moment,
    Reply,
    Token,
    TopicPartition,
    WriteMarkers,
    WriteRecord,
)
from braidmq.txn.loading import TransactionLoader
from braidmq.txn.settings import TransactionSettings
from braidmq.wire.errors import ApiError, ErrorCode

STATE_TOPIC = "__transaction_state"
TOPIC_OPTIONS = {"cleanup.policy": "compact", "segment.bytes": "104857600"}

FINISH_WAIT_MAX_S = 1.0
"""How long the next transaction waits for the one before it, until its client has to ask again."""
LOOK_AGAIN_S = 0.05

log = logging.getLogger("braid.transactions")

A = TypeVar("A", Initialized, Added, Ended)


class TxnContext(NamedTuple):
    """What the coordinators of one broker have in common."""

    clock: Clock
    settings: TransactionSettings
    producer_ids: ProducerIds
    markers: MarkerWriter
    ids_known: Callable[[], int]
    """How many transactional ids all of them have."""


class TransactionCoordinator:
    """Coordinates the transactional ids of one partition."""

    def __init__(self, partition: InternalPartition, context: TxnContext) -> None:
        self._partition = partition
        self._clock = context.clock
        self._producer_ids = context.producer_ids
        self._markers = context.markers
        self._loop = asyncio.get_running_loop()
        self._alarm = Alarm(context.clock, self._on_due)
        self._stopped = False
        self._waiting: dict[str, list[Callable[[], None]]] = {}
        self._adding: dict[str, list[asyncio.Future[None]]] = {}
        """Requests that add partitions and are not answered yet."""
        self.transactions = Transactions(
            context.settings, context.producer_ids.take_now, partition.epoch, context.ids_known
        )

    # -- leading the partition ------------------------------------------------------------------

    async def load(self) -> None:
        """Reads the transactional ids of the partition, and finishes what was decided."""
        loading = TransactionLoader()
        await self._partition.read_records(loading.record)
        if loading.unreadable:
            log.warning("%s: cannot read %d records; they are skipped", self._partition, loading.unreadable)
        if loading.transactions:
            # What was decided is finished whether or not there are ids for producers that come.
            with suppress(ApiError):
                await self._producer_ids.reserve()
        self._carry_out(self.transactions.load(loading, self.now()))

    def resign(self) -> None:
        """Another broker coordinates these ids from now on, or this one after reading them again."""
        self.stop()
        self._markers.drop(self)
        for transactional_id in list(self._waiting):
            self._wake(transactional_id)

    def stop(self) -> None:
        """Writes nothing any more; what is decided and not finished is finished when it is loaded again."""
        self._stopped = True
        self._alarm.stop()

    def now(self) -> Moment:
        return Moment(self._alarm.now_ms(), self._clock.wall_ms())

    # -- what faces ask -------------------------------------------------------------------------

    async def init(self, request: Init) -> Initialized:
        """Gives a transactional id to a producer, fencing the one that had it."""
        # While the store is away an id that is known can still be given to a producer.
        with suppress(ApiError):
            await self._producer_ids.reserve()
        return await self._answer(lambda token: self.transactions.init(request, token, self.now()))

    async def add_partitions(self, request: AddPartitions) -> Added:
        return await self._added(
            request, lambda token: self.transactions.add_partitions(request, token, self.now())
        )

    async def add_offsets(self, request: AddPartitions) -> Added:
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
        if self._stopped:
            then(Added(ErrorCode.NOT_COORDINATOR))
        else:
            self._carry_out(self.transactions.add_partitions(request, then, self.now()))

    async def expire(self) -> None:
        """Forgets transactional ids that have been idle for too long."""
        self._carry_out(self.transactions.expire(self.now()))

    async def _answer(self, call: Callable[[Token], list[Effect]]) -> A:
        if self._stopped:
            raise ApiError(ErrorCode.NOT_COORDINATOR, f"{self._partition}: not coordinated here any more")
        answer: asyncio.Future[A] = self._loop.create_future()

        def settle(given: A) -> None:
            if not answer.done():
                answer.set_result(given)

        self._carry_out(call(settle))
        return await answer

    # -- effects --------------------------------------------------------------------------------

    def _carry_out(self, effects: Iterable[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Reply):
                assert callable(effect.token)
                effect.token(effect.answer)
            elif self._stopped:
                continue
            elif isinstance(effect, WriteRecord):
                self._store(effect)
            else:
                self._write_markers(effect)
        self._alarm.set(self.transactions.next_deadline())

    def _store(self, store: WriteRecord) -> None:
        def settled(code: ErrorCode) -> None:
            transactions, now = self.transactions, self.now()
            transactional_id, ticket, _ = store
            if code is ErrorCode.NONE:
                self._carry_out(transactions.record_written(transactional_id, ticket, now))
            elif code is ErrorCode.NOT_COORDINATOR:
                self._carry_out(transactions.record_failed(transactional_id, ticket, now, code))
            else:
                self._carry_out(transactions.record_failed(transactional_id, ticket, now))
            self._wake(store.transactional_id)

        try:
            durable_at = self._partition.append([store.record])
        except ApiError as error:
            log.error("transactional id %r: cannot write a change: %s", store.transactional_id, error)
            settled(error.code)
        else:
            self._partition.when_durable(durable_at, settled)

    def _write_markers(self, wanted: WriteMarkers) -> None:
        for topic_partition in wanted.partitions:
            report = self._reporter(wanted, topic_partition)
            self._markers.write(topic_partition, wanted.marker, self, report)

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

    def _on_due(self) -> None:
        self._carry_out(self.transactions.tick(self.now()))
