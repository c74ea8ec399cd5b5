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

from braidmq.log.log import Log
from braidmq.log.retention import remove
from braidmq.wire.errors import ApiError, ErrorCode
from braidmq.wire.records import records

CONFIG = topic_config(retention_bytes="4000", segment_ms="100000")


class LogAgainstList(RuleBasedStateMachine):
    """The list holds (timestamp, value) by offset; what the disk may lose is known by `durable`."""

    def __init__(self) -> None:
        super().__init__()
        self.disk = SimDisk()
        self.clock = SimClock()
        self.log: Log = open_log(self.disk, CONFIG, self.clock)
        self.values: list[tuple[int, bytes]] = []
        self.durable = 0
        self.start = 0
        self.durable_start = 0

    @rule(
        values=st.lists(st.binary(max_size=200), min_size=1, max_size=4),
        later_ms=st.integers(min_value=-50, max_value=2000),
    )
    def append(self, values: list[bytes], later_ms: int) -> None:
        self.clock.advance_ms(max(later_ms, 0))
        timestamp_ms = self.clock.now_ms + min(later_ms, 0)
        assert append(self.log, batch_of(*values, timestamp_ms=timestamp_ms)).base_offset == len(self.values)
        self.values += [(timestamp_ms + number, value) for number, value in enumerate(values)]

    @rule()
    def roll_by_age(self) -> None:
        self.clock.advance_ms(100_000)

    @rule()
    def flush(self) -> None:
        flush(self.log)
        self.durable = len(self.values)
        assert self.log.durable_offset == self.durable

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
        self.log.close()
        self.log = open_log(self.disk, CONFIG, self.clock)
        self.durable = len(self.values)
        self.durable_start = self.start

    @rule(crash=st.sampled_from(Crash), seed=st.integers(min_value=0, max_value=2**32))
    def crash_and_reopen(self, crash: Crash, seed: int) -> None:
        self.disk = self.disk.crash(crash, random.Random(seed))
        self.log = open_log(self.disk, CONFIG, self.clock)
        assert self.durable <= self.log.end_offset <= len(self.values)
        if self.durable:
            assert self.durable_start <= self.log.start_offset <= max(self.start, self.durable_start)
        del self.values[self.log.end_offset :]
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
        offsets = [record.offset for record in found]
        assert all(self.values[record.offset] == (record.timestamp, record.value) for record in found)
        assert offsets == list(range(offsets[0], offsets[-1] + 1)) if offsets else True
        if found:
            assert offsets[0] <= offset
            assert offsets[-1] < limit

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
TestLogAgainstList.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
