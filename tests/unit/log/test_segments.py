"""Rolling, the sparse index, and lookups by time."""

from __future__ import annotations

import random

import pytest
from tests.sim.clock import SimClock
from tests.sim.disk import SimDisk
from tests.sim.workload import PATH, read_batches
from tests.unit.log.logs import (
    BASE_MS,
    append,
    batch_of,
    copy_of,
    corrupt,
    fill,
    names,
    open_log,
    topic_config,
)

from braidmq.log.index import OFFSET_ENTRY_BYTES


def test_segments_roll_by_size_and_are_named_by_their_first_offset() -> None:
    """L2: no segment grows past segment.bytes."""
    disk = SimDisk()
    log = open_log(disk)
    fill(log, 30)
    bases = [int(name[:20]) for name in names(disk, ".log")]
    assert len(bases) > 2
    assert all(disk.size(PATH / name) <= 1024 for name in names(disk, ".log"))
    for base in bases:
        assert read_batches(log, base, base + 1)[0][0] == base


def test_segments_roll_by_age_also_when_time_passed_while_the_broker_was_down() -> None:
    """L2: segment.ms counts from the first append, across restarts."""
    disk, clock = SimDisk(), SimClock()
    config = topic_config(segment_ms="1000")
    log = open_log(disk, config, clock)
    fill(log, 1)
    clock.advance_ms(999)
    fill(log, 1)
    assert len(names(disk, ".log")) == 1
    log.close()
    log = open_log(disk, config, clock)
    clock.advance_ms(1)
    fill(log, 1)
    assert names(disk, ".log") == ["00000000000000000000.log", "00000000000000000002.log"]


def test_a_segment_rolls_before_an_offset_cannot_be_told_relative_to_its_base() -> None:
    """L2 L3: index entries hold 31 bits of relative offset."""
    disk = SimDisk()
    log = open_log(disk)
    append(log, batch_of(b"a"))
    log.end_offset = log.durable_offset = 2**31
    append(log, batch_of(b"b"))
    assert names(disk, ".log") == ["00000000000000000000.log", f"{2**31:020d}.log"]


def test_rolling_syncs_nothing_and_one_flush_covers_all_segments() -> None:
    """L2 L4: the thread that appends never waits for the disk."""
    disk = SimDisk()
    log = open_log(disk)
    fill(log, 40)
    assert disk.syncs == 0
    job = log.flush_begin()
    assert job is not None
    job.run()
    log.flush_done(job)
    assert disk.syncs == len(names(disk, ".log"))
    assert log.durable_offset == 40


def test_every_offset_is_found_through_the_index_after_a_restart() -> None:
    """L3: sparse offset index."""
    disk = SimDisk()
    log = open_log(disk, topic_config(segment_bytes="4000", index_interval_bytes="500"))
    fill(log, 100)
    log.close()
    log = open_log(disk, topic_config(segment_bytes="4000", index_interval_bytes="500"))
    for offset in random.Random(1).sample(range(100), 100):
        assert read_batches(log, offset, offset + 1)[0][0] == offset


def test_the_index_is_sparse() -> None:
    """L3: one entry for index.interval.bytes of log."""
    disk = SimDisk()
    log = open_log(disk, topic_config(segment_bytes="100000", index_interval_bytes="1000"))
    fill(log, 100)
    log.close()
    entries = disk.size(PATH / names(disk, ".index")[0]) // OFFSET_ENTRY_BYTES
    assert log.size_bytes // 1500 < entries <= log.size_bytes // 1000


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
def test_missing_indexes_are_rebuilt_when_used(suffix: str) -> None:
    """L3 L6: an index is derived and never a reason to lose records."""
    disk = SimDisk()
    log = open_log(disk)
    fill(log, 60)
    log.close()
    for name in names(disk, suffix):
        disk.unlink(PATH / name)
    log = open_log(disk)
    for offset in (0, 17, 33, 59):
        assert read_batches(log, offset, offset + 1)[0][0] == offset
        assert log.offset_for_time(BASE_MS + offset) == (BASE_MS + offset, offset)


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
def test_an_entry_with_a_flipped_bit_is_noticed_and_the_index_rebuilt(suffix: str) -> None:
    """L3 L6: entries check themselves when they are used."""
    disk = SimDisk()
    log = open_log(disk, topic_config(segment_bytes="100000"))
    fill(log, 60)
    log.close()
    name = names(disk, suffix)[0]
    for byte in range(disk.size(PATH / name)):
        image = copy_of(disk)
        corrupt(image, name, byte)
        log = open_log(image, topic_config(segment_bytes="100000"))
        for offset in (0, 20, 40, 58):
            assert read_batches(log, offset, offset + 1)[0][0] == offset
            assert log.offset_for_time(BASE_MS + offset) == (BASE_MS + offset, offset)


def test_an_offset_is_found_by_time_to_the_millisecond() -> None:
    """C7 L3: the first record not before the time, across segments and within batches."""
    log = open_log(SimDisk())
    for number in range(30):
        append(log, batch_of(b"a" * 20, b"b" * 20, b"c" * 20, timestamp_ms=BASE_MS + 10 * number))
    assert log.offset_for_time(0) == (BASE_MS, 0)
    assert log.offset_for_time(BASE_MS + 1) == (BASE_MS + 1, 1)
    assert log.offset_for_time(BASE_MS + 3) == (BASE_MS + 10, 3)
    assert log.offset_for_time(BASE_MS + 292) == (BASE_MS + 292, 89)
    assert log.offset_for_time(BASE_MS + 293) is None


def test_times_that_go_back_and_forth_still_give_the_first_record_not_before() -> None:
    """C7: producers' clocks differ; the answer is by offset order."""
    chance = random.Random(5)
    log = open_log(SimDisk())
    times = [BASE_MS + chance.randrange(1000) for _ in range(80)]
    for time_ms in times:
        append(log, batch_of(b"v" * 30, timestamp_ms=time_ms))
    for wanted in range(BASE_MS, BASE_MS + 1000, 37):
        expected = next(((t, offset) for offset, t in enumerate(times) if t >= wanted), None)
        assert log.offset_for_time(wanted) == expected
    assert log.max_timestamp() == (max(times), times.index(max(times)))


def test_deleted_records_are_not_found_by_time() -> None:
    """C7: lookups start at the start offset, also inside a segment."""
    log = open_log(SimDisk(), topic_config(segment_bytes="100000"))
    times = [500, 100, 900, 200, 300]
    for time_ms in times:
        append(log, batch_of(b"v", timestamp_ms=time_ms))
    log.delete_before(3)
    assert log.offset_for_time(150) == (200, 3)
    assert log.offset_for_time(400) is None
    assert log.max_timestamp() == (300, 4)


def test_an_empty_log_has_no_times() -> None:
    """C7: nothing is found where nothing is."""
    log = open_log(SimDisk())
    assert log.offset_for_time(0) is None
    assert log.max_timestamp() is None


def test_logs_and_segments_take_little_memory() -> None:
    """L12: no dictionary per log or segment."""
    log = open_log(SimDisk())
    assert not hasattr(log, "__dict__")
    assert not hasattr(log._active, "__dict__")
