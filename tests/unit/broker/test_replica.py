"""The door to a partition: what a producer waits for, what a reader gets in one answer, who is woken when."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from braidmq.broker.broker import Broker
from braidmq.broker.outcomes import Acks, Isolation, NotReady, Place
from braidmq.broker.replica import Replica
from braidmq.log.transactions import EndMarker, MarkerType
from braidmq.wire.errors import ApiError, ErrorCode
from braidmq.wire.records import build_batch, parse_header
from unit.broker.gated import WAIT_S, GatedDisk
from unit.embedded import append, embedded

NOW_MS = 1_700_000_000_000


def tell(data: Path, story: Callable[[Broker, GatedDisk], Awaitable[None]]) -> None:
    async def run() -> None:
        disk = GatedDisk()
        async with embedded(data, disk) as broker:
            try:
                await story(broker, disk)
            finally:
                disk.gate.set()

    asyncio.run(asyncio.wait_for(run(), WAIT_S))


async def made(broker: Broker, flush: str) -> Replica:
    return (await broker.topics.create(flush, 1, {"flush": flush})).held[0]


def batch_of(producer_id: int, sequence: int, transactional: bool = False) -> bytearray:
    return build_batch(
        [(None, b"v", [], NOW_MS)],
        producer_id=producer_id,
        producer_epoch=0,
        base_sequence=sequence,
        transactional=transactional,
    )


class Watcher:
    """Notes where the partition stood whenever it was woken."""

    def __init__(self) -> None:
        self.seen: list[tuple[int, int]] = []

    def on_advanced(self, partition: Replica) -> None:
        self.seen.append((partition.high_watermark, partition.end_offset))


def test_the_partition_says_what_a_producer_waits_for(tmp_path: Path) -> None:
    """L4 P4: only acks=all waits, only with flush=sync, and a repeated batch only until it is on disk."""

    async def story(broker: Broker, disk: GatedDisk) -> None:
        quick, safe = await made(broker, "async"), await made(broker, "sync")
        disk.close_gate()
        for acks in Acks:
            batch = memoryview(build_batch([(None, b"v", [], NOW_MS)] * 3))
            assert quick.append_leader(batch, NOW_MS, acks).wait_offset is None
            waits = safe.append_leader(batch, NOW_MS, acks).wait_offset
            assert waits == (safe.end_offset if acks is Acks.ALL else None)
        first = safe.append_leader(memoryview(batch_of(7, 0)), NOW_MS, Acks.ALL)
        again = safe.append_leader(memoryview(batch_of(7, 0)), NOW_MS, Acks.ALL)
        assert (first.base_offset, first.wait_offset, again) == (9, 10, first)
        committed: asyncio.Future[ErrorCode] = asyncio.get_running_loop().create_future()
        safe.when_committed(10, committed.set_result)
        assert not committed.done()
        disk.gate.set()
        assert await committed is ErrorCode.NONE
        again = safe.append_leader(memoryview(batch_of(7, 0)), NOW_MS, Acks.ALL)
        assert (again.base_offset, again.wait_offset) == (9, None)

    tell(tmp_path, story)


def test_what_is_committed_without_the_disk_is_answered_at_once(tmp_path: Path) -> None:
    """L4: with flush=async the end of the log is the high watermark."""

    async def story(broker: Broker, disk: GatedDisk) -> None:
        partition = await made(broker, "async")
        disk.close_gate()
        append(partition, b"v", NOW_MS)
        answers: list[ErrorCode] = []
        partition.when_committed(1, answers.append)
        assert answers == [ErrorCode.NONE]

    tell(tmp_path, story)


def test_a_reader_gets_everything_in_one_answer(tmp_path: Path) -> None:
    """C1 T2: records, both watermarks, the start, what was aborted; at each isolation as far as it goes."""

    async def story(broker: Broker, _: GatedDisk) -> None:
        partition = await made(broker, "async")
        with pytest.raises(NotReady):
            partition.read(0, 1000)
        append(partition, b"v", NOW_MS)
        for producer_id in (1, 2):
            batch = batch_of(producer_id, 0, transactional=True)
            guard = partition.begin_verification(parse_header(batch))
            partition.append_leader(memoryview(batch), NOW_MS, Acks.ALL, guard)
        partition.append_marker(EndMarker(1, 0, MarkerType.ABORT, 0), 0)
        partition.delete_before(1)
        seen = {}
        for isolation in Isolation:
            found = partition.read(1, 10_000, isolation)
            assert found.records is not None
            seen[isolation] = (found.records.size, len(found.aborted))
            found.records.release()
            assert (found.high_watermark, found.last_stable_offset, found.log_start_offset) == (4, 2, 1)
            assert (found.leader_epoch, found.is_cold) == (0, False)
        size = len(batch_of(1, 0, transactional=True))
        assert seen[Isolation.COMMITTED] == (size, 1)
        assert seen[Isolation.UNCOMMITTED] == (seen[Isolation.UNCOMMITTED][0], 0)
        assert seen[Isolation.UNCOMMITTED][0] > 2 * size
        nothing = partition.read(1, 0, Isolation.COMMITTED)
        assert nothing == (None, 4, 2, 1, (), 0, False)
        assert {one.producer_id: one.open_since for one in partition.producers()} == {1: -1, 2: 2}
        assert [one.producer_id for one in partition.open_transactions()] == [2]

    tell(tmp_path, story)


def test_watchers_of_the_end_hear_before_the_disk_and_those_of_the_watermark_after(tmp_path: Path) -> None:
    """C1 L4: with flush=async there is nothing between the two."""

    async def story(broker: Broker, disk: GatedDisk) -> None:
        safe, quick = await made(broker, "sync"), await made(broker, "async")
        disk.close_gate()
        end, high = Watcher(), Watcher()
        for partition in (safe, quick):
            append(partition, b"v", NOW_MS)
            partition.watch_end(end)
            partition.watch_high(high)
        append(safe, b"v", NOW_MS)
        assert (end.seen, high.seen) == ([(0, 2)], [])
        append(quick, b"v", NOW_MS)
        assert (end.seen[1:], high.seen) == ([(2, 2)], [(2, 2)])
        disk.gate.set()
        await safe.settled()
        await asyncio.sleep(0)
        assert high.seen[-1] == (2, 2)
        assert len(end.seen) == 2
        told = len(high.seen)
        for partition in (safe, quick):
            partition.unwatch(end)
            partition.unwatch(high)
            append(partition, b"v", NOW_MS)
            await partition.settled()
        assert (len(end.seen), len(high.seen)) == (2, told)

    tell(tmp_path, story)


def test_a_client_that_takes_another_leader_for_the_present_one_is_told(tmp_path: Path) -> None:
    """W1: by every question that carries a leader epoch; records carry the one they were written under."""

    async def story(broker: Broker, _: GatedDisk) -> None:
        partition = await made(broker, "async")
        append(partition, b"v", NOW_MS)
        partition.leader_epoch = 3
        append(partition, b"w", NOW_MS)
        for epoch, code in ((2, ErrorCode.FENCED_LEADER_EPOCH), (4, ErrorCode.UNKNOWN_LEADER_EPOCH)):
            with pytest.raises(ApiError) as read:
                partition.read(0, 1000, Isolation.UNCOMMITTED, epoch)
            with pytest.raises(ApiError) as listed:
                await partition.list_offset(Place.LATEST, Isolation.UNCOMMITTED, epoch)
            with pytest.raises(ApiError) as ended:
                partition.epoch_end(0, epoch)
            assert {read.value.code, listed.value.code, ended.value.code} == {code}
        for epoch in (-1, 3):
            assert partition.epoch_end(0, epoch) == (0, 1)
            found = partition.read(1, 1000, Isolation.UNCOMMITTED, epoch)
            assert found.records is not None
            assert (found.leader_epoch, parse_header(found.records.read()).leader_epoch) == (3, 3)
            found.records.release()

    tell(tmp_path, story)
