"""Compacted topics: the newest of each key stays, through the broker's own rounds."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from braidmq.broker.outcomes import Acks
from braidmq.broker.replica import Replica
from braidmq.config import ConfigError, check_topic_overrides, configure
from braidmq.wire.errors import ApiError, ErrorCode
from braidmq.wire.records import HEADER_BYTES, build_batch, parse_header, records
from unit.embedded import TurnedClock, embedded

NOW_MS = 1_700_000_000_000
OPTIONS = {"cleanup.policy": "compact", "segment.bytes": "1024", "flush": "async", "retention.ms": "1"}


def put(partition: Replica, key: bytes | None, value: bytes) -> None:
    partition.append_leader(memoryview(build_batch([(key, value, [], NOW_MS)])), NOW_MS, Acks.ALL)


def contents(partition: Replica) -> list[tuple[bytes | None, bytes | None]]:
    found, offset = [], partition.start_offset
    while (part := partition.log.read(offset, 1 << 20, partition.high_watermark)) is not None:
        content = part.read()
        part.release()
        at = 0
        while len(content) - at >= HEADER_BYTES:
            header = parse_header(content, at)
            found += [(record.key, record.value) for record in records(content[at : at + header.size])]
            at += header.size
            offset = header.next_offset
    return found


def test_the_newest_of_each_key_stays_and_nothing_expires(tmp_path: Path) -> None:
    """L9: log compaction, on a topic whose retention.ms would have deleted everything."""

    async def run() -> None:
        async with embedded(tmp_path) as broker:
            partition = (await broker.topics.create("t", 1, OPTIONS)).held[0]
            for number in range(200):
                put(partition, b"key-%d" % (number % 5), b"value-%d" % number)
            partition.request_flush()
            while partition.log.durable_offset < 200:
                await asyncio.sleep(0.01)
            await broker.housekeeping.checkpoint()
            before = partition.log.size_bytes
            await broker.housekeeping.compact()
            await broker.housekeeping.clean()
            assert partition.log.size_bytes < before / 3
            assert partition.end_offset == 200
            assert dict(contents(partition)) == {
                b"key-%d" % (n % 5): b"value-%d" % n for n in range(195, 200)
            }

    asyncio.run(run())


def test_a_record_without_a_key_has_no_place_in_a_compacted_topic(tmp_path: Path) -> None:
    """L9: it could only be lost, so it is refused."""

    async def run() -> None:
        async with embedded(tmp_path) as broker:
            partition = (await broker.topics.create("t", 1, OPTIONS)).held[0]
            with pytest.raises(ApiError, match="needs a key") as caught:
                put(partition, None, b"x")
            assert caught.value.code is ErrorCode.INVALID_RECORD

    asyncio.run(run())


def test_what_was_deleted_is_gone_in_time_although_nobody_writes_any_more(tmp_path: Path) -> None:
    """L9: max.compaction.lag.ms also ends the segment that is being written."""
    clock = TurnedClock(NOW_MS)

    async def run() -> None:
        async with embedded(tmp_path, clock=clock) as broker:
            options = {**OPTIONS, "segment.bytes": "1000000", "max.compaction.lag.ms": "60000"}
            partition = (await broker.topics.create("t", 1, options)).held[0]
            for number in range(10):
                put(partition, b"ann", b"address-%d" % number)
            partition.request_flush()
            while partition.log.durable_offset < 10:
                await asyncio.sleep(0.01)
            await broker.housekeeping.checkpoint()
            await broker.housekeeping.compact()
            assert len(contents(partition)) == 10
            clock.now_ms += 60_001
            await broker.housekeeping.compact()
            await broker.housekeeping.checkpoint()
            await broker.housekeeping.compact()
            assert contents(partition) == [(b"ann", b"address-9")]
            put(partition, b"bob", b"new")
            assert contents(partition)[-1] == (b"bob", b"new")

    asyncio.run(run())


def test_the_lags_of_compaction_fit_each_other() -> None:
    """L9: at least is not more than at most; a segment of a compacted topic ends in time for the latter."""
    with pytest.raises(ConfigError, match="more than max"):
        check_topic_overrides({"min.compaction.lag.ms": "2000", "max.compaction.lag.ms": "1000"})
    check_topic_overrides({"min.compaction.lag.ms": "1000", "max.compaction.lag.ms": "1000"})
    compacted = {"cleanup.policy": "compact", "max.compaction.lag.ms": "1000"}
    assert configure().topic(compacted).segment_age_max_ms == 1000
    assert configure().topic({**compacted, "segment.ms": "500"}).segment_age_max_ms == 500
    assert configure().topic({"max.compaction.lag.ms": "1000"}).segment_age_max_ms == 604_800_000
