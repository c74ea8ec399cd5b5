"""Calls on aiokafka that several tests share; everything is async, tests run it with `asyncio.run`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.structs import ConsumerRecord, RecordMetadata
from tests.compat.samples import Sample

WAIT_S = 30


def codec(name: str) -> str | None:
    return None if name == "none" else name


@asynccontextmanager
async def admin(bootstrap: str) -> AsyncIterator[AIOKafkaAdminClient]:
    client = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await client.start()
    try:
        yield client
    finally:
        await client.close()


@asynccontextmanager
async def producer(bootstrap: str, **config: Any) -> AsyncIterator[AIOKafkaProducer]:
    client = AIOKafkaProducer(bootstrap_servers=bootstrap, **config)
    await client.start()
    try:
        yield client
    finally:
        await client.stop()


@asynccontextmanager
async def assigned(
    bootstrap: str, topic: str, partition: int = 0, **config: Any
) -> AsyncIterator[AIOKafkaConsumer]:
    settings = {"auto_offset_reset": "earliest", "group_id": None, "enable_auto_commit": False, **config}
    client = AIOKafkaConsumer(bootstrap_servers=bootstrap, **settings)
    await client.start()
    try:
        client.assign([TopicPartition(topic, partition)])
        yield client
    finally:
        await client.stop()


async def send(bootstrap: str, topic: str, samples: Iterable[Sample], **config: Any) -> list[RecordMetadata]:
    """Sends to partition 0 without waiting in between, then waits for all."""
    async with producer(bootstrap, **config) as client:
        pending = [
            await client.send(topic, value=s.value, key=s.key, headers=s.headers, partition=0)
            for s in samples
        ]
        return list(await asyncio.wait_for(asyncio.gather(*pending), WAIT_S))


async def take(consumer: AIOKafkaConsumer, count: int) -> list[ConsumerRecord[bytes, bytes]]:
    async with asyncio.timeout(WAIT_S):
        return [await consumer.getone() for _ in range(count)]


async def read(bootstrap: str, topic: str, count: int) -> list[ConsumerRecord[bytes, bytes]]:
    async with assigned(bootstrap, topic) as consumer:
        return await take(consumer, count)


def as_sample(record: ConsumerRecord[bytes, bytes]) -> Sample:
    return Sample(record.key, record.value, list(record.headers))
