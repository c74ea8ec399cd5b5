"""`braidmq.spark.export`: a folder of plain Parquet that holds what `read` shows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest

from braidmq.client import Producer
from braidmq.spark import export, read
from braidmq.spark.options import OptionError
from braidmq.spark.parquet import export as parquet_export
from braidmq.spark.parquet import files as parquet_files
from braidmq.spark.parquet.files import WrittenFile

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

NewTopic = Callable[..., str]
Fill = Callable[..., None]


@pytest.fixture
def topic(new_topic: NewTopic, fill: Fill) -> str:
    """300 records in two partitions."""
    made = new_topic(partitions=2)
    fill(made, [b"%03d" % number for number in range(225)], partition=0)
    fill(made, [b"%03d" % number for number in range(225, 300)], partition=1)
    return made


def rows(frame: DataFrame) -> list[tuple[Any, ...]]:
    return sorted(map(tuple, frame.collect()))


def left_beside(target: Path) -> list[str]:
    """What lies in the folder of a target besides itself."""
    return sorted(entry.name for entry in target.parent.iterdir() if entry != target)


def test_an_export_holds_what_read_shows(
    spark: SparkSession, bootstrap: str, new_topic: NewTopic, tmp_path: Path
) -> None:
    """S5: every column with its type, null where there is nothing, in files that Spark reads back."""
    topic = new_topic(partitions=2)
    with Producer(bootstrap) as producer:
        producer.send(topic, b"one", key=b"k", headers=[("a", b"1"), ("braid.tag", b"red")], partition=0)
        producer.send(topic, None, key=b"gone", partition=1)
    target = tmp_path / "new" / "orders"

    done = export(spark, bootstrap, topic, path=target, includeHeaders=True, includeTag=True)

    assert (done.path, done.rows) == (target, 2)
    there = read(spark, bootstrap, topic, includeHeaders=True, includeTag=True)
    back = spark.read.parquet(str(target))
    assert back.schema == there.schema
    assert rows(back.select("offset", "partition", "key", "value", "timestamp", "headers", "tag")) == rows(
        there.select("offset", "partition", "key", "value", "timestamp", "headers", "tag")
    )
    assert (target / "_SUCCESS").is_file()
    assert left_beside(target) == []


@pytest.mark.parametrize("codec", parquet_export.CODECS)
def test_columns_ranges_and_codecs_are_chosen(
    spark: SparkSession, bootstrap: str, topic: str, tmp_path: Path, codec: str
) -> None:
    """S5: what is asked for and no more; a task makes a file, in the order of its partition."""
    starting = f'{{"{topic}":{{"0":200,"1":5}}}}'
    target = tmp_path / f"as {codec}"

    done = export(
        spark,
        bootstrap,
        topic,
        path=target.as_uri(),
        schema="offset bigint, value binary",
        codec=codec,
        startingOffsets=starting,
        minPartitions=4,
    )

    files = sorted(target.glob("*.parquet"))
    assert (done.rows, done.files, len(files)) == (95, 5, 5)
    for file in files:
        column = pq.read_metadata(file).row_group(0).column(0)
        assert column.compression == ("UNCOMPRESSED" if codec == "none" else codec.upper())
        offsets = pq.read_table(file).column("offset").to_pylist()
        assert offsets == sorted(offsets)
    back = spark.read.parquet(str(target))
    assert back.columns == ["offset", "value"]
    assert back.count() == 95


def test_nothing_to_export_is_a_folder_without_rows(
    spark: SparkSession, bootstrap: str, new_topic: NewTopic, tmp_path: Path
) -> None:
    """S5: whoever reads it finds the columns, as after Spark's own writer."""
    done = export(spark, bootstrap, new_topic(), path=tmp_path / "empty")

    back = spark.read.parquet(str(done.path))
    assert (done.rows, back.count(), back.columns[:2]) == (0, 0, ["key", "value"])


def test_a_folder_is_replaced_only_where_that_is_wanted_and_harmless(
    spark: SparkSession, bootstrap: str, topic: str, tmp_path: Path
) -> None:
    """S5: never by accident, and never with anything in it that an export would not have written."""
    target = tmp_path / "orders"
    export(spark, bootstrap, topic, path=target)

    with pytest.raises(OptionError, match=r"exists; .* overwrite=True"):
        export(spark, bootstrap, topic, path=target)
    ending = f'{{"{topic}":{{"0":10,"1":10}}}}'
    assert export(spark, bootstrap, topic, path=target, overwrite=True, endingOffsets=ending).rows == 20
    assert spark.read.parquet(str(target)).count() == 20
    assert left_beside(target) == []
    (target / "notes.txt").write_text("mine")
    with pytest.raises(OptionError, match="holds other files than Parquet"):
        export(spark, bootstrap, topic, path=target, overwrite=True)
    assert (target / "notes.txt").read_text() == "mine"


def test_only_what_tasks_told_of_is_taken(
    spark: SparkSession, bootstrap: str, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S5: what a task that failed, or was slower than its twin, has written is not part of the export."""
    honest = parquet_files.written_by_tasks

    def with_a_leftover(*arguments: Any) -> list[WrittenFile]:
        told = honest(*arguments)
        (staging,) = tmp_path.glob(".orders.*/staging")
        (staging / "part-leftover.parquet").write_bytes((staging / told[0].file).read_bytes())
        return told

    monkeypatch.setattr(parquet_export, "written_by_tasks", with_a_leftover)
    done = export(spark, bootstrap, topic, path=tmp_path / "orders")
    assert (done.rows, spark.read.parquet(str(done.path)).count()) == (300, 300)


def test_an_export_that_fails_leaves_everything_as_it_was(
    spark: SparkSession, bootstrap: str, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S5: no half export, the old one still there, nothing beside it."""
    target = tmp_path / "orders"
    export(spark, bootstrap, topic, path=target)

    def elsewhere(*_: Any) -> list[WrittenFile]:
        return [WrittenFile("part-00000.parquet", 300)]

    monkeypatch.setattr(parquet_export, "written_by_tasks", elsewhere)
    with pytest.raises(OptionError, match=r"differs between the driver and .* all of them share"):
        export(spark, bootstrap, topic, path=target, overwrite=True)
    assert spark.read.parquet(str(target)).count() == 300
    assert left_beside(target) == []


@pytest.mark.parametrize("overwrite", [False, True])
def test_what_was_there_is_not_lost_at_the_last_moment(
    spark: SparkSession,
    bootstrap: str,
    topic: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    overwrite: bool,
) -> None:
    """S5: neither when the new folder cannot be put in place, nor when somebody else has made one."""
    target = tmp_path / "orders"
    if overwrite:
        export(spark, bootstrap, topic, path=target)
    rename = Path.rename

    def refused(path: Path, to: Path) -> Path:
        if path.name == "made":
            if not overwrite:
                target.mkdir()
                (target / "theirs").touch()
            raise OSError("no")
        return rename(path, to)

    monkeypatch.setattr(Path, "rename", refused)
    with pytest.raises(OSError if overwrite else OptionError, match="no"):
        export(spark, bootstrap, topic, path=target, overwrite=overwrite)
    assert [*target.glob("*.parquet")] if overwrite else (target / "theirs").exists()
    assert left_beside(target) == []


def test_a_worker_without_the_folder_says_so(tmp_path: Path) -> None:
    """S5: a path that only the driver has is told with the worker's name."""
    with pytest.raises(OptionError, match=r"exists on the driver but not on .*; on a cluster path must be"):
        parquet_export.ExportedFile(tmp_path / "x" / ".o.1" / "staging", "part-00000", ("value",), "snappy")


def test_mistakes_are_told_before_anything_is_written(
    spark: SparkSession, bootstrap: str, new_topic: NewTopic, tmp_path: Path
) -> None:
    """S5: options, columns, codecs, places."""
    target = tmp_path / "orders"
    for expected, arguments in (
        ("no option 'startingOfset'", {"startingOfset": "earliest"}),
        ("no column 'amount'", {"schema": "amount double"}),
        ("codec is 'zst'.* did you mean 'zstd'", {"codec": "zst"}),
        ("local or mounted file system", {"path": "s3a://bucket/orders"}),
    ):
        with pytest.raises(OptionError, match=expected):
            export(spark, bootstrap, new_topic(), **({"path": target} | arguments))
    with pytest.raises(OptionError, match="there is no topic 'nowhere'"):
        export(spark, bootstrap, "nowhere", path=target)
    assert list(tmp_path.iterdir()) == []
