"""A broker that stops: what is under way ends, what is acked stays, what hangs is said."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest

from braidmq.broker.replica import Replica
from braidmq.platform.disk import StrPath
from braidmq.wire.errors import ApiError, ErrorCode
from unit.broker.gated import WAIT_S, GatedDisk
from unit.embedded import append, embedded, started


def durability(partition: Replica) -> asyncio.Future[ErrorCode]:
    """Done when all records of the partition are on disk."""
    done: asyncio.Future[ErrorCode] = asyncio.get_running_loop().create_future()
    partition.when_committed(partition.end_offset, done.set_result)
    return done


def test_a_stop_waits_for_the_syncs_under_way_and_those_who_wait_are_answered(tmp_path: Path) -> None:
    """L6: a log is not closed during its own sync; the next start finds everything and recovers nothing."""

    async def run() -> None:
        disk = GatedDisk()
        broker = await started(tmp_path, disk)
        (partition,) = (await broker.topics.create("t", 1, {})).held.values()
        disk.close_gate()
        append(partition, b"first", broker.clock.wall_ms())
        acked = durability(partition)
        await disk.sync_waits()
        append(partition, b"second", broker.clock.wall_ms())
        stopping = asyncio.ensure_future(broker.stop())
        for _ in range(50):
            await asyncio.sleep(0.001)
        assert not stopping.done()
        disk.gate.set()
        await asyncio.wait_for(stopping, WAIT_S)
        assert await asyncio.wait_for(acked, WAIT_S) is ErrorCode.NONE
        assert not (tmp_path / "active").exists()
        async with embedded(tmp_path) as again:
            log = again.partition("t", 0).log
            assert (log.end_offset, log.notes) == (2, [])

    asyncio.run(run())


def test_a_sync_that_hangs_does_not_keep_a_stop_waiting_for_ever(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """L6: the partition is named, the others are closed, and the next start recovers it."""

    async def run() -> None:
        disk = GatedDisk()
        broker = await started(tmp_path, disk)
        topic = await broker.topics.create("t", 2, {})
        append(topic.held[1], b"x", broker.clock.wall_ms())
        assert await durability(topic.held[1]) is ErrorCode.NONE
        disk.close_gate()
        append(topic.held[0], b"x", broker.clock.wall_ms())
        await disk.sync_waits()
        await asyncio.wait_for(broker.stop(patience_s=0.05), WAIT_S)
        disk.gate.set()
        assert "t-0: its sync did not finish in time" in caplog.text
        assert "t-1" not in caplog.text
        with caplog.at_level(logging.INFO):
            async with embedded(tmp_path) as again:
                assert again.partition("t", 0).is_open
                assert again.partition("t", 0).end_offset == 1
        assert "recovering" in caplog.text

    asyncio.run(run())


def test_a_close_that_hangs_does_not_keep_a_stop_waiting_for_ever(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """L6: flush=async leaves the sync to the close."""

    async def run() -> None:
        disk = GatedDisk()
        broker = await started(tmp_path, disk, flush="async")
        (partition,) = (await broker.topics.create("t", 1, {})).held.values()
        append(partition, b"x", broker.clock.wall_ms())
        disk.close_gate()
        await asyncio.wait_for(broker.stop(patience_s=0.05), WAIT_S)
        disk.gate.set()
        assert "1 partitions are not closed" in caplog.text
        assert (tmp_path / "active").exists()

    asyncio.run(run())


def test_a_second_stop_waits_for_the_first(tmp_path: Path) -> None:
    """L6: SIGTERM may come twice."""

    async def run() -> None:
        broker = await started(tmp_path)
        (partition,) = (await broker.topics.create("t", 1, {})).held.values()
        append(partition, b"x", broker.clock.wall_ms())
        await asyncio.gather(broker.stop(), broker.stop())
        await broker.stop()
        assert not (tmp_path / "active").exists()

    asyncio.run(run())


def test_nothing_is_written_to_a_partition_whose_log_is_being_closed(tmp_path: Path) -> None:
    """L6: a record accepted then would be acked by nobody and be missing in the checkpoint."""

    async def run() -> None:
        broker = await started(tmp_path)
        topic = await broker.topics.create("t", 2, {})
        append(topic.held[0], b"x", broker.clock.wall_ms())
        await broker.stop()
        for partition in topic.held.values():
            with pytest.raises(ApiError, match="stopping") as caught:
                append(partition, b"late", broker.clock.wall_ms())
            assert caught.value.code is ErrorCode.KAFKA_STORAGE_ERROR

    asyncio.run(run())


class RefusingDisk(GatedDisk):
    """Refuses checkpoints of one partition."""

    __slots__ = ("refused",)

    def __init__(self) -> None:
        super().__init__()
        self.refused = ""

    def write_atomically(self, path: StrPath, content: bytes) -> None:
        if self.refused and str(path).endswith(self.refused):
            raise OSError(5, "Input/output error")
        super().write_atomically(path, content)


def test_a_partition_that_cannot_be_closed_is_named_and_the_others_are_closed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """L6: one partition's trouble stays with it."""

    async def run() -> None:
        disk = RefusingDisk()
        broker = await started(tmp_path, disk)
        topic = await broker.topics.create("t", 40, {})
        for partition in topic.held.values():
            append(partition, b"x", broker.clock.wall_ms())
        disk.refused = "/17/checkpoint"
        await broker.stop()
        assert "t-17: not closed cleanly" in caplog.text
        closed = [index for index in range(40) if (topic.path / str(index) / "checkpoint").exists()]
        assert closed == [index for index in range(40) if index != 17]
        assert (tmp_path / "active").exists()

    asyncio.run(run())


class CountingDisk(GatedDisk):
    __slots__ = ("written",)

    def __init__(self) -> None:
        super().__init__()
        self.written: list[str] = []

    def write_atomically(self, path: StrPath, content: bytes) -> None:
        self.written.append(str(path))
        super().write_atomically(path, content)


def test_a_checkpoint_that_is_current_is_not_written_again(tmp_path: Path) -> None:
    """L6: a stop costs the disk what has changed, not what there is."""

    async def run() -> None:
        disk = CountingDisk()
        broker = await started(tmp_path, disk)
        topic = await broker.topics.create("t", 8, {})
        for partition in topic.held.values():
            append(partition, b"x", broker.clock.wall_ms())
        await asyncio.gather(*map(durability, topic.held.values()))
        await broker.housekeeping.checkpoint()
        disk.written.clear()
        append(topic.held[3], b"x", broker.clock.wall_ms())
        await broker.stop()
        assert disk.written == [str(topic.path / "3" / "checkpoint")]

    asyncio.run(run())
