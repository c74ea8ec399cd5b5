"""The columns that can be written, and their Arrow buffers as the encoder wants them.

The names are those of Spark's Kafka sink (key, value, topic, partition, headers) and three more: `timestamp`,
`tag` and `deliverAt`. Others are ignored, as there, so that rows of a topic can be written as they are. Text
is written in UTF-8, as Arrow stores it, so nothing is converted.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    ByteType,
    DataType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    StructType,
    TimestampType,
)

from braidmq.spark.options import OptionError
from braidmq.spark.sink.ledger import SinkError
from braidmq.wire.column_writer import ByteColumn, Columns, HeaderColumn, NumberColumn
from braidmq.wire.properties import DELIVER_AT, TAG

BYTES = (StringType, BinaryType)
TEXT = (StringType,)
WHOLE_NUMBERS = (ByteType, ShortType, IntegerType, LongType)
ACCEPTED: Mapping[str, tuple[tuple[type[DataType], ...], str]] = {
    "topic": (TEXT, "a string"),
    "key": (BYTES, "a string or binary"),
    "value": (BYTES, "a string or binary"),
    "partition": (WHOLE_NUMBERS, "an int"),
    "headers": ((ArrayType,), "an array<struct<key: string, value: binary>>"),
    "timestamp": ((TimestampType,), "a timestamp"),
    "tag": (TEXT, "a string"),
    "deliverAt": ((TimestampType, LongType), "a timestamp, or a bigint of milliseconds since 1970"),
}
CASTS = {"key": "STRING", "value": "STRING", "topic": "STRING", "tag": "STRING", "partition": "INT"}
HEADER_FIELDS = ("key", "value")
MICROSECONDS_PER_MS = 1_000
NO_TIME_US = -1_000
NO_BYTES = b""


class RowError(SinkError):
    """A row that cannot be written; the message says which and why."""


@dataclass(frozen=True, slots=True)
class ColumnLayout:
    """The index of each column that is written; `topic` is the option, which wins over a column."""

    topic: str | None
    places: Mapping[str, int]

    def column(self, batch: pa.RecordBatch, name: str) -> pa.Array | None:
        place = self.places.get(name)
        return None if place is None else batch.column(place)


def layout(schema: StructType, topic: str | None) -> ColumnLayout:
    """The layout of a DataFrame's columns; OptionError if they cannot be written."""
    written = {name.lower(): name for name in ACCEPTED}
    places: dict[str, int] = {}
    for place, field in enumerate(schema.fields):
        name = written.get(field.name.lower())
        if name is None:
            continue
        if name in places:
            raise OptionError(f"there are two columns named {name}; drop one")
        _check_type(name, field.dataType)
        places[name] = place
    if "value" not in places:
        raise OptionError(_no_value(schema.fieldNames()))
    if topic is None and "topic" not in places:
        raise OptionError('no topic to write to; add .option("topic", "orders"), or a column named topic')
    return ColumnLayout(topic, places)


def _check_type(name: str, found: DataType) -> None:
    kinds, described = ACCEPTED[name]
    if not isinstance(found, kinds) or (name == "headers" and not _are_headers(found)):
        cast = f"; write CAST({name} AS {CASTS[name]}) AS {name}, or to_json(…)" if name in CASTS else ""
        raise OptionError(f"column {name} is {found.simpleString()}; it must be {described}{cast}")


def _are_headers(found: DataType) -> bool:
    element = found.elementType if isinstance(found, ArrayType) else None
    if not isinstance(element, StructType) or len(element.fields) != len(HEADER_FIELDS):
        return False
    named = tuple(field.name.lower() for field in element.fields) == HEADER_FIELDS
    return named and all(isinstance(field.dataType, BYTES) for field in element.fields)


def _no_value(names: list[str]) -> str:
    close = difflib.get_close_matches("value", names, n=1, cutoff=0.6)
    advice = f"did you mean {close[0]!r}?" if close else "for JSON: to_json(struct(*)) AS value"
    return f"no column named value to write; there are {', '.join(names) or 'none'}; {advice}"


def columns_of(batch: pa.RecordBatch, where: ColumnLayout, now_ms: int) -> Columns:
    """The batch's buffers; copied only where Arrow's layout differs from the encoder's."""
    tags = where.column(batch, "tag")
    deliver_at = where.column(batch, "deliverAt")
    return Columns(
        _bytes_or_none(where.column(batch, "key")),
        _bytes_or_none(where.column(batch, "value")),
        _headers(where.column(batch, "headers")),
        _timestamps(where.column(batch, "timestamp")),
        _bytes_or_none(tags),
        TAG.encode(),
        None if deliver_at is None else byte_column(_milliseconds(deliver_at)),
        DELIVER_AT.encode(),
        now_ms,
    )


def partitions_of(batch: pa.RecordBatch, where: ColumnLayout) -> NumberColumn | None:
    wanted = where.column(batch, "partition")
    return None if wanted is None else _numbers(wanted.cast(pa.int64()))


def keys_of(batch: pa.RecordBatch, where: ColumnLayout) -> ByteColumn | None:
    return _bytes_or_none(where.column(batch, "key"))


def by_topic(batch: pa.RecordBatch, where: ColumnLayout) -> list[tuple[str, pa.RecordBatch]]:
    """The rows by topic, in order."""
    if where.topic is not None:
        return [(where.topic, batch)]
    topics = where.column(batch, "topic")
    assert topics is not None
    if topics.null_count:
        row = pc.index(pc.is_null(topics), True).as_py()
        raise RowError(f"row {row} of a task's batch has no topic; filter such rows or set the option topic")
    distinct = pc.unique(topics)
    if len(distinct) == 1:
        return [(distinct[0].as_py(), batch)]
    return [(topic.as_py(), batch.filter(pc.equal(topics, topic))) for topic in distinct]


def byte_column(array: pa.Array) -> ByteColumn:
    if pa.types.is_large_string(array.type) or pa.types.is_large_binary(array.type):
        array = array.cast(pa.binary())
    valid, offsets, content = array.buffers()
    return ByteColumn(_view(offsets, "i"), _view(content, "B"), _validity(array, valid), array.offset)


def _bytes_or_none(array: pa.Array | None) -> ByteColumn | None:
    return None if array is None else byte_column(array)


def _numbers(array: pa.Array) -> NumberColumn:
    valid, numbers = array.buffers()
    return NumberColumn(_view(numbers, "q"), _validity(array, valid), array.offset)


def _timestamps(array: pa.Array | None) -> NumberColumn | None:
    if array is None:
        return None
    in_us = array.cast(pa.timestamp("us", array.type.tz)).view(pa.int64())
    if (pc.min(in_us).as_py() or 0) < 0:
        # The source shows -1 for a record without a time.
        in_us = pc.if_else(pc.equal(in_us, NO_TIME_US), pa.scalar(None, pa.int64()), in_us)
    if (pc.min(in_us).as_py() or 0) < 0:
        raise RowError("a record cannot have a timestamp before 1970; put it into the value")
    return _numbers(in_us)


def _milliseconds(array: pa.Array) -> pa.Array:
    """Delivery times as the header has them: milliseconds since 1970 in decimal digits."""
    if pa.types.is_timestamp(array.type):
        in_us = array.cast(pa.timestamp("us", array.type.tz)).view(pa.int64())
        array = pc.divide(in_us, MICROSECONDS_PER_MS)
    return array.cast(pa.string())


def _headers(array: pa.Array | None) -> HeaderColumn | None:
    if array is None:
        return None
    names, contents = array.values.field(0), array.values.field(1)
    if names.null_count or array.values.null_count:
        raise RowError("a header has no key; every header needs one")
    valid, offsets = array.buffers()[:2]
    return HeaderColumn(
        _view(offsets, "i"),
        _validity(array, valid),
        array.offset,
        byte_column(names),
        byte_column(contents),
    )


def _validity(array: pa.Array, valid: pa.Buffer | None) -> memoryview | bytes:
    return NO_BYTES if valid is None or not array.null_count else memoryview(valid).cast("B")


def _view(buffer: pa.Buffer | None, form: Literal["B", "i", "q"]) -> memoryview:
    content: Any = NO_BYTES if buffer is None else buffer
    return memoryview(content).cast("B").cast(form)
