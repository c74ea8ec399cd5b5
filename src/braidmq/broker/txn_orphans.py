"""Transactions that are open in a partition and over for their coordinator: they are aborted.

A topic with flush=async may lose the marker of a transaction in a power loss, after the coordinator was done
with it. Nobody else would ever end it, and no reader at read_committed get past it.

A partition knows the producer and not the transactional id, so every coordinator of the cluster is asked. A
transaction that a partition has begun was known to its coordinator before; the coordinator forgets it when
every marker is written. So if all of them have answered, under the leader epochs of the image, and none has a
transaction of the producer that is not over, its marker was lost. If any of them is away or loading, or led
under another epoch, nothing is done, and the next round asks again.

Meanwhile the same producer may begin its next transaction and write here. Then what is open is not the same
any more: the partition is looked at before and after, and a producer that has written since is left alone.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

from braidmq.broker.outcomes import OpenTransaction, ProducerSummary
from braidmq.broker.replica import Replica
from braidmq.broker.txn_markers import append_marker
from braidmq.broker.txn_shards import TransactionShards
from braidmq.net.peer import PeerUnavailable
from braidmq.net.txn_peer import Coordinated
from braidmq.txn.events import Marker

PRODUCERS_MAX = 1_000
"""Producers that are asked about in one round."""

log = logging.getLogger("braid.transactions")


class CoordinatorPeers(Protocol):
    """Other brokers, which coordinate transactions; see `net.txn_peer`."""

    async def coordinated(self, node_id: int, producer_ids: Sequence[int]) -> Coordinated: ...


class _OpenState(NamedTuple):
    """An open transaction, and what the partition remembers of its producer."""

    transaction: OpenTransaction
    producer: ProducerSummary | None


class OrphanSearch:
    """Looks for transactions that nobody would end."""

    def __init__(self, node_id: int, shards: TransactionShards, peers: CoordinatorPeers) -> None:
        self._node_id = node_id
        self._shards = shards
        self._peers = peers

    async def end(self, partitions: Iterable[Replica]) -> None:
        """Aborts what is open in these partitions, which are open and led here, and over elsewhere."""
        suspects = [(partition, seen) for partition in partitions for seen in _open_in(partition)]
        ids = dict.fromkeys(seen.transaction.producer_id for _, seen in suspects)
        asked = list(ids)[:PRODUCERS_MAX]
        if not asked:
            return
        busy = await self._busy(asked)
        if busy is None:
            return
        over = set(asked) - busy
        for partition, seen in suspects:
            if seen.transaction.producer_id in over and seen in _open_in(partition):
                _abort(partition, seen)

    async def _busy(self, producer_ids: Sequence[int]) -> set[int] | None:
        """Those that some coordinator knows a transaction of; None if not all of them could say."""
        before = self._shards.leadership()
        if before is None:
            return None
        # This broker comes last: what it says holds until the next await.
        others = dict.fromkeys(node_id for node_id, _ in before.values() if node_id != self._node_id)
        busy: set[int] = set()
        epochs: dict[int, int] = {}
        for node_id in others:
            try:
                found = await self._peers.coordinated(node_id, producer_ids)
            except PeerUnavailable as error:
                log.info("broker %d does not say which transactions are over: %s", node_id, error)
                return None
            busy |= found.busy
            epochs.update(found.epochs)
        busy |= self._shards.busy(producer_ids)
        epochs.update(self._shards.epochs())
        return busy if self._is_complete(before, epochs) else None

    def _is_complete(self, before: Mapping[int, tuple[int, int]], epochs: Mapping[int, int]) -> bool:
        expected = {index: epoch for index, (_, epoch) in before.items()}
        return before == self._shards.leadership() and expected == {
            index: epoch for index, epoch in epochs.items() if index in expected
        }


def _open_in(partition: Replica) -> list[_OpenState]:
    """What is open in a partition of this broker, and the last that its producers wrote."""
    if not partition.is_open or not partition.leads:
        return []
    opened = partition.open_transactions()
    if not opened:
        return []
    producers = {one.producer_id: one for one in partition.producers()}
    return [_OpenState(one, producers.get(one.producer_id)) for one in opened]


def _abort(partition: Replica, seen: _OpenState) -> None:
    producer_id, producer_epoch, first_offset = seen.transaction
    log.warning("%s: aborting the transaction at offset %d, whose end was lost", partition, first_offset)
    epoch = 0 if seen.producer is None else max(seen.producer.coordinator_epoch, 0)
    append_marker(partition, Marker(producer_id, producer_epoch, False, epoch, 0), lambda _: None)
