"""A transactional producer and readers at both isolation levels, by each stock client, in one shape."""

from __future__ import annotations

import asyncio
import time
import warnings
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka import TopicPartition as AioTopicPartition
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from kafka import KafkaConsumer, KafkaProducer
from kafka import TopicPartition as PyTopicPartition
from kafka.consumer.group import ConsumerGroupMetadata
from kafka.structs import OffsetAndMetadata

WAIT_S = 30.0
QUIET_S = 0.3
"""How long a reader listens before it says that nothing more comes."""
COMMITTED, UNCOMMITTED = "read_committed", "read_uncommitted"


class TransactionalProducer(Protocol):
    """What all of them can do. Every call returns when the broker has answered."""

    def begin(self) -> None: ...
    def send(self, topic: str, partition: int, value: bytes) -> None:
        """Hands the record over; it is on the broker after `flush`."""
        ...

    def flush(self) -> None: ...
    def send_offset(self, group: str, topic: str, partition: int, offset: int) -> None: ...
    def commit(self) -> None: ...
    def abort(self) -> None: ...
    def close(self) -> None: ...


class ConfluentProducer:
    def __init__(
        self, bootstrap: str, name: str, codec: str = "none", timeout_ms: int = 60_000, **settings: Any
    ) -> None:
        self._bootstrap = bootstrap
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "transactional.id": name,
                "transaction.timeout.ms": timeout_ms,
                "compression.type": codec,
                "batch.num.messages": 20,
                "linger.ms": 1,
                "log_level": 0,
                **settings,
            }
        )
        self._producer.init_transactions(WAIT_S)

    def begin(self) -> None:
        self._producer.begin_transaction()

    def send(self, topic: str, partition: int, value: bytes) -> None:
        self._producer.produce(topic, value, partition=partition)

    def flush(self) -> None:
        assert self._producer.flush(WAIT_S) == 0

    def send_offset(self, group: str, topic: str, partition: int, offset: int) -> None:
        consumer = Consumer({"bootstrap.servers": self._bootstrap, "group.id": group})
        where = [TopicPartition(topic, partition, offset)]
        self._producer.send_offsets_to_transaction(where, consumer.consumer_group_metadata(), WAIT_S)
        consumer.close()

    def commit(self) -> None:
        self._producer.commit_transaction(WAIT_S)

    def abort(self) -> None:
        self._producer.abort_transaction(WAIT_S)

    def close(self) -> None:
        self._producer.close(WAIT_S)


class KafkaPythonProducer:
    def __init__(self, bootstrap: str, name: str, codec: str = "none", timeout_ms: int = 60_000) -> None:
        self._producer = KafkaProducer(
            bootstrap_servers=bootstrap,
            transactional_id=name,
            transaction_timeout_ms=timeout_ms,
            compression_type=None if codec == "none" else codec,
            linger_ms=1,
            batch_size=500,
        )
        self._producer.init_transactions()

    def begin(self) -> None:
        self._producer.begin_transaction()

    def send(self, topic: str, partition: int, value: bytes) -> None:
        self._producer.send(topic, value, partition=partition)

    def flush(self) -> None:
        self._producer.flush(timeout=WAIT_S)

    def send_offset(self, group: str, topic: str, partition: int, offset: int) -> None:
        where = {PyTopicPartition(topic, partition): OffsetAndMetadata(offset, "", -1)}
        self._producer.send_offsets_to_transaction(where, ConsumerGroupMetadata(group, -1, "", None))

    def commit(self) -> None:
        self._producer.commit_transaction()

    def abort(self) -> None:
        self._producer.abort_transaction()

    def close(self) -> None:
        self._producer.close(timeout=WAIT_S)


class AioKafkaProducer:
    """On an event loop of its own, which runs while a call does."""

    def __init__(self, bootstrap: str, name: str, codec: str = "none", timeout_ms: int = 60_000) -> None:
        self._loop = asyncio.new_event_loop()
        self._sent: list[asyncio.Future[Any]] = []
        self._producer = self._do(self._start(bootstrap, name, codec, timeout_ms))

    async def _start(self, bootstrap: str, name: str, codec: str, timeout_ms: int) -> AIOKafkaProducer:
        producer = AIOKafkaProducer(
            bootstrap_servers=bootstrap,
            transactional_id=name,
            transaction_timeout_ms=timeout_ms,
            compression_type=None if codec == "none" else codec,
            max_batch_size=1_000,
        )
        try:
            await producer.start()
        except BaseException:
            await producer.stop()
            raise
        return producer

    def _do(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self._loop.run_until_complete(asyncio.wait_for(work, WAIT_S))

    def begin(self) -> None:
        self._do(self._producer.begin_transaction())

    def send(self, topic: str, partition: int, value: bytes) -> None:
        self._sent.append(self._do(self._producer.send(topic, value, partition=partition)))

    def flush(self) -> None:
        self._do(self._producer.flush())
        sent, self._sent = self._sent, []
        for each in sent:
            each.result()

    def send_offset(self, group: str, topic: str, partition: int, offset: int) -> None:
        where = {AioTopicPartition(topic, partition): offset}
        self._do(self._producer.send_offsets_to_transaction(where, group))

    def commit(self) -> None:
        self._do(self._producer.commit_transaction())

    def abort(self) -> None:
        self._do(self._producer.abort_transaction())

    def close(self) -> None:
        try:
            self._do(self._producer.stop())
        finally:
            self._loop.close()


PRODUCERS: dict[str, Callable[..., TransactionalProducer]] = {
    "confluent": ConfluentProducer,
    "kafka-python": KafkaPythonProducer,
    "aiokafka": AioKafkaProducer,
}


@contextmanager
def producing(client: str, bootstrap: str, name: str, **settings: Any) -> Iterator[TransactionalProducer]:
    producer = PRODUCERS[client](bootstrap, name, **settings)
    try:
        yield producer
    finally:
        producer.close()


def read_confluent(bootstrap: str, topic: str, partition: int, level: str) -> list[bytes]:
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "unused",
            "isolation.level": level,
            "enable.partition.eof": True,
            "enable.auto.commit": False,
        }
    )
    try:
        consumer.assign([TopicPartition(topic, partition, 0)])
        values: list[bytes] = []
        deadline = time.monotonic() + WAIT_S
        while time.monotonic() < deadline:
            for message in consumer.consume(500, 0.1):
                error = message.error()
                if error is None:
                    values.append(message.value())
                elif error.code() == KafkaError._PARTITION_EOF:
                    return values
        raise AssertionError(f"{topic}/{partition} has no end at {level}")
    finally:
        consumer.close()


def read_kafka_python(bootstrap: str, topic: str, partition: int, level: str) -> list[bytes]:
    consumer = KafkaConsumer(
        bootstrap_servers=bootstrap, isolation_level=level, auto_offset_reset="earliest", group_id=None
    )
    try:
        home = PyTopicPartition(topic, partition)
        consumer.assign([home])
        end = consumer.end_offsets([home])[home]
        values: list[bytes] = []
        quiet_since = time.monotonic()
        while time.monotonic() - quiet_since < QUIET_S and consumer.position(home) < end:
            for records in consumer.poll(timeout_ms=100).values():
                values += [record.value for record in records]
                quiet_since = time.monotonic()
        return values
    finally:
        consumer.close()


def read_aiokafka(bootstrap: str, topic: str, partition: int, level: str) -> list[bytes]:
    async def read() -> list[bytes]:
        consumer = AIOKafkaConsumer(
            bootstrap_servers=bootstrap, isolation_level=level, auto_offset_reset="earliest", group_id=None
        )
        await consumer.start()
        try:
            home = AioTopicPartition(topic, partition)
            consumer.assign([home])
            end = (await consumer.end_offsets([home]))[home]
            values: list[bytes] = []
            quiet_since = time.monotonic()
            while time.monotonic() - quiet_since < QUIET_S and await consumer.position(home) < end:
                for records in (await consumer.getmany(timeout_ms=100)).values():
                    values += [record.value for record in records]
                    quiet_since = time.monotonic()
            return values
        finally:
            await consumer.stop()

    return asyncio.run(read())


READERS: dict[str, Callable[[str, str, int, str], list[bytes]]] = {
    "confluent": read_confluent,
    "kafka-python": read_kafka_python,
    "aiokafka": read_aiokafka,
}


def read(client: str, bootstrap: str, topic: str, partition: int, level: str) -> list[bytes]:
    """What a new reader is given now, from the first record on."""
    with warnings.catch_warnings():
        # What a client warns itself about is not ours to fail on.
        warnings.simplefilter("ignore")
        return READERS[client](bootstrap, topic, partition, level)
