"""The log against a list: whatever is done in whatever order, both hold the same records."""

from __future__ import annotations

import random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from tests.sim.clock import SimClock
from tests.sim.disk import Crash, SimDisk
from tests.sim.workload import checkpoint, flush, read_batches
from tests.unit.log.logs import append, batch_of, open_log, topic_config

from braidmq.log.log import FlushJob, Log
from braidmq.log.retention import remove
from braidmq.wire.errors import ApiError, ErrorCode
from braidmq.wire.records import records

CONFIG = topic_config(retention_bytes="4000", segment_ms="100000")


class LogAgainstList(RuleBasedStateMachine):
    """The list holds (timestamp, value) by offset; what the disk may lose is known by `durable`.

    A flush may be under way while anything else happens, and the disk may be full when an epoch begins.
    """

    def __init__(self) -> None:
        super().__init__()
        self.disk = SimDisk()
        self.clock = SimClock()
        self.log: Log = open_log(self.disk, CONFIG, self.clock)
        self.values: list[tuple[int, bytes]] = []
        self.durable = 0
        self.start = 0
        self.durable_start = 0
        self.bases: list[int] = []
        """Where the batches begin."""
        self.epoch = 0
        self.job: FlushJob | None = None
        self.job_end = 0

    @rule(
        batches=st.lists(st.lists(st.binary(max_size=200), min_size=1, max_size=4), min_size=1, max_size=4),
        later_ms=st.one_of(st.integers(min_value=-50, max_value=2000), st.just(100_000)),
        flushes=st.booleans(),
    )
    def append(self, batches: list[list[bytes]], later_ms: int, flushes: bool) -> None:
        """Appends, in a new segment if the last one is old enough; a flush may begin after it."""
        for values in batches:
            self.clock.advance_ms(max(later_ms, 0))
            timestamp_ms = self.clock.now_ms + min(later_ms, 0)
            batch = batch_of(*values, timestamp_ms=timestamp_ms)
            assert append(self.log, batch, self.epoch).base_offset == len(self.values)
            self.bases.append(len(self.values))
            self.values += [(timestamp_ms + number, value) for number, value in enumerate(values)]
        if flushes and self.job is None:
            self.job, self.job_end = self.log.flush_begin(), len(self.values)

    @rule(full=st.booleans(), raised=st.booleans())
    def begin_epoch(self, full: bool, raised: bool) -> None:
        if full:
            self.disk.room_bytes = 0
            with pytest.raises(ApiError):
                append(self.log, batch_of(b"refused"), self.epoch + 1)
            self.disk.room_bytes = None
        self.epoch += raised

    def flush_done(self) -> None:
        if self.job is not None:
            self.job.run()
            self.log.flush_done(self.job)
            self.job, self.durable = None, self.job_end
        assert self.log.durable_offset == self.durable

    @rule(again=st.booleans())
    def flush(self, again: bool) -> None:
        self.flush_done()
        if again:
            flush(self.log)
            self.durable = len(self.values)
            assert self.log.durable_offset == self.durable

    @precondition(lambda self: bool(self.bases) and self.start < len(self.values))
    @rule(data=st.data())
    def truncate(self, data: st.DataObject) -> None:
        offset = data.draw(st.integers(min_value=self.start, max_value=len(self.values) - 1))
        end = self.base_of(offset)
        self.log.truncate_to(offset)
        del self.values[end:]
        self.bases = [base for base in self.bases if base < end]
        self.durable, self.job_end = min(self.durable, end), min(self.job_end, end)
        self.start = self.durable_start = min(self.start, end)

    def base_of(self, offset: int) -> int:
        """Where the batch begins that holds `offset`; the end of the log if there is none."""
        return max(base for base in self.bases if base <= offset) if offset < len(self.values) else offset

    @rule()
    def checkpoint(self) -> None:
        checkpoint(self.log)
        self.durable_start = self.log.start_offset

    @precondition(lambda self: self.durable > self.start)
    @rule(data=st.data())
    def delete_before(self, data: st.DataObject) -> None:
        offset = data.draw(st.integers(min_value=0, max_value=self.durable))
        self.log.delete_before(offset)
        self.start = max(self.start, offset)

    @rule(removed=st.booleans())
    def expire(self, removed: bool) -> None:
        before = self.log.size_bytes
        gone = self.log.expire(self.clock.now_ms, by_time=False)
        assert self.log.start_offset >= self.start
        assert (
            self.log.size_bytes >= min(before, CONFIG.retention_bytes) or self.log.start_offset == self.start
        )
        self.start = self.log.start_offset
        if removed:
            remove(self.disk, gone)

    @rule()
    def close_and_reopen(self) -> None:
        self.flush_done()
        self.log.close()
        self.log = open_log(self.disk, CONFIG, self.clock)
        self.durable = len(self.values)
        self.durable_start = self.start

    @rule(crash=st.sampled_from(Crash), seed=st.integers(min_value=0, max_value=2**32))
    def crash_and_reopen(self, crash: Crash, seed: int) -> None:
        self.job = None
        self.disk = self.disk.crash(crash, random.Random(seed))
        self.log = open_log(self.disk, CONFIG, self.clock)
        assert self.durable <= self.log.end_offset <= len(self.values)
        if self.durable:
            assert self.durable_start <= self.log.start_offset <= max(self.start, self.durable_start)
        del self.values[self.log.end_offset :]
        self.bases = [base for base in self.bases if base < len(self.values)]
        self.epoch = max(self.epoch, self.log.end_offset_for_epoch(self.epoch)[0])
        self.durable = len(self.values)
        self.start = self.durable_start = self.log.start_offset

    @rule(data=st.data())
    def read_from_anywhere(self, data: st.DataObject) -> None:
        offset = data.draw(st.integers(min_value=-1, max_value=len(self.values) + 1))
        limit = data.draw(st.integers(min_value=0, max_value=len(self.values)))
        if not self.start <= offset <= len(self.values):
            with pytest.raises(ApiError) as caught:
                self.log.read(offset, 100, limit)
            assert caught.value.code is ErrorCode.OFFSET_OUT_OF_RANGE
            return
        found = [record for _, batch in read_batches(self.log, offset, limit) for record in records(batch)]
        first, end = self.base_of(offset), self.base_of(limit)
        expected = list(enumerate(self.values[first:end], first)) if offset < limit else []
        assert [(record.offset, (record.timestamp, record.value)) for record in found] == expected

    @precondition(lambda self: bool(self.values))
    @rule(data=st.data())
    def look_up_a_time(self, data: st.DataObject) -> None:
        timestamp_ms = data.draw(st.sampled_from(self.values))[0] + data.draw(st.integers(-1, 1))
        rest = [(time, self.start + at) for at, (time, _) in enumerate(self.values[self.start :])]
        expected = next((one for one in rest if one[0] >= timestamp_ms), None)
        assert self.log.offset_for_time(timestamp_ms) == expected
        assert self.log.max_timestamp() == max(rest, key=lambda one: (one[0], -one[1]), default=None)

    @invariant()
    def bounds_agree(self) -> None:
        assert (self.log.start_offset, self.log.end_offset) == (self.start, len(self.values))
        assert self.log.durable_offset == self.durable

    def teardown(self) -> None:
        if self.start < len(self.values):
            found = [
                record
                for _, batch in read_batches(self.log, self.start, len(self.values))
                for record in records(batch)
            ]
            assert [one.value for one in found if one.offset >= self.start] == [
                value for _, value in self.values[self.start :]
            ]


TestLogAgainstList = LogAgainstList.TestCase
TestLogAgainstList.__doc__ = "L1 L2 L3 L4 L6 L7 C7: random lives of a log, against a list."
TestLogAgainstList.settings = settings(max_examples=150, stateful_step_count=30, deadline=None)
