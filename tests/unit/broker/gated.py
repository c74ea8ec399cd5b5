"""A disk whose syncs of segments wait for a test, and can be made to fail."""

from __future__ import annotations

import asyncio
import threading

from braidmq.platform.disk import DiskFile, RealDisk, RealFile, StrPath

WAIT_S = 20.0


class GatedDisk(RealDisk):
    """The real disk; while `gate` is closed, a sync of a segment does not end."""

    __slots__ = ("gate", "loop", "waiting")

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.gate.set()
        self.loop = asyncio.get_running_loop()
        self.waiting = asyncio.Event()
        """Set when a sync stands at the closed gate."""

    def close_gate(self) -> None:
        self.waiting.clear()
        self.gate.clear()

    async def sync_waits(self) -> None:
        await asyncio.wait_for(self.waiting.wait(), WAIT_S)

    def open(self, path: StrPath, create: bool = False) -> DiskFile:
        file = super().open(path, create)
        return GatedFile(file.fileno(), self) if str(path).endswith(".log") else file


class GatedFile(RealFile):
    __slots__ = ("_disk",)

    def __init__(self, fd: int, disk: GatedDisk) -> None:
        super().__init__(fd)
        self._disk = disk

    def fdatasync(self) -> None:
        if not self._disk.gate.is_set():
            self._disk.loop.call_soon_threadsafe(self._disk.waiting.set)
            self._disk.gate.wait(WAIT_S)
        super().fdatasync()
