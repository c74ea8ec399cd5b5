"""Sinks, as far as they need no Spark session."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from pyspark.sql.types import StructType

from braidmq.spark.pipelines import PipelineError, loads
from braidmq.spark.pipelines.model import LakeSink
from braidmq.spark.pipelines.sinks import own_date


def lake_sink(tmp_path: Path, date_of: str | None) -> LakeSink:
    rest = f", date_of: {date_of}" if date_of else ""
    sinks = f"sinks: {{l: {{from: a, lake: l{rest}}}}}\n"
    text = "pipeline: x\nsources: {a: {topic: a, schema: infer}}\n" + sinks
    sink = loads(text, tmp_path).sinks[0]
    assert isinstance(sink, LakeSink)
    return sink


def schema(**columns: str) -> StructType:
    made = StructType()
    for name, kind in columns.items():
        made.add(name, kind)
    return made


@pytest.mark.parametrize("name", ["date", "Date", "DATE"])
def test_a_date_of_the_rows_own_is_what_files_of_a_lake_lie_by(name: str, tmp_path: Path) -> None:
    """S4 S5: in whatever letters it is written, as Spark's names are."""
    assert own_date(schema(id="integer", **{name: "date"}), lake_sink(tmp_path, None)) == name
    assert own_date(schema(id="integer", **{name: "date"}), lake_sink(tmp_path, name)) == name
    assert own_date(schema(id="integer", day="date"), lake_sink(tmp_path, None)) is None


@pytest.mark.parametrize(
    ("name", "kind", "date_of", "what"),
    [
        ("date", "string", "at", "column date is STRING"),
        ("Date", "timestamp", None, "column Date is TIMESTAMP"),
        ("DATE", "timestamp", "DATE", "column DATE is TIMESTAMP"),
        ("date", "date", "at", "column date is not the date of at"),
    ],
)
def test_a_lake_does_not_overwrite_a_column_called_date(
    name: str, kind: str, date_of: str | None, what: str, tmp_path: Path
) -> None:
    """S4 S5: neither is it taken for the date of an event that it is not."""
    with pytest.raises(PipelineError) as raised:
        own_date(schema(**{name: kind, "at": "timestamp"}), lake_sink(tmp_path, date_of))
    told = str(raised.value)
    assert told.startswith(f"pipeline.yaml:3: sink l: {what}, ")
    assert told.endswith(f"rename it: SELECT {name} AS day")
