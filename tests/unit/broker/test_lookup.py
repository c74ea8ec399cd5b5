"""Times are found even where one stored batch cannot be opened."""

from __future__ import annotations

import asyncio
from pathlib import Path

from crc32c import crc32c

from braidmq.broker.outcomes import Acks
from braidmq.wire.compress import Codec
from braidmq.wire.records import HEADER_BYTES, build_batch, recompress
from unit.embedded import append, embedded

NOW_MS = 1_700_000_000_000


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
            partition = (await broker.topics.create("t", 1, {"flush": "async"})).held[0]
            append(partition, b"a", NOW_MS)
            partition.append_leader(memoryview(rubbish(NOW_MS + 1000)), NOW_MS, Acks.ALL)
            append(partition, b"b", NOW_MS + 2000)
            assert partition.log.offset_for_time(NOW_MS + 500) == (NOW_MS + 1000, 1)
            assert partition.log.offset_for_time(NOW_MS + 1500) == (NOW_MS + 2000, 2)
            assert partition.log.max_timestamp() == (NOW_MS + 2000, 2)

    asyncio.run(run())


def test_a_full_disk_never_takes_the_segment_being_written(tmp_path: Path) -> None:
    """L7: whole old segments go by force; when other files fill the disk, the last one stays."""

    async def run() -> None:
        async with embedded(tmp_path) as broker:
            partition = (await broker.topics.create("t", 1, {"segment.bytes": "1024"})).held[0]
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
