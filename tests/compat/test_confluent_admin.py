"""confluent-kafka's admin client: topics, partitions, configs, records, offsets, cluster."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import (
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
)
from tests.compat import confluent_calls as calls
from tests.compat.samples import Sample

TEN = [Sample(None, b"%d" % number, []) for number in range(10)]


def refusal(future: Future[Any]) -> KafkaError:
    """The error an admin call ends with; it must carry a text as well as a code."""
    with pytest.raises(KafkaException) as caught:
        future.result(calls.WAIT_S)
    error = caught.value.args[0]
    assert isinstance(error, KafkaError)
    assert error.str()
    return error


def topic_options(bootstrap: str, topic: str) -> dict[str, Any]:
    resource = ConfigResource(ResourceType.TOPIC, topic)
    options: dict[str, Any] = (
        calls.admin(bootstrap).describe_configs([resource])[resource].result(calls.WAIT_S)
    )
    return options


def test_a_topic_is_created_listed_described_and_deleted(bootstrap: str, new_name: Callable[[], str]) -> None:
    """F1 L1: the life of a topic."""
    client, topic = calls.admin(bootstrap), new_name()
    calls.create_topic(bootstrap, topic, partitions=3, config={"retention.ms": "3600000"})
    partitions = client.list_topics(timeout=calls.WAIT_S).topics[topic].partitions
    assert sorted(partitions) == [0, 1, 2]
    assert all(p.replicas == [p.leader] and p.isrs == [p.leader] for p in partitions.values())
    described = client.describe_topics(TopicCollection([topic]))[topic].result(calls.WAIT_S)
    assert (described.name, len(described.partitions), described.is_internal) == (topic, 3, False)
    client.delete_topics([topic])[topic].result(calls.WAIT_S)
    deadline = time.monotonic() + calls.WAIT_S
    while topic in client.list_topics(timeout=calls.WAIT_S).topics:
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_deleted_topic_comes_back_empty_and_with_another_id(bootstrap: str, topic: str) -> None:
    """L1 W1: a new topic of an old name is a new topic."""
    client = calls.admin(bootstrap)
    calls.send(bootstrap, topic, TEN)
    first = client.describe_topics(TopicCollection([topic]))[topic].result(calls.WAIT_S).topic_id
    client.delete_topics([topic])[topic].result(calls.WAIT_S)
    deadline = time.monotonic() + calls.WAIT_S
    while True:
        try:
            client.create_topics([NewTopic(topic, 1, 1)])[topic].result(calls.WAIT_S)
            break
        except KafkaException:
            assert time.monotonic() < deadline
            time.sleep(0.1)
    calls.await_leaders(client, topic, 1)
    second = client.describe_topics(TopicCollection([topic]))[topic].result(calls.WAIT_S).topic_id
    assert str(first) != str(second)
    calls.send(bootstrap, topic, TEN[:2])
    with calls.assigned(bootstrap, topic) as consumer:
        assert consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=calls.WAIT_S) == (0, 2)


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"topic": "spaces are not allowed"}, KafkaError.TOPIC_EXCEPTION),
        ({"topic": "x" * 250}, KafkaError.TOPIC_EXCEPTION),
        ({"topic": ".."}, KafkaError.TOPIC_EXCEPTION),
        ({"num_partitions": 0}, KafkaError.INVALID_PARTITIONS),
        ({"replication_factor": 3}, KafkaError.INVALID_REPLICATION_FACTOR),
        ({"config": {"retention.ms": "soon"}}, KafkaError.INVALID_CONFIG),
        ({"config": {"no.such.option": "1"}}, KafkaError.INVALID_CONFIG),
        ({"config": {"cleanup.policy": "shred"}}, KafkaError.INVALID_CONFIG),
        ({"config": {"segment.bytes": "-1"}}, KafkaError.INVALID_CONFIG),
    ],
)
def test_a_topic_that_cannot_be_is_refused_with_kafkas_code(
    bootstrap: str, new_name: Callable[[], str], change: dict[str, Any], code: int
) -> None:
    """W5 L1: names, counts and options are checked before anything is made."""
    wanted: dict[str, Any] = {"topic": new_name(), "num_partitions": 1, "replication_factor": 1, **change}
    client = calls.admin(bootstrap)
    assert refusal(client.create_topics([NewTopic(**wanted)])[wanted["topic"]]).code() == code
    assert wanted["topic"] not in client.list_topics(timeout=calls.WAIT_S).topics


def test_a_topic_is_not_created_twice(bootstrap: str, topic: str) -> None:
    """L1: TOPIC_ALREADY_EXISTS."""
    answer = calls.admin(bootstrap).create_topics([NewTopic(topic, 1, 1)])[topic]
    assert refusal(answer).code() == KafkaError.TOPIC_ALREADY_EXISTS


def test_a_topic_that_does_not_exist_is_not_deleted(bootstrap: str, new_name: Callable[[], str]) -> None:
    """L1: UNKNOWN_TOPIC_OR_PARTITION."""
    topic = new_name()
    answer = calls.admin(bootstrap).delete_topics([topic])[topic]
    assert refusal(answer).code() == KafkaError.UNKNOWN_TOPIC_OR_PART


def test_validate_only_creates_nothing(bootstrap: str, new_name: Callable[[], str]) -> None:
    """W1: a dry run says yes and does nothing."""
    client, topic = calls.admin(bootstrap), new_name()
    client.create_topics([NewTopic(topic, 1, 1)], validate_only=True)[topic].result(calls.WAIT_S)
    assert topic not in client.list_topics(timeout=calls.WAIT_S).topics


def test_partitions_are_added_but_never_removed(bootstrap: str, topic: str) -> None:
    """L1: more partitions are usable at once; fewer are refused."""
    client = calls.admin(bootstrap)
    calls.send(bootstrap, topic, TEN)
    client.create_partitions([NewPartitions(topic, 5)])[topic].result(calls.WAIT_S)
    calls.await_leaders(client, topic, 5)
    calls.send(bootstrap, topic, TEN)
    assert len(calls.read(bootstrap, topic, 20)) == 20
    with calls.assigned(bootstrap, topic) as consumer:
        assert consumer.get_watermark_offsets(TopicPartition(topic, 4), timeout=calls.WAIT_S) == (0, 0)
    assert (
        refusal(client.create_partitions([NewPartitions(topic, 2)])[topic]).code()
        == KafkaError.INVALID_PARTITIONS
    )


def test_topic_options_are_described_with_their_source(bootstrap: str, new_name: Callable[[], str]) -> None:
    """F1: what was given at creation differs from what is default."""
    topic = new_name()
    calls.create_topic(bootstrap, topic, config={"retention.ms": "3600000"})
    options = topic_options(bootstrap, topic)
    assert options["retention.ms"].value == "3600000"
    assert options["retention.ms"].source == ConfigSource.DYNAMIC_TOPIC_CONFIG.value
    assert options["segment.bytes"].value == str(1024**3)
    assert options["segment.bytes"].source == ConfigSource.DEFAULT_CONFIG.value
    for name in ("max.message.bytes", "cleanup.policy", "compression.type", "message.timestamp.type"):
        assert options[name].value


def test_topic_options_are_changed_one_by_one(bootstrap: str, topic: str) -> None:
    """F1: IncrementalAlterConfigs sets and deletes without touching the rest."""
    client = calls.admin(bootstrap)

    def alter(*entries: ConfigEntry) -> None:
        resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=list(entries))
        client.incremental_alter_configs([resource])[resource].result(calls.WAIT_S)

    def entry(name: str, value: str | None, operation: AlterConfigOpType) -> ConfigEntry:
        return ConfigEntry(name, value, incremental_operation=operation)

    alter(
        entry("retention.ms", "7200000", AlterConfigOpType.SET),
        entry("max.message.bytes", "3000", AlterConfigOpType.SET),
    )
    await_option(bootstrap, topic, "retention.ms", "7200000")
    alter(entry("retention.ms", None, AlterConfigOpType.DELETE))
    await_option(bootstrap, topic, "retention.ms", str(7 * 86_400_000))
    assert topic_options(bootstrap, topic)["max.message.bytes"].value == "3000"


def await_option(bootstrap: str, topic: str, name: str, value: str) -> None:
    """On Kafka a changed option becomes visible a moment after the answer."""
    deadline = time.monotonic() + 10
    while (seen := topic_options(bootstrap, topic)[name].value) != value:
        assert time.monotonic() < deadline, f"{name} is {seen}, not {value}"
        time.sleep(0.05)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_topic_options_are_replaced_as_a_whole(bootstrap: str, topic: str) -> None:
    """F1: AlterConfigs, the older call, resets what it does not name."""
    client = calls.admin(bootstrap)
    for wanted in ({"retention.ms": "1000000", "segment.ms": "2000000"}, {"segment.ms": "3000000"}):
        resource = ConfigResource(ResourceType.TOPIC, topic, set_config=wanted)
        client.alter_configs([resource])[resource].result(calls.WAIT_S)
    await_option(bootstrap, topic, "segment.ms", "3000000")
    await_option(bootstrap, topic, "retention.ms", str(7 * 86_400_000))


@pytest.mark.parametrize(
    ("name", "value"), [("retention.ms", "x"), ("max.message.bytes", "-7"), ("no.such", "1")]
)
def test_a_bad_option_is_refused_and_nothing_changes(
    bootstrap: str, topic: str, name: str, value: str
) -> None:
    """W5: INVALID_CONFIG with a text, and the good option beside it is not applied either."""
    entries = [ConfigEntry("segment.ms", "5000000", incremental_operation=AlterConfigOpType.SET)]
    entries.append(ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET))
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)
    answer = calls.admin(bootstrap).incremental_alter_configs([resource])[resource]
    error = refusal(answer)
    assert error.code() == KafkaError.INVALID_CONFIG
    assert name in error.str()
    assert topic_options(bootstrap, topic)["segment.ms"].value == str(7 * 86_400_000)


def test_options_of_an_unknown_topic_are_refused(bootstrap: str, new_name: Callable[[], str]) -> None:
    """W5: UNKNOWN_TOPIC_OR_PARTITION."""
    resource = ConfigResource(ResourceType.TOPIC, new_name())
    answer = calls.admin(bootstrap).describe_configs([resource])[resource]
    assert refusal(answer).code() == KafkaError.UNKNOWN_TOPIC_OR_PART


def test_broker_options_are_described(bootstrap: str) -> None:
    """F1: the broker's own options by its node id."""
    client = calls.admin(bootstrap)
    node = next(iter(client.list_topics(timeout=calls.WAIT_S).brokers))
    resource = ConfigResource(ResourceType.BROKER, str(node))
    options = client.describe_configs([resource])[resource].result(calls.WAIT_S)
    assert options["auto.create.topics.enable"].value == "true"


def test_records_are_deleted_up_to_an_offset(bootstrap: str, topic: str) -> None:
    """C7 L7: DeleteRecords moves the low watermark, and older offsets are out of range."""
    client, first = calls.admin(bootstrap), TopicPartition(topic, 0, 6)
    calls.send(bootstrap, topic, TEN, batch_num_messages=2)
    answer = client.delete_records([first])[TopicPartition(topic, 0)].result(calls.WAIT_S)
    assert answer.low_watermark == 6
    with calls.assigned(bootstrap, topic) as consumer:
        assert consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=calls.WAIT_S) == (6, 10)
        assert [m.value() for m in calls.take(consumer, 4)] == [b"6", b"7", b"8", b"9"]
    everything = TopicPartition(topic, 0, -1)
    answer = client.delete_records([everything])[TopicPartition(topic, 0)].result(calls.WAIT_S)
    assert answer.low_watermark == 10


def test_records_past_the_end_are_not_deleted(bootstrap: str, topic: str) -> None:
    """C7: OFFSET_OUT_OF_RANGE."""
    calls.send(bootstrap, topic, TEN)
    answer = calls.admin(bootstrap).delete_records([TopicPartition(topic, 0, 11)])[TopicPartition(topic, 0)]
    assert refusal(answer).code() == KafkaError.OFFSET_OUT_OF_RANGE


def test_offsets_are_listed_by_kind_and_time(bootstrap: str, topic: str) -> None:
    """C7 L3: earliest, latest, by timestamp and of the largest timestamp."""
    base_ms = int(time.time() * 1000) - 500_000
    producer_stamps = [base_ms, base_ms + 5_000, base_ms + 2_000]
    client, partition = calls.admin(bootstrap), TopicPartition(topic, 0)
    for number, stamp_ms in enumerate(producer_stamps):
        producer = calls.Producer({"bootstrap.servers": bootstrap})
        producer.produce(topic, b"%d" % number, partition=0, timestamp=stamp_ms)
        assert producer.flush(calls.WAIT_S) == 0

    def offset(spec: OffsetSpec) -> int:
        return int(client.list_offsets({partition: spec})[partition].result(calls.WAIT_S).offset)

    assert offset(OffsetSpec.earliest()) == 0
    assert offset(OffsetSpec.latest()) == 3
    assert offset(OffsetSpec.max_timestamp()) == 1
    assert offset(OffsetSpec.for_timestamp(base_ms + 1)) == 1
    assert offset(OffsetSpec.for_timestamp(base_ms + 9_000)) == -1


def test_the_cluster_describes_itself(bootstrap: str) -> None:
    """F1: every node, one of which is the controller; among them the address the client used."""
    described = calls.admin(bootstrap).describe_cluster().result(calls.WAIT_S)
    assert described.cluster_id
    assert bootstrap in [f"{node.host}:{node.port}" for node in described.nodes]
    assert described.controller.id in [node.id for node in described.nodes]
