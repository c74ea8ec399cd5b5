"""The per-record loops, and nothing else: walk, decode and encode the records of a batch; hash a key.

One source, two lives. As it stands it is plain Python. Where a compiler was found at installation, Cython has
compiled this same file with the C types of `kernel.pxd` beside it, and the import finds the compiled module
first; `COMPILED` tells which one runs. So the code here is written for both: integers that fit 64 bits, no
slices in loops that only look, and masks that C would not need.

A record (KIP-98) is: length, attributes (1 byte), timestamp delta, offset delta, key, value, headers.
Lengths, deltas and counts are zigzag varints; -1 as a length is null. The callers translate what is reported
here into errors: this file knows no error codes.
"""

from __future__ import annotations

from collections.abc import Sequence

Buffer = bytes | bytearray | memoryview
Headers = Sequence[tuple[str, bytes | None]]
Row = tuple[int, int, bytes | None, bytes | None, list[tuple[str, bytes | None]]]
# Where the next record is, timestamp delta, offset delta, then where and how long or how many: key, value,
# headers.
Span = tuple[int, int, int, int, int, int, int, int, int]

COMPILED: bool = not __file__.endswith(".py")

# Attributes, two deltas, two lengths and a count, one byte each, behind the length itself.
RECORD_BYTES_MIN = 6
INT32_SHIFT_MAX = 28
INT64_SHIFT_MAX = 63
INT64_MAX = 9223372036854775807
INT64_MIN = -INT64_MAX - 1
BAD_SPAN: Span = (-1, 0, 0, 0, 0, 0, 0, 0, 0)


def walk_records(view: Buffer, at: int, count: int) -> int:
    """The index of the first record that is malformed or out of sequence, or -1 when all are sound.

    Sound means that `count` records fill the view from `at` to its end exactly, and that their offset deltas
    are 0, 1, 2, …, as a producer must number them. `count` is returned when bytes are left over.
    """
    end = len(view)
    for index in range(count):
        span = _scan(view, at, end)
        if span[0] < 0 or span[2] != index:
            return index
        at = span[0]
    return -1 if at == end else count


def decode_records(
    payload: bytes, at: int, count: int, base_offset: int, timestamp: int, fixed_timestamp: bool
) -> tuple[list[Row], int]:
    """`count` records of `payload` from `at` on, and where they end.

    `timestamp` is what deltas are added to, or every record's timestamp when `fixed_timestamp`.
    ValueError when one is malformed.
    """
    rows: list[Row] = []
    view: Buffer = payload
    end = len(payload)
    for _ in range(count):
        span = _scan(view, at, end)
        delta = 0 if fixed_timestamp else span[1]
        if span[0] < 0 or _overflows(base_offset, span[2]) or _overflows(timestamp, delta):
            raise ValueError(f"the record at byte {at} is malformed")
        key = payload[span[3] : span[3] + span[4]] if span[4] >= 0 else None
        value = payload[span[5] : span[5] + span[6]] if span[6] >= 0 else None
        headers = _decode_headers(payload, view, span[7], span[0], span[8]) if span[8] else []
        rows.append((base_offset + span[2], timestamp + delta, key, value, headers))
        at = span[0]
    return rows, at


def append_record(
    out: bytearray,
    offset_delta: int,
    timestamp_delta: int,
    key: bytes | None,
    value: bytes | None,
    headers: Headers,
) -> None:
    """Encode one record at the end of `out`."""
    body = bytearray(1)
    _put_varint(body, timestamp_delta)
    _put_varint(body, offset_delta)
    _put_bytes(body, key)
    _put_bytes(body, value)
    _put_varint(body, len(headers))
    for name, content in headers:
        _put_bytes(body, name.encode("utf-8", "surrogateescape"))
        _put_bytes(body, content)
    _put_varint(out, len(body))
    out += body


def murmur2(key: bytes) -> int:
    """Kafka's hash of a key, unsigned; its Java client takes partition `(hash & 0x7fffffff) % partitions`."""
    size = len(key)
    mixed = 0x9747B28C ^ size
    at = 0
    while at + 4 <= size:
        word = key[at] | key[at + 1] << 8 | key[at + 2] << 16 | key[at + 3] << 24
        word = word * 0x5BD1E995 & 0xFFFFFFFF
        word = (word ^ word >> 24) * 0x5BD1E995 & 0xFFFFFFFF
        mixed = mixed * 0x5BD1E995 & 0xFFFFFFFF ^ word
        at += 4
    left = size - at
    if left == 3:
        mixed ^= key[at + 2] << 16
    if left >= 2:
        mixed ^= key[at + 1] << 8
    if left >= 1:
        mixed = (mixed ^ key[at]) * 0x5BD1E995 & 0xFFFFFFFF
    mixed = (mixed ^ mixed >> 13) * 0x5BD1E995 & 0xFFFFFFFF
    return mixed ^ mixed >> 15


def _scan(view: Buffer, at: int, end: int) -> Span:
    """Find the parts of the record at `at` without copying any; BAD_SPAN unless it is well formed."""
    length, at = _varint(view, at, end, INT32_SHIFT_MAX)
    if at < 0 or length < RECORD_BYTES_MIN or length > end - at:
        return BAD_SPAN
    end = at + length
    timestamp_delta, at = _varint(view, at + 1, end, INT64_SHIFT_MAX)
    if at < 0:
        return BAD_SPAN
    offset_delta, at = _varint(view, at, end, INT32_SHIFT_MAX)
    if at < 0:
        return BAD_SPAN
    key_bytes, key_at = _varint(view, at, end, INT32_SHIFT_MAX)
    at = _past(key_at, key_bytes, -1, end)
    if at < 0:
        return BAD_SPAN
    value_bytes, value_at = _varint(view, at, end, INT32_SHIFT_MAX)
    at = _past(value_at, value_bytes, -1, end)
    if at < 0:
        return BAD_SPAN
    headers, headers_at = _varint(view, at, end, INT32_SHIFT_MAX)
    if headers_at < 0 or _skip_headers(view, headers_at, end, headers) != end:
        return BAD_SPAN
    return end, timestamp_delta, offset_delta, key_at, key_bytes, value_at, value_bytes, headers_at, headers


def _skip_headers(view: Buffer, at: int, end: int, count: int) -> int:
    """Where `count` headers end, or -1."""
    if count < 0 or count > (end - at) // 2:
        return -1
    for _ in range(count):
        length, at = _varint(view, at, end, INT32_SHIFT_MAX)
        at = _past(at, length, 0, end)
        if at < 0:
            return -1
        length, at = _varint(view, at, end, INT32_SHIFT_MAX)
        at = _past(at, length, -1, end)
        if at < 0:
            return -1
    return at


def _decode_headers(
    payload: bytes, view: Buffer, at: int, end: int, count: int
) -> list[tuple[str, bytes | None]]:
    """Headers that `_skip_headers` has found sound. Names that are not UTF-8 survive a round trip."""
    headers: list[tuple[str, bytes | None]] = []
    for _ in range(count):
        length, at = _varint(view, at, end, INT32_SHIFT_MAX)
        name = payload[at : at + length].decode("utf-8", "surrogateescape")
        length, at = _varint(view, at + length, end, INT32_SHIFT_MAX)
        headers.append((name, payload[at : at + length] if length >= 0 else None))
        if length > 0:
            at += length
    return headers


def _past(at: int, length: int, length_min: int, end: int) -> int:
    """The end of `length` bytes at `at`, or -1 when `at` is bad or they do not fit."""
    if at < 0 or length < length_min or length > end - at:
        return -1
    return at + length if length > 0 else at


def _varint(view: Buffer, at: int, end: int, shift_max: int) -> tuple[int, int]:
    """The zigzag varint at `at` and where it ends; (0, -1) when it is cut, overlong or too large."""
    raw = 0
    shift = 0
    while at < end and shift <= shift_max:
        byte = view[at]
        at += 1
        raw |= (byte & 127) << shift
        if byte < 128:
            # The last byte of the longest form may only hold the bits that are left of 32 or 64.
            if shift == shift_max and byte > (15 if shift_max == INT32_SHIFT_MAX else 1):
                break
            return (raw >> 1) ^ -(raw & 1), at
        shift += 7
    return 0, -1


def _put_varint(out: bytearray, value: int) -> None:
    raw = (value << 1) ^ (value >> 63)
    while raw > 127:
        out.append(raw & 127 | 128)
        raw >>= 7
    out.append(raw)


def _put_bytes(out: bytearray, content: bytes | None) -> None:
    if content is None:
        out.append(1)
    else:
        _put_varint(out, len(content))
        out += content


def _overflows(start: int, delta: int) -> bool:
    """Whether `start + delta` leaves 64 bits; forged deltas may."""
    if delta > 0:
        return start > INT64_MAX - delta
    return start < INT64_MIN - delta
