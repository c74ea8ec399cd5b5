"""Administration of a single node by stock Python clients: operations, options, quorum, features, leaders."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import ElectionType, KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import (
    AclOperation,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    ResourceType,
)
from kafka.admin import AlterConfigOp, ConfigResourceType
from kafka.admin import ConfigResource as PythonResource
from kafka.errors import InvalidUpdateVersionError
from tests.compat import confluent_calls, kafka_python_calls

OF_A_TOPIC = {
    AclOperation.READ,
    AclOperation.WRITE,
    AclOperation.CREATE,
    AclOperation.DELETE,
    AclOperation.ALTER,
    AclOperation.DESCRIBE,
    AclOperation.DESCRIBE_CONFIGS,
    AclOperation.ALTER_CONFIGS,
}
OF_THE_CLUSTER = {
    AclOperation.CREATE,
    AclOperation.ALTER,
    AclOperation.DESCRIBE,
    AclOperation.CLUSTER_ACTION,
    AclOperation.DESCRIBE_CONFIGS,
    AclOperation.ALTER_CONFIGS,
    AclOperation.IDEMPOTENT_WRITE,
}
WAIT_S = confluent_calls.WAIT_S


def until(holds: Callable[[], bool]) -> None:
    """A broker of Kafka learns of a change some moments after it was answered."""
    deadline = time.monotonic() + WAIT_S
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def nodes_of(bootstrap: str) -> list[int]:
    return sorted(confluent_calls.admin(bootstrap).list_topics(timeout=WAIT_S).brokers)


def node_of(bootstrap: str) -> str:
    return str(next(iter(confluent_calls.admin(bootstrap).list_topics(timeout=WAIT_S).brokers)))


def test_authorized_operations_are_told_to_librdkafka(bootstrap: str, topic: str) -> None:
    """F1: of a topic and of the cluster, where they are asked for."""
    client = confluent_calls.admin(bootstrap)
    wanted = TopicCollection([topic])
    described = client.describe_topics(wanted, include_authorized_operations=True)[topic].result(WAIT_S)
    assert set(described.authorized_operations) == OF_A_TOPIC
    cluster = client.describe_cluster(include_authorized_operations=True).result(WAIT_S)
    assert set(cluster.authorized_operations) == OF_THE_CLUSTER
    assert client.describe_topics(wanted)[topic].result(WAIT_S).authorized_operations is None


@pytest.mark.parametrize("owner", ["broker", "group"])
def test_options_of_brokers_and_groups_are_set_and_deleted_by_librdkafka(
    bootstrap: str, new_name: Callable[[], str], owner: str
) -> None:
    """F1 C7: a change shows its source; deleting it brings the default back."""
    kind, name, option, value, source = {
        "broker": (
            ResourceType.BROKER,
            node_of(bootstrap),
            "message.max.bytes",
            "2000000",
            ConfigSource.DYNAMIC_BROKER_CONFIG,
        ),
        "group": (
            ResourceType.GROUP,
            new_name(),
            "consumer.session.timeout.ms",
            "50000",
            ConfigSource.GROUP_CONFIG,
        ),
    }[owner]
    client = confluent_calls.admin(bootstrap)

    def alter(operation: AlterConfigOpType, value: str | None) -> None:
        entry = ConfigEntry(option, value, incremental_operation=operation)
        resource = ConfigResource(kind, name, incremental_configs=[entry])
        client.incremental_alter_configs([resource])[resource].result(WAIT_S)

    def described() -> Any:
        resource = ConfigResource(kind, name)
        return client.describe_configs([resource])[resource].result(WAIT_S)[option]

    before = described()
    alter(AlterConfigOpType.SET, value)
    until(lambda: (described().value, described().source) == (value, source.value))
    alter(AlterConfigOpType.DELETE, None)
    until(lambda: (described().value, described().source) == (before.value, before.source))
    with pytest.raises(KafkaException):
        alter(AlterConfigOpType.SET, "not a number")


def test_no_election_is_needed_says_librdkafka(bootstrap: str, topic: str) -> None:
    """F1: ELECTION_NOT_NEEDED for a partition that its one replica leads."""
    here, nowhere = TopicPartition(topic, 0), TopicPartition(topic, 9)
    results = (
        confluent_calls.admin(bootstrap).elect_leaders(ElectionType.PREFERRED, [here, nowhere]).result(WAIT_S)
    )
    codes = {found.partition: error.code() for found, error in results.items()}
    assert codes == {0: KafkaError.ELECTION_NOT_NEEDED, 9: KafkaError.UNKNOWN_TOPIC_OR_PART}


def test_quorum_features_and_reassignments_are_told_to_kafka_python(bootstrap: str, topic: str) -> None:
    """F1: one voter that leads, features at the newest level, nothing under way."""
    node = int(node_of(bootstrap))
    with kafka_python_calls.admin(bootstrap) as admin:
        part = admin.describe_metadata_quorum()["topics"][0]["partitions"][0]
        assert [each["replica_id"] for each in part["current_voters"]] == [part["leader_id"]]
        assert part["leader_id"] in nodes_of(bootstrap)
        assert part["high_watermark"] > 0
        features = admin.describe_features()
        for name in ("metadata.version", "group.version", "share.version", "transaction.version"):
            (_, newest), finalized = features[name]["supported"], features[name]["finalized"]
            assert finalized == (newest, newest)
        newest = features["share.version"]["supported"][1]
        assert admin.update_features({"share.version": newest}, validate_only=True) == {"share.version": "OK"}
        with pytest.raises(InvalidUpdateVersionError):
            admin.update_features({"share.version": newest + 1}, validate_only=True)
        assert admin.list_partition_reassignments() == {}
        listed = admin.list_config_resources()
        assert topic in listed["topic"]
        assert str(node) in listed["broker"]


def test_levels_of_loggers_are_changed_by_kafka_python(bootstrap: str) -> None:
    """F1: and shown with the source that Kafka has for them."""
    node = node_of(bootstrap)

    def root() -> dict[str, Any]:
        resource = PythonResource(ConfigResourceType.BROKER_LOGGER, node)
        found = admin.describe_configs([resource], config_filter="all")
        entry: dict[str, Any] = found["broker_logger"][node]["root"]
        return entry

    def set_root(level: str) -> None:
        change = {"root": (AlterConfigOp.SET, level)}
        admin.alter_configs([PythonResource(ConfigResourceType.BROKER_LOGGER, node, change)])

    with kafka_python_calls.admin(bootstrap) as admin:
        before = root()["value"]
        set_root("ERROR")
        assert (root()["value"], root()["config_source"]) == ("ERROR", "DYNAMIC_BROKER_LOGGER_CONFIG")
        set_root(before)
