"""Beside hot traffic: a consumer that reads old data from the disk, and one that touches every partition.

What counts is what the producer and the consumer notice whose data is in memory.
"""

from __future__ import annotations

import time

from .cold import first_fetch, reading
from .load_consume import FILL_SECONDS_MAX
from .load_latency import latency
from .load_produce import BATCH_BYTES, partition_frames, saturate
from .load_start import first_ack
from .metric import COLD_RATE, FIRST_FETCH, P99, P99_ALONE, START, STOP, Figures
from .server import Durability, Server
from .topics import create, fresh_topic, wait_writable
from .wire import produce_frame, record_batch

RATE = 1_000
VALUE_BYTES = 1_000
PARTITIONS = 16
# As in `load_partitions`: Kafka's controller makes no more than 10,000 records in one operation.
TOPICS = 10
WARMUP_SECONDS = 3.0


def cold_reads(server: Server, total_bytes: int, seconds: float) -> Figures:
    """End-to-end latency at a fixed rate, without and with a consumer of 16 cold partitions beside it."""
    with fresh_topic(server, PARTITIONS, Durability.CACHED) as topic:
        count = max(1, BATCH_BYTES // VALUE_BYTES)
        requests = total_bytes // (count * VALUE_BYTES)
        saturate(
            server,
            partition_frames(topic, VALUE_BYTES, count, PARTITIONS, acks=1),
            FILL_SECONDS_MAX,
            requests,
        )
        alone = latency(server, RATE, seconds, Durability.CACHED)
        with reading(server, topic, PARTITIONS, requests * count) as rates:
            figures = latency(server, RATE, seconds, Durability.CACHED)
        figures[P99_ALONE] = alone[P99]
        figures[COLD_RATE] = rates[0] * VALUE_BYTES / 1e6
        return figures


def cold_partitions(server: Server, partitions: int, seconds: float) -> Figures:
    """Expects a server that is stopped; leaves it stopped.

    Every partition has one record. After a restart somebody fetches all of them at once, beside a producer
    and a consumer of one more topic.
    """
    topics = [f"idle{number}" for number in range(TOPICS)]
    each = partitions // TOPICS
    config = server.topic_config(Durability.CACHED) | server.wide_topic_config()
    server.start()
    for topic in topics:
        create(server, [topic], each, config)
    for topic in topics:
        wait_writable(server, topic, each)
    server.stop()
    started = time.perf_counter()
    server.launch()
    first_ack(server, produce_frame(topics[-1], [(each - 1, record_batch(b"first", 1))], acks=-1))
    start_seconds = time.perf_counter() - started
    alone = latency(server, RATE, WARMUP_SECONDS, Durability.CACHED)
    with first_fetch(server, topics, each) as found:
        figures = latency(server, RATE, seconds, Durability.CACHED)
    started = time.perf_counter()
    server.stop()
    return figures | {
        P99_ALONE: alone[P99],
        FIRST_FETCH: found[0],
        START: start_seconds,
        STOP: time.perf_counter() - started,
    }
