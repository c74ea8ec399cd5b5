"""Cutting a log as a follower must, and beginning epochs as a new leader does: wholly, or not at all."""

from __future__ import annotations

import errno
import random
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.sim.disk import Crash, SimDisk
from tests.sim.workload import PATH, checkpoint, flush, read_batches
from tests.unit.log.compacted import CompactedLog
from tests.unit.log.logs import append, batch_of, fill, open_log

from braidmq.log import compaction_progress
from braidmq.log.log import Log
from braidmq.wire.errors import ApiError, ErrorCode


def lose_unsynced(disk: SimDisk) -> SimDisk:
    return disk.crash(Crash.LOST, random.Random(1))


def refuse(disk: SimDisk, kind: str) -> None:
    """The next operation of this kind is done, and then fails."""

    def fail(happened: str) -> None:
        if happened == kind:
            disk.on_operation = None
            raise OSError(errno.EIO, f"planted {kind} failure")

    disk.on_operation = fail


def values(log: Log) -> list[bytes]:
    return [content for _, content in read_batches(log, log.start_offset, log.end_offset)]


@pytest.mark.parametrize("cut", [0, 3, 8, 17, 29])
@pytest.mark.parametrize("more", [0, 2, 40])
def test_a_log_cut_during_a_flush_is_not_durable_past_its_end(cut: int, more: int) -> None:
    """L6 L4: what the flush made durable counts as far as it is still there."""
    disk = SimDisk()
    log = open_log(disk)
    fill(log, 5)
    flush(log)
    fill(log, 25)
    job = log.flush_begin()
    assert job is not None
    log.truncate_to(cut)
    fill(log, more, b"other")
    job.run()
    log.flush_done(job)
    assert log.durable_offset == cut
    assert (log.unflushed_since_ms is None) is (more == 0)
    checkpoint(log)
    written = values(log)
    log.abandon()
    again = open_log(lose_unsynced(disk))
    assert again.end_offset >= cut, "what was durable is there"
    assert values(again) == written[: again.end_offset]


class Round(NamedTuple):
    """A flush of some batches, a cut in the middle of it, and what follows."""

    before: int
    during: int
    cut_back: int
    """How many records the cut takes off."""
    after: int
    runs_before_cut: bool
    checkpoints: bool
    epoch_begins: bool
    crash: Crash | None


ROUNDS = st.builds(
    Round,
    before=st.integers(0, 12),
    during=st.integers(0, 12),
    cut_back=st.integers(0, 25),
    after=st.integers(0, 12),
    runs_before_cut=st.booleans(),
    checkpoints=st.booleans(),
    epoch_begins=st.booleans(),
    crash=st.one_of(st.none(), st.sampled_from(Crash)),
)


@given(rounds=st.lists(ROUNDS, min_size=1, max_size=4), seed=st.integers(0, 2**32))
@settings(max_examples=150, deadline=None)
def test_any_cut_in_any_flush_keeps_the_promises(rounds: list[Round], seed: int) -> None:
    """L6 L4: durable is durable, never past the end, and nothing that was cut comes back."""
    disk, epoch = SimDisk(), 0
    log = open_log(disk)
    written: list[bytes] = []

    def write(count: int) -> None:
        for _ in range(count):
            batch = batch_of(b"%d" % chance.randrange(10**9), timestamp_ms=1)
            append(log, batch, epoch)
            written.append(bytes(batch))

    chance = random.Random(seed)
    for each in rounds:
        write(each.before)
        durable = log.durable_offset
        job, flushed = log.flush_begin(), len(written)
        write(each.during)
        if job is not None and each.runs_before_cut:
            job.run()
        end = max(len(written) - each.cut_back, 0)
        log.truncate_to(end)
        del written[end:]
        epoch += each.epoch_begins
        write(each.after)
        if job is not None:
            job.run()
            log.flush_done(job)
            durable = flushed
        assert (log.durable_offset, log.end_offset) == (min(durable, end), len(written))
        if each.checkpoints:
            checkpoint(log)
        if each.crash is not None:
            disk, durable = disk.crash(each.crash, chance), log.durable_offset
            log = open_log(disk)
            assert durable <= log.end_offset <= len(written)
            del written[log.end_offset :]
        assert values(log) == written


def test_what_is_appended_after_a_cut_is_flushed_with_the_next_job() -> None:
    """L6 L4: the segments that the job before has taken are dirty again."""
    disk = SimDisk()
    log = open_log(disk)
    fill(log, 25)
    job = log.flush_begin()
    assert job is not None
    log.truncate_to(10)
    fill(log, 20, b"other")
    assert log.flush_begin() is None
    job.run()
    log.flush_done(job)
    flush(log)
    assert log.durable_offset == 30
    kept = values(log)
    log.abandon()
    assert values(open_log(lose_unsynced(disk))) == kept


@pytest.mark.parametrize("kind", ["write", "fsync", "rename", "sync directory", "truncate", "unlink"])
def test_a_cut_that_the_disk_refuses_stops_the_log(kind: str) -> None:
    """L6 L4: nothing is appended to a log whose files may hold more than it says."""
    disk = SimDisk()
    log = open_log(disk)
    fill(log, 40)
    flush(log)
    checkpoint(log)
    before = values(log)
    refuse(disk, kind)
    with pytest.raises(ApiError) as refused:
        log.truncate_to(12)
    assert refused.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    assert disk.on_operation is None, "the failure was met"
    with pytest.raises(ApiError, match="takes no more records"):
        fill(log, 1)
    with pytest.raises(ApiError, match="takes no more records"):
        log.truncate_to(2)
    log.abandon()
    for image in (disk, lose_unsynced(disk)):
        again = open_log(image)
        assert again.end_offset >= 12
        assert values(again) == before[: again.end_offset], "a part of the log, and nothing else"


@pytest.mark.parametrize("kind", ["write", "fsync", "rename", "sync directory"])
@pytest.mark.parametrize("next_epoch", [3, 4, 5])
def test_an_epoch_that_could_not_be_made_durable_has_not_begun(kind: str, next_epoch: int) -> None:
    """L6: what is accepted and flushed after a refusal is there after a power loss."""
    disk = SimDisk()
    log = open_log(disk)
    append(log, batch_of(b"old"), leader_epoch=3)
    flush(log)
    checkpoint(log)
    refuse(disk, kind)
    with pytest.raises(ApiError) as refused:
        append(log, batch_of(b"new"), leader_epoch=4)
    assert refused.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    assert log.end_offset_for_epoch(9) == (-1, -1)
    assert log.end_offset_for_epoch(3) == (3, 1)
    assert append(log, batch_of(b"next"), leader_epoch=next_epoch).base_offset == 1
    assert append(log, batch_of(b"one more"), leader_epoch=next_epoch).base_offset == 2
    flush(log)
    kept = values(log)
    log.abandon()
    again = open_log(lose_unsynced(disk))
    assert values(again) == kept
    assert again.end_offset_for_epoch(next_epoch) == (next_epoch, 3)


def test_an_older_epoch_is_fenced_after_a_newer_one_has_begun() -> None:
    """L6: the log says so, and the newer one goes on."""
    log = open_log(SimDisk())
    append(log, batch_of(b"v"), leader_epoch=4)
    with pytest.raises(ApiError) as refused:
        append(log, batch_of(b"v"), leader_epoch=3)
    assert refused.value.code is ErrorCode.FENCED_LEADER_EPOCH
    assert append(log, batch_of(b"v"), leader_epoch=4).base_offset == 1


def test_a_cut_before_what_was_compacted_takes_that_back() -> None:
    """L9: else new aborted transactions there would be forgotten at a restart, as if they were clean."""
    compacted = CompactedLog()
    for number in range(20):
        compacted.append((b"%d" % number, b"x"))
    compacted.end_segment()
    compacted.compact_all()
    assert compacted.compactor.cleaned_offset == 20
    compacted.log.truncate_to(12)
    assert compacted.compactor.cleaned_offset == 12
    assert compaction_progress.read(compacted.disk, str(PATH)) == 12
    compacted.log.abandon()
    compacted.open()
    assert compacted.compactor.cleaned_offset == 12


def test_a_cut_before_the_start_moves_the_start_with_it() -> None:
    """L6 C7: after a crash, too."""
    disk = SimDisk()
    log = open_log(disk)
    for _ in range(4):
        append(log, batch_of(b"a", b"b", b"c"))
    flush(log)
    log.delete_before(7)
    checkpoint(log)
    log.truncate_to(8)
    assert (log.start_offset, log.end_offset) == (6, 6)
    log.abandon()
    again = open_log(lose_unsynced(disk))
    assert (again.start_offset, again.end_offset) == (6, 6)
    assert append(again, batch_of(b"v")).base_offset == 6
