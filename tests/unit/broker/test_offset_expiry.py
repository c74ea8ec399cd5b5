"""Offsets that expire or go with their topic, while others are being committed."""

from __future__ import annotations

import asyncio
from pathlib import Path

from braidmq.broker.broker import Broker
from braidmq.broker.group_coordinator import Committer
from braidmq.group.offsets import Committed
from unit.broker.gated import WAIT_S, GatedDisk
from unit.embedded import TurnedClock, embedded, started
from unit.held_disk import HeldDisk

MONTH_MS = 31 * 86_400_000
NOBODY = Committer("", None, -1, 9)


async def commit(broker: Broker, group_id: str, offset: int, topic: str = "t") -> None:
    committed = Committed(offset, -1, "", broker.clock.wall_ms())
    await (await broker.groups.reach(group_id)).commit(group_id, NOBODY, [((topic, 0), committed)])


def offset_of(broker: Broker, group_id: str, topic: str = "t") -> int | None:
    found = broker.groups.of(group_id).groups.offsets(group_id).find(topic, 0)
    return None if found is None else found.offset


async def after_restart(data: Path, clock: TurnedClock, *group_ids: str) -> list[int | None]:
    async with embedded(data, clock=clock) as again:
        return [offset_of(again, group_id) for group_id in group_ids]


def test_a_commit_that_comes_while_another_group_expires_stays(tmp_path: Path) -> None:
    """C6: what is expired is decided per group, when its tombstones are written."""

    async def run() -> None:
        clock, disk = TurnedClock(), GatedDisk()
        broker = await started(tmp_path, disk, clock)
        await commit(broker, "first", 1)
        await commit(broker, "second", 2)
        clock.now_ms += MONTH_MS
        disk.close_gate()
        expiring = asyncio.ensure_future(broker.expire_groups())
        await disk.sync_waits()
        committing = asyncio.ensure_future(commit(broker, "second", 22))
        await asyncio.sleep(0)
        disk.gate.set()
        await asyncio.gather(expiring, committing)
        assert [offset_of(broker, "first"), offset_of(broker, "second")] == [None, 22]
        await broker.stop()
        assert await after_restart(tmp_path, clock, "first", "second") == [None, 22]

    asyncio.run(asyncio.wait_for(run(), WAIT_S))


def test_a_commit_that_is_being_written_when_its_group_would_expire_stays(tmp_path: Path) -> None:
    """C6: its record comes before the tombstone, and does not show until it is durable."""

    async def run() -> None:
        clock, disk = TurnedClock(), GatedDisk()
        broker = await started(tmp_path, disk, clock)
        await commit(broker, "first", 1)
        clock.now_ms += MONTH_MS
        disk.close_gate()
        committing = asyncio.ensure_future(commit(broker, "first", 11))
        await disk.sync_waits()
        expiring = asyncio.ensure_future(broker.expire_groups())
        await asyncio.sleep(0)
        disk.gate.set()
        await asyncio.gather(expiring, committing)
        assert offset_of(broker, "first") == 11
        await broker.stop()
        assert await after_restart(tmp_path, clock, "first") == [11]

    asyncio.run(asyncio.wait_for(run(), WAIT_S))


def test_offsets_of_a_recreated_topic_outlive_the_deletion_of_the_old_one(tmp_path: Path) -> None:
    """C6: the tombstones of all groups are written before anybody can commit for the new topic."""

    async def run() -> None:
        clock, disk = TurnedClock(), GatedDisk()
        broker = await started(tmp_path, disk, clock)
        await broker.topics.create("t", 1, {})
        await commit(broker, "first", 1)
        await commit(broker, "second", 2)
        disk.close_gate()
        deleting = asyncio.ensure_future(broker.delete_topic("t"))
        await disk.sync_waits()
        committing = asyncio.ensure_future(commit(broker, "second", 22))
        await asyncio.sleep(0)
        disk.gate.set()
        await asyncio.gather(deleting, committing)
        assert [offset_of(broker, "first"), offset_of(broker, "second")] == [None, 22]
        await broker.topics.create("t", 1, {})
        await broker.stop()
        assert await after_restart(tmp_path, clock, "first", "second") == [None, 22]

    asyncio.run(asyncio.wait_for(run(), WAIT_S))


def test_a_commit_that_is_being_written_when_its_topic_is_deleted_goes_with_it(tmp_path: Path) -> None:
    """C6: a recreated topic does not begin at an offset of the old one, though nobody has seen that yet."""

    async def run() -> None:
        clock, disk = TurnedClock(), HeldDisk()
        broker = await started(tmp_path, disk, clock)
        await broker.topics.create("t", 1, {})
        await commit(broker, "first", 1, topic="other")
        disk.hold("__consumer_offsets")
        written = asyncio.ensure_future(commit(broker, "first", 11))
        await asyncio.sleep(0.01)
        handed_in = asyncio.ensure_future(commit(broker, "second", 22))
        deleting = asyncio.ensure_future(broker.delete_topic("t"))
        while broker.topics.find("t") is not None:
            await asyncio.sleep(0.01)
        disk.let_go()
        await asyncio.gather(deleting, written, handed_in)
        await broker.topics.create("t", 1, {})
        assert [offset_of(broker, "first"), offset_of(broker, "second")] == [None, None]
        assert offset_of(broker, "first", "other") == 1
        await broker.stop()
        assert await after_restart(tmp_path, clock, "first", "second") == [None, None]

    asyncio.run(asyncio.wait_for(run(), WAIT_S))
