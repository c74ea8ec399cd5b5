"""Arrow batches in, record batches out, one open batch for each partition that gets rows.

A task's rows are cut into record batches by size. Rows without a key and without a partition go to one
partition until a batch is full, and then to the next. The first partition is given, so that a task that is
retried does the same again. Buffers are bounded: past `BUFFERED_BYTES_MAX` every open batch is sent as it is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import pyarrow as pa

from braidmq.client.cluster import TopicPartition
from braidmq.spark.sink.columns import ColumnLayout, RowError, by_topic, columns_of, keys_of, partitions_of
from braidmq.wire.checksum import crc32c
from braidmq.wire.column_writer import (
    Columns,
    append_rows,
    choose_partitions,
    group_rows,
    record_bytes,
    timestamp_ms,
)
from braidmq.wire.records import HEADER_BYTES

BUFFERED_BYTES_MAX = 33_554_432
GROWTH = 4
RECORD_OVERHEAD_BYTES = 8
SPARE_ROOMS_MAX = 4


class Records:
    """The records of an unfinished batch, after room for its header."""

    __slots__ = ("at", "base_timestamp_ms", "count", "max_timestamp_ms", "out")

    def __init__(self, room: bytearray) -> None:
        self.out = room
        self.at = HEADER_BYTES
        self.count = 0
        self.base_timestamp_ms = 0
        self.max_timestamp_ms = 0

    def fill(self, columns: Columns, order: memoryview, first: int, last: int, bytes_max: int) -> int:
        """Takes rows `order[first:last]` while they fit `bytes_max`; returns where to continue."""
        if not self.count:
            self.base_timestamp_ms = self.max_timestamp_ms = timestamp_ms(columns, order[first])
        while True:
            reached, self.at, self.max_timestamp_ms = append_rows(
                self.out, self.at, order, first, last, columns,
                self.count, self.base_timestamp_ms, self.max_timestamp_ms,
            )  # fmt: skip
            self.count += reached - first
            first = reached
            if first == last or len(self.out) >= bytes_max:
                return first
            self._grow(last - first, bytes_max)

    def _grow(self, rows_left: int, bytes_max: int) -> None:
        """Makes room for the rows that are left, assuming that they are like those before."""
        expected = self.at + rows_left * (self.at // max(1, self.count) + 1)
        room = bytearray(min(max(len(self.out) * GROWTH, expected), bytes_max))
        room[: self.at] = memoryview(self.out)[: self.at]
        self.out = room

    def close(self) -> bytearray:
        """The finished records; nothing may be added after this."""
        del self.out[self.at :]
        return self.out


class Send(Protocol):
    """Sends the records of a finished batch; returns whether their buffer may be reused."""

    def __call__(self, at: TopicPartition, records: Records) -> bool: ...


class Batches:
    """Cuts a task's rows into batches and gives them to `send`."""

    def __init__(
        self,
        where: ColumnLayout,
        send: Send,
        partition_count: Callable[[str], int],
        *,
        batch_bytes: int,
        record_bytes_max: int,
        first_partition: int,
        digests: bool,
    ) -> None:
        self.rows = 0
        self.digest = 0
        """Optional: a checksum over all records in order, equal for equal rows in equal batches."""
        self._digests = digests
        self._where = where
        self._send = send
        self._partition_count = partition_count
        self._batch_bytes = batch_bytes
        self._record_bytes_max = record_bytes_max
        self._first_partition = first_partition
        self._keyless_bytes: dict[str, int] = {}
        self._open: dict[TopicPartition, Records] = {}
        self._spare: list[bytearray] = []
        self._buffered_bytes = 0

    def add(self, batch: pa.RecordBatch, now_ms: int) -> None:
        for topic, rows in by_topic(batch, self._where):
            self._add(topic, rows, now_ms)
        self.rows += batch.num_rows
        if self._buffered_bytes >= BUFFERED_BYTES_MAX:
            self.finish()

    def finish(self) -> None:
        """Sends every batch that is still open."""
        for at in list(self._open):
            self._close(at)

    def _add(self, topic: str, batch: pa.RecordBatch, now_ms: int) -> None:
        partitions = self._partition_count(topic)
        order, ends = self._grouped(topic, batch, partitions)
        columns = columns_of(batch, self._where, now_ms)
        row_bytes = _row_bytes(batch)
        first = 0
        for partition in range(partitions):
            last = ends[partition]
            if last > first:
                self._append(TopicPartition(topic, partition), columns, order, first, last, row_bytes)
                first = last

    def _grouped(self, topic: str, batch: pa.RecordBatch, partitions: int) -> tuple[memoryview, memoryview]:
        rows = batch.num_rows
        chosen, order, ends = _ints(rows), _ints(rows), _ints(partitions)
        wanted, keys = partitions_of(batch, self._where), keys_of(batch, self._where)
        written = self._keyless_bytes.get(topic, self._first_partition * self._batch_bytes)
        row_bytes = _row_bytes(batch)
        self._keyless_bytes[topic] = written + rows * row_bytes
        bad = choose_partitions(chosen, rows, wanted, keys, partitions, written, row_bytes, self._batch_bytes)
        if bad >= 0:
            column = self._where.column(batch, "partition")
            assert column is not None
            raise RowError(
                f"a row has partition {column[bad].as_py()} of topic {topic},"
                f" which has partitions 0 to {partitions - 1}"
            )
        group_rows(chosen, rows, partitions, order, ends)
        return order, ends

    def _append(
        self, at: TopicPartition, columns: Columns, order: memoryview, first: int, last: int, row_bytes: int
    ) -> None:
        while first < last:
            records = self._open.get(at)
            if records is None:
                records = self._open[at] = Records(self._room((last - first) * row_bytes))
            before = records.at
            first = records.fill(columns, order, first, last, self._batch_bytes)
            self._buffered_bytes += records.at - before
            if first == last:
                return
            if not records.count:
                self._open[at] = self._large(at, columns, order, first)
                self._buffered_bytes += self._open[at].at
                first += 1
            self._close(at)

    def _large(self, at: TopicPartition, columns: Columns, order: memoryview, first: int) -> Records:
        """Gives a record that is too large for the usual batch its own, if it may be that large."""
        size = record_bytes(columns, order[first])
        if HEADER_BYTES + size > self._record_bytes_max:
            raise RowError(
                f"a row for {at} makes a record of {size:,} bytes, more than max.request.size"
                f" ({self._record_bytes_max:,}); raise .option('kafka.max.request.size', …) and the topic's"
                " max.message.bytes, or make it smaller"
            )
        records = Records(bytearray(HEADER_BYTES + size))
        records.fill(columns, order, first, first + 1, HEADER_BYTES + size)
        return records

    def _close(self, at: TopicPartition) -> None:
        records = self._open.pop(at)
        self._buffered_bytes -= records.at
        content = records.close()
        if self._digests:
            self.digest = crc32c(memoryview(content)[HEADER_BYTES:], self.digest)
        reusable = self._send(at, records) and len(content) <= self._batch_bytes
        if reusable and len(self._spare) < SPARE_ROOMS_MAX:
            self._spare.append(content)

    def _room(self, expected_bytes: int) -> bytearray:
        """A buffer for a batch of about this size; preferably one that was used before."""
        if self._spare:
            room = self._spare.pop()
            room.extend(bytes(self._batch_bytes - len(room)))
            return room
        # Twice as much, because the next rows may be for the same batch.
        return bytearray(min(HEADER_BYTES + 2 * expected_bytes, self._batch_bytes))


def _row_bytes(batch: pa.RecordBatch) -> int:
    """About how large the record of a row is."""
    arrow_bytes: int = batch.nbytes
    rows: int = batch.num_rows
    return arrow_bytes // rows + RECORD_OVERHEAD_BYTES


def _ints(count: int) -> memoryview:
    return memoryview(bytearray(4 * count)).cast("i") if count else memoryview(bytearray(4)).cast("i")
