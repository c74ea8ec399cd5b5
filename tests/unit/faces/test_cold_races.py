"""What happens to a partition while a thread opens or reads it for somebody."""

from __future__ import annotations

import asyncio
import os
import threading
from pathlib import Path

import pytest

from braidmq.broker.replica import Replica
from braidmq.broker.share_records import SharePartitionKey
from braidmq.platform.disk import DiskFile, RealDisk, StrPath
from braidmq.wire.errors import ErrorCode
from unit.embedded import append, embedded
from unit.faces.sharing import acquired, join
from unit.faces.sharing import fetch as share_fetch
from unit.faces.spoken import Speaker
from unit.faces.test_produce import batch_of, produce

WAIT_S = 20.0


class SlowDisk(RealDisk):
    """The real disk; while `gate` is closed, other threads than the loop's get nothing of topic `jobs`."""

    __slots__ = ("gate", "loop", "waiting")

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.gate.set()
        self.loop = asyncio.get_running_loop()
        self.waiting = asyncio.Event()
        """Set when a thread stands at the closed gate."""

    def open(self, path: StrPath, create: bool = False) -> DiskFile:
        self._wait(path)
        return super().open(path, create)

    def listdir(self, path: StrPath) -> list[str]:
        self._wait(path)
        return super().listdir(path)

    def _wait(self, path: StrPath) -> None:
        if "/jobs." not in os.fspath(path) or threading.current_thread() is threading.main_thread():
            return
        if not self.gate.is_set():
            self.loop.call_soon_threadsafe(self.waiting.set)
            assert self.gate.wait(WAIT_S)

    async def held(self) -> None:
        await asyncio.wait_for(self.waiting.wait(), WAIT_S)


async def write_jobs(data: Path) -> None:
    async with embedded(data) as broker:
        topic = await broker.topics.create("jobs", 3, {})
        for partition in topic.held.values():
            append(partition, b"job", broker.clock.wall_ms(), 10)


def test_options_changed_while_a_log_is_opened_count(tmp_path: Path) -> None:
    """L7 L12: the thread was given the options from before; retention by those could delete too much."""

    async def run() -> None:
        await write_jobs(tmp_path)
        disk = SlowDisk()
        async with embedded(tmp_path, disk=disk) as broker:
            one = Speaker(broker)
            disk.gate.clear()
            writing = asyncio.ensure_future(produce(one, batch_of(one), topic="jobs"))
            await disk.held()
            await broker.topics.reconfigure("jobs", {"message.timestamp.type": "LogAppendTime"})
            disk.gate.set()
            assert (await writing).log_append_time_ms > 0

    asyncio.run(run())


def raising() -> None:
    raise RuntimeError("planted")


def test_one_who_waits_for_a_log_and_raises_does_not_strand_the_others(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """L12: others wait for the same log, or for one that was opened by the same job."""

    async def opened(partition: Replica) -> int:
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        partition.when_open(lambda: done.set_result(None))
        await asyncio.wait_for(done, WAIT_S)
        return partition.end_offset

    async def run() -> None:
        await write_jobs(tmp_path)
        async with embedded(tmp_path) as broker:
            partitions = list(broker.topics.get("jobs").held.values())
            partitions[0].when_open(raising)
            assert await asyncio.gather(*map(opened, partitions)) == [10, 10, 10]
        assert "planted" in caplog.text

    asyncio.run(run())


def test_a_share_fetch_whose_records_another_got_ends_in_time(tmp_path: Path) -> None:
    """C7: two members wait for one cold read, longer than their clients asked for; the second is answered."""

    async def run() -> None:
        await write_jobs(tmp_path)
        disk = SlowDisk()
        async with embedded(tmp_path, disk=disk, group_share_auto_offset_reset="earliest") as broker:
            ada, bob = Speaker(broker), Speaker(broker)
            await join(ada)
            await join(bob, "bob")
            await broker.share_delivery.open([SharePartitionKey("workers", broker.topics.get("jobs").id, 0)])
            disk.gate.clear()
            both = [
                asyncio.ensure_future(share_fetch(ada, 0, 0, max_wait_ms=1)),
                asyncio.ensure_future(share_fetch(bob, 0, 0, max_wait_ms=1, member_id="bob")),
            ]
            await disk.held()
            await asyncio.sleep(0.05)
            disk.gate.set()
            answers = await asyncio.wait_for(asyncio.gather(*both), WAIT_S)
            assert sorted(map(len, map(acquired, answers))) == [0, 1]
            assert all(answer.error_code == ErrorCode.NONE for answer in answers)

    asyncio.run(run())
