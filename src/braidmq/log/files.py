"""Open files, shared and capped.

Ten thousand partitions must not hold ten thousand descriptors, so logs do not keep files open: they ask a
`FileCache`, which closes the file that has been idle longest when there are too many. A file in use by
somebody else (a fetch being sent, a sync in a thread) is pinned and stays open, even past the cap and
even when its segment has been deleted meanwhile; the last unpin closes a file when there are too many.
Those who send files to clients let go of one that is the first use past the cap (`is_one_too_many`), because
a client that does not read keeps its files for as long as it likes.

Idleness is judged by second chance (the clock algorithm): using a file only sets a flag, which keeps the
append path short; the work is done when something must be closed. A pinned file that the clock meets leaves
the ring and returns to it when it is unpinned: it is looked at once, however many opens follow.

A cache and all its files belong to one thread. Another thread may use a file that was pinned for it.
"""

from __future__ import annotations

from typing import Protocol

from braidmq.platform.disk import Disk, DiskFile, Mapped


class _Closable(Protocol):
    def close(self) -> None: ...


class Cached:
    """Something open: closed by the cache when idle, by the last unpin when its file was forgotten."""

    __slots__ = ("_content", "aside", "closed", "forgotten", "pins", "used")

    def __init__(self, content: _Closable) -> None:
        self._content = content
        self.aside: tuple[FileCache, str] | None = None
        """The cache to return to, and the path, while a pin keeps this out of the ring."""
        self.pins = 0
        self.used = False
        self.closed = False
        self.forgotten = False

    def pin(self) -> None:
        self.pins += 1

    def unpin(self) -> None:
        self.pins -= 1
        if self.pins == 0:
            if self.forgotten:
                self.close()
            elif self.aside is not None:
                cache, path = self.aside
                cache.take_back(path, self)

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self._content.close()


class OpenFile(Cached):
    """An open segment file."""

    __slots__ = ("disk_file",)

    def __init__(self, disk_file: DiskFile) -> None:
        super().__init__(disk_file)
        self.disk_file = disk_file

    def fileno(self) -> int:
        return self.disk_file.fileno()


class OpenMap(Cached):
    """A mapped index file. It counts like a file: Python's mmap keeps a descriptor."""

    __slots__ = ("mapped",)

    def __init__(self, mapped: Mapped) -> None:
        super().__init__(mapped)
        self.mapped = mapped


class FileCache:
    """At most `max_open` files and maps open at once, unless more than that are pinned."""

    __slots__ = ("_aside", "_ring", "max_open")

    def __init__(self, max_open: int) -> None:
        self.max_open = max_open
        self._ring: dict[str, Cached] = {}
        self._aside: dict[str, Cached] = {}

    def __len__(self) -> int:
        return len(self._ring) + len(self._aside)

    def is_one_too_many(self, slice_: FileSlice) -> bool:
        """Whether this is the only use of its file, and as many others are in use as may be open."""
        return len(self._aside) >= self.max_open and slice_.file is not None and slice_.file.pins == 1

    def open(self, disk: Disk, path: str, create: bool = False) -> OpenFile:
        """The open file at `path`; opened if need be."""
        found = self._find(path)
        if isinstance(found, OpenFile):
            found.used = True
            return found
        self._make_room()
        opened = OpenFile(disk.open(path, create))
        self._ring[path] = opened
        return opened

    def map(self, disk: Disk, path: str) -> OpenMap:
        """The file at `path`, mapped; it must not be empty."""
        found = self._find(path)
        if isinstance(found, OpenMap):
            found.used = True
            return found
        self._make_room()
        opened = OpenMap(disk.map(path))
        self._ring[path] = opened
        return opened

    def _find(self, path: str) -> Cached | None:
        return self._ring.get(path) or self._aside.get(path)

    def forget(self, path: str) -> None:
        """Closes what is open under `path` now, or when its last user has let go of it."""
        entry = self._ring.pop(path, None) or self._aside.pop(path, None)
        if entry is not None:
            entry.forgotten = True
            if entry.pins == 0:
                entry.close()

    def take_back(self, path: str, entry: Cached) -> None:
        """Nobody uses a file any more that was set aside."""
        entry.aside = None
        del self._aside[path]
        if len(self) >= self.max_open:
            entry.close()
        else:
            entry.used = False
            self._ring[path] = entry

    def _make_room(self) -> None:
        # A look at an entry closes it, sets it aside until its unpin, or takes a use away: so an open looks
        # at no more entries than were used or unpinned since, plus the one it closes.
        ring = self._ring
        while ring and len(ring) + len(self._aside) >= self.max_open:
            path, entry = next(iter(ring.items()))
            del ring[path]
            if entry.pins:
                entry.aside = (self, path)
                self._aside[path] = entry
            elif entry.used:
                entry.used = False
                ring[path] = entry
            else:
                entry.close()


class FileSlice:
    """A range of a segment file that can be sent; the file stays open until `release`."""

    __slots__ = ("file", "hot", "position", "size")

    def __init__(self, file: OpenFile, position: int, size: int, hot: bool = False) -> None:
        file.pins += 1
        self.file: OpenFile | None = file
        self.position = position
        self.size = size
        self.hot = hot
        """Whether it was written a moment ago, and so is in the page cache."""

    def read(self) -> bytes:
        """The bytes themselves, for those who must look at them."""
        assert self.file is not None, "a released slice cannot be read"
        return self.file.disk_file.read_at(self.size, self.position)

    def shared(self) -> FileSlice:
        """The same range once more, with a hold on the file of its own."""
        assert self.file is not None, "a released slice cannot be shared"
        return FileSlice(self.file, self.position, self.size, self.hot)

    def read_part(self, at: int, size: int) -> bytes:
        """Bytes from `at` on, `size` of them or fewer where the range ends."""
        assert self.file is not None, "a released slice cannot be read"
        return self.file.disk_file.read_at(min(size, self.size - at), self.position + at)

    def part(self, at: int, size: int) -> FileSlice:
        """A range of this range, to be released by itself."""
        assert self.file is not None, "a released slice has no parts"
        return FileSlice(self.file, self.position + at, size, self.hot)

    def release(self) -> None:
        """Lets the file be closed; calling it again does nothing."""
        file, self.file = self.file, None
        if file is not None:
            file.unpin()
