"""End-to-end latency at a fixed rate: from the moment a message was due to be sent until a consumer has it.

The schedule is open-loop: message i is due at start + i/rate whatever the server does, and its latency counts
from then. A server that stalls is charged for every message that was due meanwhile (no coordinated omission).
Nothing lingers: whatever is due goes out at once, up to five requests in flight: a client with linger.ms=0.
In a fresh partition with one producer the offset of a message tells when it was due, so no payload
has to be read, and the client's own cost stays small.
"""

from __future__ import annotations

import gc
import select
import time

from .channel import Channel
from .metric import CPU_PER_MILLION, Figures, latencies
from .server import Durability, Server
from .topics import fresh_topic
from .wire import Position, batches, fetch_frame, fetched, produce_error, produce_frame, record_batch

VALUE_BYTES = 100
IN_FLIGHT_MAX = 5
BATCH_RECORDS_MAX = 500
WARMUP_SECONDS = 1.0
STALL_SECONDS_MAX = 30.0


def latency(server: Server, rate: int, seconds: float, durability: Durability) -> Figures:
    """p50, p99 and p99.9 in milliseconds, and the server's CPU for a million messages."""
    with fresh_topic(server, 1, durability) as topic:
        run = _Run(server, topic, rate, seconds)
        cpu_before = server.cpu_seconds()
        gc.disable()
        try:
            run.go()
        finally:
            gc.enable()
            run.close()
        cpu = server.cpu_seconds() - cpu_before
        return latencies(run.samples_s) | {CPU_PER_MILLION: cpu / (run.total / 1e6)}


class _Run:
    """One producer and one consumer on one thread."""

    def __init__(self, server: Server, topic: str, rate: int, seconds: float) -> None:
        self.topic = topic
        self.rate = rate
        self.total = int((seconds + WARMUP_SECONDS) * rate)
        self.warmup = int(WARMUP_SECONDS * rate)
        self.samples_s: list[float] = []
        self.sent = 0
        self.seen = 0
        self.producer = Channel(server.address).nonblocking()
        self.consumer = Channel(server.address).nonblocking()
        value = b"x" * VALUE_BYTES
        counts = range(1, BATCH_RECORDS_MAX + 1)
        self.frames = [produce_frame(topic, [(0, record_batch(value, count))], acks=-1) for count in counts]
        self.first_offset = 1  # offset 0 is the probe that found the topic writable

    def go(self) -> None:
        self._fetch()
        self.start = time.perf_counter() + 0.05
        while self.seen < self.total:
            wait = self._send_due()
            readable, _, _ = select.select((self.consumer, self.producer), (), (), wait)
            if not readable and wait == STALL_SECONDS_MAX:
                raise RuntimeError(f"no answer for {STALL_SECONDS_MAX:.0f} s at {self.rate} msg/s")
            if self.consumer in readable:
                self._take()
            if self.producer in readable:
                for answer in self.producer.answers():
                    if code := produce_error(answer):
                        raise RuntimeError(f"a batch was refused with error code {code}")

    def close(self) -> None:
        self.producer.close()
        self.consumer.close()

    def _send_due(self) -> float:
        """Sends what is due; returns the seconds until the next message is."""
        while self.sent < self.total and self.producer.in_flight < IN_FLIGHT_MAX:
            late_s = time.perf_counter() - self.start - self.sent / self.rate
            if late_s < 0:
                return -late_s
            due = min(int(late_s * self.rate) + 1, BATCH_RECORDS_MAX, self.total - self.sent)
            if not self.producer.submit(self.frames[due - 1]):
                raise RuntimeError("the server stopped reading requests")
            self.sent += due
        return STALL_SECONDS_MAX

    def _take(self) -> None:
        for answer in self.consumer.answers():
            now = time.perf_counter()
            view = memoryview(answer)
            for part in fetched(view):
                for first, following in batches(view, part.start, part.end):
                    self._note(first - self.first_offset, following - self.first_offset, now)
            self._fetch()

    def _note(self, first: int, following: int, now: float) -> None:
        if following <= self.seen:
            return
        if first > self.seen:
            raise RuntimeError(f"messages {self.seen} to {first} never came")
        for number in range(max(self.seen, self.warmup), following):
            self.samples_s.append(now - self.start - number / self.rate)
        self.seen = following

    def _fetch(self) -> None:
        position = Position(0, self.seen + self.first_offset)
        self.consumer.submit(fetch_frame(self.topic, [position]))
