"""Producers at full speed: a few connections, each with a few requests in flight, one batch in each request.

Four producers with five requests in flight each, batches of about 100 KB: what busy Java or librdkafka
producers send. Several connections are used because Kafka serves one request per connection at a time.
"""

from __future__ import annotations

import select
import time
from dataclasses import dataclass

from .channel import Channel
from .metric import BYTES_RATE, CPU_PER_GB, MESSAGE_RATE, Figures
from .server import Durability, Server
from .topics import fresh_topic
from .wire import produce_error, produce_frame, record_batch

CONNECTIONS = 4
IN_FLIGHT_MAX = 5
BATCH_BYTES = 100_000
FIRST_BATCHES = 3
PRIME_SECONDS_MAX = 30.0
STALL_SECONDS_MAX = 30


@dataclass(frozen=True, slots=True)
class Volume:
    """How much one measurement sends: it ends at whichever limit comes first.

    The byte limit keeps the dirty pages below the level at which the kernel makes writers wait, so
    that the servers are measured and not the disk.
    """

    seconds: float
    bytes_max: int


@dataclass(slots=True)
class Sent:
    """What a run of producers got acknowledged."""

    requests: int = 0
    seconds: float = 0.0


def produce(
    server: Server, value_bytes: int, partitions: int, acks: int, durability: Durability, volume: Volume
) -> Figures:
    """Throughput and CPU of one produce load."""
    with fresh_topic(server, partitions, durability) as topic:
        count = max(1, BATCH_BYTES // value_bytes)
        frames = partition_frames(topic, value_bytes, count, partitions, acks)
        prime(server, topic, partitions)
        return throughput(server, frames, count * value_bytes, count, volume)


def prime(server: Server, topic: str, partitions: int) -> None:
    """Sends each partition its first batches, so that the steady state is measured.

    They make the files and, in Kafka, map the indexes: 40 ms for each partition where read-ahead is large.
    """
    frames = partition_frames(topic, 1_000, BATCH_BYTES // 1_000, partitions, acks=1)
    saturate(server, frames, PRIME_SECONDS_MAX, FIRST_BATCHES * partitions)


def partition_frames(topic: str, value_bytes: int, count: int, partitions: int, acks: int) -> list[bytes]:
    batch = record_batch(b"x" * value_bytes, count)
    return [produce_frame(topic, [(partition, batch)], acks) for partition in range(partitions)]


def throughput(
    server: Server, frames: list[bytes], payload_bytes: int, count: int, volume: Volume
) -> Figures:
    """Drives the frames round-robin and turns what was acked into figures; only values count as bytes."""
    cpu_before = server.cpu_seconds()
    sent = saturate(server, frames, volume.seconds, volume.bytes_max // payload_bytes)
    cpu = server.cpu_seconds() - cpu_before
    sent_bytes = sent.requests * payload_bytes
    return {
        MESSAGE_RATE: sent.requests * count / sent.seconds,
        BYTES_RATE: sent_bytes / sent.seconds / 1e6,
        CPU_PER_GB: cpu / (sent_bytes / 1e9),
    }


def saturate(
    server: Server, frames: list[bytes], seconds: float, requests_max: int, connections: int = CONNECTIONS
) -> Sent:
    """Keeps every connection's pipeline full until a limit is reached, then waits for the last answers."""
    poller = select.epoll()
    channels = [Channel(server.address).nonblocking() for _ in range(connections)]
    by_number = {channel.fileno(): channel for channel in channels}
    for channel in channels:
        poller.register(channel, select.EPOLLIN)
    submitted = 0
    sent = Sent()
    started = time.perf_counter()
    deadline = started + seconds

    def fill(channel: Channel) -> None:
        nonlocal submitted
        while (
            channel.in_flight < IN_FLIGHT_MAX and submitted < requests_max and time.perf_counter() < deadline
        ):
            frame = frames[submitted % len(frames)]
            submitted += 1
            if not channel.submit(frame):
                poller.modify(channel, select.EPOLLIN | select.EPOLLOUT)
                return

    for channel in channels:
        fill(channel)
    while any(channel.in_flight for channel in channels):
        events = poller.poll(STALL_SECONDS_MAX)
        if not events:
            raise RuntimeError(f"{server.name} answered nothing for {STALL_SECONDS_MAX} s")
        for number, event in events:
            channel = by_number[number]
            if event & ~select.EPOLLOUT:
                for answer in channel.answers():
                    if code := produce_error(answer):
                        raise RuntimeError(f"{server.name} refused a batch with error code {code}")
                    sent.requests += 1
            if channel.unsent:
                if not channel.send_more():
                    continue
                poller.modify(channel, select.EPOLLIN)
            fill(channel)
    sent.seconds = time.perf_counter() - started
    for channel in channels:
        channel.close()
    poller.close()
    return sent
