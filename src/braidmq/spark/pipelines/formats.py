"""From the bytes of a record to columns, and back.

A value is parsed once: its columns come from one `inline`, which Spark neither repeats nor moves. A value
that does not parse completely, or lacks a column declared NOT NULL, is bad: the stream fails on it, drops it,
or leaves it to the query that writes bad records to their topic with the reason (`reasons`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import StringType, StructField, StructType

from braidmq.spark import avro
from braidmq.spark.avro import AvroSchema
from braidmq.spark.pipelines.clusters import about_values
from braidmq.spark.pipelines.mistakes import PipelineMistakes
from braidmq.spark.pipelines.model import BadRecords, Metadata, TopicSink, TopicSource, ValueFormat
from braidmq.spark.pipelines.reasons import explain

BAD = "_braid_bad"
PARSED = "_braid_parsed"
BAD_RECORD = "braid: bad record"
"""The prefix of the message for a bad record, before topic, partition and offset."""
NOT_NUMBERS = "allownonnumericnumbers"
"""The option of Spark's parser that allows NaN."""
HEADERS = "array<struct<key: string, value: binary>>"
BAD_HEADERS = ["braid.reason", "braid.topic", "braid.partition", "braid.offset", "braid.pipeline"]
"""The headers that a bad record gets in addition to its own."""


def decode(records: DataFrame, source: TopicSource, schema: StructType | None) -> DataFrame:
    """The good rows of a topic, with the metadata of the source."""
    kept = [_metadata_column(source, each) for each in source.metadata]
    if source.format is ValueFormat.RAW:
        return records.select("value", *kept)
    records = records.where("value IS NOT NULL")
    if source.format is ValueFormat.TEXT:
        return records.select(F.col("value").cast("string").alias("value"), *kept)
    assert schema is not None
    records, parsed = _parsed(records, source, schema)
    is_good = _is_good(schema)
    if source.bad_records is BadRecords.FAIL:
        is_kept = _or_raise(is_good)
    else:
        is_kept = is_good
    return records.select(F.inline(F.filter(F.array(parsed), is_kept)), *kept).drop(BAD)


def bad_rows(records: DataFrame, source: TopicSource, schema: StructType | None, pipeline: str) -> DataFrame:
    """The records that `decode` drops, unchanged, with the reason in their headers."""
    assert schema is not None
    records, parsed = _parsed(records.where("value IS NOT NULL"), source, schema)
    is_good = _is_good(schema)
    bad = records.withColumn(PARSED, parsed).where(~is_good(F.col(PARSED)))
    given = F.col(f"{PARSED}.{BAD}").cast("string") if source.format is ValueFormat.AVRO else F.lit("")
    kept = ("key", "value", "headers", "timestamp", "topic", "partition", "offset")
    bad = bad.select(*kept, given.alias("reason"))
    if source.format is not ValueFormat.AVRO:
        bad = bad.mapInArrow(_explainer(source, schema), bad.schema)
    told = ("reason", "topic", "cast(partition as string)", "cast(offset as string)")
    added = [_header(name, F.expr(text)) for name, text in zip(BAD_HEADERS, told, strict=False)]
    added.append(_header(BAD_HEADERS[-1], F.lit(pipeline)))
    before = F.coalesce(F.col("headers"), F.array().cast(HEADERS))
    others = F.filter(before, lambda each: ~each["key"].isin(BAD_HEADERS))
    return bad.select("key", "value", F.concat(others, F.array(*added)).alias("headers"), "timestamp")


def encode(rows: DataFrame, sink: TopicSink) -> DataFrame:
    """Rows as records: columns key, value and, if the sink has them, headers."""
    key = F.expr(sink.key).cast("string").cast("binary") if sink.key else F.lit(None).cast("binary")
    columns = [key.alias("key")]
    if sink.headers:
        pairs = [_header(name, F.expr(text).cast("string")) for name, text in sink.headers]
        columns.append(F.array(*pairs).alias("headers"))
    if sink.format is ValueFormat.AVRO:
        assert sink.avro is not None
        whole = rows.select(*columns, F.struct(*rows.columns).alias(PARSED))
        return whole.mapInArrow(_avro_writer(sink.avro), _without_struct(whole.schema))
    return rows.select(*columns, _value(rows, sink).alias("value"))


def _value(rows: DataFrame, sink: TopicSink) -> Column:
    whole = F.struct(*[F.col(f"`{name}`") for name in rows.columns])
    options = about_values(sink.options)
    if sink.format is ValueFormat.JSON:
        return F.to_json(whole, {"ignoreNullFields": "false", **options}).cast("binary")
    if sink.format is ValueFormat.CSV:
        return F.to_csv(whole, options).cast("binary")
    if "value" not in rows.columns:
        raise PipelineMistakes.at(
            sink.location.of("format"),
            f"sink {sink.name} writes {sink.format}, which takes the column value;"
            f" {sink.source} has {', '.join(rows.columns)}",
        )
    return F.col("value").cast("string" if sink.format is ValueFormat.TEXT else "binary").cast("binary")


def columns_read(with_headers: bool) -> str:
    """The columns of the topic that a source needs; others are not decoded."""
    needed = "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp"
    return f"{needed}, headers {HEADERS}" if with_headers else needed


def _metadata_column(source: TopicSource, which: Metadata) -> Column:
    column = F.col(which.value)
    if which is Metadata.KEY and source.format is not ValueFormat.RAW:
        column = column.cast("string")
    return column.alias(f"_{which.value}")


def _parsed(records: DataFrame, source: TopicSource, schema: StructType) -> tuple[DataFrame, Column]:
    """A struct of the columns and, in `BAD`, a text if the value is bad."""
    whole = StructType([*_nullable(schema).fields, StructField(BAD, StringType())])
    if source.format is ValueFormat.AVRO:
        assert source.avro is not None
        shape = StructType([*records.schema.fields, StructField(PARSED, whole)])
        return records.mapInArrow(_avro_reader(source.avro, whole), shape), F.col(PARSED)
    text = F.expr("CASE WHEN is_valid_utf8(cast(value AS string)) THEN cast(value AS string) END")
    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": BAD, **about_values(source.options)}
    if source.format is ValueFormat.JSON:
        return records, F.from_json(F.when(_is_one_value(text, options), text), whole, options)
    return records, F.from_csv(text, whole.toDDL(), options)


def _is_one_value(text: Column, options: dict[str, str]) -> Column:
    """Whether nothing follows a JSON value: Spark's parser stops after the first one.

    An object without nested objects ends at its only closing brace, which is a fast check. Any other value is
    put into a list with a second one, and the list must have two elements; the line break ends a comment, if
    those are allowed. The same is done if bare NaN or infinities are allowed, which Spark reads by default.
    """
    if NOT_NUMBERS not in map(str.lower, options):
        options = {**options, NOT_NUMBERS: "false"}
    both = F.from_json(F.concat(F.lit("["), text, F.lit("\n,{}]")), f"array<struct<{BAD}: string>>", options)
    return text.rlike(r"(?s)^(?!.*(?:NaN|INF|Infinity))[^}]*}[ \t\r\n]*$") | (F.size(both) == 2)


def _nullable(schema: StructType) -> StructType:
    return StructType([StructField(field.name, field.dataType, True) for field in schema.fields])


def _is_good(schema: StructType) -> Callable[[Column], Column]:
    required = [field.name for field in schema.fields if not field.nullable]

    def is_good(row: Column) -> Column:
        good = row.isNotNull() & row[BAD].isNull()
        for name in required:
            good = good & row[name].isNotNull()
        return good

    return is_good


def _or_raise(is_good: Callable[[Column], Column]) -> Callable[[Column], Column]:
    marked = F.concat_ws(" ", F.lit(BAD_RECORD), F.col("topic"), F.col("partition"), F.col("offset"))
    return lambda row: F.when(is_good(row), True).otherwise(F.raise_error(marked).cast("boolean"))


def _header(name: str, value: Column) -> Column:
    return F.struct(F.lit(name).alias("key"), value.cast("binary").alias("value"))


def _explainer(source: TopicSource, schema: StructType) -> Callable[..., Iterator[pa.RecordBatch]]:
    shape = json.loads(schema.json())
    format_, options = source.format, about_values(source.options)

    def add_reasons(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            reasons = [explain(value, format_, shape, options) for value in batch.column("value").to_pylist()]
            at = batch.schema.get_field_index("reason")
            yield batch.set_column(at, "reason", pa.array(reasons, pa.string()))

    return add_reasons


def _avro_reader(schema: AvroSchema, whole: StructType) -> Callable[..., Iterator[pa.RecordBatch]]:
    kind: Any = to_arrow_type(whole, timezone="UTC")

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return avro.decode_batches(batches, schema, kind, (PARSED, BAD))

    return read


def _without_struct(schema: StructType) -> str:
    kept = [
        f"{field.name} {field.dataType.simpleString()}" for field in schema.fields if field.name != PARSED
    ]
    return ", ".join([*kept, "value binary"])


def _avro_writer(schema: AvroSchema) -> Callable[..., Iterator[pa.RecordBatch]]:
    def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        encode_row = avro.encoder(schema)
        for batch in batches:
            rows = batch.column(PARSED).to_pylist(maps_as_pydicts="strict")
            values = pa.array([encode_row(row) for row in rows], pa.binary())
            yield batch.drop_columns([PARSED]).append_column("value", values)

    return write
