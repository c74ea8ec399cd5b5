"""Opening logs that were not closed: what a crash may leave, case by case."""

from __future__ import annotations

import random

from tests.sim.clock import SimClock
from tests.sim.disk import Crash, SimDisk
from tests.sim.workload import PATH, checkpoint, flush, read_batches
from tests.unit.log.logs import BASE_MS, append, batch_of, copy_of, fill, names, open_log, topic_config

CHANCE = random.Random(1)


def lose_unsynced(disk: SimDisk) -> SimDisk:
    return disk.crash(Crash.LOST, CHANCE)


def test_what_a_killed_broker_left_in_the_page_cache_is_durable_once_recovered() -> None:
    """L6: files, their names and all directories above are synced before anything counts as recovered."""
    disk = SimDisk()
    log = open_log(disk)
    fill(log, 20)
    log.abandon()
    log = open_log(disk)
    assert log.durable_offset == 20
    log.abandon()
    assert open_log(lose_unsynced(disk)).end_offset == 20


def test_a_new_segment_counts_as_durable_only_with_its_name() -> None:
    """L6: a flush after a roll syncs the directory too."""
    disk = SimDisk()
    log = open_log(disk)
    fill(log, 5)
    flush(log)
    fill(log, 30)
    assert len(names(disk, ".log")) > 2
    flush(log)
    assert open_log(lose_unsynced(disk)).end_offset == 35


def test_index_entries_of_a_lost_tail_do_not_come_back() -> None:
    """L6 L3: they would pass their check and lead into the middle of other batches."""
    disk = SimDisk()
    config = topic_config(segment_bytes="100000")
    log = open_log(disk, config)
    fill(log, 3)
    flush(log)
    checkpoint(log)
    fill(log, 80, b"old" * 9)
    log._active.index.write_out()
    for name in names(disk, "index"):
        disk._inode(PATH / name).sync()
    disk.sync_directory(PATH)
    log.abandon()
    disk = lose_unsynced(disk)
    log = open_log(disk, config)
    assert log.end_offset == 3
    fill(log, 80, b"new" * 21)
    log.abandon()
    log = open_log(lose_unsynced(disk), config)
    assert log.end_offset == 3
    log = open_log(disk, config)
    for offset in range(83):
        assert read_batches(log, offset, offset + 1)[0][0] == offset
        assert log.offset_for_time(BASE_MS + offset) == (BASE_MS + offset, offset)


def test_a_log_that_lost_what_was_deleted_goes_on_where_it_starts() -> None:
    """L6 C7: with flush=async records may be deleted, and that be durable, before they are."""
    disk = SimDisk()
    log = open_log(disk)
    fill(log, 4)
    flush(log)
    fill(log, 6)
    log.delete_before(8)
    checkpoint(log)
    log = open_log(lose_unsynced(disk))
    assert (log.start_offset, log.end_offset) == (8, 8)
    assert append(log, batch_of(b"v")).base_offset == 8
    flush(log)
    checkpoint(log)
    log.expire(0, by_time=False)
    assert read_batches(log, 8, 9)[0][0] == 8


def test_a_whole_segment_behind_the_end_is_set_aside_not_removed() -> None:
    """L6: what recovery cuts off can still be looked at."""
    disk = SimDisk()
    log = open_log(disk)
    fill(log, 40)
    log.abandon()
    disk._inode(PATH / names(disk, ".log")[1]).content[100] ^= 1
    log = open_log(disk)
    assert len(names(disk, ".lost")) >= 2
    assert any("set aside" in note for note in log.notes)
    assert [base for base, _ in read_batches(log, 0, log.end_offset)] == list(range(log.end_offset))


def test_without_its_checkpoint_a_log_is_checked_as_a_whole() -> None:
    """L6: records, epochs and producers come back from the batches."""
    disk = SimDisk()
    log = open_log(disk)
    append(log, batch_of(b"a", producer_id=3, producer_epoch=0, base_sequence=0))
    fill(log, 20)
    append(log, batch_of(b"b"), leader_epoch=7)
    log.close()
    disk.unlink(PATH / "checkpoint")
    log = open_log(disk)
    assert log.end_offset == 22
    assert log.end_offset_for_epoch(0) == (0, 21)
    assert append(log, batch_of(b"a", producer_id=3, producer_epoch=0, base_sequence=0), 7).duplicate


def test_an_unknown_epoch_in_the_tail_ends_the_log() -> None:
    """L6: the epoch is outside of the CRC, but every epoch is on disk before its first batch."""
    disk = SimDisk()
    log = open_log(disk)
    fill(log, 2)
    flush(log)
    checkpoint(log)
    fill(log, 2)
    log.abandon()
    size = log.size_bytes // 4
    disk._inode(PATH / names(disk, ".log")[0]).content[3 * size + 15] = 9
    assert open_log(disk).end_offset == 3


def test_truncation_cuts_whole_batches_for_good() -> None:
    """L6: a follower that diverged goes back; the recovery point goes back first."""
    disk = SimDisk()
    log = open_log(disk)
    fill(log, 40)
    flush(log)
    checkpoint(log)
    log.truncate_to(17)
    assert (log.end_offset, log.durable_offset) == (17, 17)
    fill(log, 5, b"other")
    flush(log)
    assert [base for base, _ in read_batches(log, 0, log.end_offset)] == list(range(22))
    log.abandon()
    log = open_log(lose_unsynced(disk))
    assert log.end_offset == 22
    assert read_batches(log, 20, 21)[0][1].endswith(b"other" + b"\x00")


def test_a_checkpoint_is_written_only_when_something_moved() -> None:
    """L12: ten thousand idle partitions cost nothing."""
    log = open_log(SimDisk())
    fill(log, 3)
    flush(log)
    checkpoint(log)
    assert log.checkpoint_begin() is None
    fill(log, 1)
    assert log.checkpoint_begin() is None, "nothing new is durable"
    flush(log)
    assert log.checkpoint_begin() is not None


def test_checkpoints_that_overtake_each_other_leave_the_newest() -> None:
    """L6 C7: jobs run in threads; an older one must not undo a newer start offset."""
    disk = SimDisk()
    log = open_log(disk)
    fill(log, 10)
    flush(log)
    older = log.checkpoint_begin()
    log.delete_before(6)
    newer = log.checkpoint_begin()
    assert older is not None
    assert newer is not None
    newer.run()
    older.run()
    log.checkpoint_done(newer)
    log.checkpoint_done(older)
    log.abandon()
    assert open_log(lose_unsynced(disk)).start_offset == 6


def test_records_appended_during_a_flush_go_with_the_next() -> None:
    """L4: group commit; only what the job began with is durable when it ends."""
    disk = SimDisk()
    clock = SimClock()
    log = open_log(disk, clock=clock)
    fill(log, 5)
    job = log.flush_begin()
    assert job is not None
    assert log.flush_begin() is None, "one at a time"
    clock.advance_ms(50)
    fill(log, 30)
    job.run()
    log.flush_done(job)
    assert (log.durable_offset, log.end_offset, log.unflushed_records) == (5, 35, 30)
    assert log.unflushed_since_ms is not None
    assert open_log(lose_unsynced(disk)).end_offset >= 5
    flush(log)
    assert log.durable_offset == 35
    assert open_log(lose_unsynced(disk)).end_offset == 35


def test_a_copy_of_a_closed_log_opens_without_a_note() -> None:
    """L6: a clean stop leaves nothing to recover."""
    disk = SimDisk()
    log = open_log(disk)
    fill(log, 50)
    log.close()
    image = copy_of(disk)
    before = image.syncs
    log = open_log(image)
    assert (log.notes, log.end_offset, image.syncs) == ([], 50, before)
