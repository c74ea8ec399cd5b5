"""confluent-kafka (librdkafka) against the broker: produce, consume by assignment, watermarks."""

from __future__ import annotations

import time
from typing import Any

import pytest
from confluent_kafka import (
    OFFSET_END,
    TIMESTAMP_CREATE_TIME,
    TIMESTAMP_LOG_APPEND_TIME,
    KafkaError,
    KafkaException,
    Producer,
    TopicPartition,
)
from tests.compat import confluent_calls as calls
from tests.compat.samples import ACKS, CODECS, SAMPLES_WITH_NULL_HEADER, Sample

MANY = [Sample(None, b"%d" % number, []) for number in range(100)]


@pytest.mark.parametrize("codec", CODECS)
def test_every_codec_carries_keys_values_and_headers(bootstrap: str, topic: str, codec: str) -> None:
    """F1 P5 P3: what librdkafka compresses, librdkafka reads."""
    calls.send(bootstrap, topic, SAMPLES_WITH_NULL_HEADER, compression_type=codec)
    messages = calls.read(bootstrap, topic, len(SAMPLES_WITH_NULL_HEADER))
    assert [calls.as_sample(message) for message in messages] == SAMPLES_WITH_NULL_HEADER
    assert [message.offset() for message in messages] == list(range(len(messages)))


@pytest.mark.parametrize("acks", ACKS)
def test_every_acks_setting_delivers(bootstrap: str, topic: str, acks: Any) -> None:
    """P4: acks 0, 1 and all; without acks there is no offset to report, but the records arrive."""
    reports = calls.send(bootstrap, topic, MANY, acks=acks)
    if acks != 0:
        assert [report.offset() for report in reports] == list(range(len(MANY)))
    assert [m.value() for m in calls.read(bootstrap, topic, len(MANY))] == [s.value for s in MANY]


def test_an_idempotent_producer_delivers_in_order(bootstrap: str, topic: str) -> None:
    """P4: many small batches in flight, each exactly once and in order."""
    calls.send(bootstrap, topic, MANY, enable_idempotence=True, batch_num_messages=3)
    messages = calls.read(bootstrap, topic, len(MANY))
    assert [message.value() for message in messages] == [sample.value for sample in MANY]
    with calls.assigned(bootstrap, topic) as consumer:
        assert consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=calls.WAIT_S) == (
            0,
            len(MANY),
        )


def test_the_timestamp_is_the_producers(bootstrap: str, topic: str) -> None:
    """P5: CreateTime is kept to the millisecond."""
    stamp_ms = int(time.time() * 1000) - 86_400_000
    producer = Producer({"bootstrap.servers": bootstrap})
    producer.produce(topic, b"old", partition=0, timestamp=stamp_ms)
    assert producer.flush(calls.WAIT_S) == 0
    assert calls.read(bootstrap, topic, 1)[0].timestamp() == (TIMESTAMP_CREATE_TIME, stamp_ms)


def test_the_timestamp_is_the_brokers_where_the_topic_says_so(bootstrap: str, new_name: Any) -> None:
    """P5: LogAppendTime overrides what the producer wrote."""
    topic = new_name()
    calls.create_topic(bootstrap, topic, config={"message.timestamp.type": "LogAppendTime"})
    before_ms = int(time.time() * 1000)
    producer = Producer({"bootstrap.servers": bootstrap, "compression.type": "lz4"})
    producer.produce(topic, b"a" * 1000, partition=0, timestamp=1)
    assert producer.flush(calls.WAIT_S) == 0
    kind, stamp_ms = calls.read(bootstrap, topic, 1)[0].timestamp()
    assert kind == TIMESTAMP_LOG_APPEND_TIME
    assert before_ms <= stamp_ms <= int(time.time() * 1000)


@pytest.mark.parametrize("stored", ["uncompressed", "gzip", "snappy", "lz4", "zstd"])
def test_a_topic_may_choose_its_own_codec(bootstrap: str, new_name: Any, stored: str) -> None:
    """P3: compression.type of the topic differs from the producer's."""
    topic = new_name()
    calls.create_topic(bootstrap, topic, config={"compression.type": stored})
    calls.send(bootstrap, topic, SAMPLES_WITH_NULL_HEADER, compression_type="gzip")
    messages = calls.read(bootstrap, topic, len(SAMPLES_WITH_NULL_HEADER))
    assert [calls.as_sample(message) for message in messages] == SAMPLES_WITH_NULL_HEADER


def test_a_consumer_seeks_to_an_offset_and_back(bootstrap: str, topic: str) -> None:
    """C7: replay by offset."""
    calls.send(bootstrap, topic, MANY, batch_num_messages=7)
    with calls.assigned(bootstrap, topic, offset=40) as consumer:
        assert [m.offset() for m in calls.take(consumer, 5)] == [40, 41, 42, 43, 44]
        consumer.seek(TopicPartition(topic, 0, 3))
        assert [m.offset() for m in calls.take(consumer, 3)] == [3, 4, 5]
        consumer.seek(TopicPartition(topic, 0, 98))
        assert [m.value() for m in calls.take(consumer, 2)] == [b"98", b"99"]


def test_a_consumer_seeks_by_time(bootstrap: str, topic: str) -> None:
    """C7: the first record at or after a time; none after the last."""
    base_ms = int(time.time() * 1000) - 1_000_000
    producer = Producer({"bootstrap.servers": bootstrap, "batch.num.messages": 4})
    for number in range(50):
        producer.produce(topic, b"%d" % number, partition=0, timestamp=base_ms + 1000 * number)
    assert producer.flush(calls.WAIT_S) == 0
    with calls.assigned(bootstrap, topic) as consumer:

        def offset_at(stamp_ms: int) -> int:
            found = consumer.offsets_for_times([TopicPartition(topic, 0, stamp_ms)], timeout=calls.WAIT_S)
            return int(found[0].offset)

        assert offset_at(base_ms - 5) == 0
        assert offset_at(base_ms + 20_000) == 20
        assert offset_at(base_ms + 20_001) == 21
        assert offset_at(base_ms + 49_000) == 49
        assert offset_at(base_ms + 49_001) == OFFSET_END
        consumer.seek(TopicPartition(topic, 0, offset_at(base_ms + 30_500)))
        assert calls.take(consumer, 1)[0].value() == b"31"


def test_a_consumer_at_the_end_gets_what_comes_next(bootstrap: str, topic: str) -> None:
    """C1 W2: a long poll is answered by the next produce."""
    calls.send(bootstrap, topic, MANY)
    with calls.assigned(bootstrap, topic, offset=len(MANY), fetch_wait_max_ms=5_000) as consumer:
        assert consumer.poll(0.5) is None
        calls.send(bootstrap, topic, [Sample(b"k", b"fresh", [])])
        message = calls.take(consumer, 1)[0]
        assert (message.value(), message.offset()) == (b"fresh", len(MANY))


def test_an_offset_outside_the_log_is_reported(bootstrap: str, topic: str) -> None:
    """C7: OFFSET_OUT_OF_RANGE reaches the client, which may reset."""
    calls.send(bootstrap, topic, MANY)
    with calls.assigned(bootstrap, topic, offset=5_000) as consumer:
        message = consumer.poll(calls.WAIT_S)
        assert message is not None
        assert message.error().code() in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE)
    with calls.assigned(bootstrap, topic, offset=5_000, auto_offset_reset="earliest") as consumer:
        assert calls.take(consumer, 1)[0].offset() == 0


def test_small_fetches_bring_everything_batch_by_batch(bootstrap: str, topic: str) -> None:
    """C1: byte limits smaller than a batch still make progress."""
    values = [Sample(None, bytes([65 + number % 26]) * 20_000, []) for number in range(60)]
    # Idempotent, or a batch that is refused while the topic is new would come behind the next one.
    calls.send(bootstrap, topic, values, batch_num_messages=5, enable_idempotence=True)
    limits = {"fetch_max_bytes": 25_000, "max_partition_fetch_bytes": 25_000, "message_max_bytes": 24_000}
    with calls.assigned(bootstrap, topic, **limits) as consumer:
        assert [m.value() for m in calls.take(consumer, 60)] == [sample.value for sample in values]


def test_keys_choose_partitions_and_all_partitions_are_read(bootstrap: str, new_name: Any) -> None:
    """P2 L1: one consumer over many partitions, an incremental fetch session behind it."""
    topic = new_name()
    calls.create_topic(bootstrap, topic, partitions=12)
    producer = Producer({"bootstrap.servers": bootstrap, "partitioner": "murmur2_random"})
    for number in range(600):
        producer.produce(topic, b"v%d" % number, key=b"k%d" % (number % 50))
    assert producer.flush(calls.WAIT_S) == 0
    with calls.assigned(bootstrap, topic) as consumer:
        consumer.assign([TopicPartition(topic, partition, 0) for partition in range(12)])
        messages = calls.take(consumer, 600)
    homes: dict[bytes, set[int]] = {}
    for message in messages:
        homes.setdefault(message.key(), set()).add(message.partition())
    assert sorted(m.value() for m in messages) == sorted(b"v%d" % number for number in range(600))
    assert all(len(partitions) == 1 for partitions in homes.values())
    assert len({partition for partitions in homes.values() for partition in partitions}) > 6


def test_an_oversized_message_is_refused_with_kafkas_code(bootstrap: str, new_name: Any) -> None:
    """P5: max.message.bytes is enforced by the broker, whatever the client believes."""
    topic = new_name()
    calls.create_topic(bootstrap, topic, config={"max.message.bytes": "2000"})
    errors: list[KafkaError] = []
    producer = Producer({"bootstrap.servers": bootstrap, "message.max.bytes": 1_000_000})
    producer.produce(topic, b"x" * 5_000, partition=0, on_delivery=lambda error, _: errors.append(error))
    producer.produce(topic, b"x" * 50, partition=0, on_delivery=lambda error, _: errors.append(error))
    producer.flush(calls.WAIT_S)
    assert KafkaError.MSG_SIZE_TOO_LARGE in [error.code() for error in errors if error is not None]
    calls.send(bootstrap, topic, [Sample(None, b"small", [])])


def test_a_topic_is_created_on_first_use(bootstrap: str, new_name: Any) -> None:
    """N3: produce to a name nobody created."""
    topic = new_name()
    calls.send(bootstrap, topic, [Sample(b"k", b"first", [])], allow_auto_create_topics=True)
    assert calls.read(bootstrap, topic, 1)[0].value() == b"first"


def test_a_consumer_that_may_not_create_topics_is_told_the_topic_is_unknown(
    bootstrap: str, new_name: Any
) -> None:
    """W1: UNKNOWN_TOPIC_OR_PARTITION, and the topic does not come into being."""
    topic = new_name()
    with calls.assigned(bootstrap, topic) as consumer:
        with pytest.raises(KafkaException) as caught:
            consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=5)
        codes = (KafkaError._UNKNOWN_PARTITION, KafkaError._UNKNOWN_TOPIC, KafkaError.UNKNOWN_TOPIC_OR_PART)
        assert caught.value.args[0].code() in codes
        assert topic not in consumer.list_topics(timeout=calls.WAIT_S).topics
