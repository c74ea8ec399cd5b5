"""One process per data directory: an advisory lock that the kernel lets go of when its holder dies."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from pathlib import Path
from typing import Protocol

TRIES = 5
PAUSE_S = 0.02
"""Whoever asks whether a directory is held has it for an instant; a holder has it for longer than this."""


class DirectoryInUse(OSError):
    """Another process holds the directory."""


class Lock(Protocol):
    """What keeps others from a directory until it is released."""

    def release(self) -> None: ...


class DirectoryLock:
    """Held from construction until `release`, or until the process ends."""

    def __init__(self, directory: Path) -> None:
        self._fd = os.open(directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        for _ in range(TRIES):
            try:
                fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                self._sign()
                return
            except BlockingIOError:
                time.sleep(PAUSE_S)
        os.close(self._fd)
        raise DirectoryInUse(
            "in use by another broker process; stop it, or choose another directory with --data"
        )

    def release(self) -> None:
        os.close(self._fd)

    def _sign(self) -> None:
        """Says who holds it; a full disk is no reason to refuse the lock."""
        with contextlib.suppress(OSError):
            os.ftruncate(self._fd, 0)
            os.pwrite(self._fd, b"%d\n" % os.getpid(), 0)


def holder_of(directory: Path) -> int | None:
    """The process on this machine that holds the directory; None if nobody does, 0 if it is not known."""
    if not is_held(directory):
        return None
    path = directory / "lock"
    text = path.read_bytes().strip()
    pid = int(text) if text.isdigit() else 0
    # The number may be that of an earlier holder, or one of another container, and by now anybody's.
    return pid if pid and _has_open(pid, path) else 0


def is_held(directory: Path) -> bool:
    """Whether a process on this machine holds the directory."""
    try:
        fd = os.open(directory / "lock", os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


def _has_open(pid: int, path: Path) -> bool:
    """Whether a process has a file open; true where the system does not tell."""
    try:
        wanted = path.stat()
        for descriptor in sorted(Path(f"/proc/{pid}/fd").iterdir(), key=lambda one: int(one.name)):
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(descriptor.stat(), wanted):
                    return True
    except FileNotFoundError:
        return not Path("/proc/self/fd").exists()
    except PermissionError:
        return True
    return False
