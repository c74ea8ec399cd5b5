"""The columns of a lake: how they may change, and which date a row belongs to.

Columns are only added. Older files show null in a newer column, so nothing is rewritten. A column cannot
change its type, because old and new files could then not be read as one table.
"""

from __future__ import annotations

from collections.abc import Callable

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as fn
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    DateType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from braidmq.spark.lake.commits import LakeError

DATE = "date"
HEADER = StructType([StructField("key", StringType()), StructField("value", BinaryType())])
RAW = StructType(
    [
        StructField("key", BinaryType()),
        StructField("value", BinaryType()),
        StructField("topic", StringType()),
        StructField("partition", IntegerType()),
        StructField("offset", LongType()),
        StructField("timestamp", TimestampType()),
        StructField("timestampType", IntegerType()),
        StructField("headers", ArrayType(HEADER)),
    ]
)
DAY_MICROSECONDS = 86_400_000_000
LAST_DAY = 2_932_896
"""9999-12-31, in days since 1970. Rows with later timestamps are in the partition without a date."""


def with_date(schema: StructType) -> StructType:
    """The schema with the date, which partitions the files, at its end."""
    fields = [each for each in schema.fields if each.name.lower() != DATE]
    return StructType([*fields, StructField(DATE, DateType())])


def dated(rows: DataFrame, by: str = "timestamp") -> DataFrame:
    """Rows with the date (UTC) of the time in `by`; rows that have a date keep it."""
    if DATE in rows.columns:
        return rows
    if by not in rows.columns:
        raise LakeError(
            f"rows have no column {by!r} to take their date from; they have {', '.join(rows.columns)}"
        )
    return rows.withColumn(DATE, utc_date(fn.col(by).try_cast("timestamp")))


def utc_date(moment: Column) -> Column:
    # Not to_date, which uses the time zone of the session.
    day = fn.floor(fn.unix_micros(moment) / fn.lit(DAY_MICROSECONDS)).cast("int")
    return fn.when(day.between(0, LAST_DAY), fn.date_from_unix_date(day))


def within(rows: DataFrame, from_ms: int | None, until_ms: int | None) -> DataFrame:
    """The rows of a time range, the end excluded."""
    if "timestamp" not in rows.columns and (from_ms, until_ms) != (None, None):
        raise LakeError("rows have no column timestamp, so they cannot be chosen by time")
    if from_ms is not None:
        rows = rows.filter(fn.col("timestamp") >= fn.timestamp_millis(fn.lit(from_ms)))
    if until_ms is not None:
        rows = rows.filter(fn.col("timestamp") < fn.timestamp_millis(fn.lit(until_ms)))
    return rows


def evolve(schema: StructType, rows: StructType) -> StructType:
    """The schema of the table with these rows; LakeError if a column would change its type."""
    return with_date(_merged_struct(schema, with_date(rows), "", _refuse))


def widen(schema: StructType, found: StructType) -> StructType:
    """The schema with new columns of `found`; where types differ, the schema's own."""
    return _merged_struct(schema, found, "", _keep)


Settle = Callable[[DataType, DataType, str], DataType]


def _merged_struct(old: StructType, new: StructType, within: str, settle: Settle) -> StructType:
    fields = {each.name.lower(): each for each in old.fields}
    for each in new.fields:
        known = fields.get(each.name.lower())
        kind = each.dataType
        if known is not None:
            kind = _merged(known.dataType, kind, within + each.name, settle)
        fields[each.name.lower()] = StructField(known.name if known else each.name, kind)
    return StructType(list(fields.values()))


def _merged(old: DataType, new: DataType, name: str, settle: Settle) -> DataType:
    if isinstance(old, StructType) and isinstance(new, StructType):
        return _merged_struct(old, new, f"{name}.", settle)
    if isinstance(old, ArrayType) and isinstance(new, ArrayType):
        return ArrayType(_merged(old.elementType, new.elementType, f"{name}[]", settle))
    if isinstance(old, MapType) and isinstance(new, MapType):
        keys = _merged(old.keyType, new.keyType, f"{name} keys", settle)
        return MapType(keys, _merged(old.valueType, new.valueType, f"{name} values", settle))
    return old if old == new else settle(old, new, name)


def _keep(old: DataType, _new: DataType, _name: str) -> DataType:
    return old


def _refuse(old: DataType, new: DataType, name: str) -> DataType:
    raise LakeError(
        f"column {name} is {old.simpleString()} in the lake and {new.simpleString()} in the new rows;"
        " columns can be added, not changed: give it another name"
    )
