"""A whole broker on the simulated disk, loop and threads: stopped or killed at any moment, and started again.

Producers, a group, the deletion of a topic and the broker's own duties work side by side; a seed draws what
they do and how loop and disk threads take turns. Whatever was acked must be found after the next start.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from tests.sim.clock import SimClock
from tests.sim.disk import Crash, SimDisk
from tests.sim.loop import SimLoop, SimThreads, kill
from tests.sim.workload import read_batches

from braidmq.broker.broker import Broker
from braidmq.broker.group_coordinator import Committer
from braidmq.broker.partition import Partition
from braidmq.config import configure
from braidmq.group.offsets import Committed
from braidmq.wire.errors import ApiError, ErrorCode
from braidmq.wire.records import build_batch, records

DATA = Path("/data")
SEEDS = 15
STEPS = 25
NOBODY = Committer("", None, -1, 9)
OPTIONS = {
    "log.checkpoint.interval.ms": 100,
    "log.retention.check.interval.ms": 1000,
    "log.compaction.check.interval.ms": 1000,
    "log.sync.threads": 2,
}


class NoLock:
    def __init__(self, directory: Path) -> None: ...
    def release(self) -> None: ...


class Life:
    """One life of a broker, from its start to its stop or its death."""

    def __init__(self, disk: SimDisk, clock: SimClock, chance: random.Random) -> None:
        self.disk, self.clock, self.chance = disk, clock, chance
        self.loop = SimLoop(clock)
        self.threads: list[SimThreads] = []
        self.acked: dict[str, dict[int, bytes]] = {}
        """By partition: offset to value."""
        self.committed = -1
        self.number = 0
        self.unanswered = 0
        self.refused: list[str] = []
        """Partitions with a record that was appended and not acked."""
        self.found = disk
        self.ends: dict[str, int] = {}
        """Where each partition's log ended when the broker was told to stop."""

    def run(self, story: Coroutine[Any, Any, None], crash: Crash = Crash.LOST) -> None:
        """Lives the story; then the power goes, and `found` is what the disk holds."""
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_until_complete(story)
        finally:
            for threads in self.threads:
                threads.abandon()
            self.found = self.disk.crash(crash, self.chance)
            kill(self.loop)
            asyncio.set_event_loop(None)

    async def start(self) -> Broker:
        def threads(loop: asyncio.AbstractEventLoop, count: int) -> SimThreads:
            made = SimThreads(loop, count, self.disk, self.chance)
            self.threads.append(made)
            return made

        broker = Broker(configure(OPTIONS), DATA, self.disk, self.clock, threads, NoLock)
        await broker.start()
        return broker

    async def work(self, broker: Broker) -> None:
        """Some of everything; returns in the middle of it."""
        if broker.topics.find("sync") is None:
            await broker.topics.create("sync", 2, {"segment.bytes": "1024"})
            await broker.topics.create("async", 1, {"flush": "async", "flush.ms": "200"})
        busy = [asyncio.ensure_future(self._commit(broker)), asyncio.ensure_future(self._recreate(broker))]
        for _ in range(STEPS):
            name = self.chance.choice(("sync", "sync", "async", "gone"))
            topic = broker.topics.find(name)
            if topic is not None:
                partition = self.chance.choice(topic.partitions)
                await opened(partition)
                with suppress(ApiError):  # it was deleted meanwhile, or the broker stops
                    self.produce(partition)
            await asyncio.sleep(self.chance.choice((0, 0, 0.001, 0.01, 0.05)))
        for task in busy:
            task.cancel()

    def produce(self, partition: Partition) -> None:
        self.number += 1
        value = b"%d of %s" % (self.number, str(partition).encode())
        batch = build_batch([(None, value, [], self.clock.wall_ms())])
        appended, end = partition.append(memoryview(batch), self.clock.wall_ms())
        self.unanswered += 1

        def answered(code: ErrorCode) -> None:
            self.unanswered -= 1
            if code is ErrorCode.NONE:
                self.acked.setdefault(str(partition), {})[appended.base_offset] = value
            elif partition.topic != "gone":
                self.refused.append(str(partition))

        partition.when_durable(end, answered)

    async def _commit(self, broker: Broker) -> None:
        with suppress(ApiError):  # the broker stops
            for offset in range(self.committed + 1, 1000):
                committed = Committed(offset, -1, "", self.clock.wall_ms())
                await broker.coordinator.commit("g", NOBODY, [(("sync", 0), committed)])
                self.committed = offset
                await asyncio.sleep(0.005)

    async def _recreate(self, broker: Broker) -> None:
        with suppress(ApiError):  # the broker stops
            while True:
                await asyncio.sleep(0.02)
                if broker.topics.find("gone") is not None:
                    await broker.delete_topic("gone")
                await broker.topics.create("gone", 1, {})


async def opened(partition: Partition) -> None:
    """Returns when the partition's log is open, or never will be."""
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    partition.when_open(lambda: done.set_result(None))
    await done


def check(broker: Broker, before: Life) -> None:
    """What was acked is there, under its offset."""
    for name, values in before.acked.items():
        topic_name, _, index = name.rpartition("-")
        if topic_name == "gone":
            continue
        log = broker.partition(topic_name, int(index)).log
        found = {
            base_offset + number: record.value
            for base_offset, batch in read_batches(log, log.start_offset, log.durable_offset)
            for number, record in enumerate(records(memoryview(batch)))
        }
        assert {offset: found.get(offset) for offset in values} == values, name
    if before.committed >= 0:
        kept = broker.coordinator.groups.offsets("g").find("sync", 0)
        assert kept is not None
        assert kept.offset >= before.committed


@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_stopped_broker_leaves_everything_durable_and_nothing_open(seed: int) -> None:
    """L6 L4: all are answered, no file stays open, and if power goes then, nothing is to be recovered."""
    disk, clock, chance = SimDisk(), SimClock(), random.Random(seed)
    first = Life(disk, clock, chance)

    async def live_and_stop() -> None:
        broker = await first.start()
        await first.work(broker)
        kept = [topic for topic in broker.topics if topic.name in ("sync", "async")]
        opened = [one for topic in kept for one in topic.partitions if one.is_open]
        first.ends = {str(one): one.log.end_offset for one in opened}
        await broker.stop()
        assert (first.unanswered, first.refused) == (0, [])
        assert disk.open_files == 0
        assert not disk.exists(DATA / "active")

    first.run(live_and_stop())
    second = Life(first.found, clock, chance)

    async def look() -> None:
        broker = await second.start()
        check(broker, first)
        for name, end in first.ends.items():
            topic_name, _, index = name.rpartition("-")
            log = broker.partition(topic_name, int(index)).log
            assert (log.end_offset, log.notes) == (end, []), name
        await broker.stop()

    second.run(look())


@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_broker_that_lost_its_power_at_any_moment_has_all_that_was_acked(seed: int) -> None:
    """L6 L4: in the middle of work, of a start or of a stop, again and again."""
    chance = random.Random(seed)
    disk, clock = SimDisk(), SimClock()
    before: Life | None = None
    for _ in range(4):
        life = Life(disk, clock, chance)
        if before is not None:
            life.committed = before.committed
            life.acked = {name: dict(values) for name, values in before.acked.items()}
            life.number = before.number

        async def live(life: Life = life, before: Life | None = before) -> None:
            broker = await life.start()
            if before is not None:
                check(broker, before)
            working = asyncio.ensure_future(life.work(broker))
            await asyncio.wait([working], timeout=chance.uniform(0, 0.5))
            if working.done():
                working.result()
            stopping = asyncio.ensure_future(broker.stop())
            await asyncio.wait([stopping], timeout=chance.uniform(0, 0.1))

        life.run(live(), chance.choice(list(Crash)))
        disk, before = life.found, life
    last = Life(disk, clock, chance)

    async def look() -> None:
        broker = await last.start()
        assert before is not None
        check(broker, before)
        await broker.stop()

    last.run(look())
