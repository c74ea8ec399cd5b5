"""A batch of changes into an upserted table: every touched bucket is merged by one task (`upsert_table`)."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructField, StructType

from braidmq.spark.pipelines.frames import columns_there
from braidmq.spark.pipelines.mistakes import PipelineError
from braidmq.spark.pipelines.model import UpsertSink
from braidmq.spark.pipelines.upsert_table import (
    CHANGED_MS,
    IS_DELETED,
    Rules,
    UpsertTable,
    Version,
    merge_part,
    part_name,
    read_part,
    write_part,
)

BUCKET = "_braid_bucket"


def check(frame: DataFrame, sink: UpsertSink) -> None:
    """Checks before the first batch: columns, and whether an existing table fits."""
    columns_there(frame, (*sink.key, *sink.order_by), sink.location, f"sink {sink.name}")
    if sink.delete_when is not None:
        frame.where(sink.delete_when)
    found = UpsertTable(sink.path).current()
    if found is None:
        return
    version = found[1]
    asked = {"key": sink.key, "order_by": sink.order_by, "buckets": sink.buckets}
    for what, wanted in asked.items():
        if getattr(version, what) != wanted:
            raise PipelineError(
                f"{sink.location}: sink {sink.name}: the table in {sink.path} has {what}"
                f" {getattr(version, what)}, but the file says {wanted}; write to another directory"
            )
    _grown(StructType.fromJson(version.schema), frame.schema, sink)


def apply(frame: DataFrame, batch: int, sink: UpsertSink, query: str) -> None:
    """Merges one batch. Repeated after a crash, it does nothing if the batch was finished."""
    table = UpsertTable(sink.path)
    found = table.current()
    if found is not None and found[1].query == query and batch <= found[1].batch:
        return
    old_directory, old = found or (None, None)
    number = old.number + 1 if old else 1
    now_ms = time.time_ns() // 1_000_000
    schema = _grown(StructType.fromJson(old.schema), frame.schema, sink) if old else frame.schema
    # Every part has all columns of the table, including those that changes no longer have.
    missing = [each for each in schema.fields if each.name not in frame.columns]
    gone = [F.lit(None).cast(each.dataType).alias(each.name) for each in missing]
    directory = table.prepare(number)
    rules = Rules(sink.key, sink.order_by, round(sink.forget_deletes_after.seconds * 1000))
    merged = (
        _buckets(frame, sink, now_ms)
        .select("*", *gone)
        .groupBy(BUCKET)
        .applyInArrow(_merger(old_directory, directory, rules, now_ms), "bucket int, rows bigint")
    )
    parts = {row["bucket"]: row["rows"] for row in merged.collect()}
    if not parts:
        shutil.rmtree(directory)
        return
    if old is not None and old_directory is not None:
        for bucket in old.parts.keys() - parts.keys():
            parts[bucket] = old.parts[bucket]
            if schema != StructType.fromJson(old.schema):
                _widen(old_directory, directory, bucket, schema)
            else:
                table.keep_part(old_directory, directory, bucket)
    shape = json.loads(schema.json())
    version = Version(number, query, batch, shape, sink.key, sink.order_by, sink.buckets, parts)
    table.finish(directory, version)
    table.sweep(now_ms)


def _buckets(frame: DataFrame, sink: UpsertSink, now_ms: int) -> DataFrame:
    """The changes with their bucket, a mark on deletions, and an error for a key that is null."""
    deleted = F.coalesce(F.expr(sink.delete_when), F.lit(False)) if sink.delete_when else F.lit(False)
    missing = F.lit(False)
    for name in sink.key:
        missing = missing | F.col(name).isNull()
    complaint = F.raise_error(
        F.lit(f"sink {sink.name}: a row has no value in its key, {' or '.join(sink.key)}")
    )
    # As text, so that a key that grows from INT to BIGINT stays in its bucket.
    hashed = F.xxhash64(*[F.col(name).cast("string") for name in sink.key])
    bucket = F.when(missing, complaint.cast("int")).otherwise(F.pmod(hashed, F.lit(sink.buckets)).cast("int"))
    marks = {IS_DELETED: deleted, CHANGED_MS: F.lit(now_ms).cast("bigint"), BUCKET: bucket}
    return frame.withColumns(marks)


def _merger(old: Path | None, new: Path, rules: Rules, now_ms: int) -> Callable[..., pa.Table]:
    def merge_bucket(key: tuple[Any, ...], changes: pa.Table) -> pa.Table:
        bucket = key[0].as_py()
        rows = merge_part(old, new, bucket, changes.drop_columns([BUCKET]), rules, now_ms)
        return pa.table({"bucket": pa.array([bucket], pa.int32()), "rows": pa.array([rows], pa.int64())})

    return merge_bucket


def _grown(old: StructType, new: StructType, sink: UpsertSink) -> StructType:
    """The columns of both; PipelineError if a column changed its type."""
    known = {field.name: field for field in old.fields}
    for field in new.fields:
        if field.name in known and known[field.name].dataType != field.dataType:
            was, now = known[field.name].dataType.simpleString(), field.dataType.simpleString()
            raise PipelineError(
                f"{sink.location}: sink {sink.name}: column {field.name} is {was} in {sink.path} and {now}"
                " here; cast it, or write to another directory"
            )
    added = [StructField(field.name, field.dataType) for field in new.fields if field.name not in known]
    return StructType([*old.fields, *added]) if added else old


def _widen(old: Path, new: Path, bucket: int, schema: StructType) -> None:
    """Writes an unchanged bucket again, with null in new columns."""
    shape: pa.Schema = to_arrow_schema(schema, timezone="UTC")
    for deleted, file in ((False, new / part_name(bucket)), (True, new / "_deleted" / part_name(bucket))):
        table = read_part(old, bucket, deleted)
        if table is not None:
            dropped = [IS_DELETED] if deleted else [IS_DELETED, CHANGED_MS]
            empty = shape.empty_table()
            write_part(
                file, pa.concat_tables([empty, table.drop_columns(dropped)], promote_options="default")
            )
