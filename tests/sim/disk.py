"""A disk in memory that forgets what was not synced, in every way a real one may.

Each file keeps what is durable apart from what is in the page cache, with the writes and truncates in
between; each directory does the same with names. `crash` makes a new disk from one of the states a power loss
could leave: unsynced writes lost, kept, torn, zeroed or out of order; unsynced names lost or kept one by one.
Faults can be planted: an fdatasync that fails (and, as on Linux, drops the dirty pages), a disk that is full.
"""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable
from enum import Enum
from pathlib import Path, PurePosixPath

from braidmq.platform.disk import TEMPORARY_SUFFIX, Bytes, Disk, DiskFile, DiskUsage, Mapped, StrPath
from braidmq.platform.lock import DirectoryInUse, Lock

TOTAL_BYTES = 1 << 30


class Crash(Enum):
    """What a power loss does to what was not synced."""

    LOST = "all lost"
    KEPT = "all kept"
    NAMES_ONLY = "names kept, contents lost"
    CONTENTS_ONLY = "contents kept, names lost"
    ZEROED = "sizes kept, contents zeroed"
    TORN = "the first writes kept, the last of them in part"
    REORDERED = "any subset kept"


class Inode:
    """A file: what is on the platter, what was done since, and what a reader sees."""

    def __init__(self, durable: bytes = b"") -> None:
        self.durable = bytearray(durable)
        self.content = bytearray(durable)
        self.pending: list[tuple[int, bytes | None]] = []
        """(position, bytes) for a write, (size, None) for a truncate."""
        self.synced = 0
        """How many writes and truncates are on the platter, ever."""

    def write(self, position: int, content: bytes) -> None:
        apply(self.content, position, content)
        self.pending.append((position, content))

    def truncate(self, size: int) -> None:
        apply(self.content, size, None)
        self.pending.append((size, None))

    @property
    def changes(self) -> int:
        """How many writes and truncates there were, ever."""
        return self.synced + len(self.pending)

    def sync(self, until: int | None = None) -> None:
        """Brings the first `until` changes, or all, to the platter."""
        count = max((self.changes if until is None else until) - self.synced, 0)
        for position, content in self.pending[:count]:
            apply(self.durable, position, content)
        del self.pending[:count]
        self.synced += count

    def after(self, crash: Crash, chance: random.Random) -> Inode:
        """The file as a crash leaves it."""
        image = bytearray(self.durable)
        operations = list(self.pending)
        if crash in (Crash.LOST, Crash.NAMES_ONLY):
            operations = []
        elif crash is Crash.ZEROED:
            operations = [(at, None if done is None else bytes(len(done))) for at, done in operations]
        elif crash is Crash.TORN and operations:
            operations = operations[: chance.randint(0, len(operations))]
            operations[-1:] = [torn(operation, chance) for operation in operations[-1:]]
        elif crash is Crash.REORDERED:
            operations = [
                torn(operation, chance) if chance.random() < 0.2 else operation
                for operation in operations
                if chance.random() < 0.6
            ]
        for position, content in operations:
            apply(image, position, content)
        return Inode(bytes(image))


def apply(image: bytearray, position: int, content: bytes | None) -> None:
    if content is None:
        if position < len(image):
            del image[position:]
        else:
            image.extend(bytes(position - len(image)))
        return
    if len(image) < position:
        image.extend(bytes(position - len(image)))
    image[position : position + len(content)] = content


def torn(operation: tuple[int, bytes | None], chance: random.Random) -> tuple[int, bytes | None]:
    position, content = operation
    if content is None:
        return operation
    cut = chance.randint(0, len(content))
    return position, content[:cut] + bytes(chance.choice((0, len(content) - cut)))


class Directory:
    """Names: those on the platter, the changes since, and those a reader sees."""

    def __init__(self) -> None:
        self.durable: dict[str, Inode | Directory] = {}
        self.entries: dict[str, Inode | Directory] = {}
        self.pending: list[dict[str, Inode | Directory | None]] = []

    def change(self, change: dict[str, Inode | Directory | None]) -> None:
        rename(self.entries, change)
        self.pending.append(change)

    def sync(self) -> None:
        for change in self.pending:
            rename(self.durable, change)
        self.pending.clear()

    def after(self, crash: Crash, chance: random.Random, seen: dict[int, Inode]) -> Directory:
        names = dict(self.durable)
        changes = self.pending
        if crash in (Crash.LOST, Crash.CONTENTS_ONLY):
            changes = []
        elif crash is Crash.TORN:
            changes = changes[: chance.randint(0, len(changes))]
        elif crash is Crash.REORDERED:
            changes = [change for change in changes if chance.random() < 0.6]
        for change in changes:
            rename(names, change)
        image = Directory()
        for name, node in names.items():
            if isinstance(node, Directory):
                image.entries[name] = node.after(crash, chance, seen)
            else:
                if id(node) not in seen:
                    seen[id(node)] = node.after(crash, chance)
                image.entries[name] = seen[id(node)]
        image.durable = dict(image.entries)
        return image


def rename(names: dict[str, Inode | Directory], change: dict[str, Inode | Directory | None]) -> None:
    for name, node in change.items():
        if node is None:
            names.pop(name, None)
        else:
            names[name] = node


class SimFile:
    """An open file of a SimDisk."""

    def __init__(self, disk: SimDisk, inode: Inode) -> None:
        self._disk = disk
        self.inode = inode
        self.closed = False
        self._fd = 0
        disk.open_files += 1

    def fileno(self) -> int:
        if self._disk.descriptors is None:
            raise OSError(errno.EBADF, "a simulated file has no descriptor")
        if not self._fd:
            self._fd = len(self._disk.descriptors) + 1
            self._disk.descriptors[self._fd] = self
        return self._fd

    def size(self) -> int:
        return len(self.inode.content)

    def read_at(self, size: int, position: int) -> bytes:
        assert not self.closed, "read of a closed file"
        self._disk.check_power()
        self._disk.bytes_read += size
        return bytes(self.inode.content[position : position + size])

    def read_into(self, buffer: memoryview, position: int) -> int:
        found = self.read_at(len(buffer), position)
        buffer[: len(found)] = found
        return len(found)

    def write_at(self, content: Bytes, position: int) -> int:
        assert not self.closed, "write to a closed file"
        self._disk.check_power()
        grows = max(position + len(content) - len(self.inode.content), 0)
        count = len(content) - max(grows - self._disk.take_room(grows), 0)
        if count <= 0 < len(content):
            raise OSError(errno.ENOSPC, "no space left on the simulated disk")
        self.inode.write(position, bytes(content[:count]))
        self._disk.happened("write")
        return count

    def write(self, content: Bytes) -> None:
        view = memoryview(content)
        while view:
            view = view[self.write_at(view, self.size()) :]

    def truncate(self, size: int) -> None:
        assert not self.closed, "truncate of a closed file"
        self._disk.check_power()
        if self._disk.truncate_fails:
            raise OSError(errno.EIO, "planted truncate failure")
        self._disk.give_room(len(self.inode.content) - size)
        self.inode.truncate(size)
        self._disk.happened("truncate")

    def fdatasync(self) -> None:
        assert not self.closed, "fdatasync of a closed file"
        self._disk.check_power()
        until = self.inode.changes
        if self._disk.before_sync is not None:
            self._disk.before_sync()
            self._disk.check_power()
        self._disk.syncs += 1
        if self._disk.syncs == self._disk.failing_sync:
            # As Linux does: the dirty pages are dropped from the list of what is still to be written.
            self.inode.synced = self.inode.changes
            self.inode.pending.clear()
            raise OSError(errno.EIO, "planted fdatasync failure")
        self.inode.sync(until)
        self._disk.happened("fsync")

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self._disk.open_files -= 1


class SimMap:
    def __init__(self, file: SimFile) -> None:
        self._file = file
        self._mapped_bytes = file.size()

    def __getitem__(self, part: slice) -> bytes:
        assert not self._file.closed, "read of a closed map"
        return bytes(self._file.inode.content[: self._mapped_bytes][part])

    def __len__(self) -> int:
        return self._mapped_bytes

    def close(self) -> None:
        self._file.close()


class SimDirectoryLock:
    def __init__(self, disk: SimDisk, directory: str) -> None:
        self._disk = disk
        self._directory = directory

    def release(self) -> None:
        self._disk.locked.pop(self._directory, None)


class SimDisk:
    """A file system in memory; see the module."""

    def __init__(self, root: Directory | None = None) -> None:
        self.root = root or Directory()
        self.open_files = 0
        self.bytes_read = 0
        self.syncs = 0
        self.failing_sync: int | None = None
        """Which fdatasync, counted from 1, fails."""
        self.truncate_fails = False
        self.room_bytes: int | None = None
        """Bytes that can still be written before the disk is full."""
        self.on_operation: Callable[[str], None] | None = None
        """Called after every change, with its kind."""
        self.before_sync: Callable[[], None] | None = None
        """Called when an fdatasync has begun: what is written from then on is not synced by it."""
        self.locked: dict[str, None] = {}
        self.off = False
        """Whether the machine has lost its power: nothing can be done any more."""
        self.descriptors: dict[int, SimFile] | None = None
        """Where open files are found by number, if they have one."""

    def crash(self, crash: Crash, chance: random.Random) -> SimDisk:
        """The disk as it might be found after a power loss right now."""
        return SimDisk(self.root.after(crash, chance, {}))

    def check_power(self) -> None:
        if self.off:
            raise OSError(errno.EIO, "the machine is off")

    def happened(self, kind: str) -> None:
        if self.on_operation is not None:
            self.on_operation(kind)

    def take_room(self, wanted: int) -> int:
        if self.room_bytes is None:
            return wanted
        taken = min(wanted, self.room_bytes)
        self.room_bytes -= taken
        return taken

    def give_room(self, size: int) -> None:
        if self.room_bytes is not None:
            self.room_bytes += max(size, 0)

    # -- the protocol ---------------------------------------------------------------------------

    def open(self, path: StrPath, create: bool = False) -> DiskFile:
        directory, name = self._parent(path)
        node = directory.entries.get(name)
        if node is None:
            if not create:
                raise FileNotFoundError(errno.ENOENT, "no such file", str(path))
            node = Inode()
            directory.change({name: node})
            self.happened("create")
        assert isinstance(node, Inode), f"{path} is a directory"
        return SimFile(self, node)

    def open_append(self, path: StrPath) -> DiskFile:
        return self.open(path, create=True)

    def map(self, path: StrPath) -> Mapped:
        file = SimFile(self, self._inode(path))
        if not file.size():
            file.close()
            raise ValueError("cannot map an empty file")
        return SimMap(file)

    def read_file(self, path: StrPath) -> bytes:
        content = bytes(self._inode(path).content)
        self.bytes_read += len(content)
        return content

    def write_atomically(self, path: StrPath, content: bytes) -> None:
        temporary = os.fspath(path) + TEMPORARY_SUFFIX
        file = self.open(temporary, create=True)
        try:
            file.truncate(0)
            file.write(content)
            file.fdatasync()
        finally:
            file.close()
        self.rename(temporary, path)
        self.sync_directory(PurePosixPath(path).parent)

    def exists(self, path: StrPath) -> bool:
        try:
            directory, name = self._parent(path)
        except FileNotFoundError:
            return False
        return name in directory.entries

    def size(self, path: StrPath) -> int:
        return len(self._inode(path).content)

    def listdir(self, path: StrPath) -> list[str]:
        return list(self._directory(path).entries)

    def makedirs(self, path: StrPath) -> Path | None:
        self.check_power()
        node, at, topmost = self.root, PurePosixPath("/"), None
        for part in PurePosixPath(path).parts[1:]:
            at = at / part
            if part not in node.entries:
                topmost = topmost or Path(at)
                node.change({part: Directory()})
                self.happened("mkdir")
            child = node.entries[part]
            assert isinstance(child, Directory), f"{at} is a file"
            node = child
        return topmost

    def rename(self, source: StrPath, target: StrPath) -> None:
        directory, name = self._parent(source)
        target_directory, target_name = self._parent(target)
        assert directory is target_directory, "renames across directories are not simulated"
        if name not in directory.entries:
            raise FileNotFoundError(errno.ENOENT, "no such file", str(source))
        directory.change({name: None, target_name: directory.entries[name]})
        self.happened("rename")

    def unlink(self, path: StrPath) -> None:
        directory, name = self._parent(path)
        node = directory.entries.get(name)
        if node is None:
            raise FileNotFoundError(errno.ENOENT, "no such file", str(path))
        assert isinstance(node, Inode), f"{path} is a directory"
        self.give_room(len(node.content))
        directory.change({name: None})
        self.happened("unlink")

    def remove_tree(self, path: StrPath) -> None:
        directory, name = self._parent(path)
        directory.change({name: None})
        self.happened("unlink")

    def sync_directory(self, path: StrPath) -> None:
        self._directory(path).sync()
        self.happened("sync directory")

    def usage(self, path: StrPath) -> DiskUsage:
        self._directory(path)
        # `room_bytes` is as a quota, which a file system does not tell of.
        return DiskUsage(TOTAL_BYTES, TOTAL_BYTES)

    def lock(self, directory: Path) -> Lock:
        if str(directory) in self.locked:
            raise DirectoryInUse(f"{directory} is in use")
        self.locked[str(directory)] = None
        return SimDirectoryLock(self, str(directory))

    def _parent(self, path: StrPath) -> tuple[Directory, str]:
        parent, _, name = os.fspath(path).rpartition("/")
        return self._directory(parent), name

    def _directory(self, path: StrPath) -> Directory:
        self.check_power()
        node: Inode | Directory | None = self.root
        for part in os.fspath(path).split("/"):
            if part:
                node = node.entries.get(part) if isinstance(node, Directory) else None
        if not isinstance(node, Directory):
            raise FileNotFoundError(errno.ENOENT, "no such directory", str(path))
        return node

    def _inode(self, path: StrPath) -> Inode:
        directory, name = self._parent(path)
        node = directory.entries.get(name)
        if not isinstance(node, Inode):
            raise FileNotFoundError(errno.ENOENT, "no such file", str(path))
        return node


def _is_a_disk(disk: SimDisk) -> Disk:
    return disk
