"""What goes wrong: drawn from the seed, for each machine and for the network between them, until it ends.

A machine loses its power or its process is killed (and once more while it comes back), is stopped in order,
stands still, finds its disk full, has an fdatasync fail, or has its wall clock set. Between a client and a
broker a direction or both are cut, a connection is reset, or bytes come slowly and in small pieces.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from tests.sim.disk import Crash
from tests.sim.invariants import Judge
from tests.sim.loop import VirtualLoop
from tests.sim.network import SimNetwork
from tests.sim.nodes import DATA, Node

from braidmq.cluster.file_store import FILE_NAME
from braidmq.cluster.metadata_store import StoreError

START_S = 30.0
"""How long a start may take, in virtual time."""

RESTART_S = 0.2

Fault = Callable[[], Coroutine[Any, Any, None]]


class MachineFaults:
    """One broker's misfortunes."""

    def __init__(self, loop: VirtualLoop, node: Node, judge: Judge, told: list[str]) -> None:
        self._loop = loop
        self._chance = loop.chance
        self._node = node
        self._judge = judge
        self.told = told

    async def run(self, until_s: float, often: float = 1.0) -> None:
        faults: list[tuple[Fault, int]] = [
            (self.lose_power, 5), (self.stop, 2), (self.stand_still, 2), (self.fill_disk, 2),
            (self.fail_sync, 2), (self.set_clock, 1),
        ]  # fmt: skip
        while True:
            await asyncio.sleep(self._chance.uniform(0.2, 2.5) / often)
            if self._loop.time() >= until_s:
                return
            fault = self._chance.choices([one for one, _ in faults], [weight for _, weight in faults])[0]
            await fault()

    async def lose_power(self) -> None:
        for _ in range(self._chance.choice((1, 1, 1, 2, 3))):
            await self._kill()
            self._node.restart()
            # Maybe again before it serves.
            await asyncio.sleep(self._chance.uniform(0, 0.05))
        await self.come_back()

    async def stop(self) -> None:
        self._tell("is stopped")
        problem = await self._node.stop()
        if problem is not None:
            self._judge.complain(f"it did not stop: {problem}")
        if self._node.disk.open_files or self._node.disk.exists(DATA / "active"):
            self._judge.complain("a stopped broker has left something open")
        await asyncio.sleep(self._chance.uniform(0, 0.5))
        self._node.start()
        await self.come_back()

    async def stand_still(self) -> None:
        self._tell("stands still")
        self._node.pause()
        await asyncio.sleep(self._chance.choice((0.05, 0.5, 3.0)))
        self._node.resume()

    async def fill_disk(self) -> None:
        """A broker that meets a full disk may have to be started again; it refuses writes until then."""
        self._tell("has a full disk")
        self._node.disk.room_bytes = self._chance.randint(1, 2000)
        await asyncio.sleep(self._chance.uniform(0.2, 2.0))
        self._node.disk.room_bytes = None
        await self._replace()

    async def fail_sync(self) -> None:
        """After a failed fdatasync only a restart helps."""
        self._tell("fails to sync")
        self._node.disk.failing_sync = self._node.disk.syncs + self._chance.randint(1, 6)
        await asyncio.sleep(self._chance.uniform(0.5, 1.5))
        self._node.disk.failing_sync = None
        await self._replace()

    async def set_clock(self) -> None:
        self._tell("has its clock set")
        # Never further back than an hour: a broker rightly refuses stamps that are further ahead of it.
        self._node.clock.ahead_ms = self._chance.choice((-3_600_000, -500, 500, 60_000))

    async def lose_metadata(self, old: bytes) -> None:
        """Somebody restores the metadata from a backup that is too old, and then the right one."""
        self._tell("has old metadata for a while")
        await self._node.stop()
        right = self._node.disk.read_file(DATA / FILE_NAME)
        for content in (old, right):
            self._node.disk.write_atomically(DATA / FILE_NAME, content)
            self._node.start()
            await self.come_back()
            if content is old:
                await self._node.stop()

    async def _replace(self) -> None:
        await self._kill()
        self._node.restart()
        await self.come_back()

    async def _kill(self) -> None:
        if self._chance.random() < 0.7:
            # Most of what can go wrong goes wrong while something is on its way to the disk.
            await self._node.wait_for(lambda: self._node.busy, 1.0, look_s=0.001)
        crash = self._chance.choice((*Crash, Crash.TORN, Crash.TORN))
        self._tell(f"dies: {crash.value}")
        self._judge.died(self._node.name)
        self._node.kill(crash, silently=self._chance.random() < 0.5)
        await asyncio.sleep(self._chance.uniform(0, 1.0))

    async def come_back(self) -> None:
        """Waits until it serves. What its store did not let start is started again, as a supervisor does."""
        until_s = self._loop.time() + START_S
        while self._loop.time() < until_s:
            if not await self._node.wait_for(lambda: self._node.serving or not self._node.running, START_S):
                break
            if self._node.serving:
                return
            problem = await self._node.stop()
            if not isinstance(self._node.last_error, StoreError):
                self._judge.complain(f"it cannot start: {problem}")
                return
            await asyncio.sleep(RESTART_S)
            self._node.start()
        self._judge.complain("it has not come back")

    def _tell(self, what: str) -> None:
        self.told.append(f"{self._loop.time():8.3f} {self._node.name} {what}")
        self._loop.note(what)


class NetworkFaults:
    """What happens between one broker and its clients."""

    def __init__(self, loop: VirtualLoop, network: SimNetwork, broker: str, clients: list[str]) -> None:
        self._loop = loop
        self._chance = loop.chance
        self._network = network
        self._broker = broker
        self._clients = clients
        self.told: list[str] = []

    async def run(self, until_s: float) -> None:
        while True:
            await asyncio.sleep(self._chance.uniform(0.2, 2.0))
            if self._loop.time() >= until_s:
                return
            client = self._chance.choice(self._clients)
            pairs = [(client, self._broker), (self._broker, client)]
            what = self._chance.choice(("cut", "cut one way", "reset", "slow"))
            self.told.append(f"{self._loop.time():8.3f} {client} - {self._broker}: {what}")
            self._loop.note(what)
            if what == "reset":
                self._network.reset_between(client, self._broker)
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
            self._network.heal(self._broker)
