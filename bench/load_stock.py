"""The stock client at full speed: librdkafka through confluent-kafka, with its defaults.

Here the client is often the limit; these rows show what a user sees who changes nothing but the address.
"""

from __future__ import annotations

import time

from confluent_kafka import Consumer, Producer, TopicPartition

from .load_produce import prime
from .metric import BYTES_RATE, CPU_PER_GB, MESSAGE_RATE, Figures
from .server import Durability, Server
from .topics import fresh_topic

CHUNK = 10_000
QUEUE_BYTES_MAX = 512_000
CONSUME_SECONDS_MAX = 120


def stock_produce(server: Server, value_bytes: int, partitions: int, messages: int) -> Figures:
    with fresh_topic(server, partitions, Durability.CACHED) as topic:
        prime(server, topic, partitions)
        cpu_before = server.cpu_seconds()
        seconds = _produce(server, topic, value_bytes, partitions, messages)
        cpu = server.cpu_seconds() - cpu_before
        return _figures(messages, value_bytes, seconds, cpu)


def stock_consume(server: Server, value_bytes: int, partitions: int, messages: int) -> Figures:
    with fresh_topic(server, partitions, Durability.CACHED) as topic:
        _produce(server, topic, value_bytes, partitions, messages)
        consumer = Consumer(
            {
                "bootstrap.servers": server.bootstrap,
                "group.id": "bench",
                "enable.auto.commit": False,
                "queued.max.messages.kbytes": QUEUE_BYTES_MAX,
            }
        )
        cpu_before = server.cpu_seconds()
        started = time.perf_counter()
        consumer.assign([TopicPartition(topic, partition, 0) for partition in range(partitions)])
        seen = 0
        while seen < messages:
            seen += len(consumer.consume(CHUNK, timeout=1.0))
            if time.perf_counter() - started > CONSUME_SECONDS_MAX:
                raise RuntimeError(f"only {seen} of {messages} messages came in {CONSUME_SECONDS_MAX} s")
        seconds = time.perf_counter() - started
        cpu = server.cpu_seconds() - cpu_before
        consumer.close()
        return _figures(messages, value_bytes, seconds, cpu)


def _produce(server: Server, topic: str, value_bytes: int, partitions: int, messages: int) -> float:
    producer = Producer(
        {
            "bootstrap.servers": server.bootstrap,
            "acks": 1,
            "queue.buffering.max.messages": 1_000_000,
            "queue.buffering.max.kbytes": QUEUE_BYTES_MAX,
        }
    )
    value = b"x" * value_bytes
    chunk = [{"value": value} for _ in range(CHUNK)]
    queued = 0
    started = time.perf_counter()
    while queued < messages:
        try:
            accepted = producer.produce_batch(topic, chunk, partition=(queued // CHUNK) % partitions)
        except BufferError:
            accepted = 0
        queued += accepted
        if accepted < CHUNK:
            chunk = [{"value": value} for _ in range(CHUNK)]
            producer.poll(0.005)
    if producer.flush(60):
        raise RuntimeError(f"{server.name} left messages of the stock producer unacknowledged")
    return time.perf_counter() - started


def _figures(messages: int, value_bytes: int, seconds: float, cpu: float) -> Figures:
    return {
        MESSAGE_RATE: messages / seconds,
        BYTES_RATE: messages * value_bytes / seconds / 1e6,
        CPU_PER_GB: cpu / (messages * value_bytes / 1e9),
    }
