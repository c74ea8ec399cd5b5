"""Calls on kafka-python that several tests share."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
from tests.compat.samples import Sample

WAIT_S = 30


def codec(name: str) -> str | None:
    return None if name == "none" else name


@contextmanager
def admin(bootstrap: str) -> Iterator[KafkaAdminClient]:
    client = KafkaAdminClient(bootstrap_servers=bootstrap)
    try:
        yield client
    finally:
        client.close()


@contextmanager
def producer(bootstrap: str, **config: Any) -> Iterator[KafkaProducer]:
    client = KafkaProducer(bootstrap_servers=bootstrap, **config)
    try:
        yield client
    finally:
        client.close(timeout=WAIT_S)


@contextmanager
def assigned(bootstrap: str, topic: str, partition: int = 0, **config: Any) -> Iterator[KafkaConsumer]:
    settings = {"auto_offset_reset": "earliest", "group_id": None, "enable_auto_commit": False, **config}
    client = KafkaConsumer(bootstrap_servers=bootstrap, consumer_timeout_ms=WAIT_S * 1000, **settings)
    try:
        client.assign([TopicPartition(topic, partition)])
        yield client
    finally:
        client.close()


def send(bootstrap: str, topic: str, samples: Iterable[Sample], **config: Any) -> list[Any]:
    """Sends to partition 0 without waiting in between, then waits for all."""
    with producer(bootstrap, **config) as client:
        pending = [
            client.send(topic, value=s.value, key=s.key, headers=s.headers, partition=0) for s in samples
        ]
        return [future.get(timeout=WAIT_S) for future in pending]


def take(consumer: KafkaConsumer, count: int) -> list[Any]:
    records = [record for _, record in zip(range(count), consumer, strict=False)]
    assert len(records) == count, f"{len(records)} of {count} records came"
    return records


def read(bootstrap: str, topic: str, count: int) -> list[Any]:
    with assigned(bootstrap, topic) as consumer:
        return take(consumer, count)


def as_sample(record: Any) -> Sample:
    return Sample(record.key, record.value, list(record.headers))
