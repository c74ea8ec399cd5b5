"""What a lake takes in and what it refuses, as far as that needs no session."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql.types import LongType, StringType, StructField, StructType

from braidmq.spark.lake.commits import LakeError
from braidmq.spark.lake.lake import Lake
from braidmq.spark.lake.schema import RAW


def nothing(_staging: Path) -> list[Path]:
    return []


def test_a_raw_archive_adds_its_columns_to_a_lake_that_has_others(tmp_path: Path) -> None:
    """S5: else they could not be read, and a compaction would drop them."""
    lake = Lake(tmp_path)
    snapshot = lake.create(StructType([StructField("shop", StringType()), StructField("orders", LongType())]))
    snapshot = lake.append_staged(nothing, onto=snapshot, reached={"orders": {0: 1}})
    assert lake.schema(snapshot).names == ["shop", "orders", *RAW.names, "date"]
    snapshot = lake.append_staged(nothing, onto=snapshot, reached={"orders": {0: 2}})
    assert lake.schema().names == ["shop", "orders", *RAW.names, "date"]


def test_a_raw_archive_into_columns_of_other_types_is_refused_before_it_writes(tmp_path: Path) -> None:
    """S5: a column never changes its type."""
    lake = Lake(tmp_path)
    snapshot = lake.create(StructType([StructField("key", StringType())]))

    def stage(_: Path) -> list[Path]:
        raise AssertionError("nothing is to be written")

    with pytest.raises(LakeError, match="column key is string in the lake and binary in the new rows"):
        lake.append_staged(stage, onto=snapshot, reached={"orders": {0: 1}})
    assert lake.snapshot() == snapshot


@pytest.mark.parametrize(
    ("kind", "cells", "range_ms"),
    [
        (pa.timestamp("us", "UTC"), [1_500_000, 9_000_000], (1_500, 9_000)),
        (pa.string(), ["noon", "night"], (None, None)),
        (pa.int64(), [1_500_000, 9_000_000], (None, None)),
    ],
)
def test_the_times_of_a_file_are_known_where_its_timestamps_are_times(
    tmp_path: Path, kind: pa.DataType, cells: list[object], range_ms: tuple[int | None, int | None]
) -> None:
    """S5: a pipeline may call a text so, and its lake must take it."""

    def stage(staging: Path) -> list[Path]:
        file = staging / "date=2026-11-15" / "part.parquet"
        file.parent.mkdir(parents=True)
        pq.write_table(pa.table({"n": [1, 2], "timestamp": pa.array(cells, kind)}), file)
        return [file]

    lake = Lake(tmp_path)
    (file,) = lake.append_staged(stage, onto=lake.create(), reached={}).files.values()
    assert (file.first_ms, file.last_ms) == range_ms
