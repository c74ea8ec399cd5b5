"""Disk threads and group commit: trouble stays where it arose, and nothing is left behind."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from pathlib import Path

import pytest

from braidmq.broker.replica import Replica
from braidmq.platform.disk import DiskFile, RealDisk, RealFile, StrPath
from braidmq.platform.threads import DiskThreads
from braidmq.wire.errors import ApiError, ErrorCode
from unit.broker.gated import WAIT_S, GatedDisk
from unit.embedded import append, embedded


def raising(*_: object) -> None:
    raise RuntimeError("planted")


async def durable(partition: Replica) -> ErrorCode:
    done: asyncio.Future[ErrorCode] = asyncio.get_running_loop().create_future()
    partition.when_committed(partition.end_offset, done.set_result)
    return await asyncio.wait_for(done, WAIT_S)


def test_a_callback_that_raises_does_not_strand_those_after_it(caplog: pytest.LogCaptureFixture) -> None:
    """L6: answers of other partitions are in the same queue."""

    async def run() -> None:
        threads = DiskThreads(asyncio.get_running_loop(), 1)
        both_ran = threading.Event()
        called: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        threads.submit(lambda: None, raising)
        threads.submit(both_ran.set, lambda _: called.set_result(None))
        both_ran.wait(WAIT_S)
        await asyncio.wait_for(called, WAIT_S)
        assert threads.stop()

    asyncio.run(run())
    assert "planted" in caplog.text


def test_a_caller_that_is_cancelled_is_held_until_its_job_has_ended() -> None:
    """L6: a checkpoint or a compaction is taken note of after it ran, not while it runs."""

    async def run() -> None:
        threads = DiskThreads(asyncio.get_running_loop(), 1)
        running, may_end = threading.Event(), threading.Event()
        ended: list[str] = []

        def job() -> None:
            running.set()
            may_end.wait(WAIT_S)
            ended.append("job")

        async def call() -> None:
            try:
                await threads.run(job)
            finally:
                ended.append("caller")

        calling = asyncio.ensure_future(call())
        await asyncio.to_thread(running.wait, WAIT_S)
        calling.cancel()
        await asyncio.sleep(0)
        assert ended == []
        may_end.set()
        with pytest.raises(asyncio.CancelledError):
            await calling
        assert ended == ["job", "caller"]
        assert threads.stop()

    asyncio.run(run())


def test_one_who_waits_for_the_disk_and_raises_does_not_strand_the_others(tmp_path: Path) -> None:
    """L6: two requests wait for one sync; the first one's answer cannot be built."""

    async def run() -> None:
        async with embedded(tmp_path) as broker:
            (partition,) = (await broker.topics.create("t", 1, {})).held.values()
            append(partition, b"x", broker.clock.wall_ms())
            partition.when_committed(1, raising)
            assert await durable(partition) is ErrorCode.NONE
            append(partition, b"y", broker.clock.wall_ms())
            assert await durable(partition) is ErrorCode.NONE

    asyncio.run(run())


class RaisingWatcher:
    def on_advanced(self, partition: Replica) -> None:
        raising(partition)


class CountingWatcher:
    def __init__(self) -> None:
        self.count = 0

    def on_advanced(self, partition: Replica) -> None:  # noqa: ARG002
        self.count += 1


def test_a_consumer_that_cannot_be_woken_does_not_strand_the_others(tmp_path: Path) -> None:
    """L6 P1: nor the producer whose records were to wake it."""

    async def run() -> None:
        async with embedded(tmp_path) as broker:
            for flush in ("sync", "async"):
                topic = await broker.topics.create(flush, 1, {"flush": flush})
                (partition,) = topic.held.values()
                watchers = [RaisingWatcher(), RaisingWatcher(), CountingWatcher(), RaisingWatcher()]
                for watcher in watchers:
                    partition.watch_high(watcher)
                append(partition, b"x", broker.clock.wall_ms())
                assert await durable(partition) is ErrorCode.NONE
                await asyncio.sleep(0)
                assert isinstance(watchers[2], CountingWatcher)
                assert watchers[2].count == 1

    asyncio.run(run())


def test_a_partition_that_cannot_begin_its_sync_fails_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """L6: those who wait for it are told; the partition after it in the same turn is synced."""

    async def run() -> None:
        async with embedded(tmp_path) as broker:
            first, second = (await broker.topics.create("t", 2, {})).held.values()
            begin = Replica.flush_begin

            def flush_begin(self: Replica) -> object:
                return raising() if self is first else begin(self)

            monkeypatch.setattr(Replica, "flush_begin", flush_begin)
            for partition in (first, second):
                append(partition, b"x", broker.clock.wall_ms())
            codes = await asyncio.gather(durable(first), durable(second))
            assert codes == [ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.NONE]
            with pytest.raises(ApiError, match="takes no more records"):
                append(first, b"y", broker.clock.wall_ms())

    asyncio.run(run())


class NoRoomForNames(RealDisk):
    """A disk that is full for the list of partitions being written, and for nothing else."""

    __slots__ = ()

    def open_append(self, path: StrPath) -> DiskFile:
        file = super().open_append(path)
        return NoRoom(file.fileno()) if str(path).endswith("active") else file


class NoRoom(RealFile):
    __slots__ = ()

    def write(self, content: bytes | bytearray | memoryview) -> None:  # noqa: ARG002
        raise OSError(errno.ENOSPC, "No space left on device")


def test_a_record_that_was_appended_is_acked_though_its_partition_cannot_be_noted(tmp_path: Path) -> None:
    """L6: the list of partitions being written only says what to recover first."""

    async def run() -> None:
        async with embedded(tmp_path, NoRoomForNames()) as broker:
            (partition,) = (await broker.topics.create("t", 1, {})).held.values()
            append(partition, b"x", broker.clock.wall_ms())
            assert await durable(partition) is ErrorCode.NONE

    asyncio.run(run())


def open_below(directory: Path) -> list[str]:
    """The files below `directory` that this process has open, removed ones included."""
    found = []
    for number in os.listdir("/proc/self/fd"):  # noqa: PTH208 - links to files that are gone
        try:
            target = os.readlink(f"/proc/self/fd/{number}")  # noqa: PTH115
        except FileNotFoundError:
            continue
        if target.startswith(str(directory)):
            found.append(target)
    return found


def test_a_topic_deleted_during_a_sync_leaves_no_file_open_and_nothing_on_disk(tmp_path: Path) -> None:
    """L1: the space of a file that is held open is not free."""

    async def run() -> None:
        disk = GatedDisk()
        async with embedded(tmp_path, disk) as broker:
            topic = await broker.topics.create("t", 1, {})
            (partition,) = topic.held.values()
            disk.close_gate()
            append(partition, b"x", broker.clock.wall_ms())
            waiting: asyncio.Future[ErrorCode] = asyncio.get_running_loop().create_future()
            partition.when_committed(1, waiting.set_result)
            await disk.sync_waits()
            await broker.delete_topic("t")
            assert await waiting is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            disk.gate.set()
            while open_below(topic.path.parent):
                await asyncio.sleep(0.001)

    asyncio.run(asyncio.wait_for(run(), WAIT_S))


def test_a_deleted_partition_is_not_opened_again_by_one_who_still_holds_it(tmp_path: Path) -> None:
    """L1: a fetch that waits, or a batch in line for its transaction, would bring the directory back."""

    async def run() -> None:
        async with embedded(tmp_path) as broker:
            topic = await broker.topics.create("t", 1, {})
            (partition,) = topic.held.values()
            append(partition, b"x", broker.clock.wall_ms())
            await broker.delete_topic("t")
            with pytest.raises(ApiError) as caught:
                append(partition, b"y", broker.clock.wall_ms())
            assert caught.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            await broker.topics.tidy()
            assert not topic.path.exists()

    asyncio.run(run())


def test_one_who_fails_when_a_log_is_open_does_not_hold_up_the_others(tmp_path: Path) -> None:
    """L12: each of those who wait for a log to be opened is called."""

    async def run() -> None:
        async with embedded(tmp_path) as broker:
            (partition,) = (await broker.topics.create("t", 1, {})).held.values()
            called = asyncio.Event()

            def fails() -> None:
                raise RuntimeError("this one has failed")

            partition.when_open(fails)
            partition.when_open(called.set)
            await asyncio.wait_for(called.wait(), 30)
            assert partition.is_open

    asyncio.run(run())
