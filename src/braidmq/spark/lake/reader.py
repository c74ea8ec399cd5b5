"""A lake, or a table of another format, as a DataFrame; and a lake's description without Spark."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from braidmq.spark.lake.lake import Lake
from braidmq.spark.lake.schema import within
from braidmq.spark.lake.table_formats import KEPT, read_table


@dataclass(frozen=True, slots=True)
class Day:
    date: str
    files: int
    rows: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class LakeDescription:
    version: int
    rows: int
    size_bytes: int
    days: tuple[Day, ...]
    positions: tuple[tuple[str, int, int], ...]
    columns: tuple[str, ...]


def open_rows(
    spark: SparkSession, name: str, from_ms: int | None = None, until_ms: int | None = None
) -> DataFrame:
    """The rows of a lake, of a table in another format, or of a folder that Spark's own sink wrote."""
    if "://" in name or not Lake(name).exists:
        rows = read_table(spark, name)
        if rows is not None:
            return within(rows, from_ms, until_ms)
    return Lake(name).read(spark, from_ms, until_ms)


def check_name(name: str) -> None:
    """LakeError if `open_rows` could surely open nothing; needs no session."""
    is_elsewhere = "://" in name or ("." in name and "/" not in name and not Path(name).exists())
    if not is_elsewhere and not any((Path(name) / kept).exists() for kept in KEPT.values()):
        Lake(name).snapshot()


def describe(folder: str | Path) -> LakeDescription:
    """Days, positions and columns of a lake, from its commits."""
    lake = Lake(folder)
    snapshot = lake.snapshot()
    days: dict[str, list[int]] = {}
    for file in snapshot.files.values():
        sums = days.setdefault(file.folder.partition("=")[2], [0, 0, 0])
        for index, amount in enumerate((1, file.rows, file.size_bytes)):
            sums[index] += amount
    return LakeDescription(
        snapshot.version,
        snapshot.rows,
        snapshot.size_bytes,
        tuple(Day(date, *sums) for date, sums in sorted(days.items())),
        tuple(
            (topic, partition, offset)
            for topic, partitions in sorted(snapshot.positions.items())
            for partition, offset in sorted(partitions.items())
        ),
        tuple(f"{each.name} {each.dataType.simpleString()}" for each in lake.schema(snapshot).fields),
    )
