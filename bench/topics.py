"""Topics for the loads: made and deleted with a stock admin client, one fresh topic for each measurement."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from confluent_kafka import TopicCollection
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from .channel import Channel
from .server import Durability, Server
from .wire import produce_error, produce_frame, record_batch

WRITABLE_SECONDS_MAX = 60
DIRTY_KB_MAX = 131_072
SETTLE_SECONDS_MAX = 15
_numbers = itertools.count(1)


@contextmanager
def fresh_topic(server: Server, partitions: int, durability: Durability) -> Iterator[str]:
    """A new topic whose partitions take writes; deleted, and the disk left to settle, at the end."""
    topic = f"load{next(_numbers):05d}"
    create(server, [topic], partitions, server.topic_config(durability))
    wait_writable(server, topic, partitions)
    try:
        yield topic
    finally:
        delete(server, [topic])
        settle()


def create(server: Server, topics: list[str], partitions: int, config: dict[str, str]) -> None:
    admin = AdminClient({"bootstrap.servers": server.bootstrap, "log_level": 3})
    wanted = [NewTopic(topic, partitions, 1, config=config) for topic in topics]
    for future in admin.create_topics(wanted, operation_timeout=120, request_timeout=150).values():
        future.result()


def delete(server: Server, topics: list[str]) -> None:
    admin = AdminClient({"bootstrap.servers": server.bootstrap, "log_level": 3})
    for future in admin.delete_topics(topics, operation_timeout=60, request_timeout=90).values():
        future.result()


def topic_id(server: Server, topic: str) -> bytes:
    """The sixteen bytes by which newer verbs name the topic."""
    admin = AdminClient({"bootstrap.servers": server.bootstrap, "log_level": 3})
    found = admin.describe_topics(TopicCollection([topic]))[topic].result().topic_id
    halves = (found.get_most_significant_bits(), found.get_least_significant_bits())
    return b"".join(half.to_bytes(8, signed=True) for half in halves)


def wait_writable(server: Server, topic: str, partitions: int) -> None:
    """Kafka answers a creation before its partitions have leaders; an empty-handed probe waits for them.

    The probe writes one record to each partition with acks=1, as the first record a producer would send.
    """
    deadline = time.monotonic() + WRITABLE_SECONDS_MAX
    batch = record_batch(b"first", 1)
    channel = Channel(server.address)
    try:
        for partition in range(partitions):
            frame = produce_frame(topic, [(partition, batch)], acks=1)
            while code := produce_error(channel.ask(frame)):
                if time.monotonic() > deadline:
                    raise RuntimeError(f"{topic}-{partition} is not writable: error code {code}")
                time.sleep(0.02)
    finally:
        channel.close()


def settle() -> None:
    """Waits until most dirty pages are written, so that a load's leftovers do not slow the next."""
    deadline = time.monotonic() + SETTLE_SECONDS_MAX
    while time.monotonic() < deadline and _dirty_kb() > DIRTY_KB_MAX:
        time.sleep(0.1)


def _dirty_kb() -> int:
    fields = {line.split(":")[0]: line.split()[1] for line in Path("/proc/meminfo").read_text().splitlines()}
    return int(fields["Dirty"]) + int(fields["Writeback"])
