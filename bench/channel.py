"""One TCP connection of the load generator: frames out, whole answers in."""

from __future__ import annotations

import socket
from collections.abc import Iterator

RECEIVE_BYTES = 262_144
Address = tuple[str, int]


class Channel:
    """A non-blocking connection for event loops; `ask` is its simple blocking use."""

    def __init__(self, address: Address) -> None:
        self.socket = socket.create_connection(address, timeout=30)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.unsent = memoryview(b"")
        self.in_flight = 0
        self._received = bytearray()
        self._wanted = 4
        """The size at which what was received so far is worth looking at."""

    def fileno(self) -> int:
        return self.socket.fileno()

    def nonblocking(self) -> Channel:
        self.socket.setblocking(False)
        return self

    def ask(self, frame: bytes) -> bytes:
        """Sends one request and waits for its answer."""
        self.socket.sendall(frame)
        size = int.from_bytes(self._read(4))
        return self._read(size)

    def _read(self, size: int) -> bytes:
        got = bytearray()
        while len(got) < size:
            part = self.socket.recv(size - len(got))
            if not part:
                raise ConnectionError("the server closed the connection")
            got += part
        return bytes(got)

    def submit(self, frame: bytes) -> bool:
        """Begins to send a request; False when a part of it has to wait until the socket is writable."""
        self.in_flight += 1
        self.unsent = memoryview(frame)
        return self.send_more()

    def send_more(self) -> bool:
        while self.unsent:
            try:
                sent = self.socket.send(self.unsent)
            except BlockingIOError:
                return False
            self.unsent = self.unsent[sent:]
        return True

    def answers(self) -> Iterator[bytes]:
        """Whole answers that have arrived; each is copied."""
        try:
            part = self.socket.recv(RECEIVE_BYTES)
        except BlockingIOError:
            return
        if not part:
            raise ConnectionError("the server closed the connection")
        if self._received:
            self._received += part
            if len(self._received) < self._wanted:
                return
            part = bytes(self._received)
        received, at = part, 0
        while len(received) - at >= 4:
            end = at + 4 + int.from_bytes(received[at : at + 4])
            if end > len(received):
                break
            self.in_flight -= 1
            yield received[at + 4 : end]
            at = end
        self._received = bytearray(received[at:])
        begun = len(self._received) >= 4
        self._wanted = 4 + int.from_bytes(self._received[:4]) if begun else 4

    def close(self) -> None:
        self.socket.close()
