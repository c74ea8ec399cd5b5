"""Many small producers: each sends one message of 100 B, waits for the ack, and sends the next."""

from __future__ import annotations

import select
import time

from .channel import Channel
from .load_produce import STALL_SECONDS_MAX, partition_frames, prime
from .metric import CPU_PER_MILLION_REQUESTS, P50, P99, REQUEST_RATE, Figures, latencies
from .server import Durability, Server
from .topics import fresh_topic
from .wire import produce_error

PRODUCERS = 64
PARTITIONS = 16
VALUE_BYTES = 100


def many_producers(server: Server, seconds: float, durability: Durability) -> Figures:
    """Requests per second over all producers, the latency of one, and CPU for a million requests."""
    with fresh_topic(server, PARTITIONS, durability) as topic:
        prime(server, topic, PARTITIONS)
        frames = partition_frames(topic, VALUE_BYTES, 1, PARTITIONS, acks=-1)
        cpu_before = server.cpu_seconds()
        started = time.perf_counter()
        samples_s = ping_pong(server, frames, seconds)
        elapsed = time.perf_counter() - started
        cpu = server.cpu_seconds() - cpu_before
        found = latencies(samples_s)
        return {
            REQUEST_RATE: len(samples_s) / elapsed,
            P50: found[P50],
            P99: found[P99],
            CPU_PER_MILLION_REQUESTS: cpu / (len(samples_s) / 1e6),
        }


def ping_pong(server: Server, frames: list[bytes], seconds: float) -> list[float]:
    """The seconds each request took."""
    poller = select.epoll()
    channels: dict[int, tuple[Channel, bytes]] = {}
    begun: dict[int, float] = {}
    for number in range(PRODUCERS):
        channel = Channel(server.address).nonblocking()
        channels[channel.fileno()] = channel, frames[number % len(frames)]
        poller.register(channel, select.EPOLLIN)
    samples_s: list[float] = []
    deadline = time.perf_counter() + seconds
    for number, (channel, frame) in channels.items():
        begun[number] = time.perf_counter()
        channel.submit(frame)
    while begun:
        events = poller.poll(STALL_SECONDS_MAX)
        if not events:
            raise RuntimeError(f"{server.name} answered nothing for {STALL_SECONDS_MAX} s")
        for number, _ in events:
            channel, frame = channels[number]
            for answer in channel.answers():
                now = time.perf_counter()
                if code := produce_error(answer):
                    raise RuntimeError(f"{server.name} refused a message with error code {code}")
                samples_s.append(now - begun.pop(number))
                if now < deadline:
                    begun[number] = now
                    channel.submit(frame)
    for channel, _ in channels.values():
        channel.close()
    poller.close()
    return samples_s
