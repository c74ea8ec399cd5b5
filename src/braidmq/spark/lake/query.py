"""A lake as one table to ask, and what can be told about it without Spark."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from braidmq.spark.lake.table import Lake

SPARK_METADATA = "_spark_metadata"


@dataclass(frozen=True, slots=True)
class Day:
    date: str
    files: int
    rows: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Description:
    version: int
    rows: int
    size_bytes: int
    days: tuple[Day, ...]
    positions: tuple[tuple[str, int, int], ...]
    columns: tuple[str, ...]


def open_folder(spark: SparkSession, folder: str) -> DataFrame:
    """The rows of a lake, or of a folder that Spark's own streaming sink wrote."""
    lake = Lake(folder)
    if _is_sparks_own(lake):
        return spark.read.parquet(str(lake.path))
    return lake.read(spark)


def check_folder(folder: str) -> None:
    """LakeError where there is nothing that `open_folder` could open; it needs no session."""
    lake = Lake(folder)
    if not _is_sparks_own(lake):
        lake.table()


def _is_sparks_own(lake: Lake) -> bool:
    return not lake.exists and (lake.path / SPARK_METADATA).is_dir()


def describe(folder: str | Path) -> Description:
    """Days, positions and columns of a lake, from its commits alone."""
    lake = Lake(folder)
    table = lake.table()
    days: dict[str, list[int]] = {}
    for file in table.files.values():
        sums = days.setdefault(file.folder.partition("=")[2], [0, 0, 0])
        for index, amount in enumerate((1, file.rows, file.size_bytes)):
            sums[index] += amount
    return Description(
        table.version,
        table.rows,
        table.size_bytes,
        tuple(Day(date, *sums) for date, sums in sorted(days.items())),
        tuple(
            (topic, partition, offset)
            for topic, partitions in sorted(table.positions.items())
            for partition, offset in sorted(partitions.items())
        ),
        tuple(f"{each.name} {each.dataType.simpleString()}" for each in lake.schema(table).fields),
    )
