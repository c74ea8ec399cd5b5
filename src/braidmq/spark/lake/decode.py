"""Fields of JSON values as columns of the lake, beside the value itself.

A row always keeps the value as it came; decoded columns are there to be queried. So nothing about decoding
can lose a record: a value that is not JSON has null in every decoded column, and so has a field that does not
fit the type its column has in the lake.

Without a schema, fields are found in a sample of every batch, and new ones become new columns. A field whose
name a record already uses (`key`, `timestamp`, …) becomes `value_NAME`.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as fn
from pyspark.sql.types import StructField, StructType

from braidmq.spark.lake.commits import LakeError
from braidmq.spark.lake.schema import DATE, RAW, widen

SAMPLE_ROWS = 1000
CORRUPT = "_corrupt_record"
DECODED = "_decoded"
TAKEN = {each.name.lower() for each in RAW.fields} | {DATE}
PREFIX = "value_"


@dataclass(frozen=True, slots=True)
class Json:
    """Values are JSON objects with these fields; None: whatever a sample of each batch shows."""

    fields: StructType | None = None


def decode(rows: DataFrame, how: Json, lake: StructType) -> DataFrame:
    """Rows with the fields of their values as columns, in the types the lake has for them."""
    found = how.fields or _sampled(rows)
    columns = StructType([StructField(_column(each.name), each.dataType) for each in found.fields])
    if how.fields is None:
        columns = widen(_decoded_columns(lake), columns)
    if not columns.fields:
        return rows
    fields = StructType([StructField(_field(each.name), each.dataType) for each in columns.fields])
    parsed = rows.withColumn(DECODED, fn.from_json(fn.col("value").cast("string"), fields))
    chosen = [fn.col(DECODED)[_field(each.name)].alias(each.name) for each in columns.fields]
    return parsed.select(*(fn.col(name) for name in rows.columns), *chosen)


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
    """The fields that `id BIGINT, name STRING` describes; LakeError where it describes none."""
    try:
        return spark.createDataFrame([], columns).schema
    except Exception as error:
        said = str(error).strip().partition("\n")[0]
        raise LakeError(f"{columns!r} is no list of columns like 'id BIGINT, name STRING': {said}") from None
