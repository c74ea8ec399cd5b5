"""Partitions that nobody has used since the start: every verb opens them off the loop, and answers right."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from braidmq.broker.replica import Replica
from braidmq.platform.disk import DiskFile, RealDisk, RealFile, StrPath
from braidmq.wire.compress import Codec
from braidmq.wire.errors import ErrorCode
from braidmq.wire.messages.cluster import DescribeLogDirsRequest, DescribeLogDirsResponse
from braidmq.wire.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic, PartitionData
from braidmq.wire.messages.offsets import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopic,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from braidmq.wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from braidmq.wire.messages.producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    TopicRequest,
)
from braidmq.wire.records import HEADER_BYTES, build_batch, parse_header, records
from unit.embedded import append, embedded
from unit.faces.spoken import Speaker
from unit.faces.test_produce import batch_of, produce

PARTITIONS = 40
RECORDS = 3


class WatchedDisk(RealDisk):
    """The real disk; it knows what of a partition's directory was read by the loop's own thread."""

    __slots__ = ("fails", "gate", "on_loop", "opened")

    def __init__(self) -> None:
        self.on_loop: list[str] = []
        self.opened: list[str] = []
        self.gate = threading.Event()
        self.gate.set()
        self.fails = False

    def listdir(self, path: StrPath) -> list[str]:
        if "/t." in str(path):
            self.opened.append(Path(path).name)
            if threading.current_thread() is threading.main_thread():
                self.on_loop.append(str(path))
            else:
                assert self.gate.wait(10)
            if self.fails:
                raise OSError(5, "the disk does not answer")
        return super().listdir(path)


@asynccontextmanager
async def restarted(
    data: Path, overrides: Mapping[str, str] | None = None, **options: object
) -> AsyncIterator[tuple[Speaker, WatchedDisk]]:
    """A broker that was written to, stopped and started again: no partition of topic `t` is open."""
    async with embedded(data) as broker:
        topic = await broker.topics.create("t", PARTITIONS, overrides or {})
        for partition in list(topic.held.values())[: PARTITIONS // 2]:
            append(partition, b"v", broker.clock.wall_ms(), RECORDS)
    disk = WatchedDisk()
    async with embedded(data, disk=disk, **options) as broker:
        disk.on_loop.clear()
        assert not any(partition.is_open for partition in broker.topics.get("t").held.values())
        yield Speaker(broker), disk
        disk.gate.set()


def wanted(*indexes: int, offset: int = 0) -> list[FetchTopic]:
    parts = [FetchPartition(partition=i, fetch_offset=offset, partition_max_bytes=1 << 20) for i in indexes]
    return [FetchTopic(topic="t", partitions=parts)]


async def fetch(one: Speaker, *indexes: int, offset: int = 0, **rest: int) -> dict[int, PartitionData]:
    given = {"max_bytes": 1 << 20, "min_bytes": 1, "max_wait_ms": 0} | rest
    request = FetchRequest(topics=wanted(*indexes, offset=offset), **given)
    answer = await one.ask(request, FetchResponse, 12)
    return {part.partition_index: part for topic in answer.responses for part in topic.partitions}


async def _fetch(one: Speaker) -> None:
    read = set()
    while len(read) < PARTITIONS // 2:
        await asyncio.sleep(0)
        found = await fetch(one, *range(PARTITIONS))
        assert len(found) == PARTITIONS
        assert any(part.records for part in found.values()), "an answer came before there was anything in it"
        for index, part in found.items():
            count = RECORDS if index < PARTITIONS // 2 else 0
            assert (part.error_code, part.high_watermark, part.log_start_offset) == (0, count, 0)
            if part.records:
                assert len(list(records(part.records))) == count
                read.add(index)


async def _list_offsets(one: Speaker) -> None:
    parts = [ListOffsetsPartition(partition_index=i, timestamp=-1) for i in range(PARTITIONS)]
    request = ListOffsetsRequest(topics=[ListOffsetsTopic(name="t", partitions=parts)])
    answer = await one.ask(request, ListOffsetsResponse)
    found = [(part.error_code, part.offset) for part in answer.topics[0].partitions]
    assert found == [(0, RECORDS)] * (PARTITIONS // 2) + [(0, 0)] * (PARTITIONS // 2)


async def _leader_epochs(one: Speaker) -> None:
    parts = [OffsetForLeaderPartition(partition=i, leader_epoch=0) for i in range(PARTITIONS)]
    request = OffsetForLeaderEpochRequest(topics=[OffsetForLeaderTopic(topic="t", partitions=parts)])
    answer = await one.ask(request, OffsetForLeaderEpochResponse)
    assert [part.end_offset for part in answer.topics[0].partitions][:2] == [RECORDS, RECORDS]


async def _delete_records(one: Speaker) -> None:
    part = DeleteRecordsPartition(partition_index=0, offset=2)
    request = DeleteRecordsRequest(topics=[DeleteRecordsTopic(name="t", partitions=[part])])
    answer = await one.ask(request, DeleteRecordsResponse)
    assert answer.topics[0].partitions[0].low_watermark == 2


async def _describe_log_dirs(one: Speaker) -> None:
    answer = await one.ask(DescribeLogDirsRequest(topics=None), DescribeLogDirsResponse)
    sizes = [part.partition_size for part in answer.results[0].topics[0].partitions]
    assert min(sizes[: PARTITIONS // 2]) > 0
    assert set(sizes[PARTITIONS // 2 :]) == {0}


async def _describe_producers(one: Speaker) -> None:
    request = DescribeProducersRequest(topics=[TopicRequest(name="t", partition_indexes=[0, 30])])
    answer = await one.ask(request, DescribeProducersResponse)
    assert [part.error_code for part in answer.topics[0].partitions] == [0, 0]


async def _produce(one: Speaker) -> None:
    assert (await produce(one, batch_of(one), partition=0)).base_offset == RECORDS
    assert (await produce(one, batch_of(one), partition=39)).base_offset == 0


@pytest.mark.parametrize(
    "ask",
    [
        _fetch, _list_offsets, _leader_epochs, _delete_records, _describe_log_dirs, _describe_producers,
        _produce,
    ],
)  # fmt: skip
def test_a_closed_partition_is_opened_off_the_loop(
    tmp_path: Path, ask: Callable[[Speaker], Awaitable[None]]
) -> None:
    """L12 L14: others are served while the disk is read for somebody's first use of a partition."""

    async def run() -> None:
        async with restarted(tmp_path) as (one, disk):
            await ask(one)
            assert disk.on_loop == []

    asyncio.run(run())


def test_sizes_are_told_without_opening_anything(tmp_path: Path) -> None:
    """L12: DescribeLogDirs of ten thousand partitions does not open them."""

    async def run() -> None:
        async with restarted(tmp_path) as (one, _):
            await _describe_log_dirs(one)
            assert not any(partition.is_open for partition in one.broker.topics.get("t").held.values())

    asyncio.run(run())


def test_a_fetch_waits_for_every_partition_even_past_its_time(tmp_path: Path) -> None:
    """L12 C2: a partition that is merely not open yet is never answered with an error or without offsets."""

    async def run() -> None:
        async with restarted(tmp_path) as (one, disk):
            disk.gate.clear()
            answer = asyncio.ensure_future(_fetch(one))
            await asyncio.sleep(0.05)
            assert not answer.done()
            disk.gate.set()
            await answer

    asyncio.run(run())


def test_an_incremental_fetch_does_not_wait_for_a_closed_partition(tmp_path: Path) -> None:
    """L14 C2: a session with records to send sends them, and names the opened partition later."""

    async def ask(one: Speaker, epoch: int, session: int, topics: list[FetchTopic]) -> FetchResponse:
        request = FetchRequest(
            max_bytes=1 << 20, min_bytes=1, max_wait_ms=0, session_id=session, session_epoch=epoch,
            topics=topics,
        )  # fmt: skip
        return await one.ask(request, FetchResponse, 12)

    async def run() -> None:
        async with restarted(tmp_path) as (one, disk):
            session = (await ask(one, 0, 0, wanted(0, offset=RECORDS))).session_id
            await produce(one, batch_of(one), partition=0)
            disk.gate.clear()
            first = await ask(one, 1, session, wanted(1))
            assert [part.partition_index for part in first.responses[0].partitions] == [0]
            disk.gate.set()
            moved = await ask(one, 2, session, wanted(0, offset=RECORDS + 1))
            found = {part.partition_index: part for part in moved.responses[0].partitions}
            assert found[1].high_watermark == RECORDS

    asyncio.run(run())


def test_one_open_serves_all_who_wait(tmp_path: Path) -> None:
    """L12: two logs over one directory would write over each other."""

    async def run() -> None:
        async with restarted(tmp_path) as (one, disk):
            disk.gate.clear()
            answers = [asyncio.ensure_future(fetch(one, 0)) for _ in range(5)]
            answers += [asyncio.ensure_future(fetch(one, 0, 0))]
            await asyncio.sleep(0.02)
            disk.gate.set()
            for answer in await asyncio.gather(*answers):
                assert answer[0].high_watermark == RECORDS
            assert disk.opened.count("0") == 1

    asyncio.run(run())


def test_a_log_that_cannot_be_opened_is_a_storage_error_and_is_tried_again(tmp_path: Path) -> None:
    """L12: a disk that fails for a moment costs the requests of that moment."""

    async def run() -> None:
        async with restarted(tmp_path) as (one, disk):
            disk.fails = True
            assert (await fetch(one, 0))[0].error_code == ErrorCode.KAFKA_STORAGE_ERROR
            refused = await produce(one, batch_of(one), partition=0)
            assert refused.error_code == ErrorCode.KAFKA_STORAGE_ERROR
            disk.fails = False
            assert (await produce(one, batch_of(one), partition=0)).base_offset == RECORDS
            assert (await fetch(one, 0))[0].error_code == 0

    asyncio.run(run())


def test_batches_for_a_closed_partition_keep_their_order(tmp_path: Path) -> None:
    """L12 P4: what a producer sends while the log is opened is appended in the order in which it came."""

    async def run() -> None:
        async with restarted(tmp_path) as (one, disk):
            disk.gate.clear()
            batches = [
                batch_of(one, 1, producer_id=9, producer_epoch=0, base_sequence=number) for number in range(5)
            ]
            answers = [asyncio.ensure_future(produce(one, batch, partition=0)) for batch in batches]
            await asyncio.sleep(0.02)
            assert not any(answer.done() for answer in answers)
            disk.gate.set()
            told = await asyncio.gather(*answers)
            assert [(answer.error_code, answer.base_offset) for answer in told] == [
                (0, RECORDS + number) for number in range(5)
            ]

    asyncio.run(run())


def test_what_waits_for_partitions_to_open_is_bounded(tmp_path: Path) -> None:
    """L14: a flood of batches for closed partitions is asked to come again, not kept in memory."""

    async def run() -> None:
        async with restarted(tmp_path, produce_waiting_bytes_max=2 << 20) as (one, disk):
            disk.gate.clear()
            now_ms = one.broker.clock.wall_ms()
            large = bytes(build_batch([(None, b"x" * 900_000, [], now_ms)]))
            parts = [PartitionProduceData(index=index, records=large) for index in range(4)]
            topic = TopicProduceData(name="t", partition_data=parts)
            request = ProduceRequest(acks=1, timeout_ms=1000, topic_data=[topic])
            asked = asyncio.ensure_future(one.ask(request, ProduceResponse, 9))
            await asyncio.sleep(0.02)
            disk.gate.set()
            results = (await asked).responses[0].partition_responses
            refused = ErrorCode.NOT_ENOUGH_REPLICAS
            assert [part.error_code for part in results] == [0, 0, refused, refused]
            assert (await produce(one, batch_of(one), partition=3)).base_offset == RECORDS

    asyncio.run(run())


def test_a_topic_deleted_while_its_partitions_open_is_unknown_to_those_who_wait(tmp_path: Path) -> None:
    """L12: nobody waits for ever, and the directory of the deleted topic does not come back."""

    async def run() -> None:
        async with restarted(tmp_path) as (one, disk):
            disk.gate.clear()
            reading = asyncio.ensure_future(fetch(one, 0))
            writing = asyncio.ensure_future(produce(one, batch_of(one), partition=30))
            await asyncio.sleep(0.02)
            await one.broker.delete_topic("t")
            disk.gate.set()
            assert (await reading)[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            assert (await writing).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            await one.broker.topics.tidy()
        assert not list((tmp_path / "topics").glob("t.*"))

    asyncio.run(run())


def test_recompressing_a_batch_does_not_hold_up_the_loop_and_keeps_the_order(tmp_path: Path) -> None:
    """L14 L9: batches behind one that is inflated in a thread are appended after it."""

    async def run() -> None:
        async with restarted(tmp_path, {"compression.type": "gzip"}) as (one, _):
            await fetch(one, 0)
            now_ms = one.broker.clock.wall_ms()
            row = (b"k", b"v" * 1000, [], now_ms)
            heavy = build_batch([row] * 2000, Codec.ZSTD, producer_id=9, producer_epoch=0, base_sequence=0)
            light = build_batch([row], producer_id=9, producer_epoch=0, base_sequence=2000)
            partition = one.broker.partition("t", 0)
            answers = [asyncio.ensure_future(produce(one, batch, partition=0)) for batch in (heavy, light)]
            await asyncio.sleep(0)
            assert partition.end_offset == RECORDS, "the heavy batch was inflated by the loop"
            told = await asyncio.gather(*answers)
            assert [(each.error_code, each.base_offset) for each in told] == [
                (0, RECORDS), (0, RECORDS + 2000),
            ]  # fmt: skip

    asyncio.run(run())


async def durable(partition: Replica) -> None:
    on_disk = asyncio.get_running_loop().create_future()
    partition.when_committed(partition.end_offset, on_disk.set_result)
    assert await on_disk is ErrorCode.NONE


class CheckedDisk(WatchedDisk):
    """Knows which threads read whole stretches of segments, as checking does."""

    __slots__ = ("checkers",)

    def __init__(self) -> None:
        super().__init__()
        self.checkers: set[threading.Thread] = set()

    def open(self, path: StrPath, create: bool = False) -> DiskFile:
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0)
        return _CheckedFile(self, os.open(path, flags, 0o644))


class _CheckedFile(RealFile):
    def __init__(self, disk: CheckedDisk, fd: int) -> None:
        super().__init__(fd)
        self._disk = disk

    def read_into(self, buffer: memoryview, position: int) -> int:
        self._disk.checkers.add(threading.current_thread())
        return super().read_into(buffer, position)


def test_old_bytes_are_checked_off_the_loop(tmp_path: Path) -> None:
    """L14 L6: what an earlier run wrote is read and checked in a thread, a bounded piece for each read."""

    async def run() -> None:
        async with embedded(tmp_path) as broker:
            partition = (await broker.topics.create("t", 1, {})).held[0]
            for _ in range(30):
                append(partition, b"x" * 100_000, broker.clock.wall_ms())
            await durable(partition)
        disk = CheckedDisk()
        async with embedded(tmp_path, disk=disk) as broker:
            one, offset = Speaker(broker), 0
            disk.checkers.clear()
            while offset < 30:
                part = (await fetch(one, 0, offset=offset, max_bytes=8 << 20))[0]
                assert part.error_code == 0
                assert part.records, "an answer came before there was anything in it"
                at = 0
                while len(part.records) - at >= HEADER_BYTES:
                    header = parse_header(part.records, at)
                    if header.size > len(part.records) - at:
                        break
                    at += header.size
                    offset = header.next_offset
            assert disk.checkers
            assert threading.main_thread() not in disk.checkers

    asyncio.run(run())


def test_sound_batches_before_damage_are_served_and_then_the_damage_is_told(tmp_path: Path) -> None:
    """L6 L14: a check in a thread finds the same as one on the loop did."""

    async def run() -> None:
        async with embedded(tmp_path) as broker:
            partition = (await broker.topics.create("t", 1, {})).held[0]
            for _ in range(3):
                append(partition, b"x" * 1000, broker.clock.wall_ms())
            await durable(partition)
        (segment,) = (tmp_path / "topics").rglob("*.log")
        content = bytearray(segment.read_bytes())
        content[-1] ^= 1
        segment.write_bytes(content)
        async with embedded(tmp_path) as broker:
            one = Speaker(broker)
            part = (await fetch(one, 0))[0]
            assert (part.error_code, len(part.records)) == (0, len(content) // 3 * 2)
            assert (await fetch(one, 0, offset=2))[0].error_code == ErrorCode.CORRUPT_MESSAGE

    asyncio.run(run())
