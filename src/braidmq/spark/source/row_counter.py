"""Rows for queries that use nothing of a record's content, counted from the headers of batches.

`df.count()` uses no column at all, and topic, partition and timestamp type are the same for all records of a
batch. So batches are neither decompressed nor decoded; only a batch that a range cuts through is read record
by record. If the query is itself a count, one row with the number replaces all of them.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from braidmq.spark.source.arrow import ArrowDecoder
from braidmq.spark.source.columns import COUNT, arrow_schema
from braidmq.wire.batch_walker import count_records
from braidmq.wire.records import parse_header

ROWS_MAX = 65_536
"""Rows in an Arrow batch: they are a few bytes each."""


class RowCounter:
    """Used instead of an `ArrowDecoder` if all columns are in `COUNTED`."""

    def __init__(self, columns: tuple[str, ...], topic: str, partition: int, first: int, end: int) -> None:
        self._schema = arrow_schema(columns)
        self._place = (topic, partition)
        self._first = first
        self._end = end
        self._rows = 0
        self._append_time = False
        self._full: pa.RecordBatch | None = None
        self._sums = COUNT in columns
        self._zero_counts = columns == (COUNT,)

    def feed(self, batches: memoryview) -> Iterator[pa.RecordBatch]:
        """Counts the records of these batches and yields full Arrow batches; ApiError if one cannot be read.

        The batches are whole, their CRCs are right, and none is a control batch.
        """
        at = 0
        while at < len(batches):
            header = parse_header(batches, at)
            if header.timestamp_type_append != self._append_time:
                if self._rows:
                    yield from self.flush()
                self._append_time, self._full = header.timestamp_type_append, None
            following, rows = count_records(batches, at, self._first, self._end)
            if following == at:
                following = at + header.size
                rows = self._within(batches[at:following])
            at = following
            self._rows += rows
            while self._rows >= ROWS_MAX and not self._sums:
                yield self._batch(ROWS_MAX)

    def flush(self) -> Iterator[pa.RecordBatch]:
        """The rows counted so far, if there are any; for a count always one row with the number."""
        if self._sums and (self._rows or self._zero_counts):
            yield self._sum()
        elif self._rows:
            yield self._batch(self._rows)

    def _within(self, batch: memoryview) -> int:
        """How many records of a batch are in the range."""
        decoder = ArrowDecoder(("offset",), *self._place, self._first, self._end)
        found = [*decoder.feed(batch), *decoder.flush()]
        return sum(each.num_rows for each in found)

    def _batch(self, rows: int) -> pa.RecordBatch:
        if self._full is None:
            self._full = self._repeated(ROWS_MAX)
        self._rows -= rows
        return self._full.slice(0, rows)

    def _sum(self) -> pa.RecordBatch:
        row = self._repeated(1)
        self._rows = 0
        return row

    def _repeated(self, times: int) -> pa.RecordBatch:
        topic, partition = self._place
        kind = int(self._append_time)
        row = {"topic": topic, "partition": partition, "timestampType": kind, COUNT: self._rows}
        arrays = [pa.repeat(pa.scalar(row[field.name], field.type), times) for field in self._schema]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)
