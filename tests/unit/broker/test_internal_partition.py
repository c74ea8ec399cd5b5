"""One partition of an internal topic: read in slices, written under one epoch."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from braidmq.broker import internal_partition
from braidmq.broker.internal_partition import InternalPartition
from braidmq.log.transactions import EndMarker, MarkerType
from braidmq.wire.errors import ApiError, ErrorCode
from braidmq.wire.records import parse_header
from unit.embedded import embedded
from unit.held_disk import HeldDisk

OPTIONS = {"cleanup.policy": "compact", "flush": "sync"}
NAME = "__kept"

Story = Callable[[InternalPartition], Awaitable[None]]


def key(number: int) -> bytes:
    return b"key%d" % number


def run(tmp_path: Path, story: Story, disk: HeldDisk | None = None) -> None:
    async def lived() -> None:
        async with embedded(tmp_path, disk=disk) as broker:
            topic = await broker.topics.create_own(NAME, OPTIONS)
            await story(InternalPartition(topic.held[0], broker.clock))

    asyncio.run(lived())


async def stored(partition: InternalPartition) -> list[tuple[bytes, bytes | None]]:
    found: list[tuple[bytes, bytes | None]] = []
    await partition.read_records(lambda key, value: found.append((key, value)))
    return found


def test_what_is_handed_in_in_one_turn_becomes_one_batch_in_its_order(tmp_path: Path) -> None:
    """C6: commits that come together cost one write."""

    async def story(partition: InternalPartition) -> None:
        waits = [partition.written([(key(number), b"v"), (key(number), None)]) for number in range(3)]
        await asyncio.gather(*waits)
        counts: list[int] = []
        await partition.read(lambda header, _: counts.append(header.record_count))
        assert counts == [6]
        assert await stored(partition) == [
            record for number in range(3) for record in ((key(number), b"v"), (key(number), None))
        ]

    run(tmp_path, story)


def test_a_batch_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """C6: many commits at once do not become one huge batch."""
    monkeypatch.setattr(internal_partition, "TOGETHER_RECORDS_MAX", 3)

    async def story(partition: InternalPartition) -> None:
        await asyncio.gather(*(partition.written([(key(number), b"v")]) for number in range(9)))
        counts: list[int] = []
        await partition.read(lambda header, _: counts.append(header.record_count))
        assert counts == [3, 3, 3]

    run(tmp_path, story)


def test_everybody_hears_when_nothing_can_be_written(tmp_path: Path) -> None:
    """C6: a commit that is not on disk is not confirmed, whatever it was written with."""

    async def story(partition: InternalPartition) -> None:
        partition.replica.log.fail(OSError("no disk"))
        waits = [partition.written([(key(number), b"v")]) for number in range(2)]
        answers = await asyncio.gather(*waits, return_exceptions=True)
        assert [answer.code for answer in answers if isinstance(answer, ApiError)] == [
            ErrorCode.KAFKA_STORAGE_ERROR
        ] * 2

    run(tmp_path, story)


def test_an_append_under_another_epoch_is_refused(tmp_path: Path) -> None:
    """N4: a coordinator that was replaced and came back does not write what it believed before."""

    async def story(partition: InternalPartition) -> None:
        await partition.written([(key(1), b"v")])
        partition.replica.leader_epoch += 1
        end = partition.replica.end_offset
        with pytest.raises(ApiError) as refused:
            partition.append([(key(2), b"v")])
        assert refused.value.code is ErrorCode.NOT_COORDINATOR
        with pytest.raises(ApiError):
            await partition.written([(key(3), b"v")])
        assert partition.replica.end_offset == end

    run(tmp_path, story)


def test_who_waits_for_the_disk_hears_of_a_resignation_once(tmp_path: Path) -> None:
    """N4: a client does not wait for a coordinator that is no longer one."""
    disk = HeldDisk()

    async def story(partition: InternalPartition) -> None:
        await partition.written([(key(0), b"v")])
        disk.hold(NAME)
        codes: list[ErrorCode] = []
        partition.when_durable(partition.append([(key(1), b"v")]), codes.append)
        assert codes == []
        partition.resign()
        assert codes == [ErrorCode.NOT_COORDINATOR]
        partition.when_durable(0, codes.append)
        disk.let_go()
        await partition.replica.settled()
        assert codes == [ErrorCode.NOT_COORDINATOR] * 2
        with pytest.raises(ApiError):
            partition.append([(key(2), b"v")])

    run(tmp_path, story, disk)


def test_reading_gives_others_their_turn_and_stops_where_the_epoch_began(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """N4: a broker that loads a large coordinator goes on serving."""
    monkeypatch.setattr(internal_partition, "SLICE_BATCHES", 2)

    async def story(partition: InternalPartition) -> None:
        for number in range(10):
            partition.append([(key(number), b"v")])
        reading = asyncio.ensure_future(stored(partition))
        turns = 0
        while not reading.done():
            await asyncio.sleep(0)
            turns += 1
            if turns == 2:
                partition.append([(b"later", b"v")])
        assert [found for found, _ in await reading] == [key(number) for number in range(10)]
        assert turns >= 5

    run(tmp_path, story)


def test_reading_returns_when_what_was_read_is_committed(tmp_path: Path) -> None:
    """N4: a coordinator answers from what no crash takes back."""
    disk = HeldDisk()

    async def story(partition: InternalPartition) -> None:
        await partition.written([(key(0), b"v")])
        disk.hold(NAME)
        partition.append([(key(1), b"v")])
        found: list[bytes] = []
        reading = asyncio.ensure_future(partition.read_records(lambda key, _: found.append(key)))
        for _ in range(20):
            await asyncio.sleep(0)
        assert (found, reading.done()) == ([key(0), key(1)], False)
        disk.let_go()
        await reading

    run(tmp_path, story, disk)


def test_every_marker_that_is_appended_is_seen(tmp_path: Path) -> None:
    """N4 T2: a shard learns of the end of a transaction from its own partition."""

    async def story(partition: InternalPartition) -> None:
        batch = partition.transactional_batch([(key(1), b"v")], 7, 0)
        partition.append_batch(batch, partition.replica.begin_verification(parse_header(batch)))
        seen: list[tuple[int, int]] = []
        partition.watch_markers(lambda marker, end: seen.append((marker.producer_id, end)))
        partition.replica.append_marker(EndMarker(7, 0, MarkerType.COMMIT, 0), 0)
        assert seen == [(7, partition.replica.end_offset)]
        partition.resign()
        partition.replica.append_marker(EndMarker(8, 0, MarkerType.ABORT, 0), 0)
        assert len(seen) == 1

    run(tmp_path, story)
