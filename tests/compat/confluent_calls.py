"""Calls on confluent-kafka that several tests share: create a topic, send and wait, read a partition."""

from __future__ import annotations

import functools
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from tests.chaos.load import ONE_BROKER
from tests.compat.samples import Sample

WAIT_S = 30


@functools.cache
def admin(bootstrap: str) -> AdminClient:
    """One client per server: its futures fail when it is collected before they are done."""
    return AdminClient({"bootstrap.servers": bootstrap, **ONE_BROKER})


def create_topic(
    bootstrap: str, name: str, partitions: int = 1, config: dict[str, str] | None = None
) -> None:
    client = admin(bootstrap)
    new = NewTopic(name, num_partitions=partitions, replication_factor=1, config=config or {})
    client.create_topics([new])[name].result(WAIT_S)
    await_leaders(client, name, partitions)


def await_leaders(client: AdminClient, name: str, partitions: int) -> None:
    """A topic exists once each partition has a leader; on Kafka that comes a moment after the answer."""
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        described = client.list_topics(name, timeout=WAIT_S).topics[name].partitions
        if len(described) == partitions and all(p.leader >= 0 for p in described.values()):
            return
        time.sleep(0.05)
    raise AssertionError(f"{name} has no leaders for {partitions} partitions")


def send(bootstrap: str, topic: str, samples: Iterable[Sample], **config: Any) -> list[Message]:
    """Sends to partition 0, waits for all, and gives the delivery reports, which must be free of errors."""
    reports: list[Message] = []
    failures: list[KafkaError] = []

    def note(error: KafkaError | None, message: Message) -> None:
        reports.append(message)
        if error is not None:
            failures.append(error)

    settings = {name.replace("_", "."): value for name, value in config.items()}
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 5, **settings})
    for sample in samples:
        producer.produce(
            topic, key=sample.key, value=sample.value, headers=sample.headers, partition=0, on_delivery=note
        )
    assert producer.flush(WAIT_S) == 0
    assert failures == []
    return reports


@contextmanager
def assigned(
    bootstrap: str, topic: str, partition: int = 0, offset: int = OFFSET_BEGINNING, **config: Any
) -> Iterator[Consumer]:
    settings = {name.replace("_", "."): value for name, value in config.items()}
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "unused",
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            **settings,
        }
    )
    try:
        consumer.assign([TopicPartition(topic, partition, offset)])
        yield consumer
    finally:
        consumer.close()


def take(consumer: Consumer, count: int) -> list[Message]:
    """The next `count` messages; fails on an error and when they do not come."""
    messages: list[Message] = []
    deadline = time.monotonic() + WAIT_S
    while len(messages) < count and time.monotonic() < deadline:
        for message in consumer.consume(count - len(messages), timeout=0.5):
            assert message.error() is None, message.error()
            messages.append(message)
    assert len(messages) == count, f"{len(messages)} of {count} messages came"
    return messages


def read(bootstrap: str, topic: str, count: int, partition: int = 0) -> list[Message]:
    with assigned(bootstrap, topic, partition) as consumer:
        return take(consumer, count)


def as_sample(message: Message) -> Sample:
    return Sample(message.key(), message.value(), list(message.headers() or []))
