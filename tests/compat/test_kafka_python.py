"""kafka-python against the broker: pure Python, newest protocol versions."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from typing import Any

import pytest
from kafka import TopicPartition
from kafka.admin import AlterConfigOp, ConfigResource, ConfigResourceType, OffsetSpec
from kafka.errors import (
    InvalidConfigurationError,
    InvalidPartitionsError,
    InvalidReplicationFactorError,
    InvalidTopicError,
    MessageSizeTooLargeError,
    OffsetOutOfRangeError,
    TopicAlreadyExistsError,
    UnknownTopicOrPartitionError,
)
from tests.compat import kafka_python_calls as calls
from tests.compat.samples import ACKS, CODECS, SAMPLES, Sample

MANY = [Sample(None, b"%d" % number, []) for number in range(100)]


@pytest.mark.parametrize("codec", CODECS)
def test_every_codec_carries_keys_values_and_headers(bootstrap: str, topic: str, codec: str) -> None:
    """F1 P5 P3: what kafka-python compresses, kafka-python reads."""
    calls.send(bootstrap, topic, SAMPLES, compression_type=calls.codec(codec))
    records = calls.read(bootstrap, topic, len(SAMPLES))
    assert [calls.as_sample(record) for record in records] == SAMPLES


@pytest.mark.parametrize("acks", ACKS)
def test_every_acks_setting_delivers(bootstrap: str, topic: str, acks: Any) -> None:
    """P4: acks 0, 1 and all."""
    idempotent = acks == "all"
    reports = calls.send(bootstrap, topic, MANY, acks=acks, enable_idempotence=idempotent)
    if acks != 0:
        assert [report.offset for report in reports] == list(range(len(MANY)))
    assert [r.value for r in calls.read(bootstrap, topic, len(MANY))] == [s.value for s in MANY]


def test_an_idempotent_producer_delivers_in_order(bootstrap: str, topic: str) -> None:
    """P4: many small batches, each once and in order."""
    calls.send(bootstrap, topic, MANY, enable_idempotence=True, batch_size=100)
    with calls.assigned(bootstrap, topic) as consumer:
        assert [r.value for r in calls.take(consumer, 100)] == [s.value for s in MANY]
        assert consumer.end_offsets([TopicPartition(topic, 0)]) == {TopicPartition(topic, 0): 100}


def test_a_consumer_seeks_by_offset_and_by_time(bootstrap: str, topic: str) -> None:
    """C7: seek, offsets_for_times, beginning and end."""
    base_ms, home = int(time.time() * 1000) - 100_000, TopicPartition(topic, 0)
    with calls.producer(bootstrap) as producer:
        pending = [
            producer.send(topic, b"%d" % number, partition=0, timestamp_ms=base_ms + number * 100)
            for number in range(30)
        ]
        for future in pending:
            future.get(timeout=calls.WAIT_S)
    with calls.assigned(bootstrap, topic) as consumer:
        consumer.seek(home, 17)
        assert calls.take(consumer, 1)[0].value == b"17"
        found = consumer.offsets_for_times({home: base_ms + 450})[home]
        assert (found.offset, found.timestamp) == (5, base_ms + 500)
        assert consumer.offsets_for_times({home: base_ms + 10_000}) == {home: None}
        assert consumer.beginning_offsets([home]) == {home: 0}
        consumer.seek_to_end(home)
        assert consumer.position(home) == 30
        consumer.seek_to_beginning(home)
        assert calls.take(consumer, 1)[0].offset == 0


def test_an_offset_outside_the_log_is_an_error(bootstrap: str, topic: str) -> None:
    """C7: without a reset policy the application is told."""
    calls.send(bootstrap, topic, MANY)
    with calls.assigned(bootstrap, topic, auto_offset_reset="none") as consumer:
        consumer.seek(TopicPartition(topic, 0), 1_000)
        with pytest.raises(OffsetOutOfRangeError):
            calls.take(consumer, 1)


def test_topics_are_created_described_grown_and_deleted(bootstrap: str, new_name: Callable[[], str]) -> None:
    """F1 L1: the admin calls at the newest versions, by name and by topic id."""
    topic = new_name()
    with calls.admin(bootstrap) as admin:
        plan = {topic: {"num_partitions": 2, "replication_factor": 1, "configs": {"retention.ms": "5000000"}}}
        created = admin.create_topics(plan, wait_for_metadata=True)["topics"][0]
        assert (created["error_code"], created["num_partitions"], created["replication_factor"]) == (0, 2, 1)
        with pytest.raises(TopicAlreadyExistsError):
            admin.create_topics(plan)
        admin.create_partitions({topic: 3})
        with pytest.raises(InvalidPartitionsError):
            admin.create_partitions({topic: 1})
        admin.wait_for_topics([topic])
        described = admin.describe_topics([topic])[0]
        assert described["topic_id"] == created["topic_id"]
        assert topic in admin.list_topics()
        admin.delete_topics([uuid.UUID(str(created["topic_id"]))])
        with pytest.raises(UnknownTopicOrPartitionError):
            admin.delete_topics([topic])


def test_a_topic_with_the_servers_defaults_is_created(bootstrap: str, new_name: Callable[[], str]) -> None:
    """L1: -1 partitions and replicas mean the broker's own numbers."""
    with calls.admin(bootstrap) as admin:
        created = admin.create_topics([new_name()])["topics"][0]
    assert created["num_partitions"] >= 1
    assert created["replication_factor"] == 1
    assert created["configs"]["retention.ms"]["value"] == str(7 * 86_400_000)


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"replication_factor": 4}, InvalidReplicationFactorError),
        ({"num_partitions": 0}, InvalidPartitionsError),
        ({"configs": {"retention.ms": "never"}}, InvalidConfigurationError),
    ],
)
def test_a_topic_that_cannot_be_is_refused_with_kafkas_error(
    bootstrap: str, new_name: Callable[[], str], change: dict[str, Any], error: type[Exception]
) -> None:
    """W5: the client raises the error of Kafka's code."""
    with calls.admin(bootstrap) as admin, pytest.raises(error):
        admin.create_topics({new_name(): {"num_partitions": 1, "replication_factor": 1, **change}})


def test_a_bad_topic_name_is_refused(bootstrap: str) -> None:
    """W5: INVALID_TOPIC_EXCEPTION."""
    with calls.admin(bootstrap) as admin, pytest.raises(InvalidTopicError):
        admin.create_topics({"../x": {"num_partitions": 1, "replication_factor": 1}})


def test_options_are_altered_described_and_reset(bootstrap: str, topic: str) -> None:
    """F1: IncrementalAlterConfigs with the newest DescribeConfigs, synonyms included."""
    resource = ConfigResource(ConfigResourceType.TOPIC, topic)
    with calls.admin(bootstrap) as admin:

        def modified() -> dict[str, str]:
            answer = admin.describe_configs([resource])
            options: dict[str, Any] = answer[0] if isinstance(answer, list) else answer["topic"][topic]
            return {name: option["value"] for name, option in options.items()}

        admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, topic, {"max.message.bytes": "2000"})])
        await_equal(modified, {"max.message.bytes": "2000"})
        with pytest.raises(MessageSizeTooLargeError):
            calls.send(bootstrap, topic, [Sample(None, b"x" * 4_000, [])])
        admin.reset_configs([ConfigResource(ConfigResourceType.TOPIC, topic, ["max.message.bytes"])])
        await_equal(modified, {})


def await_equal(read: Callable[[], Any], wanted: object) -> None:
    """On Kafka a changed option becomes visible a moment after the answer."""
    deadline = time.monotonic() + 10
    while (seen := read()) != wanted:
        assert time.monotonic() < deadline, f"{seen} is not {wanted}"
        time.sleep(0.05)


def test_an_option_that_is_no_list_is_not_appended_to(bootstrap: str, topic: str) -> None:
    """F1: APPEND on something that is no list is refused."""
    bad = ConfigResource(ConfigResourceType.TOPIC, topic, {"retention.ms": (AlterConfigOp.APPEND, "1")})
    with calls.admin(bootstrap) as admin:
        answer = str(admin.alter_configs([bad]))
    assert "Invalid" in answer


def test_records_are_deleted_up_to_an_offset(bootstrap: str, topic: str) -> None:
    """C7 L7: DeleteRecords, and its refusal past the end."""
    home = TopicPartition(topic, 0)
    calls.send(bootstrap, topic, MANY)
    with calls.admin(bootstrap) as admin:
        assert admin.delete_records({home: 60})[home]["low_watermark"] == 60
        with pytest.raises(OffsetOutOfRangeError):
            admin.delete_records({home: 101})
        offsets = admin.list_partition_offsets({home: OffsetSpec.EARLIEST})
        assert offsets[home].offset == 60
        assert admin.list_partition_offsets({home: OffsetSpec.LATEST})[home].offset == 100
    assert calls.read(bootstrap, topic, 1)[0].value == b"60"


def test_topic_partitions_are_described_page_by_page(bootstrap: str, new_name: Callable[[], str]) -> None:
    """F1: DescribeTopicPartitions with a cursor."""
    topic = new_name()
    with calls.admin(bootstrap) as admin:
        plan = {topic: {"num_partitions": 5, "replication_factor": 1}}
        admin.create_topics(plan, wait_for_metadata=True)
        seen: list[int] = []
        cursor = None
        for _ in range(5):
            page = admin.describe_topic_partitions([topic], response_partition_limit=2, cursor=cursor)
            seen += [p["partition_index"] for t in page["topics"] for p in t["partitions"]]
            cursor = page["next_cursor"]
            if cursor is None:
                break
    assert seen == [0, 1, 2, 3, 4]


def test_the_cluster_its_directories_and_its_producers_are_described(bootstrap: str, topic: str) -> None:
    """F1: DescribeCluster, DescribeLogDirs, DescribeProducers."""
    home = TopicPartition(topic, 0)
    calls.send(bootstrap, topic, MANY, enable_idempotence=True)
    with calls.admin(bootstrap) as admin:
        cluster = admin.describe_cluster()
        assert bootstrap in [f"{broker['host']}:{broker['port']}" for broker in cluster["brokers"]]
        directories = [one for broker in admin.describe_log_dirs([topic]) for one in broker["log_dirs"]]
        partitions = [
            p for d in directories for t in d["topics"] if t["name"] == topic for p in t["partitions"]
        ]
        assert sorted(p["partition_index"] for p in partitions) == [0, 1]
        assert max(p["partition_size"] for p in partitions) > 0
        producers = admin.describe_producers([home])[home]
        states = getattr(producers, "active_producers", producers)
        assert len(states) == 1
