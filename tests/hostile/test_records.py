"""Batches that lie: each is refused with Kafka's error code, and not one byte of it enters the log."""

from __future__ import annotations

import functools
import os
import struct
import zlib
from collections.abc import Callable
from contextlib import ExitStack

import cramjam
import pytest
from tests.hostile import batches, calls, raw
from tests.hostile.conftest import FOREIGN_SERVER, MEBIBYTE
from tests.hostile.raw import Connection, framed, request, varint

CORRUPT_MESSAGE, INVALID_TIMESTAMP, INVALID_RECORD, MESSAGE_TOO_LARGE = 2, 32, 87, 10
OUT_OF_ORDER_SEQUENCE, INVALID_PRODUCER_EPOCH, UNSUPPORTED_FOR_FORMAT = 45, 47, 43
HOUR_MS = 3_600_000
MAX_TIMESTAMP = -3

on_braid_only = pytest.mark.skipif(FOREIGN_SERVER in os.environ, reason="a limit that only Braid has")


def refused(connection: Connection, topic: str, forged: bytes, *codes: int) -> None:
    """The code is one of those, a text says why, and the log has not grown."""
    before = calls.list_offset(connection, topic)
    code, text = calls.produce_message(connection, topic, forged)
    assert code in codes
    assert text or FOREIGN_SERVER in os.environ
    assert calls.list_offset(connection, topic) == before
    assert calls.produce(connection, topic, batches.simple(b"right")).code == 0


@pytest.mark.parametrize("at", [21, 23, 30, 57, 61, 70])
def test_a_flipped_bit_is_a_corrupt_message(connection: Connection, topic: str, at: int) -> None:
    """W5 L6: the CRC covers everything from the attributes on."""
    forged = bytearray(batches.simple(b"twenty bytes of text"))
    forged[at] ^= 0x40
    refused(connection, topic, bytes(forged), CORRUPT_MESSAGE)


def test_a_wrong_checksum_is_a_corrupt_message(connection: Connection, topic: str) -> None:
    """W5: a checksum of zero is as wrong as any other."""
    refused(connection, topic, batches.simple(b"value", crc=0), CORRUPT_MESSAGE)


@pytest.mark.parametrize("magic", [0, 1])
def test_old_message_formats_are_refused(connection: Connection, topic: str, magic: int) -> None:
    """W5: v0 and v1 are refused with a text."""
    refused(connection, topic, batches.legacy(magic, b"old"), INVALID_RECORD, UNSUPPORTED_FOR_FORMAT)


@pytest.mark.parametrize("magic", [3, 127, -1, -128])
def test_a_magic_byte_nobody_knows_is_refused(connection: Connection, topic: str, magic: int) -> None:
    """W5: neither older nor newer formats than v2."""
    refused(connection, topic, batches.simple(b"value", magic=magic), CORRUPT_MESSAGE, INVALID_RECORD)


@pytest.mark.parametrize("length", [-1, 0, 13, 48, 10_000, 2**31 - 1, -(2**31)])
def test_a_batch_length_that_lies_is_refused(connection: Connection, topic: str, length: int) -> None:
    """W5: shorter than a header, longer than what was sent, negative."""
    refused(connection, topic, batches.simple(b"value", length=length), CORRUPT_MESSAGE, INVALID_RECORD)


@pytest.mark.parametrize("size", [0, 1, 11, 12, 17, 60])
def test_a_batch_cut_short_is_refused(connection: Connection, topic: str, size: int) -> None:
    """W5: fewer bytes than a batch header has."""
    refused(connection, topic, batches.simple(b"value")[:size], CORRUPT_MESSAGE, INVALID_RECORD)


def test_bytes_after_the_batch_are_refused(connection: Connection, topic: str) -> None:
    """W5: nothing may ride along behind a valid batch."""
    refused(connection, topic, batches.simple(b"value") + b"rider", CORRUPT_MESSAGE, INVALID_RECORD)


def test_two_batches_in_one_request_are_refused(connection: Connection, topic: str) -> None:
    """W5: one batch per partition and request, as in Kafka."""
    refused(connection, topic, batches.simple(b"one") + batches.simple(b"two"), INVALID_RECORD)


@pytest.mark.parametrize(("count", "last_delta"), [(5, 1), (2, 4), (0, -1), (-1, -2), (2**31 - 1, 2**31 - 2)])
def test_a_false_record_count_is_refused(
    connection: Connection, topic: str, count: int, last_delta: int
) -> None:
    """W5: a count that does not agree with the offsets would tear a hole into them."""
    forged = batches.batch(batches.records([b"one", b"two"]), count, last_delta=last_delta)
    refused(connection, topic, forged, INVALID_RECORD, CORRUPT_MESSAGE)


def test_a_forged_control_batch_is_refused(connection: Connection, topic: str) -> None:
    """W5: only the broker writes commit and abort markers."""
    marker = batches.record(struct.pack(">hi", 0, 0), key=struct.pack(">hh", 0, 1))
    refused(connection, topic, batches.batch(marker, attributes=batches.CONTROL), INVALID_RECORD)
    both = batches.CONTROL | batches.TRANSACTIONAL
    identity = {"producer_id": 4, "epoch": 0, "sequence": 0}
    forged = batches.batch(marker, attributes=both, **identity)
    code, _ = calls.produce_message(connection, topic, forged)
    assert code != 0


def test_a_codec_nobody_knows_is_refused(connection: Connection, topic: str) -> None:
    """W5: codecs five to seven do not exist."""
    for codec in (5, 6, 7):
        refused(
            connection, topic, batches.simple(b"value", attributes=codec), INVALID_RECORD, CORRUPT_MESSAGE
        )


@pytest.mark.parametrize("ahead_ms", [48 * HOUR_MS, 2**62, 2**63 - 1 - 2**41])
def test_a_wild_timestamp_is_refused(connection: Connection, topic: str, ahead_ms: int) -> None:
    """W5 L7: a record from the far future would never expire."""
    stamp_ms = batches.now_ms() + ahead_ms
    refused(connection, topic, batches.simple(b"value", base_stamp_ms=stamp_ms), INVALID_TIMESTAMP)


def test_a_batch_larger_than_the_topic_allows_is_refused(
    connection: Connection, new_name: Callable[[], str]
) -> None:
    """P5: MESSAGE_TOO_LARGE, and the text names the limit."""
    topic = new_name()
    assert calls.create_topic(connection, topic, config={"max.message.bytes": "1000"})[0] == 0
    refused(connection, topic, batches.simple(b"x" * 2_000), MESSAGE_TOO_LARGE)


def test_no_records_at_all_are_refused(connection: Connection, topic: str) -> None:
    """W5: a null where records belong."""
    assert calls.produce(connection, topic, None).code in (INVALID_RECORD, CORRUPT_MESSAGE)


def test_a_retry_is_answered_with_the_first_offset(connection: Connection, topic: str) -> None:
    """P4: the same sequence again is a duplicate, acked and not written."""
    _, producer_id, epoch = calls.new_producer_id(connection)
    first = batches.simple(b"one", producer_id=producer_id, epoch=epoch, sequence=0)
    second = batches.simple(b"two", producer_id=producer_id, epoch=epoch, sequence=1)
    assert calls.produce(connection, topic, first) == (0, 0)
    assert calls.produce(connection, topic, second) == (0, 1)
    assert calls.produce(connection, topic, second) == (0, 1)
    assert calls.produce(connection, topic, first) == (0, 0)
    assert calls.list_offset(connection, topic) == (0, 2)


@pytest.mark.parametrize("sequence", [5, 2**31 - 1])
def test_a_gap_in_the_sequence_is_refused(connection: Connection, topic: str, sequence: int) -> None:
    """P4: OUT_OF_ORDER_SEQUENCE_NUMBER keeps the order."""
    _, producer_id, epoch = calls.new_producer_id(connection)
    start = batches.simple(b"one", producer_id=producer_id, epoch=epoch, sequence=0)
    assert calls.produce(connection, topic, start).code == 0
    forged = batches.simple(b"later", producer_id=producer_id, epoch=epoch, sequence=sequence)
    refused(connection, topic, forged, OUT_OF_ORDER_SEQUENCE)


def test_an_older_epoch_is_fenced(connection: Connection, topic: str) -> None:
    """P4: INVALID_PRODUCER_EPOCH."""
    _, producer_id, _ = calls.new_producer_id(connection)
    newer = batches.simple(b"new", producer_id=producer_id, epoch=3, sequence=0)
    assert calls.produce(connection, topic, newer).code == 0
    forged = batches.simple(b"old", producer_id=producer_id, epoch=2, sequence=0)
    refused(connection, topic, forged, INVALID_PRODUCER_EPOCH)


BOMB_BYTES = 200 * MEBIBYTE


@functools.cache
def bomb(codec: int) -> bytes:
    """A batch with one record of many zero bytes, a small fraction of that on the wire."""
    inner = batches.record(bytes(90 * MEBIBYTE if codec == batches.SNAPPY else BOMB_BYTES))
    if codec == batches.GZIP:
        payload = zlib.compress(inner, 1, wbits=31)
    elif codec == batches.SNAPPY:
        payload = bytes(cramjam.snappy.compress_raw(inner))
    elif codec == batches.LZ4:
        payload = bytes(cramjam.lz4.compress(inner))
    else:
        payload = bytes(cramjam.zstd.compress(inner, level=1))
    return batches.batch(payload, attributes=codec)


@pytest.fixture
def opened_topic(connection: Connection, new_name: Callable[[], str]) -> str:
    """A topic whose broker must inflate what it is sent."""
    topic = new_name()
    config = {"compression.type": "uncompressed", "max.message.bytes": str(6 * MEBIBYTE)}
    assert calls.create_topic(connection, topic, config=config)[0] == 0
    return topic


@on_braid_only
@pytest.mark.parametrize("codec", [batches.GZIP, batches.SNAPPY, batches.LZ4, batches.ZSTD])
def test_a_decompression_bomb_is_not_inflated(connection: Connection, opened_topic: str, codec: int) -> None:
    """W5 P3: a topic that recompresses looks inside, and stops at a cap; the suite bounds the memory."""
    code = calls.produce(connection, opened_topic, bomb(codec)).code
    assert code in (INVALID_RECORD, CORRUPT_MESSAGE, MESSAGE_TOO_LARGE)
    assert calls.list_offset(connection, opened_topic) == (0, 0)


@on_braid_only
@pytest.mark.parametrize("codec", [batches.GZIP, batches.SNAPPY, batches.LZ4, batches.ZSTD])
def test_a_bomb_that_was_stored_unopened_does_not_go_off_in_a_search_by_time(
    connection: Connection, new_name: Callable[[], str], codec: int
) -> None:
    """W5 C7: a topic that keeps the producer's codec is opened only to find a time, within the same cap."""
    topic = new_name()
    assert calls.create_topic(connection, topic, config={"max.message.bytes": str(6 * MEBIBYTE)})[0] == 0
    assert calls.produce(connection, topic, bomb(codec)).code == 0
    for stamp_ms in (1, batches.now_ms() - HOUR_MS, MAX_TIMESTAMP):
        code, offset = calls.list_offset(connection, topic, stamp_ms)
        assert offset == 0 if code == 0 else code in (CORRUPT_MESSAGE, MESSAGE_TOO_LARGE)
    assert calls.fetch(connection, topic, 0).code == 0


@on_braid_only
def test_many_bombs_at_once_take_no_more_memory_than_one(
    bootstrap: str, connection: Connection, opened_topic: str
) -> None:
    """W5: ten clients, ten bombs, one bound."""
    body = calls.produce_body(opened_topic, bomb(batches.ZSTD))
    with ExitStack() as stack:
        bombers = [stack.enter_context(Connection(bootstrap, wait_s=30)) for _ in range(10)]
        for bomber in bombers:
            bomber.send(framed(request(raw.PRODUCE, 7, body)))
        for bomber in bombers:
            assert bomber.frame() is not None
    assert calls.list_offset(connection, opened_topic) == (0, 0)


@on_braid_only
def test_large_batches_for_many_partitions_are_opened_one_after_the_other(
    bootstrap: str, connection: Connection, new_name: Callable[[], str]
) -> None:
    """W5: each is within the cap, and has to be stored under another codec; all at once they are not."""
    topic = new_name()
    config = {"compression.type": "lz4", "max.message.bytes": str(6 * MEBIBYTE)}
    assert calls.create_topic(connection, topic, 8, config=config)[0] == 0
    batch = bomb(batches.SNAPPY)
    with ExitStack() as stack:
        senders = [stack.enter_context(Connection(bootstrap, wait_s=30)) for _ in range(8)]
        for partition, sender in enumerate(senders):
            body = calls.produce_body(topic, batch, partition)
            sender.send(framed(request(raw.PRODUCE, 7, body)))
        for sender in senders:
            assert sender.frame() is not None


@pytest.mark.parametrize("codec", [batches.GZIP, batches.SNAPPY, batches.LZ4, batches.ZSTD])
@pytest.mark.parametrize(
    "junk",
    [b"", b"\x00" * 50, b"\xff" * 50, b"\x1f\x8b\x08", b"\x28\xb5\x2f\xfd" + b"\xff" * 30],
    ids=["nothing", "zeros", "ones", "half a gzip header", "half a zstd frame"],
)
def test_compressed_junk_harms_nobody(
    connection: Connection, new_name: Callable[[], str], codec: int, junk: bytes
) -> None:
    """W5: what cannot be inflated is refused where the broker must look inside."""
    topic = new_name()
    assert calls.create_topic(connection, topic, config={"compression.type": "uncompressed"})[0] == 0
    code = calls.produce(connection, topic, batches.batch(junk, attributes=codec)).code
    assert code in (INVALID_RECORD, CORRUPT_MESSAGE)


@pytest.mark.parametrize("codec", [0, batches.GZIP, batches.SNAPPY, batches.LZ4, batches.ZSTD])
def test_junk_that_was_stored_unopened_harms_nobody_in_a_search_by_time(
    connection: Connection, topic: str, codec: int
) -> None:
    """W5 C7: an error or the batch's own offset."""
    stored = calls.produce(connection, topic, batches.batch(b"\xff" * 50, attributes=codec))
    if stored.code != 0:
        assert stored.code in (INVALID_RECORD, CORRUPT_MESSAGE) or FOREIGN_SERVER in os.environ
        return
    for stamp_ms in (1, batches.now_ms() - HOUR_MS, MAX_TIMESTAMP):
        code, offset = calls.list_offset(connection, topic, stamp_ms)
        assert code != 0 or offset in (0, -1)


@pytest.mark.parametrize(
    "payload",
    [
        varint(2**31 - 1) + b"\x00" * 20,
        varint(-5) + b"\x00" * 20,
        b"\xff" * 11 + b"\x00" * 10,
        b"\x00",
        batches.record(b"v")[:-3],
        batches.record(b"v") + b"\x01",
        varint(8) + b"\x00\x00\x00" + varint(2**30) + b"\x00" * 4,
        varint(7) + b"\x00\x00\x00\x01\x01" + varint(2**31 - 1)[:2],
    ],
    ids=["2 GiB", "negative", "overlong", "empty", "cut", "rider", "wild offset", "key longer than record"],
)
def test_records_that_lie_about_their_length_harm_nobody(
    connection: Connection, new_name: Callable[[], str], payload: bytes
) -> None:
    """W5: the checksum of the batch is right, the record inside is not."""
    topic = new_name()
    assert calls.create_topic(connection, topic, config={"message.timestamp.type": "LogAppendTime"})[0] == 0
    code = calls.produce(connection, topic, batches.batch(payload)).code
    assert code in (0, INVALID_RECORD, CORRUPT_MESSAGE)
