"""Old segments go: by time, by size, by offset, by a full disk; and nothing else does."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from tests.sim.clock import SimClock
from tests.sim.disk import Crash, SimDisk
from tests.sim.workload import PATH, checkpoint, flush, read_batches
from tests.unit.log.logs import append, batch_of, fill, names, open_log, topic_config

from braidmq.config import TopicConfig
from braidmq.log.log import Log
from braidmq.log.retention import remove
from braidmq.wire.errors import ApiError, ErrorCode

HOUR_MS = 3_600_000


def filled(disk: SimDisk, config: TopicConfig, clock: SimClock, batches: int = 40) -> Log:
    log = open_log(disk, config, clock)
    for _ in range(batches):
        append(log, batch_of(b"x" * 50, timestamp_ms=clock.now_ms))
        clock.advance_ms(HOUR_MS)
    flush(log)
    checkpoint(log)
    return log


def test_segments_whose_newest_record_is_too_old_go_oldest_first() -> None:
    """L7: retention.ms, whole segments at a time."""
    disk, clock = SimDisk(), SimClock()
    log = filled(disk, topic_config(retention_ms=str(15 * HOUR_MS)), clock)
    gone = log.expire(clock.now_ms, by_time=True)
    assert gone
    assert 20 <= log.start_offset <= 25
    assert [base for base, _ in read_batches(log, log.start_offset, 40)] == list(range(log.start_offset, 40))
    assert log.expire(clock.now_ms, by_time=True) == []


def test_time_does_not_count_when_it_is_not_asked_for() -> None:
    """L7: outside of the clean-up hour only size and offsets count."""
    disk, clock = SimDisk(), SimClock()
    log = filled(disk, topic_config(retention_ms="1"), clock)
    assert log.expire(clock.now_ms, by_time=False) == []


def test_size_keeps_at_least_what_retention_bytes_says() -> None:
    """L7: retention.bytes."""
    disk, clock = SimDisk(), SimClock()
    log = filled(disk, topic_config(retention_bytes="2500", retention_ms="-1"), clock)
    log.expire(clock.now_ms, by_time=True)
    assert 2500 <= log.size_bytes < 2500 + 1024
    assert sum(disk.size(PATH / name) for name in names(disk, ".log")) == log.size_bytes


def test_without_limits_nothing_goes() -> None:
    """L7: -1 keeps for ever."""
    disk, clock = SimDisk(), SimClock()
    log = filled(disk, topic_config(retention_ms="-1", retention_bytes="-1"), clock)
    clock.advance_ms(10**12)
    assert log.expire(clock.now_ms, by_time=True) == []


def test_an_expired_last_segment_is_ended_and_goes_but_offsets_go_on() -> None:
    """L7 L1: a quiet topic empties itself; its next record gets the next offset, also after a restart."""
    disk, clock = SimDisk(), SimClock()
    config = topic_config(retention_ms=str(HOUR_MS))
    log = filled(disk, config, clock, batches=3)
    clock.advance_ms(5 * HOUR_MS)
    remove(disk, log.expire(clock.now_ms, by_time=True))
    assert (log.start_offset, log.end_offset, log.size_bytes) == (3, 3, 0)
    log.abandon()
    log = open_log(disk.crash(Crash.LOST, random.Random(1)), config, clock)
    assert (log.start_offset, log.end_offset) == (3, 3)
    assert append(log, batch_of(b"next")).base_offset == 3


def test_what_is_not_behind_a_recovery_point_on_disk_does_not_go() -> None:
    """L7 L6: recovery must be able to tell deleted from lost."""
    disk, clock = SimDisk(), SimClock()
    log = open_log(disk, topic_config(retention_bytes="0"), clock)
    fill(log, 40)
    assert log.expire(clock.now_ms, by_time=True) == []
    flush(log)
    assert log.expire(clock.now_ms, by_time=True) == []
    checkpoint(log)
    assert log.expire(clock.now_ms, by_time=True) != []


def test_records_without_timestamps_are_kept_by_the_age_of_their_segment() -> None:
    """L7: a timestamp of -1 is not the year 1969."""
    disk, clock = SimDisk(), SimClock()
    log = open_log(disk, topic_config(retention_ms=str(HOUR_MS)), clock)
    for _ in range(30):
        append(log, batch_of(b"x" * 50, timestamp_ms=-1))
    flush(log)
    checkpoint(log)
    assert log.expire(clock.now_ms, by_time=True) == []
    clock.advance_ms(HOUR_MS + 1)
    assert log.expire(clock.now_ms, by_time=True) != []


def test_delete_records_hides_at_once_and_frees_whole_segments() -> None:
    """L7 C7: DeleteRecords by offset, inside a segment too; durable with the next checkpoint."""
    disk, clock = SimDisk(), SimClock()
    log = filled(disk, topic_config(), clock)
    log.delete_before(17)
    assert log.start_offset == 17
    with pytest.raises(ApiError):
        log.read(16, 100, 40)
    checkpoint(log)
    gone = log.expire(clock.now_ms, by_time=False)
    assert gone
    assert log.start_offset == 17
    log.abandon()
    log = open_log(disk.crash(Crash.LOST, random.Random(1)), clock=clock)
    assert log.start_offset == 17
    assert read_batches(log, 17, 18)[0][0] == 17


def test_the_start_never_moves_back_and_never_past_the_end() -> None:
    """C7: OFFSET_OUT_OF_RANGE for what is not there yet."""
    log = filled(SimDisk(), topic_config(), SimClock())
    log.delete_before(30)
    log.delete_before(10)
    assert log.start_offset == 30
    with pytest.raises(ApiError) as caught:
        log.delete_before(41)
    assert caught.value.code is ErrorCode.OFFSET_OUT_OF_RANGE


def test_a_full_disk_drops_the_oldest_segment_expired_or_not() -> None:
    """L7: at 85 % the oldest goes by force, but never the one being written."""
    disk, clock = SimDisk(), SimClock()
    log = filled(disk, topic_config(retention_ms="-1"), clock)
    starts = []
    while gone := log.drop_oldest():
        assert all(path.name.endswith(".deleted") for path in gone)
        remove(disk, gone)
        starts.append(log.start_offset)
    assert starts == sorted(set(starts))
    assert log.size_bytes > 0
    assert read_batches(log, log.start_offset, 40)
    assert append(log, batch_of(b"v")).base_offset == 40


def test_removing_what_is_gone_already_is_no_error() -> None:
    """L7: a topic may be deleted while its old segments wait for removal."""
    disk = SimDisk()
    disk.makedirs(PATH)
    remove(disk, [PATH / "00000000000000000000.log.deleted", Path("/data/nowhere-0/1.log.deleted")])
    assert names(disk) == []


def test_stale_files_of_a_crash_are_removed_at_the_next_start() -> None:
    """L6 L7: renamed segments, temporary files, indexes without a segment."""
    disk, clock = SimDisk(), SimClock()
    log = filled(disk, topic_config(retention_bytes="1500"), clock)
    log.expire(clock.now_ms, by_time=False)
    disk.open(PATH / "checkpoint.tmp", create=True).close()
    disk.open(PATH / f"{99:020d}.index", create=True).close()
    log.abandon()
    log = open_log(disk, topic_config(), clock)
    assert not names(disk, ".deleted")
    assert not names(disk, ".tmp")
    assert f"{99:020d}.index" not in names(disk)
    assert log.end_offset == 40


def test_a_deletion_that_only_half_survived_a_crash_is_finished() -> None:
    """L6 L7: a renamed segment speaks for all before it, so that no hole opens."""
    disk, clock = SimDisk(), SimClock()
    log = filled(disk, topic_config(), clock)
    log.abandon()
    third = names(disk, ".log")[2]
    disk.rename(PATH / third, PATH / (third + ".deleted"))
    log = open_log(disk, topic_config(), clock)
    assert log.start_offset == int(names(disk, ".log")[0][:20])
    assert log.start_offset > int(third[:20])
    assert [base for base, _ in read_batches(log, log.start_offset, 40)] == list(range(log.start_offset, 40))
