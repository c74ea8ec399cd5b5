"""The real disk and clock: the same log on files, descriptors and maps of the operating system."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.sim.workload import LIMITS, checkpoint, flush, read_batches
from tests.unit.log.logs import append, batch_of, fill, topic_config

from braidmq.log.doctor import verify
from braidmq.log.files import FileCache
from braidmq.log.log import Log
from braidmq.platform.clock import SystemClock
from braidmq.platform.disk import RealDisk
from braidmq.platform.randomness import new_uuid, random_below


def open_real(path: Path, files: FileCache) -> Log:
    return Log.open(RealDisk(), path, topic_config(), SystemClock(), files, LIMITS)


def open_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_a_log_lives_on_real_files(tmp_path: Path) -> None:
    """L1 L2 L3 L6: append, roll, flush, kill, recover, close, verify."""
    path, files = tmp_path / "topics" / "orders" / "0", FileCache(4)
    log = open_real(path, files)
    fill(log, 50)
    flush(log)
    checkpoint(log)
    fill(log, 20)
    log.abandon()
    log = open_real(path, files)
    assert [base for base, _ in read_batches(log, 0, log.end_offset)] == list(range(70))
    assert log.offset_for_time(0) is not None
    log.close()
    assert verify(RealDisk(), path) == []
    assert open_real(path, files).notes == []


def test_a_slice_can_be_sent_with_sendfile(tmp_path: Path) -> None:
    """W3: position, size and descriptor are what the kernel needs."""
    log = open_real(tmp_path / "t-0", FileCache(4))
    fill(log, 5)
    found = log.read(2, 10_000, log.end_offset)
    assert found is not None
    assert found.file is not None
    with (tmp_path / "out").open("wb") as out:
        assert os.sendfile(out.fileno(), found.file.fileno(), found.position, found.size) == found.size
    assert (tmp_path / "out").read_bytes() == found.read()
    found.release()
    log.abandon()


def test_many_idle_partitions_hold_few_descriptors(tmp_path: Path) -> None:
    """L12: a hundred partitions in use, at most sixteen files open, none once they are let go."""
    before, files = open_descriptors(), FileCache(16)
    logs = [open_real(tmp_path / f"t-{number}", files) for number in range(100)]
    for turn in range(3):
        for log in logs:
            assert append(log, batch_of(b"v")).base_offset == turn
            assert len(read_batches(log, 0, log.end_offset)) == turn + 1
    assert open_descriptors() <= before + 17
    for log in logs:
        log.close()
    assert open_descriptors() == before


def test_a_file_is_replaced_whole_and_leaves_no_temporary_one(tmp_path: Path) -> None:
    """L6: checkpoints are written beside and swapped in."""
    disk, path = RealDisk(), tmp_path / "checkpoint"
    for content in (b"one", b"twenty-two", b""):
        disk.write_atomically(path, content)
        assert disk.read_file(path) == content
    assert disk.listdir(tmp_path) == ["checkpoint"]


def test_directories_tell_which_of_them_are_new(tmp_path: Path) -> None:
    """L6: whose names must be synced is known from the topmost one created."""
    disk = RealDisk()
    assert disk.makedirs(tmp_path / "a" / "b" / "c") == tmp_path / "a"
    assert disk.makedirs(tmp_path / "a" / "b" / "d") == tmp_path / "a" / "b" / "d"
    assert disk.makedirs(tmp_path / "a" / "b" / "d") is None
    disk.sync_directory(tmp_path / "a")


def test_append_files_grow_at_their_end(tmp_path: Path) -> None:
    """L1: `write` puts bytes behind what is there, `truncate` takes them away."""
    file = RealDisk().open_append(tmp_path / "journal")
    file.write(b"abc")
    file.write(b"def")
    assert (file.size(), file.read_at(10, 2)) == (6, b"cdef")
    file.truncate(4)
    file.write(b"!")
    file.fdatasync()
    buffer = bytearray(8)
    assert file.read_into(memoryview(buffer), 1) == 4
    assert buffer == b"bcd!\0\0\0\0"
    file.close()
    file.close()


def test_a_full_device_is_reported_as_no_room() -> None:
    """L7: /dev/full refuses every write, as a full disk does."""
    file = RealDisk().open("/dev/full")
    with pytest.raises(OSError, match="No space left"):
        file.write_at(b"x", 0)
    file.close()


@pytest.mark.parametrize(("available", "percent"), [(300, 70.0), (200, 100 * 700 / 900), (0, 100.0)])
def test_how_full_the_disk_is_leaves_out_what_we_cannot_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, available: int, percent: float
) -> None:
    """L7: the disk watermarks look at this; blocks that only root may use are no room, as df has it."""
    block_bytes, blocks, free = 4096, 1000, 300
    fields = (block_bytes, block_bytes, blocks, free, available, 50, 40, 40, 0, 255)
    asked = []

    def statvfs(path: str | Path) -> os.statvfs_result:
        asked.append(Path(path))
        return os.statvfs_result(fields)

    monkeypatch.setattr(os, "statvfs", statvfs)
    usage = RealDisk().usage(tmp_path)
    assert usage.free_bytes == available * block_bytes
    assert usage.used_percent == pytest.approx(percent)
    assert asked == [tmp_path]


def test_uuids_are_random_and_safe_to_print() -> None:
    """L1: topic ids are version 4 and do not look like an option."""
    seen = {new_uuid() for _ in range(500)}
    assert len(seen) == 500
    assert all(one[6] >> 4 == 4 and one[8] >> 6 == 2 and one[0] >> 2 != 62 for one in seen)
    assert {random_below(2) for _ in range(100)} == {0, 1}


def test_the_monotonic_clock_never_goes_back() -> None:
    """L2: waits are measured on it; wall time is in milliseconds."""
    clock = SystemClock()
    times = [clock.monotonic() for _ in range(100)]
    assert times == sorted(times)
    assert clock.wall_ms() > 1_600_000_000_000
