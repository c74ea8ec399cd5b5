"""What is on its way to a client: bytes and ranges of files, in order.

Neighbouring bytes leave with one `sendmsg`, ranges of files with `sendfile`, straight from the page cache. A
socket that is full keeps the rest here.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from typing import Protocol

IOV_PARTS_MAX = 256


class HasFileno(Protocol):
    def fileno(self) -> int: ...


class Slice(Protocol):
    """A range of a file on its way to a socket."""

    position: int
    size: int

    @property
    def file(self) -> HasFileno: ...
    def release(self) -> None: ...


Part = bytes | bytearray | memoryview | Slice
Parts = Sequence[Part]

_IN_MEMORY = (bytes, bytearray, memoryview)


class Outbox:
    """The queue of one socket."""

    __slots__ = ("_parts", "_sock", "size_bytes")

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        # A list, not a deque: it is short, and an empty one costs an idle connection 700 bytes less.
        self._parts: list[Part] = []
        self.size_bytes = 0
        """Bytes held in memory; ranges of files hold none."""

    def __len__(self) -> int:
        return len(self._parts)

    def put(self, parts: Parts) -> None:
        for part in parts:
            if isinstance(part, _IN_MEMORY):
                if not part:
                    continue
                self.size_bytes += len(part)
            self._parts.append(part)

    def send(self) -> bool:
        """Sends until everything is gone (true) or the socket is full (false); OSError if it is broken."""
        parts = self._parts
        try:
            if len(parts) == 1 and isinstance(parts[0], _IN_MEMORY):
                # Nearly every answer: one piece that fits the socket.
                whole = len(parts[0])
                sent = self._sock.send(parts[0])
                self.size_bytes -= sent
                if sent == whole:
                    parts.clear()
                    return True
                parts[0] = memoryview(parts[0])[sent:]
            while parts:
                if isinstance(parts[0], _IN_MEMORY):
                    self._send_bytes(parts)
                else:
                    self._send_range(parts, parts[0])
        except (BlockingIOError, InterruptedError):
            return False
        return True

    def _send_bytes(self, parts: list[Part]) -> None:
        """One system call for all bytes up to the next range of a file."""
        batch: list[bytes | bytearray | memoryview] = []
        more = 0
        for part in parts:
            if not isinstance(part, _IN_MEMORY):
                more = socket.MSG_MORE
                break
            batch.append(part)
            if len(batch) == IOV_PARTS_MAX:
                break
        sent = self._sock.send(batch[0], more) if len(batch) == 1 else self._sock.sendmsg(batch, (), more)
        self.size_bytes -= sent
        whole = 0
        for part in batch:
            if sent < len(part):
                parts[whole] = memoryview(part)[sent:]
                break
            sent -= len(part)
            whole += 1
        del parts[:whole]

    def _send_range(self, parts: list[Part], part: Slice) -> None:
        sent = os.sendfile(self._sock.fileno(), part.file.fileno(), part.position, part.size)
        if sent == 0:
            raise ConnectionError("a segment is shorter than what was promised of it")
        part.position += sent
        part.size -= sent
        if part.size == 0:
            del parts[0]
            part.release()

    def discard(self) -> None:
        """Lets go of everything that will not be sent."""
        release(self._parts)
        self._parts.clear()


def bytes_in_memory(parts: Parts | None) -> int:
    """What an answer costs while it waits; ranges of files cost nothing."""
    return sum(len(part) for part in parts or () if isinstance(part, _IN_MEMORY))


def release(parts: Parts | None) -> None:
    """Lets go of the files behind an answer that goes nowhere."""
    for part in parts or ():
        if not isinstance(part, _IN_MEMORY):
            part.release()
