"""Upserted tables on Spark, batch by batch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from braidmq.spark.pipelines import loads, upsert
from braidmq.spark.pipelines.model import UpsertSink
from braidmq.spark.pipelines.table_source import read

FILE = """
pipeline: x
sources: {a: {topic: a, schema: infer}}
sinks: {t: {from: a, upsert: t, key: id, order_by: pos}}
"""


def test_a_column_that_is_dropped_stays_in_the_table(spark: Any, tmp_path: Path) -> None:
    """S4: in buckets that get their first rows after that too, for whoever reads the files."""
    sink = loads(FILE, tmp_path).sinks[0]
    assert isinstance(sink, UpsertSink)
    before = spark.createDataFrame([(1, 1, "Oslo")], "id BIGINT, pos BIGINT, city STRING")
    after = spark.createDataFrame([(number, 1) for number in range(2, 20)], "id BIGINT, pos BIGINT")
    upsert.apply(before, 0, sink, "query")
    upsert.apply(after, 1, sink, "query")
    rows = sorted(tuple(row) for row in read(spark, sink.path).select("id", "city").collect())
    assert rows == [(1, "Oslo"), *((number, None) for number in range(2, 20))]
    parts = list((tmp_path / "t" / "current").glob("*.parquet"))
    assert len(parts) > 1
    assert {frozenset(pq.read_schema(part).names) for part in parts} == {frozenset(("id", "pos", "city"))}
