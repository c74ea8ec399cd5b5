"""Batches of librdkafka, read by us, and ours, read by librdkafka, through the mock broker it brings along.

The mock keeps batches as they were sent, so nothing of ours but the batch itself takes part.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import closing

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from braidmq.wire import header, records
from braidmq.wire.api import Api
from braidmq.wire.compress import Codec
from braidmq.wire.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from braidmq.wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from braidmq.wire.records import NewRecord, build_batch, check_produced
from braidmq.wire.schema import Message, decode, encode

TOPIC = "batches"
NOW_MS = 1_700_000_000_000
HEADERS = [("h", b"x"), ("null", None)]
ROWS: list[NewRecord] = [
    (b"key %d" % number if number % 2 else None, b"value " * number, HEADERS, NOW_MS + number)
    for number in range(100)
]
FETCH_VERSION = 11
PRODUCE_VERSION = 7
TIMEOUT_S = 20

Address = tuple[str, int]


@pytest.fixture
def mock(request: pytest.FixtureRequest) -> Iterator[tuple[Producer, Address]]:
    """A producer that compresses with the codec asked for, and the mock broker inside of it."""
    codec = getattr(request, "param", Codec.NONE)
    producer = Producer(
        {
            "bootstrap.servers": "replaced.by.the.mock:1",
            "test.mock.num.brokers": 1,
            "compression.type": codec.name.lower(),
            "enable.idempotence": True,
            "linger.ms": 1000,
            "log_level": 0,
        }
    )
    # Asking for the topic creates it.
    (broker,) = producer.list_topics(TOPIC, timeout=TIMEOUT_S).brokers.values()
    yield producer, (broker.host, broker.port)
    producer.flush(TIMEOUT_S)


def ask(address: Address, api: Api, version: int, request: Message) -> bytes:
    """The body of the mock's answer; both versions used here have the old headers."""
    message = header.request(api, version, 1, "test") + encode(request, version)
    with closing(socket.create_connection(address, TIMEOUT_S)) as sock, sock.makefile("rb") as answers:
        sock.sendall(len(message).to_bytes(4, "big") + message)
        size = int.from_bytes(answers.read(4), "big")
        return answers.read(size)[4:]


@pytest.mark.parametrize("mock", Codec, indirect=True, ids=[codec.name.lower() for codec in Codec])
def test_a_librdkafka_batch_is_checked_and_read(
    mock: tuple[Producer, Address], request: pytest.FixtureRequest
) -> None:
    """F1: what confluent-kafka sends, with every codec, idempotent."""
    producer, address = mock
    for key, value, headers, timestamp in ROWS:
        producer.produce(TOPIC, value, key, partition=0, timestamp=timestamp, headers=list(headers))
    assert producer.flush(TIMEOUT_S) == 0
    partition = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)
    topics = [FetchTopic(topic=TOPIC, partitions=[partition])]
    fetch = FetchRequest(max_wait_ms=1000, min_bytes=1, topics=topics, forgotten_topics_data=[], rack_id="")
    response = decode(FetchResponse, FETCH_VERSION, ask(address, Api.FETCH, FETCH_VERSION, fetch))
    batch = bytes(response.responses[0].partitions[0].records or b"")
    found = check_produced(memoryview(batch), 1 << 20)
    assert found.codec.name.lower() == request.node.callspec.id
    assert (found.record_count, found.base_sequence, found.max_timestamp) == (100, 0, NOW_MS + 99)
    assert found.producer_id >= 0
    assert [(r.key, r.value, r.headers, r.timestamp) for r in records.records(batch)] == ROWS


@pytest.mark.parametrize("codec", Codec, ids=[codec.name.lower() for codec in Codec])
def test_our_batch_is_read_by_librdkafka(mock: tuple[Producer, Address], codec: Codec) -> None:
    """F1: what we build is what confluent-kafka consumes, its CRC checked."""
    _, address = mock
    data = PartitionProduceData(index=0, records=bytes(build_batch(ROWS, codec)))
    topics = [TopicProduceData(name=TOPIC, partition_data=[data])]
    produce = ProduceRequest(transactional_id=None, acks=-1, timeout_ms=1000, topic_data=topics)
    response = decode(ProduceResponse, PRODUCE_VERSION, ask(address, Api.PRODUCE, PRODUCE_VERSION, produce))
    assert response.responses[0].partition_responses[0].error_code == 0
    consumer = Consumer(
        {
            "bootstrap.servers": "{}:{}".format(*address),
            "group.id": "test",
            "check.crcs": True,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "log_level": 0,
        }
    )
    with closing(consumer):
        consumer.assign([TopicPartition(TOPIC, 0, 0)])
        found = consumer.consume(len(ROWS), TIMEOUT_S)
    assert [(m.key(), m.value() or b"", m.headers(), m.timestamp()[1]) for m in found] == ROWS
