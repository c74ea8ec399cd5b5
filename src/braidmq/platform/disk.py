"""Everything Braid asks of a file system, as a protocol and as the real thing.

The log, the metadata store and the doctor reach the disk only through a `Disk`. That keeps `fsync` in one
file, and lets the tests put a simulated disk underneath that loses, tears and reorders whatever was not
synced.

What a caller must know about durability: bytes are safe after `fdatasync` of their file; a file's *name*
(creation, rename, removal) is safe after `sync_directory` of its directory; `write_atomically` does both.
A failed `fdatasync` must not be tried again: the kernel may have dropped the pages that failed.
"""

from __future__ import annotations

import errno
import mmap
import os
from pathlib import Path
from typing import NamedTuple, Protocol

from braidmq.platform.lock import DirectoryLock, Lock

StrPath = str | os.PathLike[str]
Bytes = bytes | bytearray | memoryview

TEMPORARY_SUFFIX = ".tmp"
NO_FILES = (errno.EMFILE, errno.ENFILE)
"""Too many files are open; nothing was done."""
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, *NO_FILES)
"""A refused write of these kinds leaves the file as sound as it was; any other makes the disk suspect."""


class DiskUsage(NamedTuple):
    """How full the file system under a path is."""

    total_bytes: int
    free_bytes: int

    @property
    def used_percent(self) -> float:
        return 100.0 * (self.total_bytes - self.free_bytes) / self.total_bytes if self.total_bytes else 100.0


class DiskFile(Protocol):
    """An open file. Positions are explicit, so a handle may be shared by readers and one writer."""

    def fileno(self) -> int: ...
    def size(self) -> int: ...
    def read_at(self, size: int, position: int) -> bytes:
        """Up to `size` bytes from `position`; fewer only at the end of the file."""
        ...

    def read_into(self, buffer: memoryview, position: int) -> int:
        """Fills `buffer` from `position`; the number of bytes read, less than asked only at the end."""
        ...

    def write_at(self, content: Bytes, position: int) -> int:
        """Writes at `position`; the number of bytes written, which may be less than asked."""
        ...

    def write(self, content: Bytes) -> None:
        """Writes all of `content` at the end of the file."""
        ...

    def truncate(self, size: int) -> None: ...
    def fdatasync(self) -> None: ...
    def close(self) -> None: ...


class Mapped(Protocol):
    """A file's bytes, mapped for reading; slices are copies."""

    def __getitem__(self, part: slice, /) -> bytes: ...
    def __len__(self) -> int: ...
    def close(self) -> None: ...


class Disk(Protocol):
    """A file system."""

    def open(self, path: StrPath, create: bool = False) -> DiskFile: ...
    def open_append(self, path: StrPath) -> DiskFile:
        """Opens for `write` at the end, creating the file if it is missing."""
        ...

    def map(self, path: StrPath) -> Mapped:
        """Maps a file that is not empty."""
        ...

    def read_file(self, path: StrPath) -> bytes: ...
    def write_atomically(self, path: StrPath, content: bytes) -> None:
        """Replaces a small file: after a crash it is the old one or the new one, whole; durable on return."""
        ...

    def exists(self, path: StrPath) -> bool: ...
    def size(self, path: StrPath) -> int: ...
    def listdir(self, path: StrPath) -> list[str]: ...
    def makedirs(self, path: StrPath) -> Path | None:
        """Creates what is missing; the topmost directory created, None if all were there."""
        ...

    def rename(self, source: StrPath, target: StrPath) -> None: ...
    def unlink(self, path: StrPath) -> None: ...
    def remove_tree(self, path: StrPath) -> None: ...
    def sync_directory(self, path: StrPath) -> None: ...
    def usage(self, path: StrPath) -> DiskUsage: ...
    def lock(self, directory: Path) -> Lock:
        """Keeps other processes from a directory; DirectoryInUse if one has it."""
        ...


class RealFile:
    """A file descriptor."""

    __slots__ = ("_fd",)

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def fileno(self) -> int:
        return self._fd

    def size(self) -> int:
        return os.fstat(self._fd).st_size

    def read_at(self, size: int, position: int) -> bytes:
        chunk = os.pread(self._fd, size, position)
        if len(chunk) == size or not chunk:
            return chunk
        parts = [chunk]
        got = len(chunk)
        while got < size and (chunk := os.pread(self._fd, size - got, position + got)):
            parts.append(chunk)
            got += len(chunk)
        return b"".join(parts)

    def read_into(self, buffer: memoryview, position: int) -> int:
        got = 0
        while got < len(buffer) and (count := os.preadv(self._fd, [buffer[got:]], position + got)):
            got += count
        return got

    def write_at(self, content: Bytes, position: int) -> int:
        return os.pwrite(self._fd, content, position)

    def write(self, content: Bytes) -> None:
        view = memoryview(content)
        position = self.size()
        while view:
            count = os.pwrite(self._fd, view, position)
            position += count
            view = view[count:]

    def truncate(self, size: int) -> None:
        os.ftruncate(self._fd, size)

    def fdatasync(self) -> None:
        os.fdatasync(self._fd)

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


class RealDisk:
    """The operating system's file system."""

    __slots__ = ()

    def open(self, path: StrPath, create: bool = False) -> DiskFile:
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0)
        return RealFile(os.open(path, flags, 0o644))

    def open_append(self, path: StrPath) -> DiskFile:
        return self.open(path, create=True)

    def map(self, path: StrPath) -> Mapped:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return mmap.mmap(fd, 0, access=mmap.ACCESS_READ)
        finally:
            os.close(fd)

    def read_file(self, path: StrPath) -> bytes:
        return Path(path).read_bytes()

    def write_atomically(self, path: StrPath, content: bytes) -> None:
        temporary = os.fspath(path) + TEMPORARY_SUFFIX
        file = RealFile(os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644))
        try:
            file.write(content)
            file.fdatasync()
        finally:
            file.close()
        Path(temporary).replace(path)
        self.sync_directory(Path(path).parent)

    def exists(self, path: StrPath) -> bool:
        return Path(path).exists()

    def size(self, path: StrPath) -> int:
        return Path(path).stat().st_size

    def listdir(self, path: StrPath) -> list[str]:
        return [entry.name for entry in os.scandir(path)]

    def makedirs(self, path: StrPath) -> Path | None:
        topmost = None
        missing = Path(path)
        while not missing.exists():
            topmost = missing
            missing = missing.parent
        if topmost is not None:
            Path(path).mkdir(parents=True, exist_ok=True)
        return topmost

    def rename(self, source: StrPath, target: StrPath) -> None:
        Path(source).replace(target)

    def unlink(self, path: StrPath) -> None:
        Path(path).unlink()

    def remove_tree(self, path: StrPath) -> None:
        import shutil  # loads three codecs for archives; only the deletion of a topic comes here

        shutil.rmtree(path)

    def sync_file(self, path: StrPath) -> None:
        """Makes what somebody else has written to a file safe."""
        file = self.open(path)
        try:
            file.fdatasync()
        finally:
            file.close()

    def sync_directory(self, path: StrPath) -> None:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def usage(self, path: StrPath) -> DiskUsage:
        found = os.statvfs(path)
        # Blocks kept back for root count as used: a write of ours fails when the rest is gone.
        free_bytes = found.f_bavail * found.f_frsize
        used_bytes = (found.f_blocks - found.f_bfree) * found.f_frsize
        return DiskUsage(used_bytes + free_bytes, free_bytes)

    def lock(self, directory: Path) -> Lock:
        return DirectoryLock(directory)
