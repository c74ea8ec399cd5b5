"""The real disk, on which a test holds back syncs for as long as it likes."""

from __future__ import annotations

import os
import threading

from braidmq.platform.disk import DiskFile, RealDisk, RealFile, StrPath


class _HeldFile(RealFile):
    """A file whose sync waits until nobody holds it."""

    __slots__ = ("_disk", "_path")

    def __init__(self, fd: int, path: str, disk: HeldDisk) -> None:
        super().__init__(fd)
        self._path = path
        self._disk = disk

    def fdatasync(self) -> None:
        self._disk.wait(self._path)
        super().fdatasync()


class HeldDisk(RealDisk):
    """`hold` keeps files with these words in their path from being synced, `let_go` lets them."""

    __slots__ = ("_free", "_words")

    def __init__(self) -> None:
        self._free = threading.Event()
        self._free.set()
        self._words = ""

    def open(self, path: StrPath, create: bool = False) -> DiskFile:
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0)
        return _HeldFile(os.open(path, flags, 0o644), os.fspath(path), self)

    def hold(self, words: str) -> None:
        self._words = words
        self._free.clear()

    def let_go(self) -> None:
        self._free.set()

    def wait(self, path: str) -> None:
        if self._words in path:
            assert self._free.wait(30), f"{path}: nobody let go of the disk"
