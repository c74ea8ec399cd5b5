"""The transaction coordinators of this broker, one per partition of `__transaction_state` that it leads."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from braidmq.broker.producer_ids import ProducerIds
from braidmq.broker.shards import Shards
from braidmq.broker.topics import Topics
from braidmq.broker.txn_coordinator import STATE_TOPIC, TOPIC_OPTIONS, TransactionCoordinator, TxnContext
from braidmq.broker.txn_markers import MarkerWriter
from braidmq.cluster.image import Image
from braidmq.platform.clock import Clock
from braidmq.txn.settings import TransactionSettings
from braidmq.txn.transaction import IDLE
from braidmq.wire.errors import ApiError, ErrorCode


class TransactionShards(Shards[TransactionCoordinator]):
    """All transactional ids that this broker coordinates."""

    def __init__(
        self,
        image: Image,
        topics: Topics,
        node_id: int,
        new_count: Callable[[], int],
        settings: TransactionSettings,
        producer_ids: ProducerIds,
        markers: MarkerWriter,
        clock: Clock,
        is_alone: Callable[[], bool],
    ) -> None:
        self.settings = settings
        self._is_alone = is_alone
        context = TxnContext(clock, settings, producer_ids, markers, self._ids_known)
        super().__init__(
            image,
            topics,
            node_id,
            STATE_TOPIC,
            new_count,
            TOPIC_OPTIONS,
            lambda partition: TransactionCoordinator(partition, context),
            clock,
        )

    def _ids_known(self) -> int:
        return sum(len(led.shard.transactions) for led in self._led.values())

    def coordinator(self, transactional_id: str) -> TransactionCoordinator:
        """As `of`, for an id that a producer was initialised for.

        Where there is no topic and no other broker could have made it, there is no such id.
        """
        if not self.exists and self._is_alone():
            self.settings.check_id(transactional_id)
            raise ApiError(
                ErrorCode.INVALID_PRODUCER_ID_MAPPING, f"no producer was initialised for {transactional_id!r}"
            )
        return self.of(transactional_id)

    @property
    def is_loading(self) -> bool:
        """Whether some of what this broker coordinates is not known yet."""
        return any(not led.loaded for led in self._led.values())

    def leadership(self) -> dict[int, tuple[int, int]] | None:
        """Who leads each partition of the topic, and under which epoch; None if that is not known."""
        shown = self.shown
        if shown is None:
            return {} if self._is_alone() else None
        found = {}
        for index, partition in enumerate(shown.partitions):
            if partition is None:
                return None
            found[index] = (partition.record.leader, partition.record.epoch)
        return found

    def epochs(self) -> dict[int, int]:
        """The partitions that are led here and loaded, and under which leader epoch."""
        return {index: led.partition.epoch for index, led in sorted(self._led.items()) if led.loaded}

    def busy(self, producer_ids: Iterable[int]) -> set[int]:
        """Those of these producers that have a transaction here which is not over."""
        wanted = set(producer_ids)
        return {
            one.producer_id
            for shard in self
            for one in shard.transactions
            if one.producer_id in wanted and one.state not in IDLE
        }

    async def expire(self) -> None:
        """Forgets transactional ids that have been idle for too long."""
        for shard in self:
            await shard.expire()
