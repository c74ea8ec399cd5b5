"""What a lake takes in and what it refuses, as far as that needs no session."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql.types import LongType, StringType, StructField, StructType

from braidmq.spark.lake.commits import LakeError
from braidmq.spark.lake.schema import RAW
from braidmq.spark.lake.table import Lake


def nothing(_staging: Path) -> list[Path]:
    return []


def test_a_raw_archive_adds_its_columns_to_a_lake_that_has_others(tmp_path: Path) -> None:
    """S5: else they could not be read, and a compaction would drop them."""
    lake = Lake(tmp_path)
    table = lake.create(StructType([StructField("shop", StringType()), StructField("orders", LongType())]))
    table = lake.append_staged(nothing, onto=table, reached={"orders": {0: 1}})
    assert lake.schema(table).names == ["shop", "orders", *RAW.names, "date"]
    table = lake.append_staged(nothing, onto=table, reached={"orders": {0: 2}})
    assert lake.schema().names == ["shop", "orders", *RAW.names, "date"]


def test_a_raw_archive_into_columns_of_other_types_is_refused_before_it_writes(tmp_path: Path) -> None:
    """S5: a column never changes its type."""
    lake = Lake(tmp_path)
    table = lake.create(StructType([StructField("key", StringType())]))

    def stage(_: Path) -> list[Path]:
        raise AssertionError("nothing is to be written")

    with pytest.raises(LakeError, match="column key is string in the lake and binary in the new rows"):
        lake.append_staged(stage, onto=table, reached={"orders": {0: 1}})
    assert lake.table() == table
