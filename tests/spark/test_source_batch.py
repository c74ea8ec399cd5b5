"""Batch reads of topics through `spark.read.format("braid")`."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import TYPE_CHECKING

from confluent_kafka import Producer as TransactionalProducer
from tests.spark.sentences import told

from braidmq.client import Admin, Producer
from braidmq.client.cluster import TopicPartition

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Fill = Callable[..., None]
NewTopic = Callable[..., str]
TopicFrame = Callable[..., "DataFrame"]


def found(frame: DataFrame) -> list[bytes]:
    return sorted(bytes(row.value) for row in frame.select("value").collect())


def test_a_topic_is_a_table(new_topic: NewTopic, fill: Fill, topic_frame: TopicFrame) -> None:
    """S1: all records of all partitions, with the columns of Spark's Kafka source."""
    topic = new_topic(partitions=2)
    fill(topic, [b"zero", b"one"], partition=0)
    fill(topic, [b"two"], partition=1)

    frame = topic_frame(topic)

    assert frame.schema.simpleString() == (
        "struct<key:binary,value:binary,topic:string,partition:int,offset:bigint,timestamp:timestamp,"
        "timestampType:int>"
    )
    rows = sorted((row.partition, row.offset, bytes(row.value), row.topic) for row in frame.collect())
    assert rows == [(0, 0, b"zero", topic), (0, 1, b"one", topic), (1, 0, b"two", topic)]


def test_every_part_of_a_record_has_its_column(
    bootstrap: str, new_topic: NewTopic, topic_frame: TopicFrame
) -> None:
    """S1: keys, nulls, times, headers, tag and message id."""
    topic = new_topic()
    with Producer(bootstrap) as producer:
        headers = [("a", b"1"), ("a", None), ("braid.tag", b"red"), ("braid.id", b"42")]
        producer.send(topic, b"v", key=b"k", headers=headers, timestamp_ms=1_700_000_000_123)
        producer.send(topic, None, timestamp_ms=0)

    full, bare = topic_frame(topic, includeHeaders="true", includeTag="true").orderBy("offset").collect()

    assert [(row.key, None if row.value is None else bytes(row.value)) for row in (full, bare)] == [
        (bytearray(b"k"), b"v"),
        (None, None),
    ]
    assert full.timestamp == datetime.fromtimestamp(1_700_000_000.123)
    assert [(each.key, each.value) for each in full.headers][:2] == [("a", bytearray(b"1")), ("a", None)]
    assert (full.tag, full.messageId, full.timestampType) == ("red", "42", 0)
    assert (bare.headers, bare.tag, bare.messageId) == (None, None, None)


def test_the_timestamp_type_is_told(new_topic: NewTopic, fill: Fill, topic_frame: TopicFrame) -> None:
    """S1: 1 where the broker stamps records."""
    topic = new_topic(**{"message.timestamp.type": "LogAppendTime"})
    fill(topic, [b"x"])

    assert [row.timestampType for row in topic_frame(topic).collect()] == [1]


def test_a_schema_prunes_columns(
    spark: SparkSession, bootstrap: str, new_topic: NewTopic, fill: Fill
) -> None:
    """S1: `.schema` names the columns that are read, in its order; others and other types are refused."""
    topic = new_topic()
    fill(topic, [b"x"])
    reader = spark.read.format("braid").option("bootstrap.servers", bootstrap).option("subscribe", topic)

    rows = reader.schema("offset bigint, value binary").load().collect()
    assert [tuple(row) for row in rows] == [(0, bytearray(b"x"))]
    with told("a topic has no column 'amount'; its columns are key, value"):
        reader.schema("amount int").load().collect()
    with told("column value of a topic is binary, not string; cast it"):
        reader.schema("value string").load().collect()
    with told("column value of a topic is nullable; leave out NOT NULL"):
        reader.schema("value binary NOT NULL").load().collect()


def test_offsets_and_times_bound_a_batch(
    bootstrap: str, new_topic: NewTopic, topic_frame: TopicFrame
) -> None:
    """S1: by partition, with -1 and -2; by one time for all; by times of each partition."""
    topic = new_topic(partitions=2)
    with Producer(bootstrap) as producer:
        for number in range(10):
            producer.send(topic, b"%d" % number, partition=0, timestamp_ms=1000 * number)
        producer.send(topic, b"other", partition=1, timestamp_ms=2000)

    by_offset = topic_frame(
        topic,
        startingOffsets=f'{{"{topic}":{{"0":7,"1":-2}}}}',
        endingOffsets=f'{{"{topic}":{{"0":9,"1":-1}}}}',
    )
    assert found(by_offset) == [b"7", b"8", b"other"]
    by_time = topic_frame(
        topic,
        startingTimestamp="4000",
        endingTimestamp="6000",
        startingOffsetsByTimestampStrategy="latest",
    )
    assert found(by_time) == [b"4", b"5"]
    by_times = topic_frame(
        topic,
        startingOffsetsByTimestamp=f'{{"{topic}":{{"0":8500,"1":0}}}}',
        endingOffsetsByTimestamp=f'{{"{topic}":{{"0":99999,"1":99999}}}}',
    )
    assert found(by_times) == [b"9", b"other"]
    with told("has no record at or after 99999 ms; to begin at its end"):
        topic_frame(topic, startingTimestamp="99999").collect()


def test_topics_by_pattern_and_partitions_by_hand(
    spark: SparkSession, bootstrap: str, new_topic: NewTopic, fill: Fill
) -> None:
    """S1: subscribePattern and assign."""
    one, two = new_topic(partitions=2), new_topic()
    fill(one, [b"one"], partition=1)
    fill(two, [b"two"])
    reader = spark.read.format("braid").option("bootstrap.servers", bootstrap)

    assert found(reader.option("subscribePattern", f"^({one}|{two})$").load()) == [b"one", b"two"]
    assigned = spark.read.format("braid").option("bootstrap.servers", bootstrap)
    assert found(assigned.option("assign", f'{{"{one}":[1]}}').load()) == [b"one"]
    with told(f"{one}-5 does not exist; topic {one} has 2 partitions"):
        assigned.option("assign", f'{{"{one}":[5]}}').load().collect()


def test_a_partition_is_split_into_tasks(new_topic: NewTopic, fill: Fill, topic_frame: TopicFrame) -> None:
    """S1: as many as asked for; together they read each record once."""
    topic = new_topic()
    fill(topic, [b"%04d" % number for number in range(1000)])

    frame = topic_frame(topic, minPartitions="4")

    assert frame.rdd.getNumPartitions() == 4
    assert found(frame) == [b"%04d" % number for number in range(1000)]


def test_filters_reach_the_source(new_topic: NewTopic, fill: Fill, topic_frame: TopicFrame) -> None:
    """S1: where that is asked for, only what a filter keeps is read, with the same rows as without."""
    topic = new_topic(partitions=2)
    fill(topic, [b"%02d" % number for number in range(50)], partition=0)
    fill(topic, [b"other"], partition=1)

    def chosen(condition: str) -> DataFrame:
        return topic_frame(topic, pushdown="always").where(condition)

    few = chosen("partition = 0 and offset >= 10 and offset < 13 and timestamp > '2020-01-01'")
    assert (found(few), few.rdd.getNumPartitions()) == ([b"10", b"11", b"12"], 1)
    assert found(chosen("offset = 49 or value = 'other'")) == [b"49", b"other"]
    assert found(chosen("timestamp < '2020-01-01'")) == []


def test_a_frame_may_be_used_again_with_another_filter(
    new_topic: NewTopic, fill: Fill, topic_frame: TopicFrame
) -> None:
    """S1: a pushed filter must not stay behind in the frame, as it does in Spark up to 4.3."""
    topic = new_topic()
    fill(topic, [b"%02d" % number for number in range(50)])
    frame = topic_frame(topic)

    assert found(frame.where("offset = 7")) == [b"07"]
    assert frame.count() == 50
    assert found(frame.where("offset = 7").union(frame.where("offset = 9"))) == [b"07", b"09"]


def test_the_log_on_this_machine_is_read_without_the_broker(
    new_topic: NewTopic, fill: Fill, topic_frame: TopicFrame
) -> None:
    """S1: localLog always, auto and never give the same rows."""
    topic = new_topic(partitions=2)
    fill(topic, [b"%04d" % number for number in range(500)])

    frames = [topic_frame(topic, localLog=way) for way in ("always", "auto", "never")]

    assert [found(frame) for frame in frames] == [[b"%04d" % number for number in range(500)]] * 3


def test_aborted_records_are_not_read_with_read_committed(
    bootstrap: str, new_topic: NewTopic, topic_frame: TopicFrame
) -> None:
    """S1: committed and undecided transactions are told apart, over the network and from the disk."""
    topic = new_topic()
    producer = TransactionalProducer({"bootstrap.servers": bootstrap, "transactional.id": f"{topic}-writer"})
    producer.init_transactions(10)
    for value, commits in ((b"kept", True), (b"dropped", False), (b"also kept", True)):
        producer.begin_transaction()
        producer.produce(topic, value)
        producer.flush()
        if commits:
            producer.commit_transaction(10)
        else:
            producer.abort_transaction(10)

    for way in ("auto", "never"):
        committed = topic_frame(topic, isolation="read_committed", localLog=way)
        assert found(committed) == [b"also kept", b"kept"]
    assert found(topic_frame(topic)) == [b"also kept", b"dropped", b"kept"]


def test_records_that_are_gone_are_a_failure_unless_told_otherwise(
    bootstrap: str, new_topic: NewTopic, fill: Fill, topic_frame: TopicFrame
) -> None:
    """S1: retention has overtaken the offsets that were asked for."""
    topic = new_topic()
    fill(topic, [b"%d" % number for number in range(6)])
    with Admin(bootstrap) as admin:
        admin.delete_records({TopicPartition(topic, 0): 4})
    starting = f'{{"{topic}":{{"0":1}}}}'

    with told("from offset 1 on are gone; the partition now begins at 4"):
        topic_frame(topic, startingOffsets=starting).collect()
    lenient = topic_frame(topic, startingOffsets=starting, failOnDataLoss="false")
    assert found(lenient) == [b"4", b"5"]


def test_mistakes_are_told_in_the_driver(
    spark: SparkSession, topic_frame: TopicFrame, new_topic: NewTopic
) -> None:
    """S1: a missing topic, a wrong option, a broker that is not there."""
    with told(r"there is no topic 'nowhere' at 127\.0\.0\.1:"):
        topic_frame("nowhere").collect()
    with told("no option 'startingofset'; did you mean 'startingOffsets'"):
        topic_frame(new_topic(), startingOfset="earliest").collect()
    nobody = spark.read.format("braid").option("bootstrap.servers", "127.0.0.1:1").option("subscribe", "x")
    with told(r"cannot reach 127\.0\.0\.1:1: Connection refused; is a broker running"):
        nobody.load().collect()


def test_topics_are_not_made_by_reading(bootstrap: str, topic_frame: TopicFrame) -> None:
    """S1: a misspelt name must not become a topic."""
    with told("there is no topic 'misspelt'"):
        topic_frame("misspelt").collect()

    with Admin(bootstrap) as admin:
        assert "misspelt" not in [topic.name for topic in admin.describe_topics()]
