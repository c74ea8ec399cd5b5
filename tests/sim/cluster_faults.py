"""What goes wrong in a cluster beside its machines: the store, and the network between brokers.

The store is away for a while, loses answers, commits late, ends leases late; a node's watches lag or break,
and history is compacted under them. A partition's leader is elected again, under a new epoch. Between two
brokers a direction or both are cut, connections are reset, or bytes come slowly.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from typing import Any
from unittest import mock

from tests.sim.loop import VirtualLoop
from tests.sim.network import SimNetwork
from tests.sim.store import Moods, SimStore

from braidmq.cluster import records
from braidmq.cluster.metadata_store import Put
from braidmq.cluster.records import PartitionMeta, TopicName, decode, encode
from braidmq.net.peer import PeerUnavailable
from braidmq.net.txn_peer import TxnPeers
from braidmq.txn.events import TopicPartition
from braidmq.txn.marker_queue import MarkerKey

INTERNAL = ("__", "__consumer_offsets", "__transaction_state")
"""How names of internal topics begin; one may be meant in particular."""


class StoreFaults:
    """The store's misfortunes."""

    def __init__(self, loop: VirtualLoop, store: SimStore, told: list[str]) -> None:
        self._loop = loop
        self._chance = loop.chance
        self._store = store
        self._told = told

    async def run(self, until_s: float) -> None:
        moods = self._store.moods
        while True:
            await asyncio.sleep(self._chance.uniform(0.05, 0.8))
            if self._loop.time() >= until_s:
                break
            what = self._chance.choices(
                ("away", "loses answers", "commits late", "ends leases late", "lag", "break", "compact"),
                (3, 3, 3, 1, 3, 3, 4),
            )[0]
            self._tell(what)
            if what == "away":
                moods.away_until_s = self._loop.time() + self._chance.choice((0.1, 0.5, 2.5))
            elif what == "loses answers":
                moods.lost_answers = self._chance.choice((0.1, 0.5))
            elif what == "commits late":
                moods.late_commits = self._chance.choice((0.1, 0.5))
            elif what == "ends leases late":
                moods.late_leases = True
            elif what == "lag":
                self._each_or_one(lambda end: setattr(end, "lag_s", self._chance.choice((0.1, 0.5, 2.0))))
            elif what == "break":
                self._each_or_one(lambda end: end.break_watches())
            else:
                self._store.compact()
            if self._chance.random() < 0.3:
                moods.lost_answers = moods.late_commits = 0.0
        self.heal()

    def _each_or_one(self, act: object) -> None:
        ends = self._store.ends
        for end in ends if self._chance.random() < 0.2 else ends and [self._chance.choice(ends)]:
            act(end)  # type: ignore[operator]

    def heal(self) -> None:
        self._store.moods = Moods()
        for end in self._store.ends:
            end.lag_s = 0.0

    def _tell(self, what: str) -> None:
        self._told.append(f"{self._loop.time():8.3f} store: {what}")
        self._loop.note(what)


class Elections:
    """Elects leaders again, each under a new epoch, as a controller would; half of internal topics."""

    def __init__(self, loop: VirtualLoop, store: SimStore, prefix: str, told: list[str]) -> None:
        self._loop = loop
        self._chance = loop.chance
        self._store = store
        self._prefix = prefix
        self._told = told

    async def run(self, until_s: float) -> None:
        while self._loop.time() < until_s:
            await asyncio.sleep(self._chance.choice((0.02, 0.2, 0.8)))
            self._elect()

    def _elect(self) -> None:
        kv = self._store.kv
        items = kv.items(self._prefix + records.PARTITIONS)
        if self._chance.random() < 0.5:
            named = kv.items(self._prefix + records.name_key(self._chance.choice(INTERNAL)))
            internal = tuple(decode(TopicName, one.key, one.value).topic_id for one in named)
            start = len(self._prefix + records.PARTITIONS)
            items = tuple(item for item in items if item.key.startswith(internal, start))
        if not items:
            return
        item = self._chance.choice(items)
        name = item.key.removeprefix(self._prefix)
        meta = decode(PartitionMeta, name, item.value)
        value = encode(replace(meta, epoch=meta.epoch + 1), f"controller/{kv.revision}")
        self._store.take(kv.commit((), [Put(item.key, value)], ()))
        self._told.append(f"{self._loop.time():8.3f} {name}: elected again, epoch {meta.epoch + 1}")


class Zombies:
    """Markers of a coordinator that was replaced, which come once more after those of its successor."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop
        self._past: dict[tuple[int, TopicPartition, int], dict[MarkerKey, None]] = {}

    def walk(self) -> AbstractContextManager[object]:
        write = TxnPeers.write_markers

        async def haunted(peers: TxnPeers, node_id: int, due: Sequence[MarkerKey]) -> Any:
            answer = await write(peers, node_id, due)
            stale: dict[MarkerKey, None] = {}
            for key in due:
                past = self._past.setdefault((node_id, key[0], key[1].producer_id), {})
                stale |= {one: None for one in past if one[1].coordinator_epoch < key[1].coordinator_epoch}
                past[key] = None
            if stale:
                self._loop.create_task(self._come_late(write(peers, node_id, list(stale))))
            return answer

        return mock.patch.object(TxnPeers, "write_markers", haunted)

    async def _come_late(self, writing: Coroutine[Any, Any, Any]) -> None:
        await asyncio.sleep(self._loop.chance.choice((0.0, 0.02, 0.1)))
        with suppress(PeerUnavailable):
            await writing


class PeerNetworkFaults:
    """What happens between brokers, and between them and clients."""

    def __init__(
        self, loop: VirtualLoop, network: SimNetwork, brokers: list[str], clients: list[str], told: list[str]
    ) -> None:
        self._loop = loop
        self._chance = loop.chance
        self._network = network
        self._brokers = brokers
        self._clients = clients
        self._told = told

    async def run(self, until_s: float) -> None:
        while True:
            await asyncio.sleep(self._chance.uniform(0.1, 1.0))
            if self._loop.time() >= until_s:
                return
            broker = self._chance.choice(self._brokers)
            others = [name for name in self._brokers if name != broker]
            other = self._chance.choice(others if others and self._chance.random() < 0.5 else self._clients)
            what = self._chance.choice(("cut", "cut one way", "reset", "slow"))
            self._told.append(f"{self._loop.time():8.3f} {other} - {broker}: {what}")
            self._loop.note(what)
            pairs = [(other, broker), (broker, other)]
            if what == "reset":
                self._network.reset_between(other, broker)
                continue
            if what == "cut one way":
                pairs = [self._chance.choice(pairs)]
            for source, target in pairs:
                if what == "slow":
                    link = self._network.link(source, target)
                    link.delay_s, link.piece_bytes = 0.01, self._chance.choice((1, 7, 100, 1000))
                else:
                    self._network.cut(source, target)
            await asyncio.sleep(self._chance.choice((0.1, 0.6, 3.0)))
            self._network.heal(broker)
