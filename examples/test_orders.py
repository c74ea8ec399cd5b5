"""A user's own test with the fixture `braid_broker`; run it with pytest where Braid is installed."""

from __future__ import annotations

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from braidmq.testing import BrokerProcess


def publish(bootstrap: str, order: str) -> None:
    """The code under test."""
    producer = Producer({"bootstrap.servers": bootstrap})
    producer.produce("orders", order)
    producer.flush()


def reader(braid_broker: BrokerProcess) -> Consumer:
    config = {"bootstrap.servers": braid_broker.bootstrap, "group.id": "test", "enable.auto.commit": False}
    return Consumer(config)


@pytest.mark.braid(num_partitions=1)
def test_an_order_is_published(braid_broker: BrokerProcess) -> None:
    publish(braid_broker.bootstrap, "one coffee")
    consumer = reader(braid_broker)
    consumer.assign([TopicPartition("orders", 0, 0)])
    message = consumer.poll(10)
    assert message is not None
    assert message.value() == b"one coffee"
    consumer.close()


@pytest.mark.braid(num_partitions=1)
def test_an_order_survives_a_crash_of_the_queue(braid_broker: BrokerProcess) -> None:
    publish(braid_broker.bootstrap, "one coffee")
    braid_broker.kill()
    braid_broker.restart()
    consumer = reader(braid_broker)
    assert consumer.get_watermark_offsets(TopicPartition("orders", 0), timeout=10) == (0, 1)
    consumer.close()
