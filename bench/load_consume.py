"""One consumer that reads a whole topic, from the page cache (hot) or from the disk (cold).

It asks as librdkafka does: all partitions in one Fetch, at most 1 MB of each, one request in flight. It
looks at batch headers only, so that the server is measured and not the decoding of records in Python.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

from .channel import Address, Channel
from .load_produce import BATCH_BYTES, partition_frames, saturate
from .metric import BYTES_RATE, CPU_PER_GB, MESSAGE_RATE, Figures
from .server import Durability, Server
from .topics import fresh_topic
from .wire import Position, batches, fetch_frame, fetched

ANSWER_BYTES_MAX = 64 << 20
SEGMENT_BYTES_MIN = 1 << 20
FILL_SECONDS_MAX = 120.0


def consume_hot(server: Server, value_bytes: int, partitions: int, total_bytes: int) -> Figures:
    return _consume(server, value_bytes, partitions, total_bytes, evict=False)


def consume_cold(server: Server, value_bytes: int, partitions: int, total_bytes: int) -> Figures:
    return _consume(server, value_bytes, partitions, total_bytes, evict=True)


def _consume(server: Server, value_bytes: int, partitions: int, total_bytes: int, evict: bool) -> Figures:
    with fresh_topic(server, partitions, Durability.CACHED) as topic:
        count = max(1, BATCH_BYTES // value_bytes)
        requests = total_bytes // (count * value_bytes)
        frames = partition_frames(topic, value_bytes, count, partitions, acks=1)
        saturate(server, frames, FILL_SECONDS_MAX, requests)
        if evict:
            evict_segments(server.directory)
        cpu_before = server.cpu_seconds()
        started = time.perf_counter()
        # The topic's first record in each partition is the probe that found it writable.
        messages = drain(server.address, topic, partitions, requests * count + partitions)
        seconds = time.perf_counter() - started
        cpu = server.cpu_seconds() - cpu_before
        return {
            MESSAGE_RATE: messages / seconds,
            BYTES_RATE: messages * value_bytes / seconds / 1e6,
            CPU_PER_GB: cpu / (messages * value_bytes / 1e9),
        }


def drain(
    address: Address, topic: str, partitions: int, messages: int, over: Callable[[], bool] | None = None
) -> int:
    """Reads from the beginning until this many messages have come, or until it is `over`; how many came."""
    offsets = dict.fromkeys(range(partitions), 0)
    buffer = memoryview(bytearray(ANSWER_BYTES_MAX))
    channel = Channel(address)
    while (taken := sum(offsets.values())) < messages and not (over is not None and over()):
        channel.socket.sendall(fetch_frame(topic, [Position(*item) for item in offsets.items()]))
        answer = _read_answer(channel, buffer)
        for part in fetched(answer):
            if part.code:
                raise RuntimeError(f"a fetch was refused with error code {part.code}")
            for first, following in batches(answer, part.start, part.end):
                if first > offsets[part.partition]:
                    raise RuntimeError(
                        f"{topic}-{part.partition} jumps from {offsets[part.partition]} to {first}"
                    )
                offsets[part.partition] = following
    channel.close()
    return taken


def _read_answer(channel: Channel, buffer: memoryview) -> memoryview:
    _receive(channel, buffer[:4])
    size = int.from_bytes(buffer[:4])
    _receive(channel, buffer[:size])
    return buffer[:size]


def _receive(channel: Channel, into: memoryview) -> None:
    got = 0
    while got < len(into):
        part = channel.socket.recv_into(into[got:])
        if not part:
            raise ConnectionError("the server closed the connection")
        got += part


def evict_segments(directory: Path) -> None:
    """Writes the segments to disk and drops them from the page cache, as if nobody had read them for long."""
    for segment in directory.rglob("*.log"):
        if segment.stat().st_size < SEGMENT_BYTES_MIN:
            continue
        descriptor = os.open(segment, os.O_RDONLY)
        try:
            os.fsync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)
