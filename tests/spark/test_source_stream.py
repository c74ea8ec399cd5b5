"""Streams of topics through `spark.readStream.format("braid")`."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.spark.sentences import told

from braidmq.client import Admin
from braidmq.client.cluster import TopicPartition
from braidmq.client.groups import GroupAdmin
from braidmq.spark import lag

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

Fill = Callable[..., None]
NewTopic = Callable[..., str]


class Stream:
    """A query that remembers the values of each batch; started as often as one likes on one checkpoint."""

    def __init__(self, spark: SparkSession, bootstrap: str, checkpoint: Path) -> None:
        self._spark = spark
        self._bootstrap = bootstrap
        self._checkpoint = checkpoint
        self._running: StreamingQuery | None = None
        self.batches: list[list[bytes]] = []

    def start(self, topics: str, available_now: bool = False, **options: str) -> StreamingQuery:
        reader = self._spark.readStream.format("braid").option("bootstrap.servers", self._bootstrap)
        given = ({"subscribe": topics} if topics else {}) | {"startingOffsets": "earliest"} | options
        writer = reader.options(**given).load().writeStream.foreachBatch(self._remember)
        writer = writer.option("checkpointLocation", str(self._checkpoint))
        writer = (
            writer.trigger(availableNow=True) if available_now else writer.trigger(processingTime="0 seconds")
        )
        self._running = writer.start()
        return self._running

    def run(self, topics: str, **options: str) -> StreamingQuery:
        query = self.start(topics, available_now=True, **options)
        query.awaitTermination(60)
        return query

    def stop(self) -> None:
        if self._running is not None:
            self._running.stop()

    def _remember(self, rows: DataFrame, _number: int) -> None:
        self.batches.append(sorted(bytes(row.value) for row in rows.select("value").collect()))


@pytest.fixture
def stream(spark: SparkSession, bootstrap: str, tmp_path: Path) -> Iterator[Stream]:
    made = Stream(spark, bootstrap, tmp_path / "checkpoint")
    yield made
    made.stop()


def numbers(first: int, end: int) -> list[bytes]:
    return [b"%03d" % number for number in range(first, end)]


def test_a_stream_goes_on_where_its_checkpoint_ends(stream: Stream, new_topic: NewTopic, fill: Fill) -> None:
    """S2: available-now reads what is there and stops; the next run reads only what came since."""
    topic = new_topic(partitions=2)
    fill(topic, [b"a", b"b"], partition=0)

    stream.run(topic)
    fill(topic, [b"c"], partition=1)
    stream.run(topic)

    assert stream.batches == [[b"a", b"b"], [b"c"]]


def test_a_limit_cuts_batches_and_partitions_share_it(
    stream: Stream, new_topic: NewTopic, fill: Fill
) -> None:
    """S2: maxOffsetsPerTrigger, under available-now too."""
    topic = new_topic(partitions=2)
    fill(topic, numbers(0, 60), partition=0)
    fill(topic, numbers(60, 90), partition=1)

    stream.run(topic, maxOffsetsPerTrigger="30")

    assert [len(batch) for batch in stream.batches] == [30, 30, 30]
    assert sorted(value for batch in stream.batches for value in batch) == numbers(0, 90)
    assert sum(value < b"060" for value in stream.batches[0]) == 20


def test_a_limit_in_bytes_cuts_batches(stream: Stream, new_topic: NewTopic, fill: Fill) -> None:
    """S2: maxBytesPerTrigger, by the average stored size of records."""
    topic = new_topic()
    fill(topic, [b"%03d" % number + bytes(1000) for number in range(90)])

    stream.run(topic, maxBytesPerTrigger="31000")

    assert [len(batch) for batch in stream.batches][:2] == [30, 30]
    assert sum(map(len, stream.batches)) == 90


def test_new_partitions_and_topics_are_picked_up(
    stream: Stream, bootstrap: str, new_topic: NewTopic, fill: Fill
) -> None:
    """S2: by a pattern, from their first record on, while the query runs on one checkpoint."""
    topic = new_topic()
    fill(topic, [b"first"])
    run = stream.start("", subscribePattern=f"^{topic}(-more)?$")
    run.processAllAvailable()
    with Admin(bootstrap) as admin:
        admin.add_partitions(topic, 2)
        admin.create_topic(f"{topic}-more", 1)
    fill(topic, [b"second"], partition=1)
    run.processAllAvailable()
    fill(f"{topic}-more", [b"third"])
    run.processAllAvailable()

    assert stream.batches == [[b"first"], [b"second"], [b"third"]]


def test_positions_and_lag_are_there_for_others_to_see(
    stream: Stream, bootstrap: str, new_topic: NewTopic, fill: Fill
) -> None:
    """S2 C9: the group of the query has what was processed, the progress has the latest offset."""
    topic = new_topic()
    fill(topic, numbers(0, 10))

    run = stream.run(topic, groupId=f"{topic}-readers", maxOffsetsPerTrigger="4")

    with GroupAdmin(bootstrap) as groups:
        assert groups.committed(f"{topic}-readers") == {TopicPartition(topic, 0): 10}
    progress = [json.loads(each.json) for each in run.recentProgress]
    assert [each["sources"][0]["endOffset"][topic] for each in progress[:3]] == [
        {"0": end} for end in (4, 8, 10)
    ]
    assert [lag(each)[TopicPartition(topic, 0)] for each in progress[:3]] == [6, 2, 0]
    assert lag(run.lastProgress) == {TopicPartition(topic, 0): 0}


def test_a_stream_that_lost_records_fails_unless_told_otherwise(
    stream: Stream, bootstrap: str, new_topic: NewTopic, fill: Fill
) -> None:
    """S2: the topic was deleted and recreated while the query was stopped."""
    topic = new_topic()
    fill(topic, numbers(0, 10))
    stream.run(topic)
    with Admin(bootstrap) as admin:
        admin.delete_topic(topic)
        admin.create_topic(topic, 1)
    fill(topic, numbers(50, 53))

    with told("records from offset 10 on are gone"):
        stream.run(topic)
    stream.run(topic, failOnDataLoss="false")
    fill(topic, numbers(60, 62))
    stream.run(topic, failOnDataLoss="false")
    assert [batch for batch in stream.batches if batch] == [numbers(0, 10), numbers(50, 53), numbers(60, 62)]


def test_a_batch_waits_until_it_is_worth_it(stream: Stream, new_topic: NewTopic, fill: Fill) -> None:
    """S2: minOffsetsPerTrigger holds a batch back, but not the first, as in Spark's Kafka source."""
    topic = new_topic()
    fill(topic, numbers(0, 5))

    run = stream.start(topic, minOffsetsPerTrigger="8", maxTriggerDelay="1h")
    run.processAllAvailable()
    few = list(stream.batches)
    fill(topic, numbers(5, 10))
    run.processAllAvailable()
    waiting = list(stream.batches)
    fill(topic, numbers(10, 14))
    run.processAllAvailable()

    assert few == waiting == [numbers(0, 5)]
    assert stream.batches == [numbers(0, 5), numbers(5, 14)]


def test_mistakes_in_a_stream_are_told(stream: Stream, new_topic: NewTopic) -> None:
    """S2: a missing topic, and an option that only batches have."""
    with told("there is no topic 'nowhere'"):
        stream.run("nowhere")
    with told("endingOffsets has no meaning in a stream"):
        stream.run(new_topic(), endingOffsets="latest")
