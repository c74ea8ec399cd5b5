"""`braidmq.spark.read`: a query gets what it uses, and the same rows as through `format("braid")`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Producer as TransactionalProducer
from tests.spark.sentences import told

from braidmq.client import Admin, Producer
from braidmq.client.cluster import TopicPartition
from braidmq.client.errors import Unreachable
from braidmq.spark import read
from braidmq.spark.options import OptionError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Fill = Callable[..., None]
NewTopic = Callable[..., str]
TopicFrame = Callable[..., "DataFrame"]
PARTITIONS = 2


@pytest.fixture
def topic(new_topic: NewTopic, fill: Fill) -> str:
    """300 records, three to one in two partitions."""
    made = new_topic(partitions=PARTITIONS)
    fill(made, [b"%03d" % number for number in range(225)], partition=0)
    fill(made, [b"%03d" % number for number in range(225, 300)], partition=1)
    return made


def rows(frame: DataFrame) -> list[tuple[object, ...]]:
    return sorted(map(tuple, frame.collect()))


def scanned(frame: DataFrame) -> str:
    """The line of the plan that says which columns are read."""
    plan = frame._jdf.queryExecution().executedPlan().toString()
    return next(line for line in plan.splitlines() if "Scan braid " in line)


@pytest.mark.parametrize("schema", [None, "offset bigint, value binary, partition int"])
def test_the_rows_are_those_of_the_format(
    spark: SparkSession, bootstrap: str, topic: str, topic_frame: TopicFrame, schema: str | None
) -> None:
    """S1: by what a query uses, and by the columns that are named; cut into tasks as asked for."""
    frame = read(spark, bootstrap, topic, schema=schema, minPartitions=4)

    columns = ("partition", "offset", "value")
    assert rows(frame.select(*columns)) == rows(topic_frame(topic).select(*columns))
    assert frame.rdd.getNumPartitions() == 4


def test_only_columns_that_a_query_uses_are_read(spark: SparkSession, bootstrap: str, topic: str) -> None:
    """S1: in DataFrames, in SQL over a view, and of columns with parts."""
    frame = read(spark, bootstrap, topic, includeHeaders=True)
    frame.createOrReplaceTempView("bulk")

    assert frame.columns[-1] == "headers"
    for used, query in (
        ("[value#,offset#L]", frame.select("offset", "value").where("value > 'x'")),
        ("[key#,timestamp#]", spark.sql("SELECT MAX(timestamp) FROM bulk WHERE key IS NULL")),
        ("[headers#]", frame.select("headers.key")),
        ("[count(*)#L]", spark.sql("SELECT COUNT(*) FROM bulk")),
        ("[partition#]", frame.selectExpr("1 AS one")),
    ):
        plain = "".join(each for each in scanned(query).partition("bulk")[0] if not each.isdigit())
        assert used in plain, plain


def test_rows_are_counted_without_being_read(
    spark: SparkSession, bootstrap: str, topic: str, new_topic: NewTopic
) -> None:
    """S1: of all partitions, by partition, within ranges, and where there is nothing to count."""
    frame = read(spark, bootstrap, topic)

    assert (frame.count(), frame.where("offset >= 70").count()) == (300, 160)
    assert rows(frame.groupBy("partition").count()) == [(0, 225), (1, 75)]
    assert rows(frame.groupBy("topic", "timestampType").count()) == [(topic, 0, 300)]
    assert rows(frame.groupBy((frame.partition + 1).alias("next")).count()) == [(1, 225), (2, 75)]
    assert rows(frame.selectExpr("COUNT(*)", "MAX(offset)", "COUNT(DISTINCT partition)")) == [(300, 224, 2)]
    starting, ending = f'{{"{topic}":{{"0":7,"1":20}}}}', f'{{"{topic}":{{"0":9,"1":70}}}}'
    assert read(spark, bootstrap, topic, startingOffsets=starting, endingOffsets=ending).count() == 52
    empty = read(spark, bootstrap, new_topic())
    assert (empty.count(), rows(empty.groupBy("partition").count())) == (0, [])


def test_aborted_records_do_not_count(spark: SparkSession, bootstrap: str, new_topic: NewTopic) -> None:
    """S1: a partition with nothing but an aborted transaction counts zero, not null."""
    topic = new_topic()
    producer = TransactionalProducer({"bootstrap.servers": bootstrap, "transactional.id": f"{topic}-writer"})
    producer.init_transactions(10)
    producer.begin_transaction()
    producer.produce(topic, b"dropped")
    producer.flush()
    producer.abort_transaction(10)

    committed = read(spark, bootstrap, topic, isolation="read_committed")
    assert (committed.count(), rows(committed.groupBy("partition").count())) == (0, [])
    assert read(spark, bootstrap, topic).count() == 1


def test_filters_narrow_one_query_and_not_the_next(spark: SparkSession, bootstrap: str, topic: str) -> None:
    """S1: pushed down for each query by itself, in every version of Spark."""
    frame = read(spark, bootstrap, topic)

    few = frame.where("partition = 1 AND offset >= 10 AND offset < 13")
    assert rows(few.select("offset")) == [(10,), (11,), (12,)]
    assert few.rdd.getNumPartitions() == 1
    assert frame.count() == 300
    both = frame.where("partition = 0 AND offset = 7").union(frame.where("value = '299'"))
    assert rows(both.select("partition", "offset")) == [(0, 7), (1, 74)]
    unpushed = read(spark, bootstrap, topic, pushdown="never").where("partition = 1")
    assert (unpushed.count(), "PushedFilters: []" in scanned(unpushed)) == (75, True)


@pytest.mark.parametrize("new_times", ["true", "false"], ids=["Instant", "Timestamp"])
def test_what_is_pushed_down_means_the_same_in_python(
    spark: SparkSession, bootstrap: str, new_topic: NewTopic, new_times: str
) -> None:
    """S1: numbers, lists and times, in either of Spark's classes; what has no like is left to Spark."""
    topic = new_topic(partitions=2)
    noon_ms = 1_700_049_600_123
    with Producer(bootstrap) as producer:
        for number in range(10):
            at_ms = noon_ms + 1000 * number
            producer.send(topic, b"%d" % number, partition=number % 2, timestamp_ms=at_ms)
    frame = read(spark, bootstrap, topic)
    spark.conf.set("spark.sql.datetime.java8API.enabled", new_times)
    try:
        late = frame.where("timestamp >= timestamp_micros(1700049606123000)").select("offset", "timestamp")
        one = frame.where("timestamp = timestamp_micros(1700049601123000)").select("value", "timestamp")
        some = frame.where("partition IN (1, 7) AND offset IN (0, 4) AND NOT value = '9'")
        none = frame.where("timestamp > timestamp'9999-12-31' OR key = 'x'")

        assert "GreaterThanOrEqual(timestamp,2023-11-15" in scanned(late)
        assert late.count() == 4
        assert [bytes(row.value) for row in one.collect()] == [b"1"]
        assert "PushedFilters: [In(partition, [1,7]), In(offset, [0,4])]" in scanned(some)
        assert [bytes(row.value) for row in some.collect()] == [b"1"]
        assert "PushedFilters: []" in scanned(none)
        assert none.count() == 0
    finally:
        spark.conf.unset("spark.sql.datetime.java8API.enabled")


def test_a_query_that_cannot_be_planned_says_why(spark: SparkSession, bootstrap: str, topic: str) -> None:
    """S1: what was lost since the frame was made is told in a sentence, not as an error of Spark's own."""
    frame = read(spark, bootstrap, topic)
    with Admin(bootstrap) as admin:
        admin.delete_records({TopicPartition(topic, 0): 4})

    with told(f"{topic}-0: records from offset 0 on are gone; the partition now begins at 4"):
        frame.select("key").collect()
    with told("failOnDataLoss"):
        frame.count()
    assert read(spark, bootstrap, topic).count() == 296


def test_all_queries_see_the_records_of_one_moment(
    spark: SparkSession, bootstrap: str, topic: str, fill: Fill
) -> None:
    """S1: what comes later belongs to the next frame; a frame joined with itself fits together."""
    frame = read(spark, bootstrap, topic)
    fill(topic, [b"late"], partition=0)

    assert frame.count() == 300
    assert frame.join(frame.select("partition", "offset"), ["partition", "offset"]).count() == 300
    assert read(spark, bootstrap, topic).count() == 301


def test_a_cached_frame_is_found_again(spark: SparkSession, bootstrap: str, topic: str) -> None:
    """S1: the same frame is the same table to Spark, another one is not."""
    frame, other = read(spark, bootstrap, topic), read(spark, bootstrap, topic)
    frame.cache()
    try:
        assert frame.count() == 300
        assert "InMemoryTableScan" in frame.select("key")._jdf.queryExecution().executedPlan().toString()
        assert "[key#" in scanned(other.select("key"))
    finally:
        frame.unpersist(blocking=True)


def test_mistakes_are_told_when_the_frame_is_made(
    spark: SparkSession, bootstrap: str, new_topic: NewTopic
) -> None:
    """S1: not only when it is used; a pattern without a match is an empty table, as for the format."""
    with pytest.raises(OptionError, match="there is no topic 'nowhere'"):
        read(spark, bootstrap, "nowhere")
    with pytest.raises(OptionError, match="no option 'startingOfset'; did you mean 'startingOffsets'"):
        read(spark, bootstrap, new_topic(), startingOfset="earliest")
    with pytest.raises(Unreachable, match=r"cannot reach 127\.0\.0\.1:1"):
        read(spark, "127.0.0.1:1", "orders")
    nothing = read(spark, bootstrap, subscribePattern="no-such-topic-.*")
    assert (nothing.columns[:2], nothing.count()) == (["key", "value"], 0)


def test_every_part_of_a_record_is_there(spark: SparkSession, bootstrap: str, new_topic: NewTopic) -> None:
    """S1: headers, tag and message id come where they are asked for, alone or with others."""
    topic = new_topic()
    headers = [("a", b"1"), ("braid.tag", b"red"), ("braid.id", b"42")]
    with Producer(bootstrap) as producer:
        producer.send(topic, b"v", key=b"k", headers=headers)
    frame = read(spark, bootstrap, topic, includeHeaders=True, includeTag=True)

    assert rows(frame.select("tag", "messageId", "key")) == [("red", "42", bytearray(b"k"))]
    assert rows(frame.selectExpr("headers.key[0]", "headers[0].value")) == [("a", bytearray(b"1"))]
    assert rows(frame.where("tag = 'blue'")) == []
