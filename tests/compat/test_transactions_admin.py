"""Transactions as an administrator sees them, and ends them, by kafka-python's client."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest
from kafka import TopicPartition
from kafka.admin import AbortTransactionSpec
from kafka.errors import KafkaError
from tests.compat import kafka_python_calls
from tests.compat.conftest import FOREIGN_SERVER
from tests.compat.test_transactions import numbered, stable_offset, until
from tests.compat.transaction_members import COMMITTED, producing, read

pytestmark = pytest.mark.filterwarnings("ignore")  # the client's own


def test_an_administrator_sees_an_open_transaction(
    bootstrap: str, topic: str, new_name: Callable[[], str]
) -> None:
    """T2 O1: listed and described while it is open, and once it has ended."""
    name = new_name()
    with producing("confluent", bootstrap, name) as producer, kafka_python_calls.admin(bootstrap) as admin:
        producer.begin()
        producer.send(topic, 0, b"one")
        producer.send(topic, 1, b"two")
        producer.flush()
        described = admin.describe_transactions([name])[name]
        assert described.state == "Ongoing"
        assert described.topic_partitions == {TopicPartition(topic, 0), TopicPartition(topic, 1)}
        assert described.transaction_timeout_ms == 60_000
        assert described.transaction_start_time_ms > 0
        listed = [
            one for found in admin.list_transactions(state_filters=["Ongoing"]).values() for one in found
        ]
        assert (name, described.producer_id, "Ongoing") in [tuple(one) for one in listed]
        producer.commit()
        until(lambda: admin.describe_transactions([name])[name].state == "CompleteCommit", "the end")
        assert admin.describe_transactions([name])[name].topic_partitions == set()
        listed = [
            one for found in admin.list_transactions(state_filters=["Ongoing"]).values() for one in found
        ]
        assert name not in [one.transactional_id for one in listed]


def test_transactions_are_listed_by_what_an_administrator_asks_for(
    bootstrap: str, topic: str, new_name: Callable[[], str]
) -> None:
    """T2: by state, producer, age and name."""
    name = new_name()
    with producing("confluent", bootstrap, name) as producer, kafka_python_calls.admin(bootstrap) as admin:
        producer.begin()
        producer.send(topic, 0, b"one")
        producer.flush()

        def listed(**filters: object) -> set[str]:
            found = admin.list_transactions(**filters)
            return {one.transactional_id for each in found.values() for one in each}

        producer_id = admin.describe_transactions([name])[name].producer_id
        assert listed(producer_id_filters=[producer_id]) == {name}
        assert listed(transactional_id_pattern=f"{name[:-1]}.*") >= {name}
        assert name not in listed(transactional_id_pattern="nobody-.*")
        assert name in listed(duration_filter_ms=0)
        assert name not in listed(duration_filter_ms=3_600_000)
        assert name not in listed(state_filters=["CompleteCommit"])
        producer.abort()


def test_an_unknown_transactional_id_is_told_as_such(bootstrap: str, new_name: Callable[[], str]) -> None:
    """T2: in Kafka's words."""
    with kafka_python_calls.admin(bootstrap) as admin, pytest.raises(KafkaError) as failure:
        admin.describe_transactions([new_name()])
    assert type(failure.value).__name__ == "TransactionalIdNotFoundError"


@pytest.mark.skipif(FOREIGN_SERVER not in os.environ, reason="Braid takes no markers from clients")
def test_a_transaction_is_aborted_in_one_partition_by_an_administrator(
    bootstrap: str, topic: str, new_name: Callable[[], str]
) -> None:
    """T2: WriteTxnMarkers, as the tool for hanging transactions sends it, lets readers go on."""
    name = new_name()
    with producing("confluent", bootstrap, name) as producer, kafka_python_calls.admin(bootstrap) as admin:
        producer.begin()
        for value in numbered(1, 2, 3):
            producer.send(topic, 0, value)
        producer.flush()
        home = TopicPartition(topic, 0)
        (state,) = admin.describe_producers([home])[home].active_producers
        assert state.current_transaction_start_offset == 0
        assert stable_offset(bootstrap, topic) == 0
        admin.abort_transaction(AbortTransactionSpec(home, state.producer_id, state.producer_epoch))
        until(lambda: stable_offset(bootstrap, topic) == 4, "the marker is there")
        assert read("confluent", bootstrap, topic, 0, COMMITTED) == []
        (state,) = admin.describe_producers([home])[home].active_producers
        assert state.current_transaction_start_offset == -1
        producer.abort()


@pytest.mark.skipif(FOREIGN_SERVER in os.environ, reason="without an authorizer Kafka lets everybody")
def test_a_marker_from_an_administrator_is_refused(
    bootstrap: str, topic: str, new_name: Callable[[], str]
) -> None:
    """T2 W5: the client says why, and the transaction goes on."""
    with (
        producing("confluent", bootstrap, new_name()) as producer,
        kafka_python_calls.admin(bootstrap) as admin,
    ):
        producer.begin()
        producer.send(topic, 0, b"one")
        producer.flush()
        home = TopicPartition(topic, 0)
        (state,) = admin.describe_producers([home])[home].active_producers
        with pytest.raises(KafkaError) as failure:
            admin.abort_transaction(AbortTransactionSpec(home, state.producer_id, state.producer_epoch))
        assert "ClusterAuthorizationFailed" in type(failure.value).__name__
        producer.commit()
        until(
            lambda: read("confluent", bootstrap, topic, 0, COMMITTED) == [b"one"], "the record is committed"
        )
