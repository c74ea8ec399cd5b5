"""Putting one file in the place of several segments, so that a crash leaves the old ones or the new one.

    1  write    base.cleaned.log, synced, and its name synced
    2  announce base.end.swap, an empty file whose name says which offsets are replaced; synced
    3  rename   base.cleaned.log → base.log: from here on the new file counts
    4  finish   the rename synced, the other old segments removed, that synced, the announcement removed

After a crash with an announcement, `base.cleaned.log` shows how far it got. If it is there, step 3 did not
happen and every old segment is whole: the swap is undone. If not, the new file is in place: it is finished.
"""

from __future__ import annotations

from collections.abc import Sequence

from braidmq.log.index import OFFSET_SUFFIX, TIME_SUFFIX
from braidmq.log.segment import LOG_SUFFIX, SUFFIXES
from braidmq.platform.disk import Disk

CLEANED_SUFFIX = ".cleaned"
SWAP_SUFFIX = ".swap"
OFFSET_DIGITS = 20


class Swap:
    """A file that will replace the segments from `base_offset` to `end_offset`."""

    __slots__ = ("_directory", "_disk", "base_offset", "end_offset")

    def __init__(self, disk: Disk, directory: str, base_offset: int, end_offset: int) -> None:
        self._disk = disk
        self._directory = directory
        self.base_offset = base_offset
        self.end_offset = end_offset

    @property
    def cleaned_stem(self) -> str:
        """The path of the new files without `.log`, `.index` and `.timeindex`, before the swap."""
        return f"{self._directory}/{_digits(self.base_offset)}{CLEANED_SUFFIX}"

    @property
    def _announcement(self) -> str:
        return f"{self._directory}/{_digits(self.base_offset)}.{_digits(self.end_offset)}{SWAP_SUFFIX}"

    def announce(self) -> None:
        """Steps 1 and 2, after the new file's content was synced; blocks."""
        # The name of the new file goes first: an announcement without it would mean that the swap was made.
        self._disk.sync_directory(self._directory)
        self._disk.open(self._announcement, create=True).close()
        self._disk.sync_directory(self._directory)

    def rename(self) -> None:
        """Step 3. The caller has closed the files of the old segments, and has checked that all are there."""
        stem = f"{self._directory}/{_digits(self.base_offset)}"
        for suffix in (OFFSET_SUFFIX, TIME_SUFFIX):
            if self._disk.exists(self.cleaned_stem + suffix):
                self._disk.rename(self.cleaned_stem + suffix, stem + suffix)
            elif self._disk.exists(stem + suffix):
                self._disk.unlink(stem + suffix)
        self._disk.rename(self.cleaned_stem + LOG_SUFFIX, stem + LOG_SUFFIX)

    def finish(self, replaced: Sequence[int]) -> None:
        """Step 4: removes the segments whose base offsets are `replaced`; blocks."""
        self._disk.sync_directory(self._directory)
        for base in replaced:
            if base != self.base_offset:
                for suffix in SUFFIXES:
                    self._remove(f"{self._directory}/{_digits(base)}{suffix}")
        self._disk.sync_directory(self._directory)
        self._remove(self._announcement)

    def undo(self) -> None:
        """Gives up before step 3; blocks."""
        if self._disk.exists(self._announcement):
            self._disk.unlink(self._announcement)
            # Without the new file an announcement would mean that the swap was made.
            self._disk.sync_directory(self._directory)
        for suffix in SUFFIXES:
            self._remove(self.cleaned_stem + suffix)

    def _remove(self, path: str) -> None:
        if self._disk.exists(path):
            self._disk.unlink(path)


def recover(disk: Disk, directory: str, names: Sequence[str]) -> list[str]:
    """Finishes or undoes what a crash interrupted; the names that are left."""
    announced = [name for name in names if name.endswith(SWAP_SUFFIX)]
    cleaned = [name for name in names if CLEANED_SUFFIX in name]
    if not announced and not cleaned:
        return list(names)
    for name in announced:
        base_digits, end_digits, _ = name.split(".")
        swap = Swap(disk, directory, int(base_digits), int(end_digits))
        # The index may be that of the other file; it is rebuilt when it is needed.
        for suffix in (OFFSET_SUFFIX, TIME_SUFFIX):
            if f"{base_digits}{suffix}" in names:
                disk.unlink(f"{directory}/{base_digits}{suffix}")
        if f"{base_digits}{CLEANED_SUFFIX}{LOG_SUFFIX}" in names:
            swap.undo()
        else:
            swap.finish([base for base in _bases(names) if swap.base_offset < base < swap.end_offset])
    for name in cleaned:
        if disk.exists(f"{directory}/{name}"):
            disk.unlink(f"{directory}/{name}")
    return disk.listdir(directory)


def replaced(names: Sequence[str]) -> set[int]:
    """Base offsets of old segments that are still there though the file that replaces them is valid."""
    found: set[int] = set()
    for name in names:
        if name.endswith(SWAP_SUFFIX) and f"{name[:OFFSET_DIGITS]}{CLEANED_SUFFIX}{LOG_SUFFIX}" not in names:
            base, end = (int(digits) for digits in name.split(".")[:2])
            found |= {each for each in _bases(names) if base < each < end}
    return found


def _bases(names: Sequence[str]) -> list[int]:
    """Offsets of everything named like a segment: an old one may be left with its index only."""
    stems = {name[:OFFSET_DIGITS] for name in names if name[OFFSET_DIGITS:] in SUFFIXES}
    return sorted(int(stem) for stem in stems if stem.isdigit())


def _digits(offset: int) -> str:
    return f"{offset:0{OFFSET_DIGITS}d}"
