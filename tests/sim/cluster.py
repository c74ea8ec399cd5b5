"""One run of a seed in a cluster: several brokers on one store, everything that goes wrong, then peace.

As in `simulation.py` a run is a function of its seed. What is judged: everything the clients were told, and
what `cluster_judge.py` sees in the store, in images and on disks.
"""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from unittest import mock

from tests.sim.cluster_faults import Elections, PeerNetworkFaults, StoreFaults, Zombies
from tests.sim.cluster_judge import ClusterJudge
from tests.sim.cluster_load import ClusterLoad
from tests.sim.faults import MachineFaults
from tests.sim.loop import VirtualLoop
from tests.sim.network import SimNetwork
from tests.sim.nodes import Node
from tests.sim.routes import ClusterClient
from tests.sim.simulation import ACKED_MIN, PATIENCE_S, Verdict, judged
from tests.sim.store import SimStore

from braidmq.broker import producer_ids
from braidmq.cluster import records
from braidmq.cluster.kv import restore

FAULTS_S = 4.0
LOOK_S = 0.1
SETTLED_S = 1.0
"""How long after the last fault all brokers know the newest metadata."""
CLUSTER = "sim"


class ClusterSimulation:
    """`nodes` brokers of one cluster, under faults drawn from `seed`."""

    def __init__(self, seed: int, nodes: int = 3) -> None:
        # Every other run has no groups and no transactions: it takes a third of the time, and the rest of
        # what can go wrong goes wrong as often.
        self._coordinated = seed % 2 == 0
        self._seed = seed
        self._loop = loop = VirtualLoop(seed)
        self._network = SimNetwork(loop)
        self._store = SimStore(loop.time, loop.world_later, loop.chance)
        self._judge = ClusterJudge(self._store, records.prefix(CLUSTER))
        self._nodes = [
            Node(loop, self._network, f"broker-{number}", number, self._store, self._judge.follow)
            for number in range(1, nodes + 1)
        ]
        self._told: list[str] = []

    def run(self) -> Verdict:
        with ExitStack() as stack:
            # Small blocks: brokers are to meet at the counter, which a run would not do with a thousand.
            stack.enter_context(mock.patch.object(producer_ids, "BLOCK", 3))
            stack.enter_context(mock.patch.object(producer_ids, "RESERVE", 2))
            stack.enter_context(self._judge.watches_shards())
            stack.enter_context(self._judge.watches_markers())
            stack.enter_context(Zombies(self._loop).walk())
            return judged(self._seed, self._loop, self._live(), [self._judge], self._told)

    async def _live(self) -> None:
        loop, judge, nodes = self._loop, self._judge, self._nodes
        names = [node.name for node in nodes]
        machines = [MachineFaults(loop, node, judge, self._told) for node in nodes]
        for node in nodes:
            node.start()
        await asyncio.gather(*(one.come_back() for one in machines))
        first_day = self._store.kv.dump()
        load = ClusterLoad(loop, self._client, judge, self._coordinated)
        load.start()
        looking = loop.create_task(self._look())
        until_s = loop.time() + FAULTS_S
        store = StoreFaults(loop, self._store, self._told)
        elections = Elections(loop, self._store, records.prefix(CLUSTER), self._told)
        between = PeerNetworkFaults(loop, self._network, names, load.machines, self._told)
        await asyncio.gather(
            *(one.run(until_s, often=1 / len(nodes)) for one in machines),
            between.run(until_s),
            store.run(until_s),
            elections.run(until_s),
        )
        store.heal()
        for name in names:
            self._network.heal(name)
        await self._end(load, machines, first_day)
        looking.cancel()

    async def _end(self, load: ClusterLoad, machines: list[MachineFaults], first_day: bytes) -> None:
        judge, node = self._judge, self._nodes[0]
        acked = judge.acked
        if not await node.wait_for(lambda: judge.acked > acked + ACKED_MIN, PATIENCE_S):
            judge.complain("no progress after the faults had ended")
        load.ending = True
        if not await load.drained(PATIENCE_S):
            judge.complain("a reader of orders has not come to the end")
        await load.end()
        await asyncio.sleep(SETTLED_S)
        contents = await load.contents()
        await load.tell_all(contents)
        if self._loop.chance.random() < 0.4:
            await self._lose_metadata(machines, first_day)
            if await load.contents() != contents:
                judge.complain(
                    "brokers that had old metadata for a while have lost what they did not know of"
                )
        for one in self._nodes:
            problem = await one.stop()
            if problem is not None:
                judge.complain(f"it did not stop: {problem}")

    async def _lose_metadata(self, machines: list[MachineFaults], old: bytes) -> None:
        """Somebody restores the store from a backup that is too old, and then the right one."""
        self._told.append(f"{self._loop.time():8.3f} the store is an old one for a while")
        right = self._store.kv
        self._judge.watching = False
        for kv in (restore(old, self._loop.time()), right):
            for node in self._nodes:
                problem = await node.stop()
                if problem is not None:
                    self._judge.complain(f"it did not stop: {problem}")
            self._store.restore(kv)
            for node in self._nodes:
                node.start()
            await asyncio.gather(*(one.come_back() for one in machines))
        await asyncio.sleep(SETTLED_S)

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            if self._judge.watching:
                self._judge.look_at(self._nodes)

    def _client(self, role: str) -> ClusterClient:
        return ClusterClient(self._loop, self._network, role, [node.name for node in self._nodes])
