"""Walks over many batches at once by their headers: where some begin and end, and whether they are sound.

A batch of a few records costs as many Python calls as one of thousands, so readers of a log walk it here.
As `kernel.py`, this is Python that is compiled where that can be, with the types of `batch_walker.pxd`.

A batch header (KIP-98) is: base offset (8 bytes), length of what follows (4), leader epoch (4), magic (1),
CRC (4), attributes (2), last offset delta (4), base timestamp (8), greatest timestamp (8), producer id (8)
and epoch (2), base sequence (4), count of records (4).
"""

from __future__ import annotations

from collections.abc import Callable

try:
    import cython
except ImportError:  # needed to compile, not to run
    from types import SimpleNamespace

    globals()["cython"] = SimpleNamespace(compiled=False)

Buffer = bytes | bytearray | memoryview
Checksum = Callable[[memoryview], int]

BATCH_HEADER_BYTES = 61
BATCH_MAGIC = 2
CODEC_BITS = 7
CODEC_MAX = 4
APPEND_TIME = 8
INT64_MAX = 9223372036854775807


def check_batches(
    view: memoryview, at: int, until: int, mask: int, bytes_max: int, checksum: Checksum
) -> tuple[int, int]:
    """How far batches from `at` on are whole, sound, begin before offset `until` and have no bit of `mask`.

    Where the last of them ends, `at` itself if there is none, and the offset that follows it. Some batches
    at a time, no more than `bytes_max` unless one alone is larger: the caller finds them in the cache.
    """
    start = _start(view)
    end = len(view)
    begin = at
    next_offset = -1
    while end - at >= BATCH_HEADER_BYTES:
        size = _int32(start, at + 8) + 12
        offset = _int64(start, at)
        count, last_delta = _int32(start, at + 57), _int32(start, at + 23)
        attributes = start[at + 21] << 8 | start[at + 22]
        if size < BATCH_HEADER_BYTES or size > end - at or start[at + 16] != BATCH_MAGIC:
            break
        if at > begin and at - begin + size > bytes_max:
            break
        if offset < 0 or offset >= until or count < 0 or count > last_delta + 1:
            break
        if attributes & mask or attributes & CODEC_BITS > CODEC_MAX or offset > INT64_MAX - last_delta - 1:
            break
        if checksum(view[at + 21 : at + size]) != _int32(start, at + 17) & 0xFFFFFFFF:
            break
        at += size
        next_offset = offset + last_delta + 1
    return at, next_offset


def find_batches(view: Buffer, offset: int) -> tuple[int, int, int]:
    """Of the whole batches in `view`: where the first that reaches `offset` begins, where the last one ends,
    and where that begins. The first and the third are -1 when none reaches it."""
    start = _start(view)
    end = len(view)
    at, first, last = 0, -1, -1
    while end - at >= BATCH_HEADER_BYTES:
        size = _int32(start, at + 8) + 12
        if size < BATCH_HEADER_BYTES or size > end - at:
            break
        if first < 0 and _int64(start, at) + _int32(start, at + 23) >= offset:
            first = at
        if first >= 0:
            last = at
        at += size
    return first, at, last


def skip_batches(view: Buffer, at: int, offset: int) -> int:
    """Where the first batch that reaches `offset` begins, from the batch at `at` on; or where sense ends.

    Only base offset, length and last offset delta are looked at: the reader of the batch checks it.
    """
    end = len(view)
    start = _start(view)
    while end - at >= BATCH_HEADER_BYTES:
        size = _int32(start, at + 8) + 12
        if size < BATCH_HEADER_BYTES or size > end - at:
            return at
        if _int64(start, at) + _int32(start, at + 23) >= offset:
            return at
        at += size
    return at


def count_records(view: Buffer, at: int, first: int, end: int) -> tuple[int, int]:
    """How many records the batches from `at` on have, by their headers, and where the last of them ends.

    Only batches that lie between the offsets `first` and `end`, and whose records have the same kind of time.
    They were found sound before.
    """
    start = _start(view)
    size_all = len(view)
    records = 0
    append_time = start[at + 22] & APPEND_TIME if size_all - at >= BATCH_HEADER_BYTES else 0
    while size_all - at >= BATCH_HEADER_BYTES:
        size = _int32(start, at + 8) + 12
        offset = _int64(start, at)
        if size < BATCH_HEADER_BYTES or size > size_all - at or start[at + 22] & APPEND_TIME != append_time:
            break
        if offset < first or offset + _int32(start, at + 23) >= end:
            break
        records += _int32(start, at + 57)
        at += size
    return at, records


def _start(view: Buffer) -> Buffer:
    """What is read from: the first byte's address when compiled, the buffer itself when not."""
    if cython.compiled:
        return cython.address(view[0])  # type: ignore[no-any-return]
    else:
        return view


def _int64(view: Buffer, at: int) -> int:
    """The signed big-endian number at `at`."""
    return (_int32(view, at) << 32) + (_int32(view, at + 4) & 0xFFFFFFFF)


def _int32(view: Buffer, at: int) -> int:
    raw = view[at] << 24 | view[at + 1] << 16 | view[at + 2] << 8 | view[at + 3]
    return raw - ((raw & 0x80000000) << 1)
