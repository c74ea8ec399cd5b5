"""The cache of open files: capped, fair, and careful with files in use."""

from __future__ import annotations

from tests.sim.disk import SimDisk

from braidmq.log.files import FileCache, FileSlice


def new_disk() -> SimDisk:
    disk = SimDisk()
    disk.makedirs("/d")
    return disk


def test_no_more_files_are_open_than_allowed() -> None:
    """L12: file handles are capped."""
    disk, files = new_disk(), FileCache(3)
    for number in range(10):
        files.open(disk, f"/d/{number}", create=True)
        assert disk.open_files <= 3


def test_a_file_that_is_used_stays_and_the_idle_one_goes() -> None:
    """L12: the longest idle file is closed first."""
    disk, files = new_disk(), FileCache(3)
    busy = files.open(disk, "/d/busy", create=True)
    for number in range(20):
        busy.used = True
        files.open(disk, f"/d/{number}", create=True)
        assert not busy.closed
    for number in range(20, 26):
        files.open(disk, f"/d/{number}", create=True)
    assert busy.closed


def test_a_pinned_file_is_never_closed_even_when_all_are_pinned() -> None:
    """L12 W3: a slice that is being sent keeps its file open past the cap."""
    disk, files = new_disk(), FileCache(2)
    slices = [FileSlice(files.open(disk, f"/d/{number}", create=True), 0, 0) for number in range(5)]
    assert disk.open_files == 5
    assert all(piece.file is not None and not piece.file.closed for piece in slices)
    for piece in slices:
        piece.release()
    for number in range(5, 8):
        files.open(disk, f"/d/{number}", create=True)
    assert disk.open_files == 2


def test_a_forgotten_file_is_closed_by_its_last_user() -> None:
    """L7: a segment may be deleted while it is being sent to two consumers."""
    disk, files = new_disk(), FileCache(2)
    file = files.open(disk, "/d/a", create=True)
    one, two = FileSlice(file, 0, 0), FileSlice(file, 0, 0)
    files.forget("/d/a")
    one.release()
    one.release()
    assert not file.closed
    two.release()
    assert disk.open_files == 0


def test_the_same_path_gives_the_same_file() -> None:
    """L12: one descriptor per file, however many readers."""
    disk, files = new_disk(), FileCache(2)
    assert files.open(disk, "/d/a", create=True) is files.open(disk, "/d/a")
