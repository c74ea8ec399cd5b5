"""Ten thousand partitions: making them, writing to all of them, holding them, starting with them."""

from __future__ import annotations

import time

from .load_produce import Volume, saturate, throughput
from .load_start import first_ack
from .metric import CREATION, RSS_LOADED, START, Figures
from .server import Durability, Server
from .topics import create, wait_writable
from .wire import produce_frame, record_batch

# Kafka's controller refuses to make more than 10,000 records in one operation, so there are ten topics.
TOPICS = 10
VALUE_BYTES = 1_000
BATCH_RECORDS = 10
WARMUP_SECONDS = 5.0


def many_partitions(server: Server, partitions: int, volume: Volume) -> Figures:
    """Expects a server that is stopped; leaves it stopped.

    Creation ends when every partition has taken a record, because Kafka answers before it has made the logs.
    """
    topics = [f"wide{number}" for number in range(TOPICS)]
    each = partitions // TOPICS
    config = server.topic_config(Durability.CACHED) | server.wide_topic_config()
    server.start()
    started = time.perf_counter()
    for topic in topics:
        create(server, [topic], each, config)
    for topic in topics:
        wait_writable(server, topic, each)
    creation = time.perf_counter() - started
    batch = record_batch(b"x" * VALUE_BYTES, BATCH_RECORDS)
    frames = [produce_frame(topic, [(number, batch)], acks=1) for number in range(each) for topic in topics]
    saturate(server, frames, WARMUP_SECONDS, volume.bytes_max // len(batch))
    figures = throughput(server, frames, VALUE_BYTES * BATCH_RECORDS, BATCH_RECORDS, volume)
    figures[CREATION] = creation
    figures[RSS_LOADED] = server.rss_peak_mb()
    server.stop()
    started = time.perf_counter()
    server.launch()
    first_ack(server, produce_frame(topics[-1], [(each - 1, batch)], acks=-1))
    figures[START] = time.perf_counter() - started
    server.stop()
    return figures
