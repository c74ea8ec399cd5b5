"""A broker inside the test's own event loop, without sockets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from braidmq.broker.broker import Broker
from braidmq.broker.opening import opened
from braidmq.broker.outcomes import Acks, NotReady
from braidmq.broker.replica import Replica
from braidmq.config import configure
from braidmq.platform.clock import SystemClock
from braidmq.platform.disk import DiskUsage, RealDisk, StrPath
from braidmq.platform.host import Host
from braidmq.wire.records import build_batch


class FillingDisk(RealDisk):
    """The real disk, as full as a test says."""

    __slots__ = ("used_percent",)

    def __init__(self) -> None:
        self.used_percent = 10

    def usage(self, path: StrPath) -> DiskUsage:  # noqa: ARG002
        return DiskUsage(100, 100 - self.used_percent)


class TurnedClock:
    """A clock that stands where a test puts it."""

    def __init__(self, wall_ms: int = 1_700_000_000_000) -> None:
        self.now_ms = wall_ms

    def wall_ms(self) -> int:
        return self.now_ms

    def monotonic(self) -> float:
        return self.now_ms / 1000

    def boottime(self) -> float:
        return self.now_ms / 1000


@asynccontextmanager
async def embedded(
    data: Path, disk: RealDisk | None = None, clock: TurnedClock | None = None, **options: object
) -> AsyncIterator[Broker]:
    """A started broker; options are written with underscores for dots."""
    broker = await started(data, disk, clock, **options)
    try:
        yield broker
    finally:
        await broker.stop()


async def readable(partition: Replica) -> None:
    """Returns when the first records of `partition` can be read without waiting for the disk."""
    await opened([partition])
    for _ in range(1000):
        try:
            found = partition.read(partition.start_offset, 1 << 20)
        except NotReady:
            await asyncio.sleep(0.005)
            continue
        if found.records is not None:
            found.records.release()
        if not found.is_cold:
            return
        await asyncio.sleep(0.005)
    raise TimeoutError(f"{partition} is not read")


async def started(
    data: Path, disk: RealDisk | None = None, clock: TurnedClock | None = None, **options: object
) -> Broker:
    """As `embedded`, for a test that stops the broker itself."""
    given = {name.replace("_", "."): value for name, value in options.items()}
    broker = Broker(configure(given), data, Host(clock or SystemClock(), disk or RealDisk()))
    await broker.start()
    return broker


def append(partition: Replica, value: bytes, timestamp_ms: int, count: int = 1) -> int:
    """Appends a batch and returns its base offset."""
    batch = build_batch([(None, value, [], timestamp_ms)] * count)
    appended = partition.append_leader(memoryview(batch), timestamp_ms, Acks.ALL)
    return appended.base_offset
