"""Timestamps of records that are too large for Spark.

A record has milliseconds in 64 bits, Spark has microseconds in 64 bits. The kernel replaces a timestamp that
is too large by the minimum or maximum of 64 bits, which no whole millisecond equals. So it is found here.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from braidmq.client.cluster import TopicPartition
from braidmq.spark.errors import UserError

INT64_MAX, INT64_MIN = 2**63 - 1, -(2**63)


class TimestampTooLarge(UserError):
    """A record's timestamp does not fit Spark's timestamps."""

    def __init__(self, at: TopicPartition, offset: int) -> None:
        super().__init__(
            f"{at}: the record at offset {offset} has a timestamp that is too large for Spark's microseconds"
            f" (beyond {INT64_MAX // 1000} ms). Leave the column out, .schema('key binary, value binary'), or"
            " read around that offset; message.timestamp.after.max.ms keeps such records out of a topic"
        )
        self.at = at
        self.offset = offset

    def __reduce__(self) -> tuple[type[TimestampTooLarge], tuple[object, ...]]:
        return TimestampTooLarge, (self.at, self.offset)


def check_times(at: TopicPartition, times: pa.Array, offsets: pa.Array) -> None:
    """TimestampTooLarge if a time is the minimum or maximum of 64 bits."""
    numbers = times.view(pa.int64())
    ends = pc.min_max(numbers).as_py()
    for end, limit in ((ends["max"], INT64_MAX), (ends["min"], INT64_MIN)):
        if end == limit:
            raise TimestampTooLarge(at, offsets[pc.index(numbers, end).as_py()].as_py())
