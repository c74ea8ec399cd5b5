"""From topics to a lake: every field kept, every row once, whatever happens on the way."""

from __future__ import annotations

import io
import json
import os
import shutil
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import fastavro
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import LongType, StringType, StructField, StructType
from tests.spark.archiver_points import LAST_POINT, POINTS, ROWS_PER_COMMIT, strike

from braidmq.client import Admin, Producer
from braidmq.client.cluster import TopicPartition
from braidmq.client.groups import GroupAdmin
from braidmq.platform.disk import RealDisk, RealFile
from braidmq.spark.avro import AvroSchema, Framing
from braidmq.spark.lake import Archive, Avro, CommitConflict, Json, Lake, LakeError, archive, compact, sweep
from braidmq.spark.lake.schema import dated

NewTopic = Callable[..., str]
DAY_MS = 86_400_000
FIRST_MS = int(datetime(2026, 11, 14, 23, 59, 59, tzinfo=UTC).timestamp() * 1000)


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(tmp_path / "lake")


def send(bootstrap: str, topic: str, values: range, partition: int | None = None) -> None:
    """Values `n` with keys, headers and timestamps a second apart."""
    with Producer(bootstrap) as producer:
        for number in values:
            producer.send(
                topic,
                json.dumps({"id": number}).encode(),
                key=b"k%d" % (number % 3),
                headers=[("n", b"%d" % number), ("none", None)],
                partition=partition,
                timestamp_ms=FIRST_MS + 1000 * number,
            )


def run(spark: SparkSession, lake: Lake, bootstrap: str, *topics: str, **options: Any) -> int:
    """Archives what there is; how many rows."""
    return sum(step.rows for step in archive(spark, lake, Archive(bootstrap, topics, **options)))


def ids(spark: SparkSession, lake: Lake) -> list[int]:
    return sorted(json.loads(row.value)["id"] for row in lake.read(spark).select("value").collect())


def test_a_topic_becomes_parquet_by_date_with_every_field(
    spark: SparkSession, lake: Lake, bootstrap: str, new_topic: NewTopic
) -> None:
    """S5: key, value, headers, timestamp, partition and offset, under the day (UTC) of the record."""
    topic = new_topic(partitions=2)
    send(bootstrap, topic, range(3), partition=1)
    assert run(spark, lake, bootstrap, topic) == 3
    rows = lake.read(spark).orderBy("offset").collect()
    assert [(row.partition, row.offset, bytes(row.key), row.topic) for row in rows] == [
        (1, 0, b"k0", topic),
        (1, 1, b"k1", topic),
        (1, 2, b"k2", topic),
    ]
    assert [(each.key, each.value) for each in rows[2].headers] == [("n", bytearray(b"2")), ("none", None)]
    assert [str(row.date) for row in rows] == ["2026-11-14", "2026-11-15", "2026-11-15"]
    assert [round(row.timestamp.timestamp() * 1000) - FIRST_MS for row in rows] == [0, 1000, 2000]
    assert sorted(path.name for path in lake.path.glob("date=*")) == ["date=2026-11-14", "date=2026-11-15"]


def test_archiving_goes_on_where_it_stopped_and_sees_new_partitions(
    spark: SparkSession, lake: Lake, bootstrap: str, new_topic: NewTopic
) -> None:
    """S5: nothing twice, nothing left out; the position shows as a group's lag."""
    topic = new_topic(partitions=1)
    send(bootstrap, topic, range(10))
    assert run(spark, lake, bootstrap, topic, rows_per_commit=4) == 10
    assert lake.snapshot().version == 3
    with Admin(bootstrap) as admin:
        admin.add_partitions(topic, 2)
    send(bootstrap, topic, range(10, 14), partition=1)
    assert run(spark, lake, bootstrap, topic, group="archiver") == 4
    assert run(spark, lake, bootstrap, topic) == 0
    assert ids(spark, lake) == list(range(14))
    assert lake.snapshot().positions == {topic: {0: 10, 1: 4}}
    with GroupAdmin(bootstrap) as groups:
        assert groups.committed("archiver") == {TopicPartition(topic, 0): 10, TopicPartition(topic, 1): 4}


class Killed(BaseException):
    """Where the process would have ended."""


class Killer:
    """Lets `left` file operations happen, then none any more, as if the process were gone."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.left = 10**9
        self.seen = 0
        for owner, names in (
            (Path, ("rename", "mkdir", "unlink", "replace")),
            (os, ("link",)),
            (shutil, ("rmtree",)),
            (RealDisk, ("sync_directory",)),
            (RealFile, ("fdatasync", "write")),
        ):
            for name in names:
                monkeypatch.setattr(owner, name, self._guarded(getattr(owner, name)))

    def _guarded(self, action: Callable[..., Any]) -> Callable[..., Any]:
        def run_or_die(*arguments: Any, **named: Any) -> Any:
            if self.seen >= self.left:
                raise Killed
            self.seen += 1
            return action(*arguments, **named)

        return run_or_die


@pytest.fixture
def killer(monkeypatch: pytest.MonkeyPatch) -> Iterator[Killer]:
    made = Killer(monkeypatch)
    yield made
    made.left = 10**9


def test_killed_at_any_file_operation_rows_are_there_once(
    spark: SparkSession, tmp_path: Path, killer: Killer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S5: every boundary of a write and its commit; between, readers see the batch whole or not at all."""
    rows = spark.range(2).selectExpr("id", "date_add(DATE'2026-11-14', CAST(id AS int)) AS date")
    Lake(tmp_path)._stage(rows, 1, tmp_path / "written")

    def same_files_each_time(_lake: Lake, _rows: DataFrame, _files: int | None, staging: Path) -> list[Path]:
        """Without asking Spark for them."""
        shutil.copytree(tmp_path / "written", staging)
        return sorted(staging.glob("date=*/*.parquet"))

    monkeypatch.setattr(Lake, "_stage", same_files_each_time)
    killer.seen = 0
    Lake(tmp_path / "clean").append(rows, writer="w", batch=0)
    operations, seen = killer.seen, set()
    assert operations > 10
    for cut in range(operations):
        lake = Lake(tmp_path / f"cut-{cut}")
        killer.seen, killer.left = 0, cut
        with pytest.raises(Killed):
            lake.append(rows, writer="w", batch=0)
        killer.left = 10**9
        seen.add(lake.snapshot().rows if lake.exists else 0)
        after = lake.append(rows, writer="w", batch=0)
        assert after.rows == 2, f"cut at {cut}"
        assert len(after.files) == 2
    assert seen == {0, 2}


@pytest.mark.parametrize(
    ("point", "rows"), [*((point, 40) for point in POINTS), (LAST_POINT, 2 * ROWS_PER_COMMIT)]
)
def test_an_archiver_killed_at_any_of_its_steps_archives_each_record_once(
    spark: SparkSession, lake: Lake, bootstrap: str, new_topic: NewTopic, point: str, rows: int
) -> None:
    """S5: the next one goes on where the lake stands, and the group follows, with more to come or not."""
    topic = new_topic(partitions=1)
    send(bootstrap, topic, range(rows))
    options = {"rows_per_commit": ROWS_PER_COMMIT, "group": f"archiver-{topic}"}

    def die() -> None:
        raise Killed

    undo = strike(point, die)
    try:
        with pytest.raises(Killed):
            run(spark, lake, bootstrap, topic, **options)
    finally:
        undo()
    assert lake.snapshot().rows == ROWS_PER_COMMIT * (2 if point == LAST_POINT else 1)
    run(spark, lake, bootstrap, topic, **options)
    assert ids(spark, lake) == list(range(rows))
    with GroupAdmin(bootstrap) as groups:
        assert groups.committed(f"archiver-{topic}") == {TopicPartition(topic, 0): rows}


def test_two_archivers_on_one_lake_do_not_double_rows(
    spark: SparkSession, lake: Lake, bootstrap: str, new_topic: NewTopic
) -> None:
    """S5: the slower one is told, and adds nothing."""
    topic = new_topic(partitions=1)
    send(bootstrap, topic, range(4))
    stale = lake.create()
    assert run(spark, lake, bootstrap, topic) == 4
    rows = lake.read(spark).drop("date")
    with pytest.raises(CommitConflict, match=f"another archiver also archives {topic}-0"):
        lake.append(rows, onto=stale, reached={topic: {0: 4}})
    other = rows.withColumnRenamed("topic", "was").selectExpr("*", "'else' AS topic").drop("was")
    assert lake.append(other, onto=stale, reached={"else": {0: 4}}).rows == 8


def test_a_query_of_structured_streaming_appends_each_batch_once(spark: SparkSession, lake: Lake) -> None:
    """S5: a batch that is replayed after a crash changes nothing."""
    rows = spark.range(3).selectExpr("id", "current_date() AS date")
    for batch in (0, 0, 1, 1, 0):
        lake.append(rows, writer="query", batch=batch)
    assert lake.snapshot().rows == 6
    assert lake.append(rows, writer="another query", batch=0).rows == 9


def test_json_fields_become_columns_and_new_ones_are_added(
    spark: SparkSession, lake: Lake, bootstrap: str, new_topic: NewTopic
) -> None:
    """S5: old files show null, a value that does not fit is null in its column and whole in the raw one."""
    topic = new_topic(partitions=1)

    def send_json(*texts: str) -> None:
        with Producer(bootstrap) as producer:
            for text in texts:
                producer.send(topic, text.encode())
        run(spark, lake, bootstrap, topic, decode=Json())

    send_json('{"id": 1, "key": "taken", "who": {"name": "Ada"}}', "no json")
    send_json('{"id": "x", "amount": 2.5, "who": {"name": "Bob", "age": 7}}')
    found = lake.read(spark).orderBy("offset").selectExpr("id", "value_key", "amount", "who.name", "who.age")
    assert [tuple(row) for row in found.collect()] == [
        (1, "taken", None, "Ada", None),
        (None, None, None, None, None),
        (None, None, 2.5, "Bob", 7),
    ]
    send(bootstrap, topic, range(1))
    fields = StructType([StructField("more", LongType()), StructField("id", StringType())])
    with pytest.raises(LakeError, match="column id is bigint in the lake and string in the new rows"):
        run(spark, lake, bootstrap, topic, decode=Json(fields))


def test_a_text_that_is_no_time_leaves_its_row_without_a_date(spark: SparkSession, lake: Lake) -> None:
    """S5: with --date-by COLUMN; one bad record would stop the archive for good."""
    rows = spark.createDataFrame([("2026-11-15T00:00:00Z",), ("soon",), (None,)], "at string")
    lake.append(dated(rows, "at"))
    found = [(row.at, row.date and str(row.date)) for row in lake.read(spark).collect()]
    assert dict(found) == {"2026-11-15T00:00:00Z": "2026-11-15", "soon": None, None: None}


def test_avro_fields_become_columns_and_what_does_not_parse_stays_raw(
    spark: SparkSession, lake: Lake, bootstrap: str, new_topic: NewTopic
) -> None:
    """S5: tombstones and foreign bytes included."""
    topic = new_topic(partitions=1)
    written = io.BytesIO()
    schema = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]}
    fastavro.schemaless_writer(written, fastavro.parse_schema(schema), {"id": 42})
    with Producer(bootstrap) as producer:
        for value in (written.getvalue(), None, b"\xff" * 12):
            producer.send(topic, value, key=b"k")
    run(spark, lake, bootstrap, topic, decode=Avro(AvroSchema(json.dumps(schema))))
    rows = lake.read(spark).orderBy("offset").select("id", "value").collect()
    assert [(row.id, row.value) for row in rows] == [
        (42, bytearray(written.getvalue())),
        (None, None),
        (None, bytearray(b"\xff" * 12)),
    ]


def test_avro_of_another_registry_id_is_not_decoded(
    spark: SparkSession, lake: Lake, bootstrap: str, new_topic: NewTopic
) -> None:
    """S5: the lake remembers the id of the first record; bytes of another one may decode into nonsense."""
    topic = new_topic(partitions=1)
    schema = json.dumps({"type": "record", "name": "R", "fields": [{"name": "id", "type": "long"}]})
    decode = Avro(AvroSchema(schema, Framing.REGISTRY))
    for number in (7, 8):
        with Producer(bootstrap) as producer:
            producer.send(topic, b"\0" + number.to_bytes(4, "big") + b"\x54")
        run(spark, lake, bootstrap, topic, decode=decode)
    rows = lake.read(spark).orderBy("offset").collect()
    assert [row.id for row in rows] == [42, None]


def test_small_files_are_merged_and_old_ones_swept(spark: SparkSession, lake: Lake) -> None:
    """S5: the same rows before, while and after; a reader of the old commit is not disturbed."""
    for number in range(5):
        day = spark.range(number, number + 1).selectExpr("id", "DATE'2026-11-15' AS date")
        lake.append(day, writer="w", batch=number)
    before = lake.read(spark)
    done = compact(lake, spark)
    assert (done.files_before, done.files_after, done.rows) == (5, 1, 5)
    assert len(done.snapshot.files) == 1
    assert sorted(row.id for row in before.collect()) == list(range(5))
    assert sorted(row.id for row in lake.read(spark).collect()) == list(range(5))
    assert sweep(lake) == 0
    (lake.path / "date=2026-11-15" / "left-by-a-killed-writer.parquet").write_bytes(b"")
    assert sweep(lake, kept_ms=0) == 5
    assert sweep(lake, kept_ms=0, orphans_kept_ms=0) == 1
    assert len(list(lake.path.glob("date=*/*.parquet"))) == 1
    assert sorted(row.id for row in lake.read(spark).collect()) == list(range(5))


def test_what_retention_took_before_it_was_archived_is_told(
    spark: SparkSession, lake: Lake, bootstrap: str, new_topic: NewTopic
) -> None:
    """S5: a gap is never silent, unless it is wanted."""
    topic = new_topic(partitions=1)
    send(bootstrap, topic, range(4))
    run(spark, lake, bootstrap, topic)
    send(bootstrap, topic, range(4, 10))
    with Admin(bootstrap) as admin:
        admin.delete_records({TopicPartition(topic, 0): 7})
    with pytest.raises(LakeError, match=f"{topic}-0: offsets 4 to 6 were deleted.*--skip-lost"):
        run(spark, lake, bootstrap, topic)
    assert run(spark, lake, bootstrap, topic, skip_lost=True) == 3


def test_a_folder_that_is_no_lake_is_left_alone(spark: SparkSession, tmp_path: Path) -> None:
    """S5: neither read nor written."""
    (tmp_path / "letters.txt").write_text("dear")
    with pytest.raises(LakeError, match="is not a lake; braid lake archive"):
        Lake(tmp_path).read(spark)
    with pytest.raises(LakeError, match="holds files and is not a lake"):
        Lake(tmp_path).append(spark.range(1).selectExpr("id", "current_date() AS date"))
    with pytest.raises(LakeError, match="--format iceberg or --format delta"):
        Lake("s3a://bucket/orders")


def test_rows_of_a_time_range_are_read_from_the_files_that_have_them(
    spark: SparkSession, lake: Lake, bootstrap: str, new_topic: NewTopic
) -> None:
    """S5: the footer says which; timestamps no calendar knows do not get in the way."""
    topic = new_topic(partitions=1, **{"message.timestamp.after.max.ms": str(2**63 - 1)})
    send(bootstrap, topic, range(4))
    run(spark, lake, bootstrap, topic, rows_per_commit=1)
    with Producer(bootstrap) as producer:
        producer.send(topic, b'{"id": 4}', timestamp_ms=10**15)
    run(spark, lake, bootstrap, topic)
    chosen = lake.read(spark, FIRST_MS + 1000, FIRST_MS + 3000)
    assert sorted(row.offset for row in chosen.collect()) == [1, 2]
    assert len(chosen.inputFiles()) == 2
    assert ids(spark, lake) == [0, 1, 2, 3, 4]
