"""The few bytes of Kafka's protocol that the load generator speaks: Produce v9, Fetch v12, ApiVersions v0.

It shares no code with Braid on purpose: a mistake on one side cannot hide behind the same mistake on the
other, and both servers get the very same bytes. Frames are built once and sent many times (the correlation
id is constant; answers come in order), so that one Python process can saturate either server.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from crc32c import crc32c

CORRELATION_ID = 7
CLIENT_ID = b"bench"
PRODUCE, FETCH, API_VERSIONS = 0, 1, 18
PRODUCE_VERSION, FETCH_VERSION = 9, 12
BATCH_HEADER_BYTES = 61
ATTRIBUTES_AT = 21
LAST_DELTA_AT = 23
CONTROL = 0x20

_batch_start = struct.Struct(">qi")
_last_delta = struct.Struct(">i")


def uvarint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def varint(value: int) -> bytes:
    return uvarint((value << 1) ^ (value >> 63))


def compact(text: bytes) -> bytes:
    return uvarint(len(text) + 1) + text


def record_batch(value: bytes, count: int) -> bytes:
    """A RecordBatch v2 of `count` records without keys, all with this value, stamped now."""
    records = bytearray()
    for delta in range(count):
        body = b"\0\0" + varint(delta) + varint(-1) + varint(len(value)) + value + b"\0"
        records += varint(len(body)) + body
    now_ms = int(time.time() * 1000)
    checked = struct.pack(">hiqqqhii", 0, count - 1, now_ms, now_ms, -1, -1, -1, count) + records
    length = 4 + 1 + 4 + len(checked)
    return struct.pack(">qiibI", 0, length, -1, 2, crc32c(checked)) + checked


def frame(api_key: int, version: int, body: bytes) -> bytes:
    header = struct.pack(">hhih", api_key, version, CORRELATION_ID, len(CLIENT_ID)) + CLIENT_ID + b"\0"
    return struct.pack(">i", len(header) + len(body)) + header + body


def api_versions_frame() -> bytes:
    header = struct.pack(">hhih", API_VERSIONS, 0, CORRELATION_ID, len(CLIENT_ID)) + CLIENT_ID
    return struct.pack(">i", len(header)) + header


def produce_frame(topic: str, batches: Sequence[tuple[int, bytes]], acks: int) -> bytes:
    """A whole Produce request, size prefix included, with one batch for each (partition, batch)."""
    body = bytearray(b"\0" + struct.pack(">hi", acks, 30_000))
    body += uvarint(2) + compact(topic.encode()) + uvarint(len(batches) + 1)
    for partition, batch in batches:
        body += struct.pack(">i", partition) + uvarint(len(batch) + 1) + batch + b"\0"
    body += b"\0\0"
    return frame(PRODUCE, PRODUCE_VERSION, bytes(body))


def produce_error(response: bytes | memoryview) -> int:
    """The first error code in a Produce answer (given without its size prefix)."""
    at = 4 + 1
    _, at = _read_uvarint(response, at)
    name_bytes, at = _read_uvarint(response, at)
    at += name_bytes - 1
    partitions, at = _read_uvarint(response, at)
    for _ in range(partitions - 1):
        code = int(struct.unpack_from(">h", response, at + 4)[0])
        if code:
            return code
        at += 4 + 2 + 8 + 8 + 8
        errors, at = _read_uvarint(response, at)
        if errors > 1:
            raise ValueError("record errors beside error code 0")
        message_bytes, at = _read_uvarint(response, at)
        at = _skip_tags(response, at + max(0, message_bytes - 1))
    return 0


class Position(NamedTuple):
    """Where a consumer stands in one partition."""

    partition: int
    offset: int


def fetch_frame(
    topic: str,
    positions: Sequence[Position],
    max_wait_ms: int = 500,
    max_bytes: int = 52_428_800,
    partition_max_bytes: int = 1_048_576,
    isolation: int = 0,
) -> bytes:
    """A whole sessionless Fetch request; the limits are librdkafka's defaults."""
    return fetch_topics_frame({topic: positions}, max_wait_ms, max_bytes, partition_max_bytes, isolation)


def fetch_topics_frame(
    topics: Mapping[str, Sequence[Position]],
    max_wait_ms: int = 500,
    max_bytes: int = 52_428_800,
    partition_max_bytes: int = 1_048_576,
    isolation: int = 0,
) -> bytes:
    """The same for partitions of several topics."""
    body = bytearray(struct.pack(">iiiibii", -1, max_wait_ms, 1, max_bytes, isolation, 0, -1))
    body += uvarint(len(topics) + 1)
    for topic, positions in topics.items():
        body += compact(topic.encode()) + uvarint(len(positions) + 1)
        for partition, offset in positions:
            body += struct.pack(">iiqiqi", partition, -1, offset, -1, -1, partition_max_bytes) + b"\0"
        body += b"\0"
    body += uvarint(1) + compact(b"") + b"\0"
    return frame(FETCH, FETCH_VERSION, bytes(body))


class Fetched(NamedTuple):
    """The records of one partition in a Fetch answer: `start` and `end` are places in the answer."""

    partition: int
    code: int
    start: int
    end: int


def fetched(response: memoryview) -> list[Fetched]:
    """The partitions of a Fetch answer (given without its size prefix)."""
    code = struct.unpack_from(">h", response, 9)[0]
    if code:
        raise RuntimeError(f"fetch failed with error code {code}")
    at = 4 + 1 + 4 + 2 + 4
    topics, at = _read_uvarint(response, at)
    found = []
    for _ in range(topics - 1):
        name_bytes, at = _read_uvarint(response, at)
        partitions, at = _read_uvarint(response, at + name_bytes - 1)
        for _ in range(partitions - 1):
            part, at = _fetched_partition(response, at)
            found.append(part)
        at = _skip_tags(response, at)
    return found


def _fetched_partition(response: memoryview, at: int) -> tuple[Fetched, int]:
    partition, code = struct.unpack_from(">ih", response, at)
    aborted, at = _read_uvarint(response, at + 4 + 2 + 8 + 8 + 8)
    if aborted > 1:
        raise RuntimeError("aborted transactions in a topic nobody wrote transactions to")
    size, at = _read_uvarint(response, at + 4)
    end = at + max(0, size - 1)
    return Fetched(partition, code, at, end), _skip_tags(response, end)


def batches(response: memoryview, start: int, end: int) -> Iterator[tuple[int, int]]:
    """(first offset, next offset) of each whole batch between two places of a Fetch answer."""
    while end - start >= BATCH_HEADER_BYTES:
        offset, length = _batch_start.unpack_from(response, start)
        if start + 12 + length > end:
            return
        yield offset, offset + 1 + _last_delta.unpack_from(response, start + LAST_DELTA_AT)[0]
        start += 12 + length


def data_batches(response: memoryview, start: int, end: int) -> Iterator[tuple[int, int]]:
    """(next offset, records) of each whole batch; the marker of a transaction has no records to count."""
    while end - start >= BATCH_HEADER_BYTES:
        offset, length = _batch_start.unpack_from(response, start)
        if start + 12 + length > end:
            return
        last_delta = _last_delta.unpack_from(response, start + LAST_DELTA_AT)[0]
        is_control = response[start + ATTRIBUTES_AT + 1] & CONTROL
        yield offset + 1 + last_delta, 0 if is_control else last_delta + 1
        start += 12 + length


def _read_uvarint(view: bytes | memoryview, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = view[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
        shift += 7


def _skip_tags(view: bytes | memoryview, at: int) -> int:
    count, at = _read_uvarint(view, at)
    for _ in range(count):
        _, at = _read_uvarint(view, at)
        size, at = _read_uvarint(view, at)
        at += size
    return at
