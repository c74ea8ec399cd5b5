"""Record batches by hand, right ones and forged ones: every field of the header can be overridden."""

from __future__ import annotations

import struct
import time
from collections.abc import Sequence

import crc32c
from tests.hostile.raw import varint

GZIP, SNAPPY, LZ4, ZSTD = 1, 2, 3, 4
TRANSACTIONAL, CONTROL = 0x10, 0x20
HEAD_BYTES = 61


def now_ms() -> int:
    return int(time.time() * 1000)


def record(
    value: bytes | None, key: bytes | None = None, offset_delta: int = 0, stamp_delta: int = 0
) -> bytes:
    def field(raw: bytes | None) -> bytes:
        return varint(-1) if raw is None else varint(len(raw)) + raw

    body = b"\x00" + varint(stamp_delta) + varint(offset_delta) + field(key) + field(value) + varint(0)
    return varint(len(body)) + body


def records(values: Sequence[bytes | None]) -> bytes:
    return b"".join(record(value, offset_delta=delta) for delta, value in enumerate(values))


def batch(
    payload: bytes,
    count: int = 1,
    *,
    attributes: int = 0,
    last_delta: int | None = None,
    base_stamp_ms: int | None = None,
    max_stamp_ms: int | None = None,
    producer_id: int = -1,
    epoch: int = -1,
    sequence: int = -1,
    magic: int = 2,
    crc: int | None = None,
    length: int | None = None,
    base_offset: int = 0,
) -> bytes:
    """A batch around `payload`, which is the records as they stand on the wire (compressed or not)."""
    base_ms = now_ms() if base_stamp_ms is None else base_stamp_ms
    max_ms = base_ms if max_stamp_ms is None else max_stamp_ms
    delta = count - 1 if last_delta is None else last_delta
    signed = struct.pack(">hiqqqhii", attributes, delta, base_ms, max_ms, producer_id, epoch, sequence, count)
    checked = signed + payload
    check = crc32c.crc32c(checked) if crc is None else crc
    size = len(checked) + 9 if length is None else length
    return struct.pack(">qiibI", base_offset, size, -1, magic, check) + checked


def simple(*values: bytes | None, **overrides: int) -> bytes:
    """An uncompressed batch of these values."""
    return batch(records(values), len(values), **overrides)


def legacy(magic: int, value: bytes) -> bytes:
    """A message set of format v0 or v1, as clients before 2017 wrote it."""
    import zlib

    stamp = struct.pack(">q", now_ms()) if magic == 1 else b""
    body = struct.pack(">bb", magic, 0) + stamp + struct.pack(">ii", -1, len(value)) + value
    message = struct.pack(">I", zlib.crc32(body)) + body
    return struct.pack(">qi", 0, len(message)) + message
