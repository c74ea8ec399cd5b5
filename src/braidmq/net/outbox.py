"""What is on its way to a client: bytes and ranges of files, in order.

Neighbouring bytes leave with one `sendmsg`, ranges of files with `sendfile`, straight from the page cache. A
socket that is full keeps the rest here. So does a range that is not in the page cache: `sendfile` would wait
for the disk, and with it everybody else. The owner has it read first, in a thread, and sends on then. Ranges
that were written a moment ago are not even looked at.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from enum import Enum, auto
from typing import Protocol

from braidmq.platform.network import Network

IOV_PARTS_MAX = 256
RESIDENT_BYTES_MAX = 256 * 1024
"""How much is looked at, and sent, at a time of what may not be in memory."""
READ_AHEAD_BYTES = 1024 * 1024
TURN_BYTES = 512 * 1024
"""Of files, sent in one go: a client that drains its socket as fast as we fill it must not stop others."""
BEYOND_BYTES = 64 * 1024
"""Read past the end of a range: the next fetch begins by looking at the batch there."""


class HasFileno(Protocol):
    def fileno(self) -> int: ...


class Slice(Protocol):
    """A range of a file on its way to a socket."""

    position: int
    size: int
    hot: bool
    """Whether it is in the page cache for certain."""

    @property
    def file(self) -> HasFileno: ...
    def shared(self) -> Slice:
        """The same range once more, to be released by itself."""
        ...

    def release(self) -> None: ...


Part = bytes | bytearray | memoryview | Slice
Parts = Sequence[Part]

_IN_MEMORY = (bytes, bytearray, memoryview)


class Sent(Enum):
    """How far `send` came."""

    ALL = auto()
    FULL = auto()
    """The socket takes no more until it is drained, or had its share of this turn."""
    COLD = auto()
    """What comes next has to be read from the disk first; see `next_read`."""


class _Cold(Exception):
    """The next range is not in memory."""


class ColdRange:
    """The next bytes of a range, to be brought into the page cache by `run` in a thread."""

    __slots__ = ("_end", "_network", "_part")

    def __init__(self, network: Network, part: Slice, end: int) -> None:
        self._network = network
        self._part = part
        self._end = end

    def run(self) -> None:
        position = self._part.position
        self._network.read_through(self._part.file.fileno(), position, self._end + BEYOND_BYTES - position)

    def done(self) -> int:
        """Lets go of the file; where what is in memory now ends."""
        self._part.release()
        return self._end


class Outbox:
    """The queue of one socket."""

    __slots__ = ("_network", "_parts", "_read_to", "_sock", "sent_bytes", "size_bytes")

    def __init__(self, sock: socket.socket, network: Network) -> None:
        self._network = network
        self._sock = sock
        # A list, not a deque: it is short, and an empty one costs an idle connection 700 bytes less.
        self._parts: list[Part] = []
        self.size_bytes = 0
        """Bytes held in memory; ranges of files hold none."""
        self.sent_bytes = 0
        """Of all answers so far."""
        self._read_to = 0
        """Where the part of the first range ends that was just read from the disk."""

    def __len__(self) -> int:
        return len(self._parts)

    def put(self, parts: Parts) -> None:
        for part in parts:
            if isinstance(part, _IN_MEMORY):
                if not part:
                    continue
                self.size_bytes += len(part)
            self._parts.append(part)

    def send(self) -> Sent:
        """Sends until all is gone, the socket is full, its turn is over or the disk is needed.

        OSError if the socket is broken.
        """
        parts = self._parts
        left = TURN_BYTES
        try:
            if len(parts) == 1 and isinstance(parts[0], _IN_MEMORY):
                # Nearly every answer: one piece that fits the socket.
                whole = len(parts[0])
                sent = self._sock.send(parts[0])
                self.size_bytes -= sent
                self.sent_bytes += sent
                if sent == whole:
                    parts.clear()
                    return Sent.ALL
                parts[0] = memoryview(parts[0])[sent:]
            while parts:
                if isinstance(parts[0], _IN_MEMORY):
                    self._send_bytes(parts)
                elif left > 0:
                    left -= self._send_range(parts, parts[0])
                else:
                    return Sent.FULL
        except (BlockingIOError, InterruptedError):
            return Sent.FULL
        except _Cold:
            return Sent.COLD
        return Sent.ALL

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
        self.sent_bytes += sent
        whole = 0
        for part in batch:
            if sent < len(part):
                parts[whole] = memoryview(part)[sent:]
                break
            sent -= len(part)
            whole += 1
        del parts[:whole]

    def _send_range(self, parts: list[Part], part: Slice) -> int:
        size = min(part.size, TURN_BYTES) if part.hot else self._resident_bytes(part)
        sent = self._network.send_file(self._sock.fileno(), part.file.fileno(), part.position, size)
        if sent == 0:
            raise ConnectionError("a segment is shorter than what was promised of it")
        self.sent_bytes += sent
        part.position += sent
        part.size -= sent
        if part.size == 0:
            del parts[0]
            part.release()
            self._read_to = 0
        return sent

    def _resident_bytes(self, part: Slice) -> int:
        if part.position < self._read_to:
            return min(part.size, self._read_to - part.position)
        size = min(part.size, RESIDENT_BYTES_MAX)
        if not self._network.is_resident(part.file.fileno(), part.position, size):
            raise _Cold
        return size

    def next_read(self) -> ColdRange:
        """What to read after COLD, with a hold on the file of its own."""
        part = self._parts[0]
        assert not isinstance(part, _IN_MEMORY), "bytes are never cold"
        return ColdRange(self._network, part.shared(), part.position + min(part.size, READ_AHEAD_BYTES))

    def on_read(self, end: int) -> None:
        """The first range can be sent up to `end` without another look."""
        self._read_to = end

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
