"""The loads of `braid perf`: they drive a broker as hard as asked, and measure.

Producing sends the same few batches, built once, over and over, with a number of requests under way: the cost
on this side is one system call per batch, so that it is the broker that is measured. Every answer is checked.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from braidmq.cli.histogram import Histogram
from braidmq.client.cluster import Cluster, TopicPartition
from braidmq.client.connection import Connection
from braidmq.client.consumer import Consumer, Start
from braidmq.client.errors import ClientError
from braidmq.client.offsets import list_offsets
from braidmq.client.producer import PRODUCE_VERSION_MAX, Acks, Producer
from braidmq.platform.clock import SystemClock
from braidmq.wire import schema
from braidmq.wire.api import Api
from braidmq.wire.compress import Codec
from braidmq.wire.errors import ApiError, ErrorCode
from braidmq.wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from braidmq.wire.records import build_batch

TICK_S = 0.1
PAYLOAD_VARIANTS = 64
STAMP_BYTES = 8
POLL_S = 0.2
QUIET_S = 10.0
"""A latency run whose last records do not arrive within this time has lost them."""


@dataclass(slots=True)
class Meter:
    """What a load has done so far. `on_tick` is called about ten times a second, for the display."""

    records_max: int | None
    seconds_max: float | None
    on_tick: Callable[[Meter], None] | None = None
    records: int = 0
    bytes: int = 0
    latency: Histogram = field(default_factory=Histogram)
    clock: SystemClock = field(default_factory=SystemClock)
    started_s: float = 0.0
    elapsed_s: float = 0.0
    _ticked_s: float = 0.0

    def start(self) -> None:
        self.started_s = self.clock.monotonic()

    def add(self, records: int, size_bytes: int) -> None:
        self.records += records
        self.bytes += size_bytes
        self.elapsed_s = self.clock.monotonic() - self.started_s
        if self.elapsed_s - self._ticked_s >= TICK_S:
            self._ticked_s = self.elapsed_s
            if self.on_tick is not None:
                self.on_tick(self)

    @property
    def done(self) -> bool:
        return self.fraction >= 1.0

    @property
    def fraction(self) -> float:
        by_count = self.records / self.records_max if self.records_max else 0.0
        by_time = (self.clock.monotonic() - self.started_s) / self.seconds_max if self.seconds_max else 0.0
        return min(1.0, max(by_count, by_time))

    @property
    def records_per_s(self) -> float:
        return self.records / self.elapsed_s if self.elapsed_s else 0.0

    @property
    def megabytes_per_s(self) -> float:
        return self.bytes / self.elapsed_s / 1e6 if self.elapsed_s else 0.0


@dataclass(frozen=True, slots=True)
class ProducePlan:
    """How `produce` sends."""

    size_bytes: int
    batch_records: int
    in_flight: int
    acks: Acks
    codec: Codec
    records_per_s: float | None = None


class _Sent(NamedTuple):
    at_s: float
    connection: Connection
    version: int


class _Lane(NamedTuple):
    """A partition with the request that writes one batch to it, ready to be sent again and again."""

    connection: Connection
    version: int
    frame: bytes


def produce(cluster: Cluster, topic: str, plan: ProducePlan, meter: Meter) -> None:
    """Writes whole batches to all partitions in turn until the meter is done."""
    partitions = [TopicPartition(topic, index) for index in range(cluster.partition_count(topic))]
    lanes = [_lane(cluster, at, plan) for at in partitions]
    under_way: deque[_Sent] = deque()
    meter.start()
    for lane in _round_robin(lanes):
        if meter.done or _enough_sent(meter, plan, len(under_way)):
            break
        _pace(meter, plan, len(under_way))
        sent = _Sent(meter.clock.monotonic(), lane.connection, lane.version)
        lane.connection.send_frame(lane.frame)
        if plan.acks is Acks.NONE:
            meter.add(plan.batch_records, plan.batch_records * plan.size_bytes)
            continue
        under_way.append(sent)
        if len(under_way) >= plan.in_flight:
            _await_answer(under_way.popleft(), plan, meter)
    while under_way:
        _await_answer(under_way.popleft(), plan, meter)


def _enough_sent(meter: Meter, plan: ProducePlan, requests_under_way: int) -> bool:
    sent = meter.records + requests_under_way * plan.batch_records
    return meter.records_max is not None and sent >= meter.records_max


def _round_robin(lanes: list[_Lane]) -> Iterator[_Lane]:
    while True:
        yield from lanes


def _lane(cluster: Cluster, at: TopicPartition, plan: ProducePlan) -> _Lane:
    connection = cluster.leader(at)
    version = connection.version(ProduceRequest, PRODUCE_VERSION_MAX)
    now_ms = cluster.clock.wall_ms()
    payloads = [_payload(plan.size_bytes) for _ in range(min(PAYLOAD_VARIANTS, plan.batch_records))]
    rows = [(None, payloads[index % len(payloads)], (), now_ms) for index in range(plan.batch_records)]
    partition = PartitionProduceData(index=at.partition, records=bytes(build_batch(rows, codec=plan.codec)))
    request = ProduceRequest(
        acks=plan.acks,
        timeout_ms=int(cluster.timeout_s * 1000),
        topic_data=[TopicProduceData(name=at.topic, partition_data=[partition])],
    )
    return _Lane(connection, version, connection.frame(Api.PRODUCE, version, schema.encode(request, version)))


def _payload(size_bytes: int) -> bytes:
    """Hexadecimal noise: compresses to about a half, as much as everyday records do."""
    return os.urandom(size_bytes // 2 + 1).hex()[:size_bytes].encode()


def _pace(meter: Meter, plan: ProducePlan, requests_under_way: int) -> None:
    if plan.records_per_s is not None:
        sent = meter.records + requests_under_way * plan.batch_records
        ahead_s = sent / plan.records_per_s - (meter.clock.monotonic() - meter.started_s)
        if ahead_s > 0:
            meter.clock.sleep(ahead_s)


def _await_answer(sent: _Sent, plan: ProducePlan, meter: Meter) -> None:
    answer = sent.connection.receive(ProduceResponse, sent.version)
    for topic in answer.responses:
        for result in topic.partition_responses:
            if result.error_code != ErrorCode.NONE:
                code = ErrorCode(result.error_code)
                at = TopicPartition(topic.name, result.index)
                raise ApiError(code, f"{at}: {result.error_message or code.name}")
    meter.latency.record_seconds(meter.clock.monotonic() - sent.at_s)
    meter.add(plan.batch_records, plan.batch_records * plan.size_bytes)


def consume(cluster: Cluster, topic: str, meter: Meter) -> None:
    """Reads a topic from its start to where it ends now, or until the meter is done."""
    partitions = [TopicPartition(topic, index) for index in range(cluster.partition_count(topic))]
    ends = list_offsets(cluster, dict.fromkeys(partitions, int(Start.LATEST)))
    consumer = Consumer(cluster, reset=Start.EARLIEST)
    consumer.assign(topic)
    left = sum(ends[at].offset - consumer.position(*at) for at in partitions)
    meter.records_max = min(left, meter.records_max or left)
    meter.start()
    while meter.records_max and not meter.done:
        for batch in consumer.poll_batches():
            meter.add(batch.header.record_count, batch.header.size)


@dataclass(slots=True)
class LatencyRun:
    """Single records at a steady rate through one partition, timed until acknowledged and until read."""

    connect: Callable[[], Cluster]
    topic: str
    records_per_s: float
    size_bytes: int
    acks: Acks
    meter: Meter
    end_to_end: Histogram = field(default_factory=Histogram)
    _listening: threading.Event = field(default_factory=threading.Event)
    _sent: int | None = None
    _failure: Exception | None = None

    def run(self) -> None:
        reader = threading.Thread(target=self._read, daemon=True)
        reader.start()
        self._listening.wait()
        with self.connect() as cluster, Producer(cluster, acks=self.acks) as producer:
            self._write(producer)
        self._sent = self.meter.records
        reader.join()
        if self._failure is not None:
            raise self._failure
        if self.end_to_end.count < self._sent:
            missing = self._sent - self.end_to_end.count
            raise ClientError(f"{missing} of {self._sent} records did not arrive within {QUIET_S:g} s")

    def _write(self, producer: Producer) -> None:
        meter = self.meter
        padding = bytes(max(0, self.size_bytes - STAMP_BYTES))
        meter.start()
        while not meter.done and self._failure is None:
            due_s = meter.started_s + meter.records / self.records_per_s
            ahead_s = due_s - meter.clock.monotonic()
            if ahead_s > 0:
                meter.clock.sleep(ahead_s)
            before_s = meter.clock.monotonic()
            stamp = int(before_s * 1e9).to_bytes(STAMP_BYTES, "big")
            producer.send(self.topic, stamp + padding, partition=0).result()
            meter.latency.record_seconds(meter.clock.monotonic() - before_s)
            meter.add(1, STAMP_BYTES + len(padding))

    def _read(self) -> None:
        try:
            with self.connect() as cluster, Consumer(cluster) as consumer:
                consumer.assign(self.topic, [0], Start.LATEST)
                consumer.position(self.topic, 0)
                self._listening.set()
                self._read_all(consumer)
        except (ApiError, ClientError) as error:
            self._failure = error
        finally:
            self._listening.set()

    def _read_all(self, consumer: Consumer) -> None:
        quiet_s = 0.0
        while self._sent is None or (self.end_to_end.count < self._sent and quiet_s < QUIET_S):
            quiet_s = 0.0 if self._take(consumer) else quiet_s + POLL_S

    def _take(self, consumer: Consumer) -> int:
        messages = consumer.poll(POLL_S)
        now_s = self.meter.clock.monotonic()
        for message in messages:
            sent_s = int.from_bytes((message.value or b"")[:STAMP_BYTES], "big") / 1e9
            self.end_to_end.record_seconds(now_s - sent_s)
        return len(messages)
