"""The transaction coordinators of this broker, one per partition of `__transaction_state` that it leads."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from braidmq.broker.producer_ids import ProducerIds
from braidmq.broker.replica import Replica
from braidmq.broker.shards import Shards
from braidmq.broker.topics import Topics
from braidmq.broker.txn_coordinator import STATE_TOPIC, TOPIC_OPTIONS, TransactionCoordinator, TxnContext
from braidmq.broker.txn_markers import MarkerWriter, append_marker
from braidmq.cluster.image import Image
from braidmq.platform.clock import Clock
from braidmq.txn.events import Marker, TopicPartition
from braidmq.txn.settings import TransactionSettings
from braidmq.txn.transaction import PREPARED, TransactionState
from braidmq.wire.errors import ApiError, ErrorCode

log = logging.getLogger("braid.transactions")


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

    @property
    def coordinates_all(self) -> bool:
        """Whether every transactional id of the cluster is coordinated here, and known."""
        shown = self.shown
        if shown is None:
            return self._is_alone()
        return all(self.at(index) is not None for index in range(len(shown.partitions)))

    async def expire(self) -> None:
        """Forgets transactional ids that have been idle for too long."""
        for shard in self:
            await shard.expire()

    def end_orphans(self, partitions: Iterable[Replica]) -> None:
        """Aborts what is open in a partition of this broker and over for its coordinator.

        A topic with flush=async may lose the marker of a transaction in a power loss, after the coordinator
        was done with it. Nobody else would ever end it, and no reader at read_committed get past it. A
        partition knows the producer and not the transactional id, so this takes a broker that coordinates all
        of them: one that does not know the id has no say.
        """
        if not self.coordinates_all:
            return
        under_way = self._under_way()
        for partition in partitions:
            topic_partition = (partition.topic, partition.index)
            for producer_id, epoch, first_offset in partition.open_transactions():
                if (producer_id, topic_partition) in under_way:
                    continue
                log.warning(
                    "%s: aborting the transaction at offset %d, whose end was lost", partition, first_offset
                )
                marker = Marker(producer_id, epoch, False, partition.coordinator_epoch(producer_id), 0)
                append_marker(partition, marker, lambda _: None)

    def _under_way(self) -> set[tuple[int, TopicPartition]]:
        return {
            (one.producer_id, topic_partition)
            for shard in self
            for one in shard.transactions
            if one.state is TransactionState.ONGOING or one.state in PREPARED
            for topic_partition in one.partitions
        }
