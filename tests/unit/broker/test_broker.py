"""The broker: topics that survive, group commit, retention and the level of the disk."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from braidmq.broker.housekeeping import DiskLevel
from braidmq.broker.replica import Replica
from braidmq.log import checkpoint as checkpoints
from braidmq.platform.disk import DiskFile, RealDisk, RealFile, StrPath
from braidmq.platform.lock import DirectoryInUse
from braidmq.wire.errors import ApiError, ErrorCode
from unit.embedded import FillingDisk, TurnedClock, append, embedded

DAY_MS = 86_400_000
HOUR_MS = 3_600_000


async def durable(partition: Replica) -> ErrorCode:
    done: asyncio.Future[ErrorCode] = asyncio.get_running_loop().create_future()
    partition.when_committed(partition.end_offset, done.set_result)
    return await asyncio.wait_for(done, 10)


def test_topics_configs_and_records_survive_a_restart(tmp_path: Path) -> None:
    """L1: metadata and records are found again, under the same identity."""

    async def run() -> None:
        async with embedded(tmp_path) as broker:
            topic = await broker.topics.create("orders", 3, {"retention.ms": "1000000"})
            await broker.topics.create("gone", 1, {})
            append(topic.held[2], b"x", broker.clock.wall_ms(), 5)
            await broker.topics.delete("gone")
            await broker.topics.grow("orders", 6)
            first_id, cluster_id = topic.id, broker.cluster_id
        async with embedded(tmp_path) as broker:
            again = broker.topics.get("orders")
            assert [topic.name for topic in broker.topics] == ["orders"]
            assert (again.id, again.partition_count) == (first_id, 6)
            assert again.config.retention_ms == 1_000_000
            assert again.held[2].high_watermark == 5
            assert broker.cluster_id == cluster_id

    asyncio.run(run())


def test_a_recreated_topic_has_nothing_of_the_old_one(tmp_path: Path) -> None:
    """L1: one value per offset, for ever: another topic is another log."""

    async def run() -> None:
        async with embedded(tmp_path) as broker:
            old = await broker.topics.create("t", 1, {})
            append(old.held[0], b"old", broker.clock.wall_ms())
            await broker.topics.delete("t")
            new = await broker.topics.create("t", 1, {})
            assert new.id != old.id
            assert new.held[0].end_offset == 0
            await broker.topics.tidy()
            assert [path.name for path in (tmp_path / "topics").iterdir()] == [new.path.name]

    asyncio.run(run())


@pytest.mark.parametrize("name", ["", ".", "..", "../x", "a/b", "nul\0", "ä", "x" * 250, "two words"])
def test_topic_names_that_no_file_system_should_see_are_refused(tmp_path: Path, name: str) -> None:
    """W5: a topic's name is checked before anything is made of it."""

    async def run() -> None:
        async with embedded(tmp_path) as broker:
            with pytest.raises(ApiError) as caught:
                await broker.topics.create(name, 1, {})
            assert caught.value.code is ErrorCode.INVALID_TOPIC_EXCEPTION
            assert list((tmp_path / "topics").iterdir()) == []

    asyncio.run(run())


def test_one_directory_has_one_broker(tmp_path: Path) -> None:
    """L6: two processes never write one log."""

    async def run() -> None:
        async with embedded(tmp_path):
            with pytest.raises(DirectoryInUse, match="in use by another broker"):
                async with embedded(tmp_path):
                    pass

    asyncio.run(run())


class CountingDisk(RealDisk):
    """Counts syncs of segments, and fails them when told to."""

    __slots__ = ("broken", "syncs")

    def __init__(self) -> None:
        self.syncs = 0
        self.broken = False

    def open(self, path: StrPath, create: bool = False) -> DiskFile:
        file = super().open(path, create)
        if not str(path).endswith(".log"):
            return file
        return CountedFile(file.fileno(), self)


class CountedFile(RealFile):
    __slots__ = ("_disk",)

    def __init__(self, fd: int, disk: CountingDisk) -> None:
        super().__init__(fd)
        self._disk = disk

    def fdatasync(self) -> None:
        if self._disk.broken:
            raise OSError(5, "Input/output error")
        self._disk.syncs += 1
        super().fdatasync()


def test_many_writes_share_one_sync(tmp_path: Path) -> None:
    """L4: group commit: one fdatasync answers everyone who waits for it."""

    async def run() -> None:
        disk = CountingDisk()
        async with embedded(tmp_path, disk) as broker:
            partition = (await broker.topics.create("t", 1, {})).held[0]
            for _ in range(500):
                append(partition, b"x", broker.clock.wall_ms())
            assert partition.high_watermark == 0
            assert await durable(partition) is ErrorCode.NONE
            assert partition.high_watermark == 500
            assert disk.syncs <= 3

    asyncio.run(run())


def test_with_flush_async_nothing_waits_for_the_disk(tmp_path: Path) -> None:
    """L4: flush=async makes records readable at once and syncs by flush.messages."""

    async def run() -> None:
        disk = CountingDisk()
        async with embedded(tmp_path, disk) as broker:
            overrides = {"flush": "async", "flush.messages": "10"}
            partition = (await broker.topics.create("t", 1, overrides)).held[0]
            for _ in range(9):
                append(partition, b"x", broker.clock.wall_ms())
            await asyncio.sleep(0.05)
            assert (partition.high_watermark, disk.syncs) == (9, 0)
            append(partition, b"x", broker.clock.wall_ms())
            for _ in range(200):
                if disk.syncs:
                    break
                await asyncio.sleep(0.01)
            assert disk.syncs == 1

    asyncio.run(run())


def test_a_failed_sync_stops_the_partition_and_is_never_believed(tmp_path: Path) -> None:
    """L4: after EIO nothing is acked, writes are refused, what was durable is still read."""

    async def run() -> None:
        disk = CountingDisk()
        async with embedded(tmp_path, disk) as broker:
            partition = (await broker.topics.create("t", 1, {})).held[0]
            append(partition, b"safe", broker.clock.wall_ms())
            assert await durable(partition) is ErrorCode.NONE
            disk.broken = True
            append(partition, b"lost", broker.clock.wall_ms())
            assert await durable(partition) is ErrorCode.KAFKA_STORAGE_ERROR
            disk.broken = False
            with pytest.raises(ApiError) as caught:
                append(partition, b"more", broker.clock.wall_ms())
            assert caught.value.code is ErrorCode.KAFKA_STORAGE_ERROR
            assert partition.high_watermark == 1
            found = partition.read(0, 1000).records
            assert found is not None
            assert b"safe" in found.read()
            assert b"lost" not in found.read()
            found.release()

    asyncio.run(run())


async def fill(broker_partition: Replica, clock: TurnedClock, segments: int) -> None:
    """Appends batches that each fill a segment, an hour apart, all durable and checkpointed."""
    for _ in range(segments):
        append(broker_partition, b"x" * 900, clock.now_ms)
        clock.now_ms += HOUR_MS
    await durable(broker_partition)


def test_short_retention_is_applied_at_every_check(tmp_path: Path) -> None:
    """L7: segments past retention.ms go, whole ones, oldest first."""

    async def run() -> None:
        clock = TurnedClock()
        async with embedded(tmp_path, clock=clock) as broker:
            overrides = {
                "segment.bytes": "1024",
                "retention.ms": str(3 * HOUR_MS),
                "file.delete.delay.ms": "0",
            }
            partition = (await broker.topics.create("t", 1, overrides)).held[0]
            await fill(partition, clock, 6)
            await broker.housekeeping.checkpoint()
            await broker.housekeeping.clean()
            assert partition.start_offset == 3
            with pytest.raises(ApiError) as caught:
                partition.read(0, 1000)
            assert caught.value.code is ErrorCode.OFFSET_OUT_OF_RANGE

    asyncio.run(run())


def test_long_retention_waits_for_the_cleanup_hour_unless_the_disk_fills(tmp_path: Path) -> None:
    """L7: retention of days is applied at 04:00, or at once when the disk passes 75 %."""

    async def run() -> None:
        clock, disk = TurnedClock(), FillingDisk()
        hour_now = 3
        async with embedded(tmp_path, disk, clock, log_cleanup_hour=hour_now) as broker:
            overrides = {"segment.bytes": "1024", "retention.ms": str(DAY_MS)}
            partition = (await broker.topics.create("t", 1, overrides)).held[0]
            await fill(partition, clock, 30)
            await broker.housekeeping.checkpoint()
            while broker.housekeeping.is_cleanup_time(clock.now_ms):
                clock.now_ms += HOUR_MS
            await broker.housekeeping.clean()
            assert partition.start_offset == 0
            disk.used_percent = 76
            await broker.housekeeping.clean()
            assert broker.housekeeping.disk_level is DiskLevel.CLEAN
            assert partition.start_offset > 0

    asyncio.run(run())


def test_a_filling_disk_drops_the_oldest_and_a_full_one_refuses_writes(tmp_path: Path) -> None:
    """L7: past 85 % the oldest segments go by force; past 95 % writes are refused while reads go on."""

    async def run() -> None:
        clock, disk = TurnedClock(), FillingDisk()
        async with embedded(tmp_path, disk, clock) as broker:
            partition = (await broker.topics.create("t", 1, {"segment.bytes": "1024"})).held[0]
            await fill(partition, clock, 5)
            await broker.housekeeping.checkpoint()
            assert broker.housekeeping.disk_level is DiskLevel.FINE
            disk.used_percent = 90
            await broker.housekeeping.clean()
            assert partition.start_offset == 1
            disk.used_percent = 96
            await broker.housekeeping.clean()
            assert broker.housekeeping.disk_level is DiskLevel.FULL
            assert "96 % full" in broker.why_writes_are_refused()
            found = partition.read(4, 10_000).records
            assert found is not None
            found.release()
            disk.used_percent = 50
            await broker.housekeeping.clean()
            assert broker.housekeeping.disk_level is DiskLevel.FINE

    asyncio.run(run())


class WatchedDisk(FillingDisk):
    """Reads the start offset in a partition's checkpoint whenever one of its segments is removed."""

    def __init__(self) -> None:
        super().__init__()
        self.starts: list[int] = []

    def unlink(self, path: StrPath) -> None:
        if os.fspath(path).endswith(".log.deleted"):
            point = checkpoints.load(self, str(Path(path).parent))
            self.starts.append(-1 if point is None else point.start_offset)
        super().unlink(path)


def test_segments_are_removed_after_a_checkpoint_has_the_new_start(tmp_path: Path) -> None:
    """L7 L6: else a killed broker and the doctor would take what was deleted for lost."""

    async def run() -> None:
        clock, disk = TurnedClock(), WatchedDisk()
        async with embedded(tmp_path, disk, clock) as broker:
            partition = (await broker.topics.create("t", 1, {"segment.bytes": "1024"})).held[0]
            await fill(partition, clock, 5)
            await broker.housekeeping.checkpoint()
            disk.used_percent = 90
            await broker.housekeeping.clean()
            assert disk.starts == [1]

    asyncio.run(run())


def test_ten_thousand_partitions_cost_one_small_write(tmp_path: Path) -> None:
    """L12: creating, starting with and holding many partitions touches none of them."""

    async def run() -> None:
        async with embedded(tmp_path) as broker:
            topic = await broker.topics.create("wide", 10_000, {})
            append(topic.held[7777], b"x", broker.clock.wall_ms())
        assert sorted(path.name for path in topic.path.iterdir()) == ["7777", "topic"]
        async with embedded(tmp_path) as broker:
            partitions = list(broker.topics.get("wide").held.values())
            assert not any(partition.is_open for partition in partitions)
            assert partitions[7777].high_watermark == 1

    asyncio.run(run())


def test_producer_ids_are_never_given_twice(tmp_path: Path) -> None:
    """P4: ids stay unique across restarts."""

    async def run() -> list[int]:
        async with embedded(tmp_path) as broker:
            return [await broker.producer_ids.take() for _ in range(1500)]

    taken = asyncio.run(run()) + asyncio.run(run())
    assert len(set(taken)) == 3000


def test_producer_ids_are_not_given_twice_after_older_metadata_was_restored(tmp_path: Path) -> None:
    """P4 N4: a partition would take the records of a second producer for repetitions."""

    async def run() -> None:
        clock = TurnedClock()
        given: set[int] = set()
        backup = b""
        for _ in range(4):
            async with embedded(tmp_path, clock=clock) as broker:
                backup = backup or (tmp_path / "metadata.store").read_bytes()
                taken = {await broker.producer_ids.take() for _ in range(1500)}
                assert len(taken) == 1500
                assert not given & taken
                given |= taken
            clock.now_ms += 10_000
            (tmp_path / "metadata.store").write_bytes(backup)

    asyncio.run(run())
