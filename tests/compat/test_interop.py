"""One log, every client: what one writes with any codec, each other reads, byte for byte."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from tests.compat import aiokafka_calls, confluent_calls, kafka_python_calls
from tests.compat.samples import CODECS, SAMPLES, Sample

Reader = Callable[[str, str, int], list[Sample]]


def write_with_confluent(bootstrap: str, topic: str, codec: str) -> None:
    confluent_calls.send(bootstrap, topic, SAMPLES, compression_type=codec)


def write_with_aiokafka(bootstrap: str, topic: str, codec: str) -> None:
    asyncio.run(aiokafka_calls.send(bootstrap, topic, SAMPLES, compression_type=aiokafka_calls.codec(codec)))


def write_with_kafka_python(bootstrap: str, topic: str, codec: str) -> None:
    kafka_python_calls.send(bootstrap, topic, SAMPLES, compression_type=kafka_python_calls.codec(codec))


def read_with_confluent(bootstrap: str, topic: str, count: int) -> list[Sample]:
    return [confluent_calls.as_sample(message) for message in confluent_calls.read(bootstrap, topic, count)]


def read_with_aiokafka(bootstrap: str, topic: str, count: int) -> list[Sample]:
    return [aiokafka_calls.as_sample(m) for m in asyncio.run(aiokafka_calls.read(bootstrap, topic, count))]


def read_with_kafka_python(bootstrap: str, topic: str, count: int) -> list[Sample]:
    return [
        kafka_python_calls.as_sample(record) for record in kafka_python_calls.read(bootstrap, topic, count)
    ]


READERS: tuple[Reader, ...] = (read_with_confluent, read_with_aiokafka, read_with_kafka_python)


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("write", [write_with_confluent, write_with_aiokafka, write_with_kafka_python])
def test_what_one_client_writes_every_client_reads(
    bootstrap: str, topic: str, write: Callable[[str, str, str], None], codec: str
) -> None:
    """F1 F5 P5: key, value and headers pass unchanged between clients."""
    write(bootstrap, topic, codec)
    for read in READERS:
        assert read(bootstrap, topic, len(SAMPLES)) == SAMPLES
