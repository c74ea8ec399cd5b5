"""Rows that lie in columns become records: the loops from Arrow's buffers to the bytes of a record batch.

The Spark sink is handed columns: all keys one behind the other with an array of offsets into them, the values
likewise, and so on. Here a partition is chosen for each row, rows are sorted by partition, and those of one
partition are written as records straight from the columns into a batch's buffer. No Python object is made for
a row.

As `kernel.py`, this is one source with two lives: plain Python as it stands, and C where it was compiled with
the types in `column_writer.pxd` (`COMPILED` tells). Buffers come as flat views; nothing here knows Arrow.
A record is laid out as `kernel.py` says.
"""

from __future__ import annotations

from collections.abc import MutableSequence, Sequence

Buffer = bytes | bytearray | memoryview
Ints = Sequence[int] | memoryview
MutableInts = MutableSequence[int] | memoryview

COMPILED: bool = not __file__.endswith(".py")

MICROSECONDS_PER_MS = 1_000
# Named, because Cython makes a Python object of any number past 31 bits that stands in the code.
HASH_SEED = 0x9747B28C
HASH_MULTIPLIER = 0x5BD1E995
MASK_32 = 0xFFFFFFFF


class ByteColumn:
    """Byte strings one behind the other: row r is `content[offsets[r + shift] : offsets[r + shift + 1]]`.

    `valid` is a bitmap, a bit for each row and set where there is a value; empty when none is null.
    """

    def __init__(self, offsets: Ints, content: Buffer, valid: Buffer, shift: int) -> None:
        self.offsets = offsets
        self.content = content
        self.valid = valid
        self.shift = shift
        self.nullable = len(valid) > 0


class NumberColumn:
    """Numbers of 32 or 64 bits, widened; `valid` as in `ByteColumn`."""

    def __init__(self, numbers: Ints, valid: Buffer, shift: int) -> None:
        self.numbers = numbers
        self.valid = valid
        self.shift = shift
        self.nullable = len(valid) > 0


class HeaderColumn:
    """Lists of headers: row r has those from `offsets[r + shift]` to `offsets[r + shift + 1]`."""

    def __init__(
        self, offsets: Ints, valid: Buffer, shift: int, names: ByteColumn, contents: ByteColumn
    ) -> None:
        self.offsets = offsets
        self.valid = valid
        self.shift = shift
        self.nullable = len(valid) > 0
        self.names = names
        self.contents = contents


class Columns:
    """The rows of one Arrow batch as records see them; a column that is not there is None.

    `tags` and `deliver_at` become headers of the names given with them, behind those of `headers`, in rows
    where they are not null. A row without a timestamp (in microseconds) gets `now_ms`.
    """

    def __init__(
        self,
        keys: ByteColumn | None,
        values: ByteColumn | None,
        headers: HeaderColumn | None,
        timestamps_us: NumberColumn | None,
        tags: ByteColumn | None,
        tag_name: bytes,
        deliver_at: ByteColumn | None,
        deliver_at_name: bytes,
        now_ms: int,
    ) -> None:
        self.keys = keys
        self.values = values
        self.headers = headers
        self.timestamps_us = timestamps_us
        self.tags = tags
        self.tag_name = tag_name
        self.deliver_at = deliver_at
        self.deliver_at_name = deliver_at_name
        self.now_ms = now_ms


def choose_partitions(
    chosen: MutableInts,
    rows: int,
    wanted: NumberColumn | None,
    keys: ByteColumn | None,
    partitions: int,
    written: int,
    row_bytes: int,
    turn_bytes: int,
) -> int:
    """Write each row's partition to `chosen`: the wanted one, else by its key's hash, else in turn.

    The hash is Kafka's, so that a key lands where its Java client would put it. Partitions take turns of
    `turn_bytes`, where `written` bytes have gone before and a row counts as `row_bytes`: rows without a key
    fill whole batches. Gives the first row that wants a partition the topic does not have, or -1.
    """
    for row in range(rows):
        if wanted is not None and (not wanted.nullable or _is_valid(wanted.valid, row + wanted.shift)):
            partition = wanted.numbers[row + wanted.shift]
            if partition < 0 or partition >= partitions:
                return row
            chosen[row] = partition
        elif keys is not None and (not keys.nullable or _is_valid(keys.valid, row + keys.shift)):
            start = keys.offsets[row + keys.shift]
            hashed = _murmur2(keys.content, start, keys.offsets[row + keys.shift + 1] - start)
            chosen[row] = (hashed & 0x7FFFFFFF) % partitions
        else:
            chosen[row] = (written + row * row_bytes) // turn_bytes % partitions
    return -1


def group_rows(chosen: Ints, rows: int, partitions: int, order: MutableInts, ends: MutableInts) -> None:
    """Write the rows' numbers to `order`, by partition and each partition's in their order.

    `ends[p]` is where partition p's rows end in it; they begin where the one before ends.
    """
    for partition in range(partitions):
        ends[partition] = 0
    for row in range(rows):
        ends[chosen[row]] += 1
    total = 0
    for partition in range(partitions):
        count = ends[partition]
        ends[partition] = total
        total += count
    for row in range(rows):
        partition = chosen[row]
        order[ends[partition]] = row
        ends[partition] += 1


def append_rows(
    out: bytearray | memoryview,
    at: int,
    order: Ints,
    first: int,
    last: int,
    columns: Columns,
    count: int,
    base_timestamp: int,
    max_timestamp: int,
) -> tuple[int, int, int]:
    """Write records of the rows `order[first:last]` at `at` of `out` until one no longer fits.

    `count` records are in the batch already, whose first has `base_timestamp`. Gives where in `order` to go
    on, where the bytes end, and the largest timestamp.
    """
    end = len(out)
    while first < last:
        row = order[first]
        timestamp = _timestamp(columns, row)
        delta = timestamp - base_timestamp
        size = _body_bytes(columns, row, delta, count)
        if size + _varint_bytes(size) > end - at:
            break
        at = _put_varint(out, at, size)
        out[at] = 0
        at = _put_varint(out, at + 1, delta)
        at = _put_varint(out, at, count)
        at = _put_cell(out, at, columns.keys, row)
        at = _put_cell(out, at, columns.values, row)
        at = _put_headers(out, at, columns, row)
        if timestamp > max_timestamp:
            max_timestamp = timestamp
        count += 1
        first += 1
    return first, at, max_timestamp


def record_bytes(columns: Columns, row: int) -> int:
    """How large the row's record is as the first of a batch, its length included."""
    size = _body_bytes(columns, row, 0, 0)
    return size + _varint_bytes(size)


def timestamp_ms(columns: Columns, row: int) -> int:
    """The timestamp the row's record will have."""
    return _timestamp(columns, row)


def _timestamp(columns: Columns, row: int) -> int:
    times = columns.timestamps_us
    if times is None or (times.nullable and not _is_valid(times.valid, row + times.shift)):
        return columns.now_ms
    return times.numbers[row + times.shift] // MICROSECONDS_PER_MS


def _body_bytes(columns: Columns, row: int, delta: int, count: int) -> int:
    """What follows a record's length: attributes, deltas, key, value, headers."""
    size = 1 + _varint_bytes(delta) + _varint_bytes(count)
    size += _cell_bytes(columns.keys, row) + _cell_bytes(columns.values, row)
    headers = 0
    if columns.headers is not None:
        for at in range(_headers_from(columns.headers, row), _headers_to(columns.headers, row)):
            size += _cell_bytes(columns.headers.names, at) + _cell_bytes(columns.headers.contents, at)
            headers += 1
    if _has(columns.tags, row):
        size += _varint_bytes(len(columns.tag_name)) + len(columns.tag_name) + _cell_bytes(columns.tags, row)
        headers += 1
    if _has(columns.deliver_at, row):
        size += _varint_bytes(len(columns.deliver_at_name)) + len(columns.deliver_at_name)
        size += _cell_bytes(columns.deliver_at, row)
        headers += 1
    return size + _varint_bytes(headers)


def _put_headers(out: bytearray | memoryview, at: int, columns: Columns, row: int) -> int:
    headers = 0
    if columns.headers is not None:
        headers = _headers_to(columns.headers, row) - _headers_from(columns.headers, row)
    extra = (1 if _has(columns.tags, row) else 0) + (1 if _has(columns.deliver_at, row) else 0)
    at = _put_varint(out, at, headers + extra)
    if columns.headers is not None:
        for header in range(_headers_from(columns.headers, row), _headers_to(columns.headers, row)):
            at = _put_cell(out, at, columns.headers.names, header)
            at = _put_cell(out, at, columns.headers.contents, header)
    if extra and _has(columns.tags, row):
        at = _put_name(out, at, columns.tag_name)
        at = _put_cell(out, at, columns.tags, row)
    if extra and _has(columns.deliver_at, row):
        at = _put_name(out, at, columns.deliver_at_name)
        at = _put_cell(out, at, columns.deliver_at, row)
    return at


def _headers_from(headers: HeaderColumn, row: int) -> int:
    return headers.offsets[row + headers.shift]


def _headers_to(headers: HeaderColumn, row: int) -> int:
    """Where the row's headers end; for a null list where they begin, as it has none."""
    if headers.nullable and not _is_valid(headers.valid, row + headers.shift):
        return headers.offsets[row + headers.shift]
    return headers.offsets[row + headers.shift + 1]


def _has(column: ByteColumn | None, row: int) -> bool:
    return column is not None and (not column.nullable or _is_valid(column.valid, row + column.shift))


def _cell_bytes(column: ByteColumn | None, row: int) -> int:
    """A cell with its length before it; null is a length of -1 and nothing else."""
    if column is None or (column.nullable and not _is_valid(column.valid, row + column.shift)):
        return 1
    row += column.shift
    size = column.offsets[row + 1] - column.offsets[row]
    return size + _varint_bytes(size)


def _put_cell(out: bytearray | memoryview, at: int, column: ByteColumn | None, row: int) -> int:
    if column is None or (column.nullable and not _is_valid(column.valid, row + column.shift)):
        out[at] = 1
        return at + 1
    row += column.shift
    start = column.offsets[row]
    size = column.offsets[row + 1] - start
    at = _put_varint(out, at, size)
    _copy(out, at, column.content, start, size)
    return at + size


def _put_name(out: bytearray | memoryview, at: int, name: bytes) -> int:
    at = _put_varint(out, at, len(name))
    for byte in name:
        out[at] = byte
        at += 1
    return at


def _copy(out: bytearray | memoryview, at: int, content: Buffer, start: int, size: int) -> None:
    # A loop, which a C compiler makes wide moves of; slices of views would cost more than most cells do.
    for index in range(size):
        out[at + index] = content[start + index]


def _is_valid(valid: Buffer, row: int) -> bool:
    return valid[row >> 3] >> (row & 7) & 1 != 0


def _varint_bytes(value: int) -> int:
    raw = (value << 1) ^ (value >> 63)
    size = 1
    while raw > 127:
        raw >>= 7
        size += 1
    return size


def _put_varint(out: bytearray | memoryview, at: int, value: int) -> int:
    raw = (value << 1) ^ (value >> 63)
    while raw > 127:
        out[at] = raw & 127 | 128
        raw >>= 7
        at += 1
    out[at] = raw
    return at + 1


def _murmur2(content: Buffer, at: int, size: int) -> int:
    """`kernel.murmur2` of `size` bytes at `at`, without making an object of them."""
    mixed = HASH_SEED ^ size
    end = at + size
    while at + 4 <= end:
        word = content[at] | content[at + 1] << 8 | content[at + 2] << 16 | content[at + 3] << 24
        word = word * HASH_MULTIPLIER & MASK_32
        word = (word ^ word >> 24) * HASH_MULTIPLIER & MASK_32
        mixed = mixed * HASH_MULTIPLIER & MASK_32 ^ word
        at += 4
    left = end - at
    if left == 3:
        mixed ^= content[at + 2] << 16
    if left >= 2:
        mixed ^= content[at + 1] << 8
    if left >= 1:
        mixed = (mixed ^ content[at]) * HASH_MULTIPLIER & MASK_32
    mixed = (mixed ^ mixed >> 13) * HASH_MULTIPLIER & MASK_32
    return mixed ^ mixed >> 15
