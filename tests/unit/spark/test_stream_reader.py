"""What the driver's side of a stream answers when Spark asks; no Spark session is needed."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

pytest.importorskip("pyspark")

from pyspark.sql.streaming.datasource import ReadAllAvailable

from braidmq.client import Admin, Producer
from braidmq.client.cluster import TopicPartition
from braidmq.spark.source.data_loss import RecordsLost
from braidmq.spark.source.positions import TopicMissing
from braidmq.spark.source.query import parse_query
from braidmq.spark.source.splits import ReadTask
from braidmq.spark.source.stream_reader import IDS, Json, StreamReader

NewTopic = Callable[..., str]
MakeReader = Callable[..., StreamReader]
EVERYTHING = ReadAllAvailable()


@pytest.fixture
def reader(bootstrap: str) -> Iterator[MakeReader]:
    made: list[StreamReader] = []

    def make(**options: str) -> StreamReader:
        given = {"bootstrap.servers": bootstrap, "groupId": ""} | options
        made.append(StreamReader(parse_query(given, streaming=True), ("value",)))
        return made[-1]

    yield make
    for each in made:
        each.stop()


def send(bootstrap: str, topic: str, count: int) -> None:
    with Producer(bootstrap) as producer:
        for number in range(count):
            producer.send(topic, b"%d" % number, partition=0)


def make_anew(bootstrap: str, topic: str, count: int) -> None:
    with Admin(bootstrap) as admin:
        admin.delete_topic(topic)
        admin.create_topic(topic, 1)
    send(bootstrap, topic, count)


def offsets(written: Json) -> Json:
    """Without the ids of topics."""
    return {topic: partitions for topic, partitions in written.items() if topic != IDS}


def rows(reader: StreamReader, start: Json, end: Json) -> int:
    planned = reader.partitions(start, end)
    return sum(
        batch.num_rows for task in planned if isinstance(task, ReadTask) for batch in reader.read(task)
    )


def test_what_is_available_now_is_never_less_than_where_a_query_begins(
    bootstrap: str, new_topic: NewTopic, reader: MakeReader
) -> None:
    """S2: records may come between Spark's announcement and its question where to begin."""
    topic = new_topic()
    send(bootstrap, topic, 10)
    stream = reader(subscribe=topic)

    stream.prepareForTriggerAvailableNow()
    send(bootstrap, topic, 5)
    start = stream.initialOffset()
    end = stream.latestOffset(start, EVERYTHING)
    send(bootstrap, topic, 5)

    assert start == end
    assert offsets(end) == {topic: {"0": 15}}
    assert stream.latestOffset(end, EVERYTHING) == end


@pytest.mark.parametrize("count", [4, 10, 25])
def test_a_topic_that_was_recreated_is_known_by_its_id(
    bootstrap: str, new_topic: NewTopic, reader: MakeReader, count: int
) -> None:
    """S2: a loss, also where it is as long as the old one or longer; failOnDataLoss=false reads all of it."""
    topic = new_topic()
    send(bootstrap, topic, 10)
    old = reader(subscribe=topic).initialOffset() | {topic: {"0": 10}}
    make_anew(bootstrap, topic, count)

    with pytest.raises(
        RecordsLost,
        match=r"from offset 10 on .* gone\. The topic was deleted and recreated\. To read",
    ) as told:
        reader(subscribe=topic).latestOffset(old, EVERYTHING)
    assert "retention" not in str(told.value)
    stream = reader(subscribe=topic, failOnDataLoss="false")
    end = stream.latestOffset(old, EVERYTHING)
    assert offsets(end) == {topic: {"0": count}}
    assert rows(stream, old, end) == count
    assert rows(reader(subscribe=topic, failOnDataLoss="false"), old, end) == count
    send(bootstrap, topic, 3)
    assert rows(stream, end, stream.latestOffset(end, EVERYTHING)) == 3


def test_a_batch_of_a_topic_that_was_recreated_is_lost_as_a_whole(
    bootstrap: str, new_topic: NewTopic, reader: MakeReader
) -> None:
    """S2: it was planned before; the records that now have its offsets are others."""
    topic = new_topic()
    send(bootstrap, topic, 30)
    start = reader(subscribe=topic).initialOffset()
    logged = (start | {topic: {"0": 15}}, start | {topic: {"0": 30}})
    make_anew(bootstrap, topic, 40)

    with pytest.raises(RecordsLost, match=r"from offset 15 on .* deleted and recreated"):
        rows(reader(subscribe=topic), *logged)
    stream = reader(subscribe=topic, failOnDataLoss="false")
    assert rows(stream, *logged) == 0
    assert rows(stream, logged[1], stream.latestOffset(logged[1], EVERYTHING)) == 40


def test_a_topic_that_is_shorter_than_it_was_is_gone_on_with_from_its_end(
    bootstrap: str, new_topic: NewTopic, reader: MakeReader
) -> None:
    """S2: failOnDataLoss=false, from a checkpoint that knows no ids; what comes from then on is read."""
    topic = new_topic()
    send(bootstrap, topic, 30)
    make_anew(bootstrap, topic, 4)
    stream = reader(subscribe=topic, failOnDataLoss="false")
    old = {topic: {"0": 30}}

    end = stream.latestOffset(old, EVERYTHING)
    assert offsets(end) == {topic: {"0": 4}}
    assert rows(stream, old, end) == 0
    send(bootstrap, topic, 3)
    later = stream.latestOffset(end, EVERYTHING)

    assert rows(stream, end, later) == 3
    with pytest.raises(RecordsLost, match=r"from offset 30 on .* now ends at 7"):
        reader(subscribe=topic).latestOffset(old, EVERYTHING)


def test_a_batch_that_was_planned_before_its_topic_was_recreated_can_be_got_past(
    bootstrap: str, new_topic: NewTopic, reader: MakeReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S2: of the logged range some offsets are there; those that are not are a loss, and that is all."""
    monkeypatch.setattr("braidmq.spark.source.fetch.WATERMARK_PATIENCE_S", 0.0)
    topic = new_topic()
    send(bootstrap, topic, 30)
    make_anew(bootstrap, topic, 20)
    logged = ({topic: {"0": 15}}, {topic: {"0": 30}})

    assert rows(reader(subscribe=topic, failOnDataLoss="false", localLog="never"), *logged) == 5
    with pytest.raises(RecordsLost, match=r"from offset 20 on .* now ends at 20"):
        rows(reader(subscribe=topic, localLog="never"), *logged)


def grown(bootstrap: str, topic: str, total: int, count: int) -> None:
    """A topic with one more partition, and records in it."""
    with Admin(bootstrap) as admin, Producer(bootstrap) as producer:
        admin.add_partitions(topic, total)
        for number in range(count):
            producer.send(topic, b"%d" % number, partition=total - 1)


def trim(bootstrap: str, topic: str, partition: int, before: int) -> None:
    with Admin(bootstrap) as admin:
        admin.delete_records({TopicPartition(topic, partition): before})


def test_a_new_partition_begins_where_it_did_when_its_batch_is_planned_again(
    bootstrap: str, new_topic: NewTopic, reader: MakeReader
) -> None:
    """S2: what retention took between the two is a loss, and failOnDataLoss=false goes on with the rest."""
    topic = new_topic(partitions=1)
    stream = reader(subscribe=topic, startingOffsets="earliest")
    start = stream.initialOffset()
    grown(bootstrap, topic, 2, 10)
    end = stream.latestOffset(start, EVERYTHING)
    assert offsets(end) == {topic: {"0": 0, "1": 10}}
    assert rows(reader(subscribe=topic), start, end) == 10

    trim(bootstrap, topic, 1, 4)
    with pytest.raises(RecordsLost, match=rf"{topic}-1: records from offset 0 on .* now begins at 4"):
        rows(reader(subscribe=topic), start, end)
    assert rows(reader(subscribe=topic, failOnDataLoss="false"), start, end) == 6


def test_a_new_partition_that_lost_records_before_it_was_seen_is_a_loss(
    bootstrap: str, new_topic: NewTopic, reader: MakeReader
) -> None:
    """S2: as in Spark's Kafka source; without failOnDataLoss its batch has a place to begin, also later."""
    topic = new_topic(partitions=1)
    stream = reader(subscribe=topic, startingOffsets="earliest")
    start = stream.initialOffset()
    grown(bootstrap, topic, 2, 10)
    trim(bootstrap, topic, 1, 4)
    with pytest.raises(RecordsLost, match=rf"{topic}-1: records from offset 0 on .* now begins at 4"):
        stream.latestOffset(start, EVERYTHING)
    lenient = reader(subscribe=topic, failOnDataLoss="false")
    end = lenient.latestOffset(start, EVERYTHING)
    assert rows(reader(subscribe=topic), start, end) == 6


def test_where_nothing_is_new_spark_gets_the_place_it_came_with(
    bootstrap: str, new_topic: NewTopic, reader: MakeReader
) -> None:
    """S2: another text for the same offsets would be a batch without records."""
    topic = new_topic(partitions=1)
    stream = reader(subscribe=topic, startingOffsets="earliest")
    start = stream.initialOffset()
    grown(bootstrap, topic, 2, 10)
    end = stream.latestOffset(start, EVERYTHING)
    assert stream.latestOffset(end, EVERYTHING) == end
    grown(bootstrap, topic, 3, 5)
    later = stream.latestOffset(end, EVERYTHING)
    assert offsets(later) == {topic: {"0": 0, "1": 10, "2": 5}}
    assert rows(reader(subscribe=topic), end, later) == 5


@pytest.mark.parametrize("by", ["subscribe", "subscribePattern", "assign"])
def test_a_topic_that_is_deleted_under_a_query_is_a_loss_and_is_not_made_again(
    bootstrap: str, new_topic: NewTopic, reader: MakeReader, by: str
) -> None:
    """S2: with failOnDataLoss=false the others are gone on with, also in the batch that was under way."""
    kept, gone = new_topic(), new_topic()
    for topic in (kept, gone):
        send(bootstrap, topic, 5)
    parse_read = {
        "subscribe": f"{kept},{gone}",
        "subscribePattern": f"^(?:{kept}|{gone})$",
        "assign": f'{{"{kept}":[0],"{gone}":[0]}}',
    }[by]
    with Admin(bootstrap) as admin:
        admin.delete_topic(gone)
        start, logged = {kept: {"0": 0}, gone: {"0": 0}}, {kept: {"0": 5}, gone: {"0": 5}}
        lenient = reader(**{by: parse_read, "failOnDataLoss": "false"})

        assert rows(lenient, start, logged) == 5
        assert rows(lenient, {kept: {"0": 0}}, logged) == 5
        assert offsets(lenient.latestOffset(logged, EVERYTHING)) == {kept: {"0": 5}}
        with pytest.raises((RecordsLost, TopicMissing), match=f"{gone}"):
            rows(reader(**{by: parse_read}), start, logged)
        assert gone not in admin.list_topics()


def test_a_stream_does_not_begin_without_its_topics(reader: MakeReader) -> None:
    """S2: nothing is lost that was never there, whatever failOnDataLoss says."""
    with pytest.raises(TopicMissing, match="there is no topic 'nowhere'"):
        reader(subscribe="nowhere", failOnDataLoss="false").initialOffset()
