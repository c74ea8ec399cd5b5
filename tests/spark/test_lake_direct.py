"""Files of a lake as tasks write them themselves, without Spark's writer."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from braidmq.client import Producer
from braidmq.spark.lake import Archive, Lake, archive, direct_write
from braidmq.spark.lake.direct_write import COLUMNS, DatedFiles
from braidmq.spark.parquet import files as parquet_files
from braidmq.spark.parquet.files import WrittenFile
from braidmq.spark.source.columns import arrow_schema

DAY_MS = 86_400_000
LAST_MS = 253_402_300_799_999
"""The last millisecond of the year 9999."""


def rows(*timestamps_ms: int, value: bytes = b"v") -> pa.RecordBatch:
    """Rows with these timestamps; their offsets count up."""
    columns = {
        "key": [None] * len(timestamps_ms),
        "value": [value] * len(timestamps_ms),
        "topic": ["t"] * len(timestamps_ms),
        "partition": [0] * len(timestamps_ms),
        "offset": range(len(timestamps_ms)),
        "timestamp": [each * 1000 for each in timestamps_ms],
        "timestampType": [0] * len(timestamps_ms),
        "headers": [None] * len(timestamps_ms),
    }
    schema = arrow_schema(COLUMNS)
    return pa.RecordBatch.from_arrays(
        [pa.array(columns[field.name], field.type) for field in schema], schema=schema
    )


def offsets_by_folder(staging: Path, written: list[WrittenFile]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for name, count in written:
        read = pq.read_table(staging / name, partitioning=None).column("offset").to_pylist()
        assert count == len(read)
        found.setdefault(name.partition("/")[0], []).extend(read)
    return found


def test_each_row_lies_under_its_day_in_order_and_wild_ones_aside(tmp_path: Path) -> None:
    """S5: the days of UTC; times before 1970 and after 9999 are kept, without a date."""
    files = DatedFiles(tmp_path, "task")
    files.add(rows(0, DAY_MS - 1, DAY_MS, -1, LAST_MS, LAST_MS + 1, 5))
    assert offsets_by_folder(tmp_path, files.close()) == {
        "date=1970-01-01": [0, 1, 6],
        "date=1970-01-02": [2],
        "date=9999-12-31": [4],
        "date=__HIVE_DEFAULT_PARTITION__": [3, 5],
    }


def test_many_dates_mixed_keep_few_files_open(tmp_path: Path) -> None:
    """S5: a date that was closed meanwhile goes on in another file; nothing is lost or doubled."""
    days = direct_write.OPEN_FILES_MAX + 5
    files = DatedFiles(tmp_path, "task")
    for _ in range(2):
        files.add(rows(*(day * DAY_MS for day in range(days))))
        assert len(files._open) == direct_write.OPEN_FILES_MAX
    found = offsets_by_folder(tmp_path, files.close())
    assert sorted(found.values()) == [[day, day] for day in range(days)]


def test_row_groups_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """S5: memory is that of a row group, whatever a file grows to; its footer has the times."""
    monkeypatch.setattr(parquet_files, "ROW_GROUP_BYTES", 10_000)
    files = DatedFiles(tmp_path, "task")
    for _ in range(10):
        files.add(rows(7, 9, value=b"x" * 2_500))
    ((name, _),) = files.close()
    footer = pq.read_metadata(tmp_path / name)
    assert (footer.num_rows, footer.num_row_groups) == (20, 5)
    times = footer.row_group(0).column(COLUMNS.index("timestamp")).statistics
    assert (times.min_raw, times.max_raw) == (7_000, 9_000)


def test_what_a_failed_task_left_behind_is_not_taken(
    spark: Any, bootstrap: str, new_topic: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S5: only files that a finished task has told of come into the lake."""
    topic = new_topic(partitions=3)
    with Producer(bootstrap) as producer:
        for number in range(300):
            producer.send(topic, b"%d" % number, partition=number % 3)
    lake = Lake(tmp_path / "lake")
    honest = direct_write.DirectWrite.stage

    def with_a_leftover(write: direct_write.DirectWrite, staging: Path) -> list[Path]:
        told = honest(write, staging)
        (told[0].parent / "leftover.parquet").write_bytes(told[0].read_bytes())
        return told

    monkeypatch.setattr(direct_write.DirectWrite, "stage", with_a_leftover)
    steps = list(archive(spark, lake, Archive(bootstrap, (topic,), date_by="archived")))
    assert sum(step.rows for step in steps) == 300
    values = [int(row.value) for row in lake.read(spark).select("value").collect()]
    assert sorted(values) == list(range(300))
