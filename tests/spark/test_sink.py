"""Frames and streams written through Spark, and read by stock clients and by the source."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.spark.committed import committed
from tests.spark.sentences import told

from braidmq.client import Admin
from braidmq.testing import broker

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

NewTopic = Callable[..., str]
PARTITIONS = 3


def save(frame: DataFrame, bootstrap: str, topic: str | None, **options: str) -> None:
    writer = frame.write.format("braid").mode("append").option("kafka.bootstrap.servers", bootstrap)
    if topic is not None:
        writer = writer.option("topic", topic)
    writer.options(**options).save()


def test_a_frame_arrives_with_all_its_columns(
    spark: SparkSession, bootstrap: str, new_topic: NewTopic, topic_frame: Callable[..., DataFrame]
) -> None:
    """S3: key, value, partition, headers, timestamp, tag and delivery time, as a stock client sees them."""
    topic = new_topic(PARTITIONS)
    rows = spark.range(100).selectExpr(
        "CAST(id AS STRING) key",
        "IF(id % 10 = 0, NULL, CONCAT('value ', id)) value",
        "CAST(id % 3 AS INT) partition",
        "TIMESTAMP_MILLIS(1700000000000 + id) timestamp",
        "ARRAY(STRUCT('n' AS key, CAST('1' AS BINARY) AS value)) headers",
        "IF(id < 50, 'low', NULL) tag",
        "TIMESTAMP_MILLIS(1700000000000) deliverAt",
    )
    save(rows, bootstrap, topic)
    found = {int(message.key()): message for message in committed(bootstrap, topic, PARTITIONS)}
    assert found.keys() == set(range(100))
    for number, message in found.items():
        assert message.value() == (None if number % 10 == 0 else b"value %d" % number)
        assert message.partition() == number % 3
        assert message.timestamp() == (1, 1_700_000_000_000 + number)
        tag = [("braid.tag", b"low")] if number < 50 else []
        assert message.headers() == [("n", b"1"), *tag, ("braid.deliver-at", b"1700000000000")]
    tags = topic_frame(topic, includeTag="true").groupBy("tag").count().collect()
    assert {row.tag: row["count"] for row in tags} == {"low": 50, None: 50}


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_every_codec_is_readable_elsewhere(
    spark: SparkSession, bootstrap: str, new_topic: NewTopic, codec: str
) -> None:
    """S3 P3: the option is the one of Kafka's producer."""
    topic = new_topic(PARTITIONS)
    save(
        spark.range(2000).selectExpr("CAST(id AS STRING) value"),
        bootstrap,
        topic,
        **{"kafka.compression.type": codec},
    )
    assert Counter(int(m.value()) for m in committed(bootstrap, topic, PARTITIONS)) == Counter(range(2000))


def test_a_column_may_name_the_topic(spark: SparkSession, bootstrap: str, new_topic: NewTopic) -> None:
    """S3: rows of one frame go to several topics."""
    topics = [new_topic(1), new_topic(1)]
    rows = spark.createDataFrame([(topics[n % 2], str(n)) for n in range(10)], "topic string, value string")
    save(rows, bootstrap, None)
    for place, topic in enumerate(topics):
        values = sorted(int(m.value()) for m in committed(bootstrap, topic, 1))
        assert values == list(range(place, 10, 2))


def test_a_named_write_done_again_writes_nothing(
    spark: SparkSession, bootstrap: str, new_topic: NewTopic
) -> None:
    """S3: with the same writeId, also from another job with other tasks; another writeId is another write."""
    topic = new_topic(PARTITIONS)
    rows = spark.range(100).selectExpr("CAST(id AS STRING) value")
    save(rows, bootstrap, topic, writeId="nightly-1")
    save(rows.coalesce(1), bootstrap, topic, writeId="nightly-1")
    assert Counter(int(m.value()) for m in committed(bootstrap, topic, PARTITIONS)) == Counter(range(100))
    save(rows, bootstrap, topic, writeId="nightly-2")
    assert len(list(committed(bootstrap, topic, PARTITIONS))) == 200


def test_no_two_named_writes_are_taken_for_one(spark: SparkSession, bootstrap: str) -> None:
    """S3: wherever the name of a write ends and that of its topic begins."""
    rows = spark.createDataFrame([("one",)], "value STRING")
    with Admin(bootstrap) as admin:
        for topic in ("bills", "eu-bills"):
            admin.create_topic(topic, 1)
    save(rows, bootstrap, "eu-bills", writeId="daily")
    save(rows, bootstrap, "bills", writeId="daily-eu")

    assert [len(list(committed(bootstrap, topic, 1))) for topic in ("bills", "eu-bills")] == [1, 1]


@pytest.mark.parametrize("acks", ["all", "1", "0"])
def test_at_least_once_needs_no_transactions(
    spark: SparkSession, bootstrap: str, new_topic: NewTopic, acks: str
) -> None:
    """S3: rows are there when the write returns, or with acks=0 a moment later."""
    topic = new_topic(PARTITIONS)
    rows = spark.range(1000).selectExpr("CAST(id AS STRING) value")
    save(rows, bootstrap, topic, deliveryGuarantee="at-least-once", acks=acks)
    seen: Counter[int] = Counter()
    while sum(seen.values()) < 1000:
        seen = Counter(int(m.value()) for m in committed(bootstrap, topic, PARTITIONS))
    assert seen == Counter(range(1000))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kafka.bootstrap.servers": "127.0.0.1:1"}, "cannot reach 127.0.0.1:1.*is a broker running there"),
        ({"compresion.type": "lz4"}, "did you mean 'compression.type'"),
        ({"topic": "a b"}, "is not a topic name"),
    ],
)
def test_mistakes_are_reported_by_the_driver(
    spark: SparkSession, bootstrap: str, options: dict[str, str], message: str
) -> None:
    """S3: before a task runs."""
    given = {"kafka.bootstrap.servers": bootstrap, "topic": "t"} | options
    with told(message):
        spark.range(1).selectExpr("CAST(id AS STRING) value").write.format("braid").options(**given).mode(
            "append"
        ).save()


def test_a_topic_that_is_not_there_and_not_made_is_reported(spark: SparkSession) -> None:
    """S3: with the command that makes it."""
    with (
        broker(auto_create_topics_enable=False) as strict,
        told("topic 'nope' does not exist.*braid topic create nope"),
    ):
        save(
            spark.range(1).selectExpr("'x' AS value"),
            strict.bootstrap,
            "nope",
            **{"request.timeout.ms": "1000"},
        )


def test_a_row_that_is_too_large_is_refused_and_nothing_of_the_write_is_seen(
    spark: SparkSession, bootstrap: str, new_topic: NewTopic
) -> None:
    """S3 P5: the message says which option to raise; rows of other tasks are not visible."""
    topic = new_topic(PARTITIONS)
    rows = spark.range(0, 10, 1, 2).selectExpr("IF(id = 9, REPEAT('x', 2000000), 'small') value")
    with told("more than max.request.size"):
        save(rows, bootstrap, topic)
    assert list(committed(bootstrap, topic, PARTITIONS)) == []


def run_stream(
    spark: SparkSession, bootstrap: str, source: str, sink: str, checkpoint: Path, **options: Any
) -> None:
    """Everything there is now from one topic to another, some hundred rows to a batch."""
    stream = (
        spark.readStream.format("braid").option("bootstrap.servers", bootstrap).option("subscribe", source)
    )
    frame = stream.options(startingOffsets="earliest", maxOffsetsPerTrigger="150").load()
    writer = frame.select("key", "value").writeStream.format("braid").option("bootstrap.servers", bootstrap)
    writer.options(topic=sink, checkpointLocation=str(checkpoint), **options).trigger(
        availableNow=True
    ).start().awaitTermination()


def test_a_stream_from_topic_to_topic_writes_every_row_once(
    spark: SparkSession, bootstrap: str, new_topic: NewTopic, fill: Callable[..., None], tmp_path: Path
) -> None:
    """S3 S2: over several batches, and again from the checkpoint when more has come."""
    source, sink = new_topic(2), new_topic(PARTITIONS)
    for round_number in range(2):
        for partition in range(2):
            fill(
                source, [b"%d.%d.%d" % (round_number, partition, n) for n in range(250)], partition=partition
            )
        run_stream(spark, bootstrap, source, sink, tmp_path / "checkpoint")
    sent = Counter(b"%d.%d.%d" % (r, p, n) for r in range(2) for p in range(2) for n in range(250))
    assert Counter(m.value() for m in committed(bootstrap, sink, PARTITIONS)) == sent


def test_a_batch_whose_commit_spark_did_not_note_is_not_written_again(
    spark: SparkSession, bootstrap: str, new_topic: NewTopic, fill: Callable[..., None], tmp_path: Path
) -> None:
    """S3: the driver died between the sink's commit and its own, and the batch is run again."""
    source, sink = new_topic(1), new_topic(PARTITIONS)
    fill(source, [b"%d" % number for number in range(400)])
    checkpoint = tmp_path / "checkpoint"
    run_stream(spark, bootstrap, source, sink, checkpoint)
    last = max(
        (path for path in (checkpoint / "commits").iterdir() if path.name.isdigit()),
        key=lambda p: int(p.name),
    )
    last.unlink()
    (checkpoint / "commits" / f".{last.name}.crc").unlink(missing_ok=True)
    run_stream(spark, bootstrap, source, sink, checkpoint)
    assert Counter(int(m.value()) for m in committed(bootstrap, sink, PARTITIONS)) == Counter(range(400))


@pytest.mark.parametrize("number", [0, 1])
def test_the_examples_of_the_page_run(spark: SparkSession, number: int, tmp_path: Path) -> None:
    """S3 O1: as they stand, against a broker of their own."""
    text = (Path(__file__).parents[2] / "docs" / "use" / "spark-sink.md").read_text(encoding="utf-8")
    code = re.findall(r"^```py\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)[number]
    assert spark is not None
    with broker() as running:
        exec(code.replace("127.0.0.1:9092", running.bootstrap).replace("CHECKPOINT", str(tmp_path)), {})
        topic = ("bills", "reports")[number]
        with Admin(running.bootstrap) as admin:
            partitions = len(admin.partition_indexes(topic))
        found = list(committed(running.bootstrap, topic, partitions))
    assert len(found) == (1000, 100)[number]


def test_a_group_shows_how_far_the_sink_is(
    spark: SparkSession, bootstrap: str, new_topic: NewTopic, fill: Callable[..., None], tmp_path: Path
) -> None:
    """S3: the ledger is a group like any other, named after the query; nothing else is left behind."""
    source, sink = new_topic(1), new_topic(PARTITIONS)
    fill(source, [b"x"])
    run_stream(spark, bootstrap, source, sink, tmp_path / "checkpoint", transactionalIdPrefix=f"mine-{sink}")
    from braidmq.client.groups import GroupAdmin

    with GroupAdmin(bootstrap) as groups, Admin(bootstrap) as admin:
        names = [group.group_id for group in groups.all() if group.group_id.startswith(f"mine-{sink}")]
        assert len(names) == 1
        assert set(groups.committed(names[0]).values()) == {0}
        assert admin.partition_indexes(sink) == [0, 1, 2]
