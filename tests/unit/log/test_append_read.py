"""Appending batches and reading them back as slices of files."""

from __future__ import annotations

import random

import pytest
from tests.sim.clock import SimClock
from tests.sim.disk import Crash, SimDisk
from tests.sim.workload import PATH, flush, read_batches
from tests.unit.log.logs import append, batch_of, fill, open_log, topic_config

from braidmq.log.files import FileCache
from braidmq.wire.errors import ApiError, ErrorCode
from braidmq.wire.records import parse_header, records


def test_offsets_are_dense_and_the_bytes_come_back_as_they_were_sent() -> None:
    """L1: batches get consecutive offsets; only offset and epoch are stamped."""
    log = open_log(SimDisk())
    sent = [batch_of(b"one"), batch_of(b"two", b"three"), batch_of(b"four")]
    copies = [bytes(batch) for batch in sent]
    assert [append(log, batch).base_offset for batch in sent] == [0, 1, 3]
    stored = [content for _, content in read_batches(log, 0, log.end_offset)]
    assert [content[16:] for content in stored] == [copy[16:] for copy in copies]
    assert [record.offset for content in stored for record in records(content)] == [0, 1, 2, 3]


def test_a_read_starts_with_the_batch_that_holds_the_offset() -> None:
    """L1 C7: a consumer that seeks into a batch gets that batch whole."""
    log = open_log(SimDisk())
    append(log, batch_of(b"a", b"b", b"c"))
    append(log, batch_of(b"d", b"e"))
    assert [base for base, _ in read_batches(log, 4, log.end_offset)] == [3]
    assert [base for base, _ in read_batches(log, 1, log.end_offset)] == [0, 3]


def test_the_first_batch_comes_whole_however_small_the_limit() -> None:
    """L1: max bytes never starves a consumer of a large batch."""
    log = open_log(SimDisk(), topic_config(segment_bytes="100000"))
    append(log, batch_of(b"x" * 5000))
    append(log, batch_of(b"y" * 5000))
    found = log.read(0, 10, log.end_offset)
    assert found is not None
    assert found.size == parse_header(found.read()).size
    found.release()


def test_a_read_is_cut_at_max_bytes_and_never_reaches_the_limit_offset() -> None:
    """L1 L4: what is not durable yet is not served when the limit says so."""
    log = open_log(SimDisk(), topic_config(segment_bytes="100000"))
    fill(log, 10)
    batch_bytes = log.size_bytes // 10
    found = log.read(0, 3 * batch_bytes + 7, log.end_offset)
    assert found is not None
    assert found.size == 3 * batch_bytes + 7
    limited = log.read(0, 1 << 20, 4)
    assert limited is not None
    assert limited.size == 4 * batch_bytes
    assert log.read(4, 1 << 20, 4) is None


@pytest.mark.parametrize("limit_offset", range(41))
def test_any_limit_offset_is_respected_across_segments(limit_offset: int) -> None:
    """L1 L2: the limit holds in the active segment, in closed ones and at their borders."""
    log = open_log(SimDisk())
    fill(log, 40)
    assert len(names_of_segments(log)) > 2
    assert [base for base, _ in read_batches(log, 0, limit_offset)] == list(range(limit_offset))


def names_of_segments(log: object) -> list[object]:
    return list(log._segments)  # type: ignore[attr-defined]


def test_offsets_outside_of_the_log_are_refused_with_the_bounds() -> None:
    """C7: OFFSET_OUT_OF_RANGE below the start and above the end; the end itself is a wait."""
    log = open_log(SimDisk())
    fill(log, 5)
    flush(log)
    log.delete_before(2)
    for offset in (0, 1, 6):
        with pytest.raises(ApiError, match="2 to 5") as caught:
            log.read(offset, 100, log.end_offset)
        assert caught.value.code is ErrorCode.OFFSET_OUT_OF_RANGE
    assert log.read(5, 100, log.end_offset) is None


def test_tailing_consumers_need_neither_index_nor_disk() -> None:
    """L3: the newest batches are found from memory."""
    disk = SimDisk()
    log = open_log(disk, topic_config(segment_bytes="1000000"))
    for _ in range(500):
        offset = log.end_offset
        fill(log, 1)
        before = disk.bytes_read
        found = log.read(offset, 1 << 20, log.end_offset)
        assert found is not None
        assert disk.bytes_read == before
        found.release()


def test_a_slice_outlives_the_deletion_of_its_segment() -> None:
    """L7 W3: a fetch that is being sent is not disturbed by retention."""
    disk = SimDisk()
    log = open_log(disk, topic_config(retention_bytes="0"))
    fill(log, 30)
    found = log.read(0, 500, log.end_offset)
    assert found is not None
    before = found.read()
    flush(log)
    job = log.checkpoint_begin()
    assert job is not None
    job.run()
    log.checkpoint_done(job)
    for path in log.expire(0, by_time=False):
        disk.unlink(path)
    assert log.start_offset > 0
    assert found.read() == before
    found.release()
    log.abandon()
    assert disk.open_files == 0


def test_an_idle_partition_holds_no_files_and_works_again_when_used() -> None:
    """L12: descriptors are shared by all partitions and capped."""
    disk = SimDisk()
    files = FileCache(2)
    log = open_log(disk, files=files)
    fill(log, 60)
    assert disk.open_files <= 2
    for number in range(4):
        files.open(disk, f"/data/other-{number}", create=True)
    assert disk.open_files <= 2
    fill(log, 3)
    assert [base for base, _ in read_batches(log, 0, log.end_offset)] == list(range(63))


def test_an_empty_log_leaves_nothing_on_the_disk() -> None:
    """L12: ten thousand unused partitions are opened and closed without a directory or a file."""
    disk = SimDisk()
    log = open_log(disk)
    assert (log.start_offset, log.end_offset, log.size_bytes) == (0, 0, 0)
    assert log.flush_begin() is None
    assert log.checkpoint_begin() is None
    log.close()
    assert not disk.exists(PATH)


def test_the_first_batch_makes_the_directory_and_its_flush_makes_it_durable() -> None:
    """L1 L12: a power loss after the first flush finds the log again, directories included."""
    disk = SimDisk()
    log = open_log(disk)
    append(log, batch_of(b"v"))
    flush(log)
    after = disk.crash(Crash.LOST, random.Random(0))
    assert open_log(after).end_offset == 1


def test_append_time_is_reported_only_where_the_broker_stamps_it() -> None:
    """L1: append_time_ms is -1 under CreateTime."""
    log = open_log(SimDisk())
    assert append(log, batch_of(b"v")).append_time_ms == -1
    stamped = open_log(SimDisk(), topic_config(message_timestamp_type="LogAppendTime"))
    assert append(stamped, batch_of(b"v", timestamp_ms=77)).append_time_ms == 77


def test_leader_epochs_are_kept_and_an_old_leader_is_refused() -> None:
    """L1: where each epoch began survives a restart; FENCED_LEADER_EPOCH for a deposed leader."""
    disk = SimDisk()
    log = open_log(disk)
    append(log, batch_of(b"a"), leader_epoch=0)
    append(log, batch_of(b"b"), leader_epoch=3)
    append(log, batch_of(b"c"), leader_epoch=3)
    append(log, batch_of(b"d"), leader_epoch=5)
    with pytest.raises(ApiError) as caught:
        append(log, batch_of(b"e"), leader_epoch=4)
    assert caught.value.code is ErrorCode.FENCED_LEADER_EPOCH
    log.close()
    log = open_log(disk, clock=SimClock())
    expected = {0: (0, 1), 1: (0, 1), 3: (3, 3), 4: (3, 3), 5: (5, 4), 6: (-1, -1)}
    assert {epoch: log.end_offset_for_epoch(epoch) for epoch in expected} == expected
