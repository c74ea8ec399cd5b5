"""A process with few files to open: clients that do not read must not take those that writers need."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from pathlib import Path

import pytest

from braidmq.broker.group_commit import UNDER_WAY_MAX
from braidmq.broker.replica import Replica
from braidmq.net.outbox import Parts, release
from braidmq.platform.disk import DiskFile, RealDisk, RealFile, StrPath
from braidmq.wire.errors import ErrorCode
from braidmq.wire.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from unit.broker.gated import WAIT_S
from unit.embedded import append, embedded
from unit.faces.spoken import Speaker

PARTITIONS = 120
FILES_MAX = 16


class CountedDisk(RealDisk):
    """The real disk; it counts open segments, refuses to open them, or does not end their syncs."""

    __slots__ = ("gate", "most_open", "open_now", "refuses")

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.gate.set()
        self.open_now = self.most_open = 0
        self.refuses = False

    def open(self, path: StrPath, create: bool = False) -> DiskFile:
        if not str(path).endswith(".log"):
            return super().open(path, create)
        if self.refuses:
            raise OSError(errno.EMFILE, "Too many open files", str(path))
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0)
        return CountedFile(os.open(path, flags, 0o644), self)


class CountedFile(RealFile):
    """A segment."""

    __slots__ = ("_disk",)

    def __init__(self, fd: int, disk: CountedDisk) -> None:
        super().__init__(fd)
        self._disk = disk
        disk.open_now += 1
        disk.most_open = max(disk.most_open, disk.open_now)

    def fdatasync(self) -> None:
        assert self._disk.gate.wait(WAIT_S)
        super().fdatasync()

    def close(self) -> None:
        self._disk.open_now -= 1
        super().close()


async def durable(partition: Replica) -> ErrorCode:
    done: asyncio.Future[ErrorCode] = asyncio.get_running_loop().create_future()
    partition.when_committed(partition.end_offset, done.set_result)
    return await asyncio.wait_for(done, WAIT_S)


async def write_to_all(partitions: list[Replica]) -> None:
    for partition in partitions:
        append(partition, b"v", 1_700_000_000_000)
    assert set(await asyncio.gather(*map(durable, partitions))) == {ErrorCode.NONE}


def fetch_of(indexes: range) -> FetchRequest:
    parts = [FetchPartition(partition=i, fetch_offset=0, partition_max_bytes=1 << 20) for i in indexes]
    topics = [FetchTopic(topic="t", partitions=parts)]
    return FetchRequest(topics=topics, max_bytes=1 << 20, min_bytes=0, max_wait_ms=0)


def test_answers_that_are_not_read_leave_files_for_others(tmp_path: Path) -> None:
    """L12 L6: many clients ask for much and read nothing; open files stay near the cap, writers go on."""

    async def run() -> None:
        disk = CountedDisk()
        async with embedded(tmp_path, disk=disk, log_files_open_max=FILES_MAX) as broker:
            topic = await broker.topics.create("t", PARTITIONS, {})
            await write_to_all(list(topic.held.values()))
            one = Speaker(broker)
            unread: list[Parts] = []
            for start in range(0, PARTITIONS, 10):
                answer = one.send(fetch_of(range(start, start + 10)), 12)
                assert isinstance(answer, list)
                unread.append(answer)
            assert disk.open_now <= FILES_MAX + 1
            append(list(topic.held.values())[-1], b"w", broker.clock.wall_ms())
            assert await durable(list(topic.held.values())[-1]) is ErrorCode.NONE
            for answer in unread:
                release(answer)
            found = await one.ask(fetch_of(range(PARTITIONS - 1, PARTITIONS)), FetchResponse, 12)
            assert found.responses[0].partitions[0].records

    asyncio.run(run())


def test_a_single_answer_takes_a_part_of_the_files(tmp_path: Path) -> None:
    """L12: a client that asks for every partition leaves most of the cap to others."""

    async def run() -> None:
        async with embedded(tmp_path, log_files_open_max=FILES_MAX) as broker:
            topic = await broker.topics.create("t", PARTITIONS, {})
            await write_to_all(list(topic.held.values()))
            found = await Speaker(broker).ask(fetch_of(range(PARTITIONS)), FetchResponse, 12)
            given = [part for part in found.responses[0].partitions if part.records]
            assert len(given) == FILES_MAX // 4
            assert len(found.responses[0].partitions) == PARTITIONS

    asyncio.run(run())


def test_syncs_of_many_partitions_are_begun_a_few_at_a_time(tmp_path: Path) -> None:
    """L12 L6: each keeps its file open while a slow disk works; all become durable."""

    async def run() -> None:
        disk = CountedDisk()
        async with embedded(tmp_path, disk=disk, log_files_open_max=FILES_MAX) as broker:
            topic = await broker.topics.create("t", PARTITIONS, {})
            disk.gate.clear()
            for partition in topic.held.values():
                append(partition, b"v", broker.clock.wall_ms())
            ended = asyncio.gather(*(durable(partition) for partition in topic.held.values()))
            await asyncio.sleep(0.05)
            disk.gate.set()
            assert set(await ended) == {ErrorCode.NONE}
            assert disk.most_open <= UNDER_WAY_MAX + FILES_MAX + 1

    asyncio.run(run())


def test_a_sync_for_which_no_file_can_be_opened_waits(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """L6: nothing was synced, so nothing has failed; it is begun again until a file can be opened."""

    async def run() -> None:
        disk = CountedDisk()
        async with embedded(tmp_path, disk=disk, log_files_open_max=FILES_MAX) as broker:
            topic = await broker.topics.create("t", FILES_MAX + 1, {"flush": "async"})
            first = topic.held[0]
            for partition in topic.held.values():
                append(partition, b"v", broker.clock.wall_ms())
            disk.refuses = True
            first.request_flush()
            while "syncs wait" not in caplog.text:
                assert first.log.durable_offset == 0
                await asyncio.sleep(0.01)
            disk.refuses = False
            for written in (1, 2):
                while first.log.durable_offset < written:
                    await asyncio.sleep(0.01)
                append(first, b"w", broker.clock.wall_ms())
                first.request_flush()

    asyncio.run(asyncio.wait_for(run(), WAIT_S))
