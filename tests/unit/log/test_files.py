"""The cache of open files: capped, fair, and careful with files in use."""

from __future__ import annotations

import pytest
from tests.sim.disk import SimDisk

from braidmq.log.files import Cached, FileCache, FileSlice


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


def test_the_cap_holds_again_as_soon_as_slices_are_released() -> None:
    """L12: descriptors past the cap are closed by the last who used them, not by some later open."""
    disk, files = new_disk(), FileCache(2)
    slices = [FileSlice(files.open(disk, f"/d/{number}", create=True), 0, 0) for number in range(50)]
    assert disk.open_files == 50
    for piece in slices:
        piece.release()
    assert disk.open_files == len(files) == 2


def test_an_open_does_not_look_at_files_in_use_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """L12: with more files pinned than the cap allows, opening another costs no walk over them."""
    looks = 0
    stored = vars(Cached)["pins"]

    def look(entry: Cached) -> int:
        nonlocal looks
        looks += 1
        count: int = stored.__get__(entry, Cached)
        return count

    disk, files = new_disk(), FileCache(10)
    slices = [FileSlice(files.open(disk, f"/d/{number}", create=True), 0, 0) for number in range(300)]
    monkeypatch.setattr(Cached, "pins", property(look, stored.__set__))
    for number in range(300, 400):
        files.open(disk, f"/d/{number}", create=True)
    assert looks <= 2 * 100, "each open looked at files that it could not close"
    for piece in slices:
        assert piece.file is not None
        assert not piece.file.closed
        piece.release()
    assert disk.open_files == 10


def test_a_file_that_was_set_aside_while_in_use_can_be_found_and_forgotten() -> None:
    """L7 L12: a pinned file is the same file for the next reader, and is closed when its segment goes."""
    disk, files = new_disk(), FileCache(1)
    piece = FileSlice(files.open(disk, "/d/a", create=True), 0, 0)
    files.open(disk, "/d/b", create=True)
    assert files.open(disk, "/d/a") is piece.file
    files.forget("/d/a")
    assert piece.file is not None
    assert not piece.file.closed
    piece.release()
    assert disk.open_files == 1
