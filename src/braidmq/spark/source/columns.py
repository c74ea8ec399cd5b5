"""The columns of a topic, for Spark and for Arrow, and which of them a query wants.

They are those of Spark's Kafka source, in its order. Spark does not tell a Python source which columns a
query uses; `.schema("value binary")` does, and so does `topic_table.py`. Columns that are left out are
neither decoded nor sent to the JVM.
"""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa
from pyspark.sql.types import StructType

from braidmq.spark.options import OptionError

HEADER_TYPE = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])
HEADERS_TYPE = pa.list_(pa.field("element", HEADER_TYPE))
ARROW_TYPES: dict[str, pa.DataType] = {
    "key": pa.binary(),
    "value": pa.binary(),
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestampType": pa.int32(),
    "headers": HEADERS_TYPE,
    "tag": pa.string(),
    "messageId": pa.string(),
}
SPARK_TYPES = {
    "key": "binary",
    "value": "binary",
    "topic": "string",
    "partition": "int",
    "offset": "bigint",
    "timestamp": "timestamp",
    "timestampType": "int",
    "headers": "array<struct<key:string,value:binary>>",
    "tag": "string",
    "messageId": "string",
}
ALWAYS = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType")

COUNT = "count(*)"
"""No column of a topic: the number of records that a row represents, for queries that only count."""
COUNTED = frozenset(("topic", "partition", "timestampType", COUNT))
"""Columns that are known without decoding a record."""


def ddl(include_headers: bool, include_tag: bool) -> str:
    """The schema of a query that names no columns of its own."""
    names = [*ALWAYS]
    names += ["headers"] if include_headers else []
    names += ["tag", "messageId"] if include_tag else []
    return columns_ddl(names)


def columns_ddl(names: Iterable[str]) -> str:
    """The schema of these columns."""
    return ", ".join(f"`{name}` {'bigint' if name == COUNT else SPARK_TYPES[name]}" for name in names)


def wanted(schema: StructType) -> tuple[str, ...]:
    """The column names of a user's schema; OptionError for unknown names and other types."""
    for each in schema.fields:
        if each.name not in SPARK_TYPES:
            raise OptionError(
                f"a topic has no column {each.name!r}; its columns are {', '.join(SPARK_TYPES)}."
                " Parse the value in a select: from_json(CAST(value AS STRING), …)"
            )
        if each.dataType.simpleString() != SPARK_TYPES[each.name]:
            raise OptionError(
                f"column {each.name} of a topic is {SPARK_TYPES[each.name]},"
                f" not {each.dataType.simpleString()}; cast it in a select"
            )
        if not each.nullable:
            # Spark compares the returned schema with the requested one exactly, in every task.
            raise OptionError(f"column {each.name} of a topic is nullable; leave out NOT NULL")
    return tuple(schema.fieldNames())


def arrow_schema(names: tuple[str, ...]) -> pa.Schema:
    return pa.schema([pa.field(name, pa.int64() if name == COUNT else ARROW_TYPES[name]) for name in names])
