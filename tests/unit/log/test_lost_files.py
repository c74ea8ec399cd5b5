"""Files that lost their tail or are gone: said, never skipped without a word, and mended for good."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable

import pytest
from tests.sim.disk import Crash, SimDisk
from tests.sim.workload import PATH, checkpoint, flush, read_batches
from tests.unit.log.compacted import CONFIG, CompactedLog
from tests.unit.log.logs import append, batch_of, copy_of, corrupt, fill, names, open_log, topic_config

from braidmq.log.doctor import repair, verify
from braidmq.log.log import Log
from braidmq.log.retention import remove
from braidmq.wire.errors import ApiError, ErrorCode
from braidmq.wire.records import parse_header

RECORDS = 60


def closed_log() -> tuple[SimDisk, dict[int, bytes]]:
    """A log of several segments that was closed, and its batches by offset."""
    disk = SimDisk()
    log = open_log(disk)
    fill(log, RECORDS)
    batches = dict(read_batches(log, 0, RECORDS))
    log.close()
    assert len(names(disk, ".log")) > 4
    return copy_of(disk), batches


def cut(disk: SimDisk, name: str, size: int) -> None:
    inode = disk._inode(PATH / name)
    inode.truncate(size)
    inode.sync()


def images_during(disk: SimDisk, work: Callable[[SimDisk], object]) -> list[SimDisk]:
    """The disk as power losses in the middle of `work` may leave it."""
    images: list[SimDisk] = []
    chance = random.Random(1)

    def cut_power(_: str) -> None:
        images.extend(disk.crash(crash, chance) for crash in Crash)

    disk.on_operation = cut_power
    work(disk)
    disk.on_operation = None
    return images


def covered(log: Log, batches: dict[int, bytes]) -> set[int]:
    """Offsets without records; every other one has its batch, and a reader gets from start to end."""
    expected, empty = log.start_offset, set[int]()
    for base, content in read_batches(log, log.start_offset, log.end_offset):
        header = parse_header(content)
        assert base == expected, "a reader meets every offset"
        if header.record_count:
            assert content == batches[base]
        else:
            empty |= set(range(base, header.next_offset))
        expected = header.next_offset
    assert expected == log.end_offset, "a reader reaches the end"
    return empty


def refused_at(log: Log, offset: int) -> ApiError:
    with pytest.raises(ApiError) as refused:
        log.read(offset, 1_000, log.end_offset)
    assert refused.value.code is ErrorCode.CORRUPT_MESSAGE
    return refused.value


@pytest.mark.parametrize("repaired", [False, True])
def test_a_reader_reaches_the_end_after_a_lost_tail(repaired: bool) -> None:
    """L6: whatever is left of the last segment, no offset is given twice and nobody waits for ever."""
    whole, batches = closed_log()
    name = names(whole, ".log")[-1]
    base, record_size = int(name[:20]), len(batches[0])
    for size in range(whole.size(PATH / name)):
        disk = copy_of(whole)
        cut(disk, name, size)
        assert verify(disk, PATH), "the doctor finds it"
        if repaired:
            assert repair(disk, PATH)
            assert verify(disk, PATH) == []
        log = open_log(disk)
        assert covered(log, batches) == set(range(base + size // record_size, RECORDS))
        assert any("are lost" in note for note in log.notes) is not repaired
        assert append(log, batch_of(b"more")).base_offset == RECORDS
        log.close()
        again = open_log(disk)
        assert (again.notes, again.end_offset) == ([], RECORDS + 1)
        assert verify(disk, PATH) == []


def test_a_power_loss_while_a_lost_tail_is_covered_changes_nothing() -> None:
    """L6: the covering begins again, and ends with the same log."""
    whole, batches = closed_log()
    name = names(whole, ".log")[-1]
    base, record_size = int(name[:20]), len(batches[0])
    for left in (0, 1, 2):
        disk = copy_of(whole)
        cut(disk, name, left * record_size + 30)
        for image in images_during(disk, lambda disk: open_log(disk)):
            log = open_log(image)
            assert covered(log, batches) == set(range(base + left, RECORDS))
            assert append(log, batch_of(b"more")).base_offset == RECORDS


def test_segments_after_a_lost_tail_keep_their_records() -> None:
    """L6: what was acknowledged after the checkpoint is not given up, nor are its offsets given again."""
    for lost in ("tail", "file"):
        disk = SimDisk()
        log = open_log(disk)
        fill(log, 12)
        flush(log)
        checkpoint(log)
        fill(log, 30)
        flush(log)
        batches = dict(read_batches(log, 0, 42))
        log.abandon()
        disk = copy_of(disk)
        second, third = names(disk, ".log")[1:3]
        if lost == "tail":
            cut(disk, second, 0)
        else:
            disk.unlink(PATH / second)
        log = open_log(disk)
        assert log.end_offset == 42
        assert covered(log, batches) == set(range(int(second[:20]), int(third[:20])))


@pytest.mark.parametrize("harm", ["emptied", "cut at a batch", "missing"])
def test_a_hole_between_segments_is_refused_until_it_is_mended(
    harm: str, caplog: pytest.LogCaptureFixture
) -> None:
    """L6 O1: readers get CORRUPT_MESSAGE and the log line says where; the doctor mends all of it."""
    disk, batches = closed_log()
    second, third = names(disk, ".log")[1:3]
    hole = range(int(second[:20]), int(third[:20]))
    if harm == "missing":
        disk.unlink(PATH / second)
    else:
        kept = 0 if harm == "emptied" else 2
        cut(disk, second, kept * len(batches[0]))
        hole = hole[kept:]
    log = open_log(disk)
    with caplog.at_level(logging.ERROR, "braid.log"):
        for offset in hole:
            assert f"the next begins at {third[:20].lstrip('0')}" in refused_at(log, offset).message
    names_logged = [record.getMessage() for record in caplog.records]
    assert len(names_logged) == 1, "each place is logged once"
    assert str(PATH) in names_logged[0]
    assert " byte " in names_logged[0]
    assert read_batches(log, 0, hole[0]) == [(at, batches[at]) for at in range(hole[0])]
    rest = read_batches(log, hole[-1] + 1, RECORDS)
    assert rest == [(at, batches[at]) for at in range(hole[-1] + 1, RECORDS)]
    log.close()
    assert verify(disk, PATH) != []
    assert any("are lost" in deed for deed in repair(disk, PATH))
    assert verify(disk, PATH) == []
    assert covered(open_log(disk), batches) == set(hole)


def test_a_missing_first_segment_is_found_and_the_log_starts_later() -> None:
    """L6 O1: readers of it get OFFSET_OUT_OF_RANGE, as after retention, and the log says why."""
    disk, batches = closed_log()
    first, second = names(disk, ".log")[:2]
    disk.unlink(PATH / first)
    start = int(second[:20])
    assert [(one.file, one.what.split(":")[0]) for one in verify(disk, PATH) if one.file == first] == [
        (first, f"offsets 0 to {start - 1} are missing")
    ]
    log = open_log(copy_of(disk))
    assert log.start_offset == start
    assert any(f"offsets 0 to {start - 1} are lost" in note for note in log.notes)
    assert any(f"offsets 0 to {start - 1} are lost" in deed for deed in repair(disk, PATH))
    assert verify(disk, PATH) == []
    log = open_log(disk)
    assert (log.notes, log.start_offset, covered(log, batches)) == ([], start, set())


def test_a_log_without_a_single_segment_is_found() -> None:
    """L6 O1: the checkpoint knows that there were records."""
    disk, _ = closed_log()
    for name in names(disk, ".log"):
        disk.unlink(PATH / name)
    assert [one.what for one in verify(disk, PATH) if one.file.endswith(".log")] == [
        f"offsets 0 to {RECORDS - 1} are missing: the log should start there"
    ]
    assert repair(disk, PATH)
    assert verify(disk, PATH) == []
    log = open_log(disk)
    assert (log.start_offset, log.end_offset) == (RECORDS, RECORDS)


def expire(log: Log) -> None:
    log.delete_before(30)
    gone = log.expire(0, by_time=False)
    assert gone
    checkpoint(log)
    remove(log._disk, gone)


def drop_all(log: Log) -> None:
    log.delete_before(RECORDS)
    log.roll(0)
    flush(log)
    checkpoint(log)
    gone = log.expire(0, by_time=False)
    assert gone
    checkpoint(log)
    remove(log._disk, gone)


@pytest.mark.parametrize("deletion", [expire, drop_all])
def test_deleted_segments_are_not_taken_for_lost_ones(deletion: Callable[[Log], None]) -> None:
    """L7 O1: at whatever moment the power goes."""
    disk, _ = closed_log()
    log = open_log(disk)
    for image in images_during(disk, lambda _: deletion(log)):
        assert [one for one in verify(image, PATH) if not one.file.endswith("index")] == []
        for opened in images_during(copy_of(image), lambda disk: open_log(disk)):
            assert open_log(opened).notes == []


def test_what_a_recovery_set_aside_is_put_away_by_a_repair() -> None:
    """L6 O1: after a repair that mended everything nothing is left to report."""
    disk = SimDisk()
    log = open_log(disk)
    fill(log, 40)
    log.abandon()
    disk._inode(PATH / names(disk, ".log")[1]).content[100] ^= 1
    open_log(disk).close()
    lost = names(disk, ".lost")
    assert {one.file for one in verify(disk, PATH)} >= set(lost)
    assert any("is kept as" in deed for deed in repair(disk, PATH))
    assert verify(disk, PATH) == []
    assert names(disk, ".lost.damaged") == [f"{name}.damaged" for name in lost]


def test_good_batches_before_a_damaged_one_are_served_first() -> None:
    """L6: one read that reaches damage gives what lies before it; only the next one is refused."""
    disk, batches = closed_log()
    name, size = names(disk, ".log")[0], len(batches[0])
    for number in range(3):
        image = copy_of(disk)
        corrupt(image, name, number * size + 70)
        log = open_log(image)
        for offset in range(number):
            found = log.read(offset, 100_000, log.end_offset)
            assert found is not None
            assert found.read() == b"".join(batches[at] for at in range(offset, number))
            found.release()
        assert f"byte {number * size}" in refused_at(log, number).message
        again = log.read(number + 1, 100_000, log.end_offset)
        assert again is not None


def test_a_damaged_header_withholds_nothing_that_lies_before_it() -> None:
    """L6: also where the limit of a read, such as the last stable offset, lies after the damage."""
    disk = SimDisk()
    config = topic_config(segment_bytes="100000", index_interval_bytes="4096")
    log = open_log(disk, config)
    fill(log, 20)
    batches = dict(read_batches(log, 0, 20))
    log.close()
    corrupt(disk, names(disk, ".log")[0], 5 * len(batches[0]) + 16)
    log = open_log(disk, config)
    found = log.read(0, 100_000, 12)
    assert found is not None
    assert found.read() == b"".join(batches[at] for at in range(5))
    refused_at(log, 5)


def test_the_doctor_knows_segments_that_a_compaction_has_replaced() -> None:
    """L9 O1: a broker that stops in the middle of a round leaves the old ones beside the new."""
    compacted = CompactedLog()
    for number in range(30):
        compacted.append((b"%d" % (number % 3), b"x" * 40))
    compacted.end_segment()
    job = compacted.compactor.begin(compacted.clock.now_ms, compacted.log.end_offset, CONFIG)
    assert job is not None
    job.run()
    compacted.compactor.done(job)
    compacted.log.close()
    assert names(compacted.disk, ".swap")
    assert verify(compacted.disk, PATH) == []
    assert repair(compacted.disk, PATH) == []
    compacted.open()
    compacted.check()
