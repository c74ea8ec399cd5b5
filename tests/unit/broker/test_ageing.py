"""flush.ms and retention of topics that do not wait for the disk."""

from __future__ import annotations

import asyncio
from pathlib import Path

from braidmq.broker.broker import Broker
from braidmq.broker.replica import Replica
from unit.embedded import TurnedClock, append, embedded

HOUR_MS = 3_600_000


async def flushed(partition: Replica) -> None:
    """Returns when everything appended is durable."""
    while partition.log.durable_offset < partition.end_offset:
        await asyncio.sleep(0.001)


async def async_topic(broker: Broker, **options: str) -> Replica:
    given = {name.replace("_", "."): value for name, value in options.items()}
    topic = await broker.topics.create("t", 1, {"flush": "async", **given})
    return topic.held[0]


def test_records_are_flushed_after_flush_ms_though_a_checkpoint_came_before(tmp_path: Path) -> None:
    """L4: a checkpoint says where recovery begins; it makes nothing durable."""

    async def run() -> None:
        clock = TurnedClock()
        async with embedded(tmp_path, clock=clock) as broker:
            partition = await async_topic(broker, flush_ms="1000")
            append(partition, b"x", clock.wall_ms())
            await broker.housekeeping.checkpoint()
            clock.now_ms += 999
            await broker.housekeeping.flush_aged()
            await asyncio.sleep(0)
            assert partition.log.durable_offset == 0
            clock.now_ms += 1
            await broker.housekeeping.flush_aged()
            await flushed(partition)
            append(partition, b"y", clock.wall_ms())
            clock.now_ms += 1000
            await broker.housekeeping.flush_aged()
            await flushed(partition)

    asyncio.run(asyncio.wait_for(run(), 20))


def test_the_recovery_point_follows_a_flush_that_nothing_was_written_after(tmp_path: Path) -> None:
    """L6: else a crash makes the next start read what has long been durable."""

    async def run() -> None:
        clock = TurnedClock()
        async with embedded(tmp_path, clock=clock) as broker:
            partition = await async_topic(broker, flush_ms="1000")
            append(partition, b"x", clock.wall_ms())
            await broker.housekeeping.checkpoint()
            clock.now_ms += 1000
            await broker.housekeeping.flush_aged()
            await flushed(partition)
            await broker.housekeeping.checkpoint()
            written = (partition.path / "checkpoint").read_bytes()
            assert b'"recovery_offset":1' in written

    asyncio.run(asyncio.wait_for(run(), 20))


def test_retention_ends_on_a_partition_that_nobody_writes_to_any_more(tmp_path: Path) -> None:
    """L7: with flush=async its last records are on no sync's list."""

    async def run() -> None:
        clock = TurnedClock()
        async with embedded(tmp_path, clock=clock) as broker:
            partition = await async_topic(
                broker, retention_ms=str(HOUR_MS), flush_ms=str(1000 * HOUR_MS), file_delete_delay_ms="0"
            )
            append(partition, b"x", clock.wall_ms())
            await broker.housekeeping.checkpoint()
            clock.now_ms += 2 * HOUR_MS
            for _ in range(3):
                await broker.housekeeping.clean()
                await broker.housekeeping.flush_aged()
                await flushed(partition)
                await broker.housekeeping.checkpoint()
            assert (partition.start_offset, partition.end_offset) == (1, 1)
            assert partition.log.size_bytes == 0

    asyncio.run(asyncio.wait_for(run(), 20))
