"""Every byte of a small partition is flipped or cut, one at a time: never served wrong, always noticed."""

from __future__ import annotations

import pytest
from tests.sim.disk import SimDisk
from tests.sim.workload import PATH, checkpoint, flush, read_batches
from tests.unit.log.logs import append, batch_of, copy_of, corrupt, fill, names, open_log, topic_config

from braidmq.log.doctor import repair, verify
from braidmq.log.log import Log
from braidmq.wire.errors import ApiError, ErrorCode
from braidmq.wire.records import parse_header

CONFIG = topic_config(segment_bytes="1024", index_interval_bytes="64")
BATCHES = 14


def small_partition() -> tuple[SimDisk, dict[int, bytes]]:
    """Two segments, indexes, a checkpoint and a snapshot, closed; and its batches by offset."""
    disk = SimDisk()
    log = open_log(disk, CONFIG)
    for number in range(BATCHES):
        append(log, batch_of(b"v" * 15, producer_id=4, producer_epoch=0, base_sequence=number))
    batches = dict(read_batches(log, 0, log.end_offset))
    log.delete_before(1)
    log.close()
    disk = copy_of(disk)
    assert verify(disk, PATH) == []
    assert len(names(disk, ".log")) == 2
    return disk, batches


def read_what_can_be_read(log: Log) -> dict[int, bytes]:
    """Every batch that is served, asked for one by one."""
    served: dict[int, bytes] = {}
    refused = []
    for offset in range(log.start_offset, log.end_offset):
        try:
            served.update(read_batches(log, offset, min(offset + 1, log.end_offset)))
        except ApiError as error:
            refused.append(error)
    assert all(error.code is ErrorCode.CORRUPT_MESSAGE for error in refused)
    assert all("run braid doctor" in error.message for error in refused)
    return served


def files_of_a_partition() -> list[str]:
    return names(small_partition()[0])


@pytest.mark.parametrize("name", files_of_a_partition())
def test_a_flipped_bit_in_any_byte_is_never_served_and_the_doctor_finds_it(name: str) -> None:
    """L6 L3 P4: log, index, time index, checkpoint and snapshot, byte by byte."""
    disk, batches = small_partition()
    for byte in range(disk.size(PATH / name)):
        image = copy_of(disk)
        corrupt(image, name, byte, mask=1 << byte % 8)
        assert verify(image, PATH), f"byte {byte} of {name}"
        log = open_log(image, CONFIG)
        served = read_what_can_be_read(log)
        assert (log.start_offset, log.end_offset) == (1, BATCHES)
        assert served.items() <= batches.items(), f"byte {byte} of {name}"
        lost = set(range(1, BATCHES)) - set(served)
        assert len(lost) <= (1 if name.endswith(".log") else 0) + len(unreachable(lost))
        assert append(log, batch_of(b"v" * 15, producer_id=4, producer_epoch=0, base_sequence=13)).duplicate
        log.abandon()


def unreachable(lost: set[int]) -> set[int]:
    """Offsets behind a damaged header and before the next index entry: found again after a repair."""
    return set(range(min(lost) + 1, max(lost) + 1)) if lost else set()


@pytest.mark.parametrize("name", files_of_a_partition())
def test_the_doctor_mends_any_flipped_bit_and_loses_no_more_than_its_batch(name: str) -> None:
    """L6 O1: after a repair everything verifies, everything else is served, and no offset moves."""
    disk, batches = small_partition()
    for byte in range(0, disk.size(PATH / name), 3):
        image = copy_of(disk)
        corrupt(image, name, byte, mask=1 << byte % 8)
        assert repair(image, PATH), f"byte {byte} of {name}"
        assert verify(image, PATH) == []
        log = open_log(image, CONFIG)
        assert log.notes == []
        assert (log.start_offset, log.end_offset) == (1, BATCHES)
        served = read_what_can_be_read(log)
        mended = {offset for offset in served if served[offset] != batches[offset]}
        assert len(mended) <= (1 if name.endswith(".log") else 0)
        assert all(parse_header(served[offset]).record_count == 0 for offset in mended)
        assert set(served) == set(range(1, BATCHES))
        assert append(log, batch_of(b"more")).base_offset == BATCHES


@pytest.mark.parametrize("name", files_of_a_partition())
def test_a_file_cut_at_any_byte_loses_at_most_its_tail(name: str) -> None:
    """L6: a short file is noticed; offsets that were given are never given again."""
    disk, batches = small_partition()
    for size in range(disk.size(PATH / name)):
        image = copy_of(disk)
        inode = image._inode(PATH / name)
        inode.truncate(size)
        inode.sync()
        log = open_log(image, CONFIG)
        served = {at: one for at, one in read_what_can_be_read(log).items() if parse_header(one).record_count}
        assert served.items() <= batches.items()
        assert log.end_offset == BATCHES
        assert append(log, batch_of(b"more")).base_offset == BATCHES
        if not name.endswith(".log"):
            assert set(served) == set(range(log.start_offset, BATCHES))
        log.abandon()


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
@pytest.mark.parametrize("size", [0, 5, 12, 20])
def test_a_short_index_is_found_and_rebuilt(suffix: str, size: int) -> None:
    """L3 O1: an empty or cut index file is a finding, whichever of the two it is."""
    disk, batches = small_partition()
    name = names(disk, suffix)[0]
    assert disk.size(PATH / name) > size
    disk._inode(PATH / name).truncate(size)
    assert any(finding.file == name for finding in verify(disk, PATH))
    assert repair(disk, PATH)
    assert verify(disk, PATH) == []
    served = read_what_can_be_read(open_log(disk, CONFIG))
    assert served == {offset: batches[offset] for offset in range(1, BATCHES)}


def test_a_flipped_bit_behind_the_recovery_point_ends_the_log_there() -> None:
    """L6: in the tail, damage cannot be told from a torn write; what comes before it is kept."""
    disk = SimDisk()
    log = open_log(disk, CONFIG)
    fill(log, 2, b"v" * 15)
    flush(log)
    checkpoint(log)
    fill(log, 3, b"v" * 15)
    batches = dict(read_batches(log, 0, 5))
    log.abandon()
    name = names(disk, ".log")[0]
    disk = copy_of(disk)
    size = len(batches[0])
    for byte in range(2 * size, 5 * size):
        image = copy_of(disk)
        corrupt(image, name, byte, mask=1 << byte % 8)
        log = open_log(image, CONFIG)
        assert log.end_offset == byte // size
        assert read_what_can_be_read(log) == {at: batches[at] for at in range(byte // size)}
        assert len(log.notes) == 1


def test_a_zero_filled_tail_is_cut() -> None:
    """L6: a power loss may leave a file longer than what was written."""
    disk = SimDisk()
    log = open_log(disk, CONFIG)
    fill(log, 4, b"v" * 15)
    log.close()
    disk._inode(PATH / names(disk, ".log")[0]).write(log.size_bytes, bytes(700))
    again = open_log(disk, CONFIG)
    assert (again.end_offset, again.size_bytes) == (4, log.size_bytes)


def test_a_clean_log_is_opened_without_reading_its_records() -> None:
    """L12 L6: start-up does not grow with the size of the data."""
    disk = SimDisk()
    log = open_log(disk, topic_config(segment_bytes="100000"))
    fill(log, 2000)
    flush(log)
    checkpoint(log)
    fill(log, 10)
    log.abandon()
    disk.bytes_read = 0
    log = open_log(disk, topic_config(segment_bytes="100000"))
    assert log.end_offset == 2010
    assert disk.bytes_read < 20_000 < log.size_bytes
    log.close()
    disk.bytes_read = 0
    open_log(disk, topic_config(segment_bytes="100000"))
    assert disk.bytes_read == disk.size(PATH / "checkpoint")
