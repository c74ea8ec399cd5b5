"""Fields of JSON or Avro values as columns of the lake, beside the value itself.

A row always keeps the original value; decoded columns are for queries. So decoding cannot lose a record: a
value that does not parse has null in every decoded column, and a field that does not fit the type of its
column in the lake is null.

Without a schema, the fields of JSON come from a sample of every batch, and new ones become new columns. A
field with the name of a record's column (`key`, `timestamp`, …) becomes `value_NAME`.

Avro values of a schema registry are decoded if they have the schema's id; others have null in every decoded
column, since bytes of another schema may decode into wrong columns.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as fn
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import StringType, StructField, StructType

from braidmq.spark import avro
from braidmq.spark.avro import AvroSchema, Framing
from braidmq.spark.lake.commits import LakeError
from braidmq.spark.lake.schema import DATE, RAW, widen

SAMPLE_ROWS = 1000
CORRUPT = "_corrupt_record"
DECODED, BAD = "_decoded", "_bad"
TAKEN = {each.name.lower() for each in RAW.fields} | {DATE}
PREFIX = "value_"


@dataclass(frozen=True, slots=True)
class Json:
    """Values are JSON objects with these fields; None: the fields in a sample of each batch."""

    fields: StructType | None = None


@dataclass(frozen=True, slots=True)
class Avro:
    """Values are records of this schema."""

    schema: AvroSchema

    @property
    def lacks_registry_id(self) -> bool:
        return self.schema.framing is Framing.REGISTRY and self.schema.registry_id is None

    def of_id(self, registry_id: int) -> Avro:
        return Avro(replace(self.schema, registry_id=registry_id))


Decoding = Json | Avro


def decode(rows: DataFrame, how: Decoding, lake: StructType) -> DataFrame:
    """Rows with the fields of their values as columns, in the types the lake has for them."""
    if isinstance(how, Avro):
        return _decode_avro(rows, how.schema)
    found = how.fields or _sampled(rows)
    columns = StructType([StructField(_column(each.name), each.dataType) for each in found.fields])
    if how.fields is None:
        columns = widen(_decoded_columns(lake), columns)
    if not columns.fields:
        return rows
    fields = StructType([StructField(_field(each.name), each.dataType) for each in columns.fields])
    parsed = rows.withColumn(DECODED, fn.from_json(fn.col("value").cast("string"), fields))
    return _spread(rows, parsed, fields)


def _spread(rows: DataFrame, parsed: DataFrame, fields: StructType) -> DataFrame:
    """The fields of the parsed struct as columns after those of the record."""
    chosen = [fn.col(DECODED)[each.name].alias(_column(each.name)) for each in fields.fields]
    return parsed.select(*(fn.col(name) for name in rows.columns), *chosen)


def _decode_avro(rows: DataFrame, schema: AvroSchema) -> DataFrame:
    fields = fields_of(rows.sparkSession, avro.ddl(schema))
    optional = StructType([StructField(each.name, each.dataType) for each in fields.fields])
    whole = StructType([*optional.fields, StructField(BAD, StringType())])
    kind: Any = to_arrow_type(whole, timezone="UTC")

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        originals: list[pa.Array] = []

        def filled() -> Iterator[pa.RecordBatch]:
            for batch in batches:
                originals.append(batch.column("value"))
                # A tombstone has no value; empty bytes are not a valid record either.
                yield _with_values(batch, pc.fill_null(batch.column("value"), b""))

        for batch in avro.decode_batches(filled(), schema, kind, (DECODED, BAD)):
            yield _with_values(batch, originals.pop(0))

    shape = StructType([*rows.schema.fields, StructField(DECODED, whole)])
    return _spread(rows, rows.mapInArrow(read, shape), optional)


def first_registry_id(rows: DataFrame) -> int | None:
    """The id of a schema registry that some value begins with."""
    value = fn.col("value")
    framed = rows.filter((fn.octet_length(value) >= 5) & (fn.hex(fn.substring(value, 1, 1)) == "00"))
    found = framed.select(fn.hex(fn.substring(value, 2, 4)).alias("id")).limit(1).collect()
    return int(found[0]["id"], 16) if found else None


def _with_values(batch: pa.RecordBatch, values: pa.Array) -> pa.RecordBatch:
    return batch.set_column(batch.schema.get_field_index("value"), "value", values)


def _sampled(rows: DataFrame) -> StructType:
    sample = rows.select(fn.col("value").cast("string").alias("text")).filter("text IS NOT NULL")
    texts = [row["text"] for row in sample.limit(SAMPLE_ROWS).collect()]
    spark = rows.sparkSession
    inferred = spark.read.json(spark.sparkContext.parallelize(texts, 1)).schema if texts else StructType()
    return StructType([each for each in inferred.fields if each.name != CORRUPT])


def _decoded_columns(lake: StructType) -> StructType:
    return StructType([each for each in lake.fields if each.name.lower() not in TAKEN])


def _column(field: str) -> str:
    return PREFIX + field if field.lower() in TAKEN else field


def _field(column: str) -> str:
    rest = column.removeprefix(PREFIX)
    return rest if rest.lower() in TAKEN else column


def fields_of(spark: SparkSession, columns: str) -> StructType:
    """The fields of a list such as `id BIGINT, name STRING`; LakeError if it is none."""
    try:
        return spark.createDataFrame([], columns).schema
    except Exception as error:
        said = str(error).strip().partition("\n")[0]
        raise LakeError(f"{columns!r} is not a list like 'id BIGINT, name STRING': {said}") from None
