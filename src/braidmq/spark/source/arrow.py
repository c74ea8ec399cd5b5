"""From record batches to Arrow: the kernel fills columns, which leave as Arrow batches of a fixed size.

A `RowBuffer` holds the buffers of one Arrow batch while the kernel writes into them, from as many record
batches as fit. The finished Arrow batch shares those buffers, and the next one gets new ones. Columns that
are the same for all rows of a task (topic, partition) are made once and sliced.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

import pyarrow as pa

from braidmq.client.cluster import TopicPartition
from braidmq.spark.source.columns import ARROW_TYPES, HEADER_TYPE, arrow_schema
from braidmq.spark.source.timestamps import check_times
from braidmq.wire import kernel, properties
from braidmq.wire.compress import Buffer, Codec, inflate
from braidmq.wire.errors import ApiError, ErrorCode
from braidmq.wire.records import HEADER_BYTES, INFLATED_BYTES_MAX, BatchHeader, parse_header

ROWS_MAX = 16_384
"""With half as many, workers need a tenth more time for records of 100 bytes; twice as many save nothing."""
CONTENT_BYTES = 2 * 1024 * 1024
"""Room for the values of one Arrow batch: amortises the transfer to the JVM, and fits the cache."""
SMALL_BYTES = 64 * 1024
"""Room for keys, header names and the like to begin with."""
SMALL_ROWS = 1024
HEADER_WANTING = frozenset(("headers", "tag", "messageId"))
"""Columns that need a second pass over the records of a batch."""
HEADER_COLUMNS = {"tag": properties.TAG.encode(), "messageId": properties.MESSAGE_ID.encode()}


class ArrowDecoder:
    """Turns the record batches of one range of a partition into Arrow record batches, in order."""

    def __init__(self, columns: tuple[str, ...], topic: str, partition: int, first: int, end: int) -> None:
        self._columns = columns
        self._schema = arrow_schema(columns)
        self._first = first
        self._end = end
        self._at = TopicPartition(topic, partition)
        self._constants = {
            "topic": _constant("topic", topic),
            "partition": _constant("partition", partition),
        }
        self._append_time = False
        self._one_by_one = not HEADER_WANTING.isdisjoint(columns)
        self._buffer = RowBuffer(columns)

    def feed(self, batches: memoryview) -> Iterator[pa.RecordBatch]:
        """Adds the records of these batches and yields full Arrow batches; ApiError if one cannot be read.

        The batches are whole, their CRCs are right, and none is a control batch.
        """
        at = 0
        while at < len(batches):
            header = parse_header(batches, at)
            if header.timestamp_type_append != self._append_time:
                yield from self.flush()
                self._append_time = header.timestamp_type_append
            at += header.size
            window = self._open(header, batches, at)
            yield from self._take(window)
            if header.codec == Codec.NONE:
                # The kernel may have read later batches too.
                at = window.size

    def _open(self, header: BatchHeader, batches: memoryview, end: int) -> kernel.Window:
        """The records of the batch that ends at `end`, decompressed, ready for the kernel."""
        if header.codec == Codec.NONE:
            payload: Buffer = batches
            begin, size, stop = end - header.size + HEADER_BYTES, end, len(batches)
            if self._one_by_one:
                stop = end
        else:
            packed = batches[end - header.size + HEADER_BYTES : end]
            payload = inflate(header.codec, packed, INFLATED_BYTES_MAX)
            begin, size, stop = 0, len(payload), len(payload)
        fixed = header.timestamp_type_append
        timestamp = header.max_timestamp if fixed else header.base_timestamp
        return kernel.Window(
            payload, header.record_count, header.base_offset, timestamp, fixed,
            self._first, self._end, begin, size, stop,
        )  # fmt: skip

    def _take(self, window: kernel.Window) -> Iterator[pa.RecordBatch]:
        """Moves all of a window into buffers; yields those that became full."""
        while True:
            try:
                self._buffer.take(window)
            except ValueError as error:
                raise ApiError(ErrorCode.INVALID_RECORD, str(error)) from None
            if not window.left:
                return
            if self._buffer.count:
                yield from self.flush()
            else:
                # One record has a larger key or value than the usual room.
                self._buffer = RowBuffer(self._columns, window.size - window.at)

    def flush(self) -> Iterator[pa.RecordBatch]:
        """The rows collected so far, if there are any."""
        rows = self._buffer.count
        if not rows:
            return
        arrays = self._buffer.arrays()
        if "timestamp" in self._columns:
            check_times(self._at, arrays["timestamp"], arrays["offset"])
        arrays |= {name: column.slice(0, rows) for name, column in self._constants.items()}
        if "timestampType" in self._columns:
            arrays["timestampType"] = _constant("timestampType", int(self._append_time)).slice(0, rows)
        self._buffer = RowBuffer(self._columns)
        yield pa.RecordBatch.from_arrays([arrays[name] for name in self._columns], schema=self._schema)


@lru_cache(maxsize=256)
def _constant(column: str, value: str | int) -> pa.Array:
    """As many rows of one value as an Arrow batch may have, to be sliced."""
    return pa.repeat(pa.scalar(value, ARROW_TYPES[column]), ROWS_MAX)


class RowBuffer:
    """The buffers of one Arrow batch under construction."""

    __slots__ = ("_headers", "_keys", "_named", "_offsets", "_rows", "_timestamps", "_values")

    def __init__(self, columns: tuple[str, ...], record_bytes: int | None = None) -> None:
        """`record_bytes` is the room for one large record, where the usual room is too small."""
        key_bytes, value_bytes = CONTENT_BYTES // 4, CONTENT_BYTES
        if record_bytes is not None:
            key_bytes = value_bytes = record_bytes
        self._offsets = pa.allocate_buffer(8 * ROWS_MAX)
        self._timestamps = pa.allocate_buffer(8 * ROWS_MAX)
        self._keys = BytesRoom(ROWS_MAX, key_bytes) if "key" in columns else None
        self._values = BytesRoom(ROWS_MAX, value_bytes) if "value" in columns else None
        self._headers = HeadersRoom() if "headers" in columns else None
        self._named = {name: BytesRoom(ROWS_MAX, SMALL_BYTES) for name in HEADER_COLUMNS if name in columns}
        self._rows = kernel.Rows(
            memoryview(self._offsets).cast("B").cast("q"),
            memoryview(self._timestamps).cast("B").cast("q"),
            None if self._keys is None else self._keys.column,
            None if self._values is None else self._values.column,
        )

    @property
    def count(self) -> int:
        return self._rows.count

    def take(self, window: kernel.Window) -> None:
        """Decodes records of `window` until it is empty or this is full; for headers, of one batch only."""
        at, row = window.at, self._rows.count
        kernel.decode_columns(window, self._rows)
        taken_bytes = window.at - at
        if self._headers is not None:
            self._headers.reserve(self._rows.headers, taken_bytes)
            self._headers.take(window, at, row)
        for name, room in self._named.items():
            room.reserve(0, taken_bytes if self._rows.headers else 0)
            whole = kernel.decode_header(window, at, row, HEADER_COLUMNS[name], room.column)
            assert whole, "room was reserved"

    def arrays(self) -> dict[str, pa.Array]:
        """The columns by name."""
        rows = self._rows.count
        found = {name: room.array(ARROW_TYPES[name], rows) for name, room in self._named.items()}
        if self._keys is not None:
            found["key"] = self._keys.array(ARROW_TYPES["key"], rows)
        if self._values is not None:
            found["value"] = self._values.array(ARROW_TYPES["value"], rows)
        found["offset"] = pa.Array.from_buffers(ARROW_TYPES["offset"], rows, [None, self._offsets], 0)
        times = [None, self._timestamps]
        found["timestamp"] = pa.Array.from_buffers(ARROW_TYPES["timestamp"], rows, times, 0)
        if self._headers is not None:
            found["headers"] = self._headers.array(rows)
        return found


class BytesRoom:
    """The buffers of one column of byte strings, and the kernel's view of them."""

    __slots__ = ("_content", "_ends", "_valid", "column")

    def __init__(self, rows_max: int, content_bytes: int) -> None:
        self._ends = pa.allocate_buffer(4 * (rows_max + 1))
        self._content = pa.allocate_buffer(content_bytes)
        self._valid = bytearray(b"\xff") * (rows_max // 8 + 1)
        memoryview(self._ends).cast("B").cast("i")[0] = 0
        self.column = kernel.BytesColumn(*self._views())

    def _views(self) -> tuple[memoryview, memoryview, memoryview]:
        ends = memoryview(self._ends).cast("B").cast("i")
        return ends, memoryview(self._content).cast("B"), memoryview(self._valid)

    def reserve(self, rows: int, content_bytes: int) -> None:
        """Makes room for this many more rows and bytes."""
        ends, content, valid = self._views()
        used, taken = self.column.used, self.column.rows
        if used + content_bytes > len(content):
            self._content = pa.allocate_buffer(2 * (used + content_bytes))
            memoryview(self._content).cast("B")[:used] = content[:used]
        if taken + rows + 1 > len(ends):
            rows_max = 2 * (taken + rows)
            self._ends = pa.allocate_buffer(4 * (rows_max + 1))
            memoryview(self._ends).cast("B")[: 4 * (taken + 1)] = ends.cast("B")[: 4 * (taken + 1)]
            self._valid = bytearray(b"\xff") * (rows_max // 8 + 1)
            self._valid[: len(valid)] = valid
        self.column.move(*self._views())

    def array(self, kind: pa.DataType, rows: int) -> pa.Array:
        nulls = self.column.nulls
        valid = pa.py_buffer(self._valid) if nulls else None
        return pa.Array.from_buffers(kind, rows, [valid, self._ends, self._content], nulls)


class HeadersRoom:
    """The buffers of the column of headers: a list for each row, of a name and a value each."""

    __slots__ = ("_contents", "_ends", "_names", "_valid")

    def __init__(self) -> None:
        self._ends = pa.allocate_buffer(4 * (ROWS_MAX + 1))
        memoryview(self._ends).cast("B").cast("i")[0] = 0
        self._valid = bytearray(ROWS_MAX // 8 + 1)
        self._names = BytesRoom(SMALL_ROWS, SMALL_BYTES)
        self._contents = BytesRoom(SMALL_ROWS, SMALL_BYTES)

    def reserve(self, headers: int, content_bytes: int) -> None:
        for room in (self._names, self._contents):
            room.reserve(headers, content_bytes if headers else 0)

    def take(self, window: kernel.Window, at: int, row: int) -> None:
        ends = memoryview(self._ends).cast("B").cast("i")
        names, contents = self._names.column, self._contents.column
        whole = kernel.decode_headers(window, at, row, ends, memoryview(self._valid), names, contents)
        assert whole, "room was reserved"

    def array(self, rows: int) -> pa.Array:
        count = memoryview(self._ends).cast("B").cast("i")[rows]
        names = self._names.array(pa.string(), count)
        contents = self._contents.array(pa.binary(), count)
        entries = pa.StructArray.from_arrays([names, contents], fields=list(HEADER_TYPE))
        buffers = [pa.py_buffer(self._valid), self._ends]
        return pa.Array.from_buffers(ARROW_TYPES["headers"], rows, buffers, -1, children=[entries])
