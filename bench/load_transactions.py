"""Transactions: bulk data with a commit every 100 ms, and transactions of one record each.

Bulk: a producer fills transactions over all partitions, five requests in flight, and commits every 100 ms; it
goes on when the commit is answered. A second connection reads at read_committed as it goes. The producer's
rate is what was committed; end to end is the rate until the reader has it all.

Small: many producers, each adds its partition, sends one record, commits, and begins again.
"""

from __future__ import annotations

import itertools
import select
import time

from . import wire_txn as wire
from .channel import Channel
from .coordinators import SOON, await_transaction_coordinator
from .crowd import Ask, Client, Crowd, Pause
from .load_produce import BATCH_BYTES, IN_FLIGHT_MAX, STALL_SECONDS_MAX
from .metric import (
    BYTES_RATE,
    CPU_PER_GB,
    END_TO_END_RATE,
    P99,
    TRANSACTION_P99,
    TRANSACTION_RATE,
    Figures,
    latencies,
)
from .server import Durability, Server
from .topics import fresh_topic
from .wire import Position, data_batches, fetch_frame, fetched, produce_error, record_batch
from .wire_groups import expect

COMMIT_SECONDS = 0.1
PARTITIONS = 4
SMALL_PRODUCERS = 16
SMALL_PARTITIONS = 16
SMALL_BYTES = 100
WARMUP_SECONDS = 1.5
RETRY_SECONDS = 0.02
AGAIN_SECONDS = 0.001
READ_COMMITTED = 1
CONCURRENT_TRANSACTIONS = 51
AGAIN = SOON | {CONCURRENT_TRANSACTIONS}
"""Kafka answers a commit before its markers are written, and what comes next meanwhile with this."""
_numbers = itertools.count(1)


def bulk_transactions(server: Server, value_bytes: int, seconds: float, bytes_max: int) -> Figures:
    with fresh_topic(server, PARTITIONS, Durability.CACHED) as topic:
        run = _Bulk(server, topic, value_bytes)
        try:
            run.go(WARMUP_SECONDS, bytes_max)
            cpu_before = server.cpu_seconds()
            sent, committed_s, read_s = run.go(seconds, bytes_max)
            cpu = server.cpu_seconds() - cpu_before
        finally:
            run.close()
    return {
        BYTES_RATE: sent / committed_s / 1e6,
        END_TO_END_RATE: sent / read_s / 1e6,
        CPU_PER_GB: cpu / (sent / 1e9),
    }


class _Bulk:
    """One producer and one reader on one thread."""

    def __init__(self, server: Server, topic: str, value_bytes: int) -> None:
        self._topic = topic
        self._id = f"bulk{next(_numbers):04d}"
        self._records = BATCH_BYTES // value_bytes
        self._payload_bytes = self._records * value_bytes
        self._plain = record_batch(b"x" * value_bytes, self._records)
        self._sequences = [0] * PARTITIONS
        self._turn = itertools.cycle(range(PARTITIONS))
        await_transaction_coordinator(server, self._id)
        self._coordinator = Channel(server.address)
        self._leader = Channel(server.address).nonblocking()
        self._reader = Channel(server.address).nonblocking()
        self._poller = select.epoll()
        for channel in (self._leader, self._reader):
            self._poller.register(channel, select.EPOLLIN)
        self._producer = self._init()
        self._positions = dict.fromkeys(range(PARTITIONS), 0)
        self._read_records = 0
        self._sent_records = PARTITIONS
        """What the reader has to find: the probes that found the topic writable are the first."""

    def _init(self) -> wire.Producer:
        while True:
            code, producer = wire.inited(self._coordinator.ask(wire.init_producer_frame(self._id)))
            if code not in AGAIN:
                expect(code, "InitProducerId")
                return producer
            time.sleep(RETRY_SECONDS)

    def go(self, seconds: float, bytes_max: int) -> tuple[int, float, float]:
        """Bytes committed, seconds until the last commit, seconds until all was read."""
        started = time.perf_counter()
        sent = 0
        if not self._reader.in_flight:
            self._fetch()
        while time.perf_counter() - started < seconds and sent < bytes_max:
            sent += self._one_transaction(bytes_max - sent)
        committed_s = time.perf_counter() - started
        while self._read_records < self._sent_records:
            self._wait()
        return sent, committed_s, time.perf_counter() - started

    def _one_transaction(self, bytes_max: int) -> int:
        self._add_partitions()
        end = time.perf_counter() + COMMIT_SECONDS
        sent = 0
        while sent < bytes_max and time.perf_counter() < end:
            while self._leader.in_flight < IN_FLIGHT_MAX and not self._leader.unsent:
                self._send()
                sent += self._payload_bytes
            self._wait()
        while self._leader.in_flight:
            self._wait()
        expect(wire.end_error(self._coordinator.ask(wire.end_frame(self._id, self._producer))), "EndTxn")
        return sent

    def _add_partitions(self) -> None:
        frame = wire.add_partitions_frame(self._id, self._producer, self._topic, range(PARTITIONS))
        while (code := wire.added_error(self._coordinator.ask(frame))) in AGAIN:
            self._wait(AGAIN_SECONDS)
        expect(code, "AddPartitionsToTxn")

    def _send(self) -> None:
        partition = next(self._turn)
        batch = wire.transactional_batch(self._plain, self._producer, self._sequences[partition])
        self._sequences[partition] += self._records
        self._sent_records += self._records
        frame = wire.transactional_produce_frame(self._id, self._topic, partition, batch)
        if not self._leader.submit(frame):
            self._poller.modify(self._leader, select.EPOLLIN | select.EPOLLOUT)

    def _wait(self, seconds: float = STALL_SECONDS_MAX) -> None:
        events = self._poller.poll(seconds)
        if not events and seconds == STALL_SECONDS_MAX:
            raise RuntimeError(f"the server answered nothing for {STALL_SECONDS_MAX} s")
        for number, event in events:
            if number == self._reader.fileno():
                self._take()
                continue
            if event & ~select.EPOLLOUT:
                for answer in self._leader.answers():
                    expect(produce_error(answer), "a batch")
            if self._leader.unsent and self._leader.send_more():
                self._poller.modify(self._leader, select.EPOLLIN)

    def _take(self) -> None:
        for answer in self._reader.answers():
            view = memoryview(answer)
            for part in fetched(view):
                expect(part.code, "a fetch")
                for following, records in data_batches(view, part.start, part.end):
                    self._positions[part.partition] = following
                    self._read_records += records
            self._fetch()

    def _fetch(self) -> None:
        positions = [Position(*item) for item in self._positions.items()]
        self._reader.submit(fetch_frame(self._topic, positions, isolation=READ_COMMITTED))

    def close(self) -> None:
        for channel in (self._coordinator, self._leader, self._reader):
            channel.close()
        self._poller.close()


def small_transactions(server: Server, seconds: float) -> Figures:
    """Transactions per second of all producers together, and how long one takes."""
    with fresh_topic(server, SMALL_PARTITIONS, Durability.CACHED) as topic:
        crowd = Crowd(server.address)
        try:
            small = _Small(crowd, topic)
            names = [f"small{next(_numbers):05d}" for _ in range(SMALL_PRODUCERS)]
            for name in names:
                await_transaction_coordinator(server, name)
            crowd.start(small.producing(name, place % SMALL_PARTITIONS) for place, name in enumerate(names))
            crowd.run(lambda: small.ready == len(names))
            small.begin = time.perf_counter() + WARMUP_SECONDS
            small.end = small.begin + seconds
            crowd.run(lambda: False)
            elapsed = time.perf_counter() - small.begin
        finally:
            crowd.close()
    return {
        TRANSACTION_RATE: len(small.samples_s) / elapsed,
        TRANSACTION_P99: latencies(small.samples_s)[P99],
    }


class _Small:
    def __init__(self, crowd: Crowd, topic: str) -> None:
        self._crowd = crowd
        self._topic = topic
        self._plain = record_batch(b"x" * SMALL_BYTES, 1)
        self.ready = 0
        self.begin = self.end = 0.0
        self.samples_s: list[float] = []

    def producing(self, name: str, partition: int) -> Client:
        coordinator, leader = self._crowd.connect(), self._crowd.connect()
        while True:
            code, producer = wire.inited((yield Ask(coordinator, wire.init_producer_frame(name))))
            if code not in AGAIN:
                break
            yield Pause(RETRY_SECONDS)
        expect(code, "InitProducerId")
        self.ready += 1
        while not self.end:
            yield Pause(RETRY_SECONDS)
        add = wire.add_partitions_frame(name, producer, self._topic, range(partition, partition + 1))
        commit = wire.end_frame(name, producer)
        for sequence in itertools.count():
            begun = time.perf_counter()
            if begun > self.end:
                return
            while (code := wire.added_error((yield Ask(coordinator, add)))) in AGAIN:
                yield Pause(AGAIN_SECONDS)
            expect(code, "AddPartitionsToTxn")
            batch = wire.transactional_batch(self._plain, producer, sequence)
            frame = wire.transactional_produce_frame(name, self._topic, partition, batch)
            expect(produce_error((yield Ask(leader, frame))), "a batch")
            expect(wire.end_error((yield Ask(coordinator, commit))), "EndTxn")
            if begun >= self.begin:
                self.samples_s.append(time.perf_counter() - begun)
