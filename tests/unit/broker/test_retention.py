"""Retention of partitions that nobody has used since the start: decided from their files, off the loop."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from braidmq.broker.broker import Broker
from braidmq.broker.replica import Replica
from braidmq.platform.disk import DiskFile, StrPath
from braidmq.wire.errors import ErrorCode
from unit.embedded import FillingDisk, TurnedClock, append, embedded

HOUR_MS = 3_600_000
OPTIONS = {"segment.bytes": "1024", "retention.ms": str(HOUR_MS), "file.delete.delay.ms": "0"}


class LoopWatchingDisk(FillingDisk):
    """The real disk; it knows which files of partitions the loop's own thread looked at."""

    __slots__ = ("on_loop",)

    def __init__(self) -> None:
        super().__init__()
        self.on_loop: list[str] = []

    def _note(self, path: StrPath) -> None:
        if "/t." in str(path) and threading.current_thread() is threading.main_thread():
            self.on_loop.append(str(path))

    def listdir(self, path: StrPath) -> list[str]:
        self._note(path)
        return super().listdir(path)

    def open(self, path: StrPath, create: bool = False) -> DiskFile:
        self._note(path)
        return super().open(path, create)

    def exists(self, path: StrPath) -> bool:
        self._note(path)
        return super().exists(path)


async def fill(broker: Broker, clock: TurnedClock, overrides: dict[str, str]) -> None:
    """Three partitions of a topic `t`: one not written, one written now, one written two hours ago."""
    topic = await broker.topics.create("t", 3, overrides)
    for index, age_ms in ((1, 0), (2, 2 * HOUR_MS)):
        for _ in range(30):
            append(topic.held[index], b"x" * 300, clock.now_ms - age_ms)
        await durable(topic.held[index])


async def durable(partition: Replica) -> None:
    on_disk = asyncio.get_running_loop().create_future()
    partition.when_committed(partition.end_offset, on_disk.set_result)
    assert await on_disk is ErrorCode.NONE


def opened(broker: Broker) -> list[int]:
    return [partition.index for partition in broker.topics.get("t").held.values() if partition.is_open]


@pytest.mark.parametrize("later_ms", [0, HOUR_MS // 2])
def test_a_round_opens_only_what_has_something_to_lose(tmp_path: Path, later_ms: int) -> None:
    """L7 L12 L14: ten thousand partitions with nothing expired are not opened, and the loop reads nothing."""

    async def run() -> None:
        clock, disk = TurnedClock(), LoopWatchingDisk()
        async with embedded(tmp_path, clock=clock) as broker:
            await fill(broker, clock, OPTIONS)
        clock.now_ms += later_ms
        async with embedded(tmp_path, disk, clock) as broker:
            disk.on_loop.clear()
            await broker.housekeeping.clean()
            assert opened(broker) == [2]
            assert broker.partition("t", 2).start_offset > 0
            assert [path for path in disk.on_loop if "/2/" not in path] == []
            await broker.housekeeping.clean()
            assert opened(broker) == [2]

    asyncio.run(run())


def test_a_closed_partition_expires_when_its_time_has_come(tmp_path: Path) -> None:
    """L7: what was found out about a partition's files holds until its oldest segment is too old."""

    async def run() -> None:
        clock = TurnedClock()
        async with embedded(tmp_path, clock=clock) as broker:
            await fill(broker, clock, OPTIONS | {"retention.ms": str(12 * HOUR_MS)})
        async with embedded(tmp_path, clock=clock) as broker:
            await broker.housekeeping.clean()
            assert opened(broker) == []
            clock.now_ms += 10 * HOUR_MS + 1
            await broker.housekeeping.clean()
            assert opened(broker) == [2]
            clock.now_ms += 2 * HOUR_MS
            await broker.housekeeping.clean()
            assert opened(broker) == [1, 2]
            assert broker.partition("t", 1).start_offset > 0

    asyncio.run(run())


def test_new_options_are_applied_to_closed_partitions(tmp_path: Path) -> None:
    """L7: retention.bytes that is set later cuts a partition that nobody uses."""

    async def run() -> None:
        clock = TurnedClock()
        async with embedded(tmp_path, clock=clock) as broker:
            await fill(broker, clock, {"segment.bytes": "1024", "retention.ms": "-1"})
        async with embedded(tmp_path, clock=clock) as broker:
            await broker.housekeeping.clean()
            assert opened(broker) == []
            await broker.topics.reconfigure("t", {"segment.bytes": "1024", "retention.bytes": "2048"})
            await broker.housekeeping.clean()
            assert opened(broker) == [1, 2]
            assert broker.partition("t", 1).log.size_bytes <= 2048 + 1024

    asyncio.run(run())


def test_a_filling_disk_drops_the_oldest_of_closed_partitions_too(tmp_path: Path) -> None:
    """L7: past 85 % the largest partitions give way, whether somebody uses them or not."""

    async def run() -> None:
        clock, disk = TurnedClock(), FillingDisk()
        async with embedded(tmp_path, clock=clock) as broker:
            await fill(broker, clock, {"segment.bytes": "1024"})
        async with embedded(tmp_path, disk, clock) as broker:
            disk.used_percent = 90
            await broker.housekeeping.clean()
            assert broker.partition("t", 1).start_offset > 0

    asyncio.run(run())
