"""A node: a whole broker on a machine of its own, which can be paused, stopped, killed and started again.

What is real: broker, reactor, face, log, groups, transactions, as `braidmq.serve` puts them together. What is
simulated: clock, disk, network, threads. A killed node leaves one of the states that a crash may leave of its
disk; nothing of it runs any more, and whatever it still held is kept until the simulation ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from tests.sim.client import PORT
from tests.sim.disk import Crash, SimDisk
from tests.sim.invariants import DELIVERIES_MAX
from tests.sim.loop import VirtualLoop
from tests.sim.network import SimNetwork
from tests.sim.store import SimStore, StoreEnd
from tests.sim.threads import SimThreads

from braidmq.broker.broker import Broker
from braidmq.broker.metadata import Joining
from braidmq.cluster.membership import LeaseTimes
from braidmq.config import configure
from braidmq.platform.host import Host
from braidmq.serve import Service

DATA = Path("/data")
EPOCH_MS = 1_700_000_000_000
OPTIONS = {
    "log.checkpoint.interval.ms": 400,
    "log.retention.check.interval.ms": 2000,
    "log.sync.threads": 2,
    "segment.bytes": 4096,
    "index.interval.bytes": 256,
    "group.initial.rebalance.delay.ms": 0,
    "group.share.record.lock.duration.ms": 3000,
    "group.share.delivery.count.limit": DELIVERIES_MAX,
    "group.share.auto.offset.reset": "earliest",
}

CLUSTER_OPTIONS = {
    "cluster.name": "sim",
    "offsets.topic.num.partitions": 4,
    "transaction.state.log.num.partitions": 4,
    "share.coordinator.state.topic.num.partitions": 4,
}


class NodeClock:
    """The loop's time; wall time may jump."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop
        self.ahead_ms = 0

    def wall_ms(self) -> int:
        return EPOCH_MS + int(self._loop.time() * 1000) + self.ahead_ms

    def monotonic(self) -> float:
        return self._loop.time()

    def boottime(self) -> float:
        return self._loop.time()


class Node:
    """One machine with a broker."""

    def __init__(
        self,
        loop: VirtualLoop,
        network: SimNetwork,
        name: str,
        node_id: int = 1,
        store: SimStore | None = None,
        on_start: Callable[[Node, Broker], None] = lambda _node, _broker: None,
    ) -> None:
        self.name = name
        self._node_id = node_id
        self._store = store
        """Of its cluster; None if it keeps its own."""
        self._end: StoreEnd | None = None
        self._on_start = on_start
        self._loop = loop
        self._network = network
        self.disk = SimDisk()
        self.clock = NodeClock(loop)
        self._pools: list[SimThreads] = []
        self._stopping: asyncio.Event | None = None
        self._life: asyncio.Task[None] | None = None
        self._context = loop.strand(name)
        self.serving = False
        self.boot_id = "first boot"
        self.last_error: BaseException | None = None
        """What its last life ended with."""
        self.broker: Broker | None = None
        """Of the life that goes on; for the judge, who may look into it."""

    @property
    def running(self) -> bool:
        return self._life is not None and not self._life.done()

    def start(self) -> None:
        assert not self.running, "it runs already"
        self.disk.descriptors = self._network.descriptors
        self._stopping = asyncio.Event()
        self._life = self._loop.create_task(self._live(self._stopping), context=self._context)

    async def _live(self, stopping: asyncio.Event) -> None:
        broker = self._new_broker()
        self._on_start(self, broker)
        await broker.start()
        try:
            service = Service(broker, self._network.of(self.name))
            await service.listen((self.name, PORT))
            self.broker, self.serving = broker, True
            await stopping.wait()
            self.serving = False
            await service.drain()
        finally:
            self.serving = False
            await broker.stop()

    def _new_broker(self) -> Broker:
        if self._store is None:
            return Broker(configure(OPTIONS), DATA, self._host())
        self._end = self._store.connect()
        options = OPTIONS | CLUSTER_OPTIONS | {"node.id": self._node_id}

        how = Joining(store=self._end, times=LeaseTimes())
        return Broker(configure(options), DATA, self._host(), how)

    def _host(self) -> Host:
        disk = self.disk

        def threads(loop: asyncio.AbstractEventLoop, count: int) -> SimThreads:
            made = SimThreads(loop, count, disk, self._loop.chance)
            self._pools.append(made)
            return made

        return Host(self.clock, disk, self._network.of(self.name), threads, self.name, self.boot_id)

    async def stop(self) -> str | None:
        """Ends it in order, as SIGTERM does; what went wrong on the way, or in its life before."""
        assert self._life is not None, f"{self.name} is not there"
        assert self._stopping is not None
        self._stopping.set()
        await asyncio.wait([self._life])
        life, self._life, self.broker = self._life, None, None
        self._pools.clear()
        # A life that ended badly leaves its lock and its sockets, as a process would not.
        self.disk.locked.clear()
        self._network.close_all(self.name)
        self.last_error = error = life.exception()
        return None if error is None else f"{self.name}: {error!r}"

    def kill(self, crash: Crash, silently: bool) -> None:
        """Ends it in the middle of everything."""
        self.resume()
        self.serving = False
        strand = self._loop.strand_of(self._context)
        self._loop.kill(strand)
        self._loop.graveyard += [self._life, self.broker, self.disk]
        self._network.kill(self.name, silently)
        if self._end is not None:
            self._end.drop()
        left = self.disk.crash(crash, self._loop.chance)
        self.disk.off = True
        for pool in self._pools:
            pool.abandon()
        self._loop.graveyard += self._pools
        self._pools.clear()
        self.disk, self._life, self.broker = left, None, None
        self._context = self._loop.strand(self.name)

    def restart(self) -> None:
        """The machine is there again after `kill`, and starts its broker."""
        self._network.revive(self.name)
        self.start()

    def pause(self) -> None:
        self._loop.strand_of(self._context).paused = True

    def resume(self) -> None:
        self._loop.strand_of(self._context).paused = False

    @property
    def busy(self) -> bool:
        """Whether something is being synced; the first pool does that."""
        return bool(self._pools) and self._pools[0].busy

    async def wait_for(self, met: Callable[[], bool], seconds: float, look_s: float = 0.05) -> bool:
        """Whether it comes to that in time."""
        until_s = self._loop.time() + seconds
        while not met() and self._loop.time() < until_s:
            await asyncio.sleep(look_s)
        return met()
