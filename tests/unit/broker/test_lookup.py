"""Times are found off the loop, and even where one stored batch cannot be opened."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest
from crc32c import crc32c

from braidmq.broker.outcomes import Acks, Isolation, Place
from braidmq.platform.disk import DiskFile, RealDisk, RealFile, StrPath
from braidmq.wire.compress import Codec
from braidmq.wire.errors import ApiError, ErrorCode
from braidmq.wire.records import HEADER_BYTES, build_batch, recompress
from unit.embedded import append, embedded

NOW_MS = 1_700_000_000_000
WAIT_S = 20.0


def rubbish(timestamp_ms: int) -> bytearray:
    """A batch with a right CRC whose records are not what its codec says."""
    batch = build_batch([(None, b"x" * 100, [], timestamp_ms)])
    batch[HEADER_BYTES:] = b"\xff" * (len(batch) - HEADER_BYTES)
    whole = recompress(batch, Codec.NONE)
    whole[22] |= Codec.ZSTD
    whole[17:21] = crc32c(bytes(whole[21:])).to_bytes(4, "big")
    return whole


def test_a_batch_that_cannot_be_opened_stands_for_its_first_record(tmp_path: Path) -> None:
    """C7: lookups by time go on past a batch that some client filled with rubbish."""

    async def run() -> None:
        async with embedded(tmp_path) as broker:
            partition = (await broker.topics.create("t", 1, {"flush": "async"})).partitions[0]
            append(partition, b"a", NOW_MS)
            partition.append_leader(memoryview(rubbish(NOW_MS + 1000)), NOW_MS, Acks.ALL)
            append(partition, b"b", NOW_MS + 2000)
            for wanted, found in (
                (NOW_MS + 500, (NOW_MS + 1000, 1, 0)),
                (NOW_MS + 1500, (NOW_MS + 2000, 2, 0)),
                (Place.NEWEST, (NOW_MS + 2000, 2, 0)),
            ):
                assert await partition.list_offset(wanted, Isolation.UNCOMMITTED) == found

    asyncio.run(run())


class PausingDisk(RealDisk):
    """The real disk; once told to, it lets no thread read a segment until a test says so."""

    __slots__ = ("begun", "may_go_on", "on_loop", "pauses")

    def __init__(self) -> None:
        self.pauses = False
        self.begun = threading.Event()
        self.may_go_on = threading.Event()
        self.on_loop = 0
        """Reads of segments by the loop since it began to pause."""

    def open(self, path: StrPath, create: bool = False) -> DiskFile:
        file = super().open(path, create)
        return PausingFile(file.fileno(), self) if str(path).endswith(".log") else file


class PausingFile(RealFile):
    __slots__ = ("_disk",)

    def __init__(self, fd: int, disk: PausingDisk) -> None:
        super().__init__(fd)
        self._disk = disk

    def read_at(self, size: int, position: int) -> bytes:
        if self._disk.pauses:
            if threading.current_thread() is threading.main_thread():
                self._disk.on_loop += 1
            else:
                self._disk.begun.set()
                self._disk.may_go_on.wait(WAIT_S)
        return super().read_at(size, position)


@pytest.mark.parametrize("dropped", [0, 2])
def test_times_are_looked_up_by_a_thread_whatever_becomes_of_the_segment(
    tmp_path: Path, dropped: int
) -> None:
    """C7 L7: the loop neither reads nor inflates; retention may take the segment, then it is asked again."""

    async def run() -> None:
        disk = PausingDisk()
        async with embedded(tmp_path, disk) as broker:
            partition = (await broker.topics.create("t", 1, {"segment.bytes": "1024"})).partitions[0]
            for number in range(4):
                append(partition, b"x" * 900, NOW_MS + number)
            await partition.settled()
            await broker.housekeeping.checkpoint()
            disk.pauses = True
            asked = asyncio.ensure_future(partition.list_offset(NOW_MS + 1, Isolation.UNCOMMITTED))
            while not disk.begun.is_set():
                await asyncio.sleep(0.001)
            for _ in range(dropped):
                assert partition.log.drop_oldest()
            assert not asked.done()
            disk.may_go_on.set()
            expected = max(1, dropped)
            assert await asked == (NOW_MS + expected, expected, 0)
            assert disk.on_loop == 0

    asyncio.run(asyncio.wait_for(run(), WAIT_S))


def test_a_topic_deleted_during_a_lookup_is_unknown(tmp_path: Path) -> None:
    """C7 O2: the lookup does not bring its log back."""

    async def run() -> None:
        disk = PausingDisk()
        async with embedded(tmp_path, disk) as broker:
            partition = (await broker.topics.create("t", 1, {})).partitions[0]
            append(partition, b"x", NOW_MS)
            await partition.settled()
            disk.pauses = True
            asked = asyncio.ensure_future(partition.list_offset(Place.NEWEST, Isolation.UNCOMMITTED))
            while not disk.begun.is_set():
                await asyncio.sleep(0.001)
            await broker.delete_topic("t")
            disk.may_go_on.set()
            with pytest.raises(ApiError) as refused:
                await asked
            assert refused.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            assert not partition.is_open

    asyncio.run(asyncio.wait_for(run(), WAIT_S))


def test_a_full_disk_never_takes_the_segment_being_written(tmp_path: Path) -> None:
    """L7: whole old segments go by force; when other files fill the disk, the last one stays."""

    async def run() -> None:
        async with embedded(tmp_path) as broker:
            partition = (await broker.topics.create("t", 1, {"segment.bytes": "1024"})).partitions[0]
            for _ in range(3):
                append(partition, b"x" * 900, NOW_MS)
            partition.request_flush()
            while partition.log.durable_offset < 3:
                await asyncio.sleep(0.01)
            await broker.housekeeping.checkpoint()
            for _ in range(10):
                partition.log.drop_oldest()
            assert (partition.start_offset, partition.end_offset) == (2, 3)

    asyncio.run(run())
