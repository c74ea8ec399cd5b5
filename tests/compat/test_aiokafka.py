"""aiokafka against the broker: old protocol versions, pure asyncio."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest
from aiokafka import TopicPartition
from aiokafka.admin import NewPartitions, NewTopic, RecordsToDelete
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import (
    InvalidPartitionsError,
    MessageSizeTooLargeError,
    OffsetOutOfRangeError,
)
from tests.compat import aiokafka_calls as calls
from tests.compat.samples import ACKS, CODECS, SAMPLES_WITH_NULL_HEADER, Sample

MANY = [Sample(None, b"%d" % number, []) for number in range(100)]
TOPIC_ALREADY_EXISTS, INVALID_REPLICATION_FACTOR, INVALID_CONFIG, INVALID_TOPIC = 36, 38, 40, 17


@pytest.mark.parametrize("codec", CODECS)
def test_every_codec_carries_keys_values_and_headers(bootstrap: str, topic: str, codec: str) -> None:
    """F1 P5 P3: what aiokafka compresses, aiokafka reads."""

    async def run() -> None:
        await calls.send(bootstrap, topic, SAMPLES_WITH_NULL_HEADER, compression_type=calls.codec(codec))
        records = await calls.read(bootstrap, topic, len(SAMPLES_WITH_NULL_HEADER))
        assert [calls.as_sample(record) for record in records] == SAMPLES_WITH_NULL_HEADER

    asyncio.run(run())


@pytest.mark.parametrize("acks", ACKS)
def test_every_acks_setting_delivers(bootstrap: str, topic: str, acks: Any) -> None:
    """P4: acks 0, 1 and all."""

    async def run() -> None:
        reports = await calls.send(bootstrap, topic, MANY, acks=acks)
        if acks != 0:
            assert [report.offset for report in reports] == list(range(len(MANY)))
        assert [r.value for r in await calls.read(bootstrap, topic, len(MANY))] == [s.value for s in MANY]

    asyncio.run(run())


def test_an_idempotent_producer_delivers_in_order(bootstrap: str, topic: str) -> None:
    """P4: InitProducerId and sequences, at the versions aiokafka speaks."""

    async def run() -> None:
        async with calls.producer(bootstrap, enable_idempotence=True) as producer:
            for sample in MANY[:20]:
                await asyncio.wait_for(producer.send_and_wait(topic, sample.value, partition=0), calls.WAIT_S)
        async with calls.assigned(bootstrap, topic) as consumer:
            assert [r.value for r in await calls.take(consumer, 20)] == [s.value for s in MANY[:20]]
            assert await consumer.end_offsets([TopicPartition(topic, 0)]) == {TopicPartition(topic, 0): 20}

    asyncio.run(run())


def test_a_consumer_seeks_by_offset_and_by_time(bootstrap: str, topic: str) -> None:
    """C7: seek, offsets_for_times, beginning and end."""
    base_ms = int(time.time() * 1000) - 100_000
    home = TopicPartition(topic, 0)

    async def run() -> None:
        async with calls.producer(bootstrap) as producer:
            for number in range(30):
                await producer.send_and_wait(
                    topic, b"%d" % number, partition=0, timestamp_ms=base_ms + number * 100
                )
        async with calls.assigned(bootstrap, topic) as consumer:
            consumer.seek(home, 17)
            assert (await calls.take(consumer, 1))[0].value == b"17"
            found = await consumer.offsets_for_times({home: base_ms + 450})
            assert (found[home].offset, found[home].timestamp) == (5, base_ms + 500)
            assert await consumer.offsets_for_times({home: base_ms + 10_000}) == {home: None}
            assert await consumer.beginning_offsets([home]) == {home: 0}
            await consumer.seek_to_end(home)
            assert await consumer.position(home) == 30
            await consumer.seek_to_beginning(home)
            assert (await calls.take(consumer, 1))[0].offset == 0

    asyncio.run(run())


def test_an_offset_outside_the_log_is_an_error(bootstrap: str, topic: str) -> None:
    """C7: without a reset policy the application is told."""

    async def run() -> None:
        await calls.send(bootstrap, topic, MANY)
        async with calls.assigned(bootstrap, topic, auto_offset_reset="none") as consumer:
            consumer.seek(TopicPartition(topic, 0), 1_000)
            with pytest.raises(OffsetOutOfRangeError):
                await calls.take(consumer, 1)

    asyncio.run(run())


def test_topics_are_created_described_grown_and_deleted(bootstrap: str, new_name: Callable[[], str]) -> None:
    """F1 L1: the admin calls at the versions aiokafka speaks."""
    topic = new_name()

    async def run() -> None:
        async with calls.admin(bootstrap) as admin:
            created = await admin.create_topics(
                [NewTopic(topic, 2, 1, topic_configs={"retention.ms": "5000000"})]
            )
            assert created.topic_errors[0][1] == 0
            assert (await admin.create_topics([NewTopic(topic, 2, 1)])).topic_errors[0][
                1
            ] == TOPIC_ALREADY_EXISTS
            await admin.create_partitions({topic: NewPartitions(3)})
            with pytest.raises(InvalidPartitionsError):
                await admin.create_partitions({topic: NewPartitions(1)})
            described = await described_with(admin, topic, 3)
            assert described["error_code"] == 0
            assert topic in await admin.list_topics()
            assert (await admin.describe_cluster())["brokers"]
            assert (await admin.delete_topics([topic])).topic_error_codes == [(topic, 0)]

    asyncio.run(run())


async def described_with(admin: Any, topic: str, partitions: int) -> dict[str, Any]:
    """On Kafka new partitions show up in the metadata a moment after the answer."""
    async with asyncio.timeout(calls.WAIT_S):
        while True:
            described: dict[str, Any] = (await admin.describe_topics([topic]))[0]
            if len(described["partitions"]) == partitions:
                return described
            await asyncio.sleep(0.05)


@pytest.mark.parametrize(
    ("wanted", "code"),
    [
        (NewTopic("compat-too-many-replicas", 1, 5), INVALID_REPLICATION_FACTOR),
        (NewTopic("compat-bad-option", 1, 1, topic_configs={"retention.ms": "never"}), INVALID_CONFIG),
        (NewTopic("compat/bad/name", 1, 1), INVALID_TOPIC),
    ],
)
def test_a_topic_that_cannot_be_is_refused_with_kafkas_code(
    bootstrap: str, wanted: NewTopic, code: int
) -> None:
    """W5: the same codes at the old versions, with a text."""

    async def run() -> None:
        async with calls.admin(bootstrap) as admin:
            _, answered, text = (await admin.create_topics([wanted])).topic_errors[0]
            assert answered == code
            assert text

    asyncio.run(run())


def test_options_are_altered_and_described(bootstrap: str, topic: str) -> None:
    """F1: AlterConfigs and DescribeConfigs."""
    wanted = ConfigResource(ConfigResourceType.TOPIC, topic, configs={"max.message.bytes": "2000"})

    async def run() -> None:
        async with calls.admin(bootstrap) as admin:
            altered = await admin.alter_configs([wanted])
            assert altered[0].resources[0][0] == 0
            async with asyncio.timeout(calls.WAIT_S):
                while await option(admin, topic, "max.message.bytes") != "2000":
                    await asyncio.sleep(0.05)
        with pytest.raises(MessageSizeTooLargeError):
            await calls.send(bootstrap, topic, [Sample(None, b"x" * 4_000, [])])

    asyncio.run(run())


async def option(admin: Any, topic: str, name: str) -> str:
    answers = await admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, topic)])
    entries = answers[0].resources[0][4]
    return next(str(entry[1]) for entry in entries if entry[0] == name)


def test_records_are_deleted_up_to_an_offset(bootstrap: str, topic: str) -> None:
    """C7 L7: DeleteRecords."""
    home = TopicPartition(topic, 0)

    async def run() -> None:
        await calls.send(bootstrap, topic, MANY)
        async with calls.admin(bootstrap) as admin:
            assert await admin.delete_records({home: RecordsToDelete(before_offset=60)}) == {home: 60}
        async with calls.assigned(bootstrap, topic) as consumer:
            assert await consumer.beginning_offsets([home]) == {home: 60}
            assert (await calls.take(consumer, 1))[0].value == b"60"

    asyncio.run(run())
