"""The per-record loops, and nothing else: walk, decode and encode the records of a batch; hash a key.

Records are decoded to Python objects (`decode_records`) for those who look at each one, and to columns in
Arrow's layout (`decode_columns`, `decode_headers`, `decode_header`) for those who pass on millions.

One source, two lives. As it stands it is plain Python. Where a compiler was found at installation, Cython has
compiled this same file with the C types of `kernel.pxd` beside it, and the import finds the compiled module
first; `COMPILED` tells which one runs. So the code here is written for both: integers that fit 64 bits, no
slices in loops that only look, and masks that C would not need. Inside, buffers are plain pointers when
compiled: handing memoryviews from function to function took most of the time.

A record (KIP-98) is: length, attributes (1 byte), timestamp delta, offset delta, key, value, headers.
Lengths, deltas and counts are zigzag varints; -1 as a length is null. The callers translate what is reported
here into errors: this file knows no error codes.
"""

from __future__ import annotations

from collections.abc import Sequence

try:
    import cython
except ImportError:  # needed to compile, not to run
    from types import SimpleNamespace

    globals()["cython"] = SimpleNamespace(compiled=False)

Buffer = bytes | bytearray | memoryview
Headers = Sequence[tuple[str, bytes | None]]
Row = tuple[int, int, bytes | None, bytes | None, list[tuple[str, bytes | None]]]
# Where the next record is, timestamp delta, offset delta, then where and how long or how many: key, value,
# headers.
Span = tuple[int, int, int, int, int, int, int, int, int]

COMPILED: bool = not __file__.endswith(".py")

# Attributes, two deltas, two lengths and a count, one byte each, behind the length itself.
RECORD_BYTES_MIN = 6
BATCH_HEADER_BYTES = 61
CODEC_BITS = 7
APPEND_TIME_BIT = 8
INT32_SHIFT_MAX = 28
INT64_SHIFT_MAX = 63
INT64_MAX = 9223372036854775807
INT64_MIN = -INT64_MAX - 1
TIMESTAMP_MS_MAX = INT64_MAX // 1000
BAD_SPAN: Span = (-1, 0, 0, 0, 0, 0, 0, 0, 0)


def walk_records(view: Buffer, at: int, count: int) -> int:
    """The index of the first record that is malformed or out of sequence, or -1 when all are sound.

    Sound means that `count` records fill the view from `at` to its end exactly, and that their offset deltas
    are 0, 1, 2, …, as a producer must number them. `count` is returned when bytes are left over.
    """
    end = len(view)
    start = _start(view)
    for index in range(count):
        span = _scan(start, at, end)
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
    view = _start(payload)
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


class BytesColumn:
    """Byte strings one behind the other as Arrow lays them out: where each ends, their bytes, a bit for each.

    The buffers belong to the caller, who has set `ends[0]` to zero and all bits of `valid` to one. What does
    not fit is not written: the loops below stop in front of the record that has no room.
    """

    def __init__(self, ends: memoryview, content: memoryview, valid: memoryview) -> None:
        self.rows = 0
        self.used = 0
        self.nulls = 0
        self.move(ends, content, valid)

    def move(self, ends: memoryview, content: memoryview, valid: memoryview) -> None:
        """Goes on in other buffers, into which the caller has copied what was written."""
        self.held = (ends, content, valid)
        self.rows_max = len(ends) - 1
        self.room = len(content)
        if cython.compiled:
            self.ends = cython.address(ends[0])
            self.content = cython.address(content[0])
            self.valid = cython.address(valid[0])
        else:
            self.ends, self.content, self.valid = ends, content, valid


class Rows:
    """Where decoded records go, row by row; keys or values that are None are not wanted."""

    def __init__(
        self,
        offsets: memoryview,
        timestamps_us: memoryview,
        keys: BytesColumn | None,
        values: BytesColumn | None,
    ) -> None:
        self.offsets = offsets
        self.timestamps_us = timestamps_us
        self.keys = keys
        self.values = values
        self.rows_max = len(offsets)
        self.count = 0
        self.headers = 0


class Window:
    """The records of one opened batch, and which of them are wanted: offsets `first` to `end` (excluded).

    They lie in `payload` from `at` to `size`. Batches that follow there, up to `stop`, are decoded too
    if they are not compressed and have the same kind of timestamp; callers that give a `stop` check them.
    """

    def __init__(
        self, payload: Buffer, count: int, base_offset: int, timestamp: int, fixed_timestamp: bool,
        first: int, end: int, at: int, size: int, stop: int,
    ) -> None:  # fmt: skip
        self.payload = payload
        self.base_offset = base_offset
        self.timestamp = timestamp
        self.fixed_timestamp = fixed_timestamp
        self.first = first
        self.end = end
        self.begin = at
        self.at = at
        self.size = size
        self.stop = stop
        self.left = count


def decode_columns(window: Window, rows: Rows) -> None:
    """Decodes records of `window` into `rows` until the first is used up or the second full.

    `window.left` is then zero, or how many records of its batch are still to come; `window.size` is where
    that batch ends. `rows.headers` counts the headers of the rows written by this call. ValueError when a
    record is malformed.
    """
    view = _start(window.payload)
    keys, values = rows.keys, rows.values
    row = rows.count
    rows.headers = 0
    while row < rows.rows_max:
        if window.left <= 0:
            if not _enter_next(window, view):
                break
            continue
        span = _scan(view, window.at, window.size)
        delta = 0 if window.fixed_timestamp else span[1]
        if span[0] < 0 or _overflows(window.base_offset, span[2]) or _overflows(window.timestamp, delta):
            at = window.at - window.begin
            raise ValueError(f"batch at {window.base_offset}: the record at byte {at} is malformed")
        offset = window.base_offset + span[2]
        if window.first <= offset < window.end:
            if not (_fits(keys, span[4]) and _fits(values, span[6])):
                break
            if keys is not None:
                _put_column(keys, row, view, span[3], span[4])
            if values is not None:
                _put_column(values, row, view, span[5], span[6])
            rows.offsets[row] = offset
            rows.timestamps_us[row] = _to_us(window.timestamp + delta)
            rows.headers += span[8]
            row += 1
        window.at = span[0]
        window.left -= 1
    rows.count = row


def _enter_next(window: Window, view: Buffer) -> bool:
    """Moves `window` to the batch that follows; whether there is one of its kind."""
    at = window.size
    if window.stop - at < BATCH_HEADER_BYTES:
        return False
    size = _int32(view, at + 8) + 12
    fixed = view[at + 22] & APPEND_TIME_BIT != 0
    if size < BATCH_HEADER_BYTES or size > window.stop - at:
        return False
    if view[at + 22] & CODEC_BITS or fixed != window.fixed_timestamp:
        return False
    window.base_offset = _int64(view, at)
    window.timestamp = _int64(view, at + 35 if fixed else at + 27)
    window.left = _int32(view, at + 57)
    window.begin = window.at = at + BATCH_HEADER_BYTES
    window.size = at + size
    return True


def decode_headers(
    window: Window,
    at: int,
    row: int,
    ends: memoryview,
    valid: memoryview,
    names: BytesColumn,
    contents: BytesColumn,
) -> bool:
    """All headers of the records from byte `at` to `window.at`, as rows from `row` on; whether all had room.

    `ends` and `valid` are the list column around `names` and `contents`; a record without headers is null.
    """
    view = _start(window.payload)
    while at < window.at:
        span = _scan(view, at, window.size)
        if window.first <= window.base_offset + span[2] < window.end:
            header_at = span[7]
            for _ in range(span[8]):
                name_bytes, name_at = _varint(view, header_at, span[0], INT32_SHIFT_MAX)
                content_bytes, content_at = _varint(view, name_at + name_bytes, span[0], INT32_SHIFT_MAX)
                if not (_fits(names, name_bytes) and _fits(contents, content_bytes)):
                    return False
                if names.rows == names.rows_max or contents.rows == contents.rows_max:
                    return False
                _put_column(names, names.rows, view, name_at, name_bytes)
                _put_column(contents, contents.rows, view, content_at, content_bytes)
                header_at = content_at + content_bytes if content_bytes > 0 else content_at
            if span[8] > 0:
                valid[row >> 3] |= 1 << (row & 7)
            row += 1
            ends[row] = names.rows
        at = span[0]
    return True


def decode_header(window: Window, at: int, row: int, name: bytes, column: BytesColumn) -> bool:
    """The first header called `name` of each record from byte `at` to `window.at`; whether all had room."""
    view = _start(window.payload)
    wanted = _start(name)
    size = len(name)
    while at < window.at:
        span = _scan(view, at, window.size)
        if window.first <= window.base_offset + span[2] < window.end:
            header_at = span[7]
            found_at, found_bytes = 0, -1
            for _ in range(span[8]):
                name_bytes, name_at = _varint(view, header_at, span[0], INT32_SHIFT_MAX)
                content_bytes, content_at = _varint(view, name_at + name_bytes, span[0], INT32_SHIFT_MAX)
                if name_bytes == size and _same(view, name_at, wanted, size):
                    found_at, found_bytes = content_at, content_bytes
                    break
                header_at = content_at + content_bytes if content_bytes > 0 else content_at
            if not _fits(column, found_bytes) or row >= column.rows_max:
                return False
            _put_column(column, row, view, found_at, found_bytes)
            row += 1
        at = span[0]
    return True


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
    if (headers or headers_at != end) and _skip_headers(view, headers_at, end, headers) != end:
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
    # Most have one byte, and most others two: lengths from 64 to 8191.
    if at < end and view[at] < 128:
        raw = view[at]
        return (raw >> 1) ^ -(raw & 1), at + 1
    if at + 1 < end and view[at + 1] < 128:
        raw = view[at] & 127 | view[at + 1] << 7
        return (raw >> 1) ^ -(raw & 1), at + 2
    return _long_varint(view, at, end, shift_max)


def _long_varint(view: Buffer, at: int, end: int, shift_max: int) -> tuple[int, int]:
    """Apart from the short ones, which a compiler then puts where they are read."""
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


def _start(view: Buffer) -> Buffer:
    """What the loops read from: the first byte's address when compiled, the buffer itself when not."""
    if cython.compiled:
        return cython.address(view[0])  # type: ignore[no-any-return]
    else:
        return view


def _int32(view: Buffer, at: int) -> int:
    """The signed big-endian number at `at`."""
    raw = view[at] << 24 | view[at + 1] << 16 | view[at + 2] << 8 | view[at + 3]
    return raw - ((raw & 0x80000000) << 1)


def _int64(view: Buffer, at: int) -> int:
    return (_int32(view, at) << 32) + (_int32(view, at + 4) & 0xFFFFFFFF)


def _fits(column: BytesColumn | None, length: int) -> bool:
    return column is None or length <= column.room - column.used


def _put_column(column: BytesColumn, row: int, view: Buffer, at: int, length: int) -> None:
    """Writes `length` bytes of `view` as row `row`; a negative length is null."""
    if length >= 0:
        _copy(column.content, column.used, view, at, length)
        column.used += length
    else:
        column.valid[row >> 3] &= ~(1 << (row & 7))
        column.nulls += 1
    column.ends[row + 1] = column.used
    column.rows = row + 1


def _copy(into: memoryview, to: int, view: Buffer, at: int, count: int) -> None:
    if cython.compiled:
        memcpy(into + to, view + at, count)  # type: ignore # noqa: F821
    else:
        into[to : to + count] = view[at : at + count]


def _same(view: Buffer, at: int, wanted: Buffer, size: int) -> bool:
    for index in range(size):  # noqa: SIM110
        if view[at + index] != wanted[index]:
            return False
    return True


def _to_us(timestamp_ms: int) -> int:
    """Microseconds, held at the ends of 64 bits: a forged time must not become another one."""
    if timestamp_ms > TIMESTAMP_MS_MAX:
        return INT64_MAX
    if timestamp_ms < -TIMESTAMP_MS_MAX:
        return INT64_MIN
    return timestamp_ms * 1000


def _overflows(start: int, delta: int) -> bool:
    """Whether `start + delta` leaves 64 bits; forged deltas may."""
    if delta > 0:
        return start > INT64_MAX - delta
    return start < INT64_MIN - delta
