"""A partition's life in small: produce, roll, flush, checkpoint, delete, expire, close, crash, reopen.

The workload drives a real Log on a simulated disk and keeps beside it what must come out: every batch by
its offset, what was reported durable, where the log may start. `Expectation.check` opens a disk as it was
found after a crash and holds it against that.
"""

from __future__ import annotations

import random
from pathlib import Path

from tests.sim.clock import SimClock
from tests.sim.disk import Crash, SimDisk

from braidmq.config import TopicConfig, configure
from braidmq.log.files import FileCache
from braidmq.log.log import Log, ProducerLimits
from braidmq.log.producer_state import BATCHES_KEPT
from braidmq.log.retention import remove
from braidmq.wire.records import build_batch, parse_header, stamp

PATH = Path("/data/orders-0")
LIMITS = ProducerLimits(expiration_ms=86_400_000, ids_max=1000)
PRODUCER_ID = 7
DAY_MS = 86_400_000


def small_config(**overrides: str) -> TopicConfig:
    """Segments of a few batches, an index entry for nearly every batch."""
    options = {"segment.bytes": "1024", "index.interval.bytes": "64", "retention.bytes": "3000"}
    return configure({}).topic(options | {name.replace("_", "."): value for name, value in overrides.items()})


def open_log(disk: SimDisk, clock: SimClock, config: TopicConfig | None = None) -> Log:
    return Log.open(disk, PATH, config or small_config(), clock, FileCache(8), LIMITS)


def flush(log: Log) -> None:
    job = log.flush_begin()
    if job is not None:
        job.run()
        log.flush_done(job)


def checkpoint(log: Log) -> None:
    job = log.checkpoint_begin()
    if job is not None:
        job.run()
        log.checkpoint_done(job)


def read_batches(log: Log, offset: int, limit_offset: int) -> list[tuple[int, bytes]]:
    """Base offsets and bytes of all batches from `offset` to `limit_offset`, through the public way."""
    batches = []
    while (found := log.read(offset, 700, limit_offset)) is not None:
        content = found.read()
        found.release()
        at = 0
        while at + 61 <= len(content):
            header = parse_header(content, at)
            if at + header.size > len(content):
                break
            batches.append((header.base_offset, content[at : at + header.size]))
            at += header.size
            offset = header.next_offset
        assert at, "a read gives at least one whole batch"
    return batches


class Expectation:
    """What must be found after a crash."""

    def __init__(self) -> None:
        self.batches: dict[int, bytes] = {}
        self.next_offsets: dict[int, int] = {0: 0}
        self.sent: list[tuple[bytearray, int]] = []
        """Batches of the idempotent producer as it sent them, and their offsets."""
        self.end_offset = 0
        self.durable_offset = 0
        self.start_offset_min = 0
        self.start_offset_max = 0

    def wrote(self, batch: bytearray, base_offset: int) -> None:
        """A batch is being appended at `base_offset`; whatever was there was lost before."""
        whole = bytearray(batch)
        stamp(whole, base_offset, 0)
        self.batches[base_offset] = bytes(whole)
        self.end_offset = parse_header(whole).next_offset
        self.batches = {at: one for at, one in self.batches.items() if at <= base_offset}
        if parse_header(batch).producer_id >= 0:
            self.sent = [(one, at) for one, at in self.sent if at < base_offset] + [
                (bytearray(batch), base_offset)
            ]

    def check(self, disk: SimDisk, clock: SimClock, chance: random.Random) -> None:
        """Opens the log on `disk` and checks every promise; then the log must go on."""
        log = open_log(disk, clock)
        assert self.durable_offset <= log.end_offset <= self.end_offset, "the end is where it may be"
        assert log.durable_offset == log.end_offset, "what was recovered is durable"
        if self.durable_offset:
            assert (
                self.start_offset_min <= log.start_offset <= max(self.start_offset_max, self.start_offset_min)
            )
        self._check_content(log)
        if chance.random() < 0.25:
            self._check_times(log)
        others_first = chance.random() < 0.5
        end_offset = log.end_offset
        base_offset = self._check_producer(log, others_first)
        flush(log)
        if chance.random() < 0.5:
            checkpoint(log)
        again = open_log(disk.crash(Crash.LOST, chance), clock)
        assert again.end_offset == log.end_offset, "what was flushed after recovery survives the next crash"
        assert read_batches(again, base_offset, again.end_offset) == read_batches(
            log, base_offset, log.end_offset
        )
        if others_first:
            self._check_lost_is_lost(again, end_offset)
        log.abandon()
        assert disk.open_files == 0, "nothing stays open"

    def _check_content(self, log: Log) -> None:
        expected = log.start_offset
        for base_offset, content in read_batches(log, log.start_offset, log.end_offset):
            assert content == self.batches[base_offset], f"offset {base_offset} has one value for ever"
            assert base_offset <= expected, "offsets are dense"
            expected = parse_header(content).next_offset
        assert expected == log.end_offset, "the log is whole"

    def _check_times(self, log: Log) -> None:
        for content in self.batches.values():
            header = parse_header(content)
            if log.start_offset <= header.base_offset < log.end_offset:
                # Timestamps go up with offsets in this workload, and every batch has its own.
                assert log.offset_for_time(header.max_timestamp) == (header.max_timestamp, header.last_offset)

    def _check_producer(self, log: Log, others_first: bool) -> int:
        """A retry of what was kept is a duplicate, of what was lost is stored; one more batch goes in."""
        # Of a log that was never synced the first segment may be lost and a later one found.
        since = 0 if self.durable_offset else log.start_offset
        # What is retried was in flight: one of the last five.
        kept = [one for one in self.sent[-BATCHES_KEPT:] if since <= one[1] < log.end_offset]
        lost = [one for one in self.sent if one[1] >= log.end_offset]
        for batch, base_offset in kept[-1:]:
            again = bytearray(batch)
            appended = log.append(memoryview(again), parse_header(again))
            assert (appended.base_offset, appended.duplicate) == (base_offset, True), (
                "a stored retry is recognised"
            )
        end_offset = log.end_offset
        for batch, _ in [] if others_first else lost[:1]:
            again = bytearray(batch)
            appended = log.append(memoryview(again), parse_header(again))
            assert (appended.base_offset, appended.duplicate) == (end_offset, False), (
                "a lost batch can be sent again"
            )
        for _ in range(20 if others_first else 1):
            batch = build_batch([(b"new", b"after the crash", [], 1)])
            appended = log.append(memoryview(batch), parse_header(batch))
            assert appended.base_offset == parse_header(batch).base_offset, "appends go on"
        return end_offset

    def _check_lost_is_lost(self, log: Log, end_offset: int) -> None:
        """Others have taken the offsets of a lost batch; its retry must not be taken for stored."""
        for batch, _ in [one for one in self.sent if one[1] >= end_offset][:1]:
            again = bytearray(batch)
            assert not log.append(memoryview(again), parse_header(again)).duplicate


class Workload:
    """Random steps from a seed; `expectation` is right at every moment, also in the middle of a step."""

    def __init__(self, disk: SimDisk, seed: int) -> None:
        self.chance = random.Random(seed)
        self.disk = disk
        self.clock = SimClock()
        self.expectation = Expectation()
        self.log = open_log(disk, self.clock)
        self._sequence = 0
        self._waiting: list[Path] = []

    def run(self, steps: int) -> None:
        actions = [
            (self.produce, 50), (self.produce_idempotent, 25), (self.flush, 14), (self.checkpoint, 8),
            (self.expire, 8), (self.remove_expired, 3), (self.delete_records, 3), (self.close_and_reopen,
            2), (self.kill_and_reopen, 2),
        ]  # fmt: skip
        for _ in range(steps):
            action = self.chance.choices([one for one, _ in actions], [weight for _, weight in actions])[0]
            action()

    def produce(self) -> None:
        self._append(build_batch(self._rows()))

    def produce_idempotent(self) -> None:
        if sum(at >= self.log.durable_offset for _, at in self.expectation.sent) == BATCHES_KEPT:
            self.flush()  # a producer has no more than five batches in flight
        rows = self._rows()
        batch = build_batch(rows, base_sequence=self._sequence, producer_id=PRODUCER_ID, producer_epoch=0)
        self._sequence += len(rows)
        self._append(batch)

    def _rows(self) -> list[tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]], int]]:
        rows: list[tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]], int]] = []
        for _ in range(self.chance.randint(1, 3)):
            self.clock.advance_ms(1)
            rows.append((None, self.chance.randbytes(self.chance.randint(1, 120)), [], self.clock.now_ms))
        return rows

    def _append(self, batch: bytearray) -> None:
        self.expectation.wrote(batch, self.log.end_offset)
        self.log.append(memoryview(batch), parse_header(batch))

    def flush(self) -> None:
        flush(self.log)
        self.expectation.durable_offset = self.log.durable_offset

    def checkpoint(self) -> None:
        checkpoint(self.log)
        self.expectation.start_offset_min = self.log.start_offset

    def expire(self) -> None:
        self.expectation.start_offset_max = self.log.end_offset
        self._waiting += self.log.expire(self.clock.now_ms, by_time=True)
        self.expectation.start_offset_max = self.log.start_offset
        if self.chance.random() < 0.5:
            self.remove_expired()

    def remove_expired(self) -> None:
        waiting, self._waiting = self._waiting, []
        remove(self.disk, waiting)

    def delete_records(self) -> None:
        offset = self.chance.randint(self.log.start_offset, self.log.durable_offset)
        self.expectation.start_offset_max = max(offset, self.expectation.start_offset_max)
        self.log.delete_before(offset)

    def close_and_reopen(self) -> None:
        self.log.close()
        self._reopen()
        self.expectation.start_offset_min = self.log.start_offset

    def kill_and_reopen(self) -> None:
        self.log.abandon()
        self._reopen()
        # A start offset that was not in a checkpoint is forgotten.
        self.expectation.start_offset_max = max(self.log.start_offset, self.expectation.start_offset_min)

    def _reopen(self) -> None:
        self._waiting = []
        self.log = open_log(self.disk, self.clock)
        self.expectation.durable_offset = self.log.durable_offset
