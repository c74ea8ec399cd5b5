"""Disks that refuse: no room, failed syncs, failed truncates; nothing half-written stays."""

from __future__ import annotations

import errno
import random

import pytest
from tests.sim.disk import Crash, SimDisk
from tests.sim.workload import PATH, checkpoint, flush, read_batches
from tests.unit.log.logs import append, batch_of, fill, names, open_log, topic_config

from braidmq.log.log import Log
from braidmq.wire.errors import ApiError, ErrorCode


def failing_flush(log: Log) -> None:
    job = log.flush_begin()
    assert job is not None
    with pytest.raises(OSError, match="planted"):
        job.run()
    log.flush_done(job)


@pytest.mark.parametrize("room_bytes", [0, 1, 60, 61, 100, 110])
def test_a_full_disk_refuses_the_batch_and_leaves_nothing_of_it(room_bytes: int) -> None:
    """L7 L6: KAFKA_STORAGE_ERROR; the log stays as it was and takes the next batch when there is room."""
    disk = SimDisk()
    log = open_log(disk)
    fill(log, 3)
    size = log.size_bytes
    disk.room_bytes = room_bytes
    with pytest.raises(ApiError, match="no space") as caught:
        fill(log, 1)
    assert caught.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    assert (log.end_offset, log.size_bytes, log.failed) == (3, size, None)
    assert disk.size(PATH / names(disk, ".log")[0]) == size
    assert disk.room_bytes == room_bytes
    disk.room_bytes = None
    fill(log, 5)
    flush(log)
    assert [base for base, _ in read_batches(log, 0, log.end_offset)] == list(range(8))


def test_a_full_disk_while_rolling_or_indexing_loses_nothing() -> None:
    """L7: whatever byte is the last that fits, the log goes on once there is room."""
    for room_bytes in range(0, 3000, 37):
        disk = SimDisk()
        log = open_log(disk)
        disk.room_bytes = room_bytes
        with pytest.raises(ApiError):
            fill(log, 100)
        stored = log.end_offset
        disk.room_bytes = None
        fill(log, 10)
        flush(log)
        checkpoint(log)
        assert [base for base, _ in read_batches(log, 0, log.end_offset)] == list(range(stored + 10))
        log.abandon()
        log = open_log(disk.crash(Crash.LOST, random.Random(room_bytes)))
        assert [base for base, _ in read_batches(log, 0, log.end_offset)] == list(range(stored + 10))


def test_a_checkpoint_that_finds_no_room_is_made_up_for_later() -> None:
    """L7 L6: reads and writes go on, the old checkpoint stays whole."""
    disk = SimDisk()
    log = open_log(disk)
    append(log, batch_of(b"v", producer_id=1, producer_epoch=0, base_sequence=0))
    flush(log)
    checkpoint(log)
    before = disk.read_file(PATH / "checkpoint")
    append(log, batch_of(b"v", producer_id=1, producer_epoch=0, base_sequence=1))
    flush(log)
    disk.room_bytes = 10
    job = log.checkpoint_begin()
    assert job is not None
    with pytest.raises(OSError, match="no space"):
        job.run()
    assert disk.read_file(PATH / "checkpoint") == before
    disk.room_bytes = None
    checkpoint(log)
    log.abandon()
    log = open_log(disk.crash(Crash.LOST, random.Random(1)))
    assert append(log, batch_of(b"v", producer_id=1, producer_epoch=0, base_sequence=1)).duplicate


def test_a_failed_truncate_after_a_failed_write_stops_the_log() -> None:
    """L6: a tail that cannot be cleaned must not be appended to."""
    disk = SimDisk()
    log = open_log(disk)
    fill(log, 3)
    flush(log)
    disk.room_bytes = 10
    disk.truncate_fails = True
    with pytest.raises(ApiError):
        fill(log, 1)
    assert log.failed is not None
    disk.room_bytes = None
    with pytest.raises(ApiError, match="has failed"):
        fill(log, 1)
    assert len(read_batches(log, 0, log.end_offset)) == 3


def test_a_failed_sync_stops_appends_for_good_and_reads_of_what_was_durable_go_on() -> None:
    """L4 L6: an fsync that fails is never retried and believed."""
    disk = SimDisk()
    log = open_log(disk)
    fill(log, 5)
    flush(log)
    fill(log, 5)
    disk.failing_sync = disk.syncs + 1
    failing_flush(log)
    assert isinstance(log.failed, OSError)
    assert log.failed.errno == errno.EIO
    assert log.durable_offset == 5
    with pytest.raises(ApiError) as caught:
        fill(log, 1)
    assert caught.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    assert log.flush_begin() is None
    assert log.checkpoint_begin() is None
    assert log.expire(0, by_time=True) == log.drop_oldest() == []
    assert [base for base, _ in read_batches(log, 0, log.end_offset)] == list(range(5))
    log.close()


def test_after_a_failed_sync_a_restart_writes_the_doubtful_pages_again() -> None:
    """L6: the page cache shows bytes that the disk never got; a sync of clean pages would prove nothing."""
    disk = SimDisk()
    log = open_log(disk)
    fill(log, 5)
    flush(log)
    fill(log, 5)
    disk.failing_sync = disk.syncs + 1
    failing_flush(log)
    log.close()
    log = open_log(disk)
    assert log.end_offset == log.durable_offset == 10
    log.abandon()
    after = open_log(disk.crash(Crash.LOST, random.Random(1)))
    assert after.end_offset == 10, "what was reported durable after the restart is"
    assert "failed" not in names(disk)


def test_a_sync_that_fails_for_the_directory_fails_the_log_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """L6: a segment whose name is not durable is not durable."""
    disk = SimDisk()
    log = open_log(disk)
    fill(log, 1)

    def refuse(_: object) -> None:
        raise OSError(errno.EIO, "planted")

    monkeypatch.setattr(disk, "sync_directory", refuse)
    failing_flush(log)
    assert log.durable_offset == 0
    assert log.failed is not None


def test_a_broker_may_report_a_failure_itself() -> None:
    """L6: `fail` keeps the first reason."""
    log = open_log(SimDisk(), topic_config())
    first = OSError(errno.EIO, "first")
    log.fail(first)
    log.fail(OSError(errno.EIO, "second"))
    assert log.failed is first
