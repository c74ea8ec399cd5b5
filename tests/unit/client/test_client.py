"""Our own client against a real broker."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from braidmq.client import Acks, Admin, Cluster, Consumer, DeliveryFailed, Message, Producer, Start
from braidmq.client.cluster import TopicPartition
from braidmq.testing import BrokerProcess
from braidmq.wire.compress import Codec
from braidmq.wire.errors import ApiError, ErrorCode

NewTopic = Callable[..., str]


def read(consumer: Consumer, count: int) -> list[Message]:
    messages: list[Message] = []
    while len(messages) < count:
        messages += consumer.poll()
    return messages


def fill(bootstrap: str, topic: str, count: int, partition: int = 0, timestamp_ms: int = 1000) -> None:
    with Producer(bootstrap) as producer:
        for number in range(count):
            producer.send(topic, b"%d" % number, partition=partition, timestamp_ms=timestamp_ms + number)


@pytest.mark.parametrize("codec", list(Codec))
def test_key_value_headers_and_time_come_back_under_every_codec(
    bootstrap: str, new_topic: NewTopic, codec: Codec
) -> None:
    """P3 P5: a record is what it was when it was sent."""
    topic = new_topic()
    with Producer(bootstrap, codec=codec) as producer:
        producer.send(
            topic, b"one coffee", key=b"table 7", headers=[("till", b"2"), ("note", None)], timestamp_ms=77
        )
        producer.send(topic, None, key=b"table 8", timestamp_ms=78)
    with Consumer(bootstrap) as consumer:
        consumer.assign(topic)
        assert read(consumer, 2) == [
            Message(topic, 0, 0, 77, b"table 7", b"one coffee", [("till", b"2"), ("note", None)]),
            Message(topic, 0, 1, 78, b"table 8", None, []),
        ]


@pytest.mark.parametrize("acks", list(Acks))
def test_sends_with_every_kind_of_acks_arrive_in_order(
    bootstrap: str, new_topic: NewTopic, acks: Acks
) -> None:
    """P1 P4: acks 0, 1 and all."""
    topic = new_topic()
    with Producer(bootstrap, acks=acks, batch_bytes=2000) as producer:
        for number in range(500):
            producer.send(topic, b"%d" % number)
    with Consumer(bootstrap) as consumer:
        consumer.assign(topic)
        assert [message.value for message in read(consumer, 500)] == [b"%d" % number for number in range(500)]


def test_a_receipt_sends_at_once_and_knows_the_offset(bootstrap: str, new_topic: NewTopic) -> None:
    """P1: synchronous sends, and callbacks."""
    topic = new_topic()
    called: list[int] = []
    with Producer(bootstrap) as producer:
        assert producer.send(topic, b"a").result() == 0
        receipt = producer.send(topic, b"b", on_delivery=lambda done: called.append(done.result()))
        assert not receipt.done
        producer.flush()
        assert receipt.result() == 1
    assert called == [1]


def test_keys_choose_the_partition_as_kafkas_java_client_does(bootstrap: str, new_topic: NewTopic) -> None:
    """P2: murmur2; the expected places were computed with the formula of Kafka's documentation."""
    topic = new_topic(partitions=10)
    with Producer(bootstrap) as producer:
        places = {key: producer.send(topic, b"", key=key).at.partition for key in (b"", b"a", b"table 7")}
        again = {key: producer.send(topic, b"", key=key).at.partition for key in places}
    assert places == again
    # murmur2(b"") with Kafka's seed is 275646681.
    assert places[b""] == 275646681 % 10


def test_records_without_a_key_spread_over_partitions_batch_by_batch(
    bootstrap: str, new_topic: NewTopic
) -> None:
    """P2: sticky, then the next."""
    topic = new_topic(partitions=3)
    with Producer(bootstrap) as producer:
        places = []
        for _ in range(3):
            places.append({producer.send(topic, b"x").at.partition for _ in range(5)})
            producer.flush()
    assert all(len(place) == 1 for place in places)
    assert set.union(*places) == {0, 1, 2}


def test_a_record_the_broker_refuses_is_reported_and_the_next_one_goes_through(
    bootstrap: str, new_topic: NewTopic
) -> None:
    """P5: too large, with the code and what to do; the producer goes on."""
    topic = new_topic(**{"max.message.bytes": "1000"})
    with Producer(bootstrap) as producer:
        receipt = producer.send(topic, bytes(2000))
        with pytest.raises(DeliveryFailed, match=r"max\.message\.bytes"):
            producer.flush()
        assert isinstance(receipt.error, ApiError)
        assert receipt.error.code is ErrorCode.MESSAGE_TOO_LARGE
        assert producer.send(topic, b"small").result() == 0


def test_a_producer_goes_on_over_a_restart_and_stores_nothing_twice(braid_broker: BrokerProcess) -> None:
    """P4: idempotent, with retries."""
    with Producer(braid_broker.bootstrap) as producer:
        for number in range(50):
            producer.send("numbers", b"%d" % number, partition=0).result()
            if number % 20 == 10:
                braid_broker.kill()
                braid_broker.restart()
    with Consumer(braid_broker.bootstrap) as consumer:
        consumer.assign("numbers", [0])
        assert [message.value for message in read(consumer, 50)] == [b"%d" % number for number in range(50)]
        assert consumer.poll(0.1) == []


def test_seek_by_offset_time_and_end(bootstrap: str, new_topic: NewTopic) -> None:
    """C7: replay from anywhere."""
    topic = new_topic()
    fill(bootstrap, topic, 100, timestamp_ms=5000)
    with Consumer(bootstrap) as consumer:
        consumer.assign(topic, [0], 40)
        assert consumer.poll()[0].offset == 40
        consumer.seek(topic, 0, Start.EARLIEST)
        assert consumer.poll()[0].offset == 0
        consumer.seek_to_time(5070)
        assert consumer.poll()[0].offset == 70
        consumer.seek_to_time(9_999_999)
        assert consumer.position(topic, 0) == 100
        consumer.seek(topic, 0, Start.LATEST)
        assert consumer.poll(0.1) == []


def test_an_offset_past_the_end_raises_or_resets_as_asked(bootstrap: str, new_topic: NewTopic) -> None:
    """C7: out of range."""
    topic = new_topic()
    fill(bootstrap, topic, 3)
    with Consumer(bootstrap) as consumer:
        consumer.assign(topic, [0], 1000)
        with pytest.raises(ApiError) as caught:
            consumer.poll()
        assert caught.value.code is ErrorCode.OFFSET_OUT_OF_RANGE
    with Consumer(bootstrap, reset=Start.EARLIEST) as consumer:
        consumer.assign(topic, [0], 1000)
        assert [message.offset for message in read(consumer, 3)] == [0, 1, 2]


def test_topics_are_created_grown_altered_trimmed_and_deleted(bootstrap: str, new_topic: NewTopic) -> None:
    """O1 L1: the life of a topic."""
    topic = new_topic(partitions=2, **{"retention.ms": "60000"})
    fill(bootstrap, topic, 10, partition=1)
    with Admin(bootstrap) as admin:
        assert topic in admin.list_topics()
        admin.add_partitions(topic, 3)
        admin.alter_topic_configs(topic, {"segment.bytes": "2048"}, resets=["retention.ms"])
        own = {entry.name: entry.value for entry in admin.topic_configs(topic) if entry.overridden}
        assert own == {"segment.bytes": "2048"}
        at = TopicPartition(topic, 1)
        assert admin.delete_records({at: 4}) == {at: 4}
        described = admin.describe_topics([topic])[0]
        assert [(part.start_offset, part.end_offset) for part in described.partitions] == [
            (0, 0),
            (4, 10),
            (0, 0),
        ]
        assert described.records == 6
        admin.delete_topic(topic)
        assert topic not in admin.list_topics()


@pytest.mark.parametrize(
    ("partitions", "configs", "code"),
    [
        (1, {"retention.m": "1"}, ErrorCode.INVALID_CONFIG),
        (1, {"retention.ms": "soon"}, ErrorCode.INVALID_CONFIG),
        (0, {}, ErrorCode.INVALID_PARTITIONS),
    ],
)
def test_a_topic_that_cannot_be_is_refused_with_kafkas_code(
    bootstrap: str, partitions: int, configs: dict[str, str], code: ErrorCode
) -> None:
    """O1: mistakes are named."""
    with Admin(bootstrap) as admin, pytest.raises(ApiError) as caught:
        admin.create_topic("impossible", partitions, configs=configs)
    assert caught.value.code is code


def test_looking_at_a_topic_does_not_create_it(bootstrap: str) -> None:
    """O1: only sending creates."""
    with Admin(bootstrap) as admin:
        with pytest.raises(ApiError) as caught:
            admin.partition_indexes("never-made")
        assert caught.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert "never-made" not in admin.list_topics()


def test_one_cluster_serves_several_clients(bootstrap: str, new_topic: NewTopic) -> None:
    """N2: routes and connections are shared where the caller wants it."""
    topic = new_topic()
    with Cluster(bootstrap) as cluster:
        Producer(cluster).send(topic, b"x").result()
        consumer = Consumer(cluster)
        consumer.assign(topic)
        assert [message.value for message in read(consumer, 1)] == [b"x"]
