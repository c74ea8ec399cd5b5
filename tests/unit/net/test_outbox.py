"""The queue of one socket, without a loop."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import BinaryIO, cast

from braidmq.net.outbox import TURN_BYTES, Outbox, Sent
from braidmq.platform.network import SocketNetwork

TOTAL_BYTES = 4 * TURN_BYTES + 1


class HotRange:
    def __init__(self, file: BinaryIO, size: int) -> None:
        self.file = file
        self.position = 0
        self.size = size
        self.hot = True

    def shared(self) -> HotRange:
        return HotRange(self.file, self.size)

    def release(self) -> None:
        self.size = 0


def test_a_client_that_never_fills_its_socket_gets_one_share_a_turn(tmp_path: Path) -> None:
    """L14 W3: an answer of many megabytes does not hold up everybody else's."""
    source = tmp_path / "segment"
    source.write_bytes(b"x" * TOTAL_BYTES)
    target = tmp_path / "socket"
    # A file stands for the socket: `sendfile` never finds it full, as with a client that reads all at once.
    with source.open("rb") as file, target.open("wb") as endless:
        outbox = Outbox(cast("socket.socket", endless), SocketNetwork())
        outbox.put([HotRange(file, TOTAL_BYTES)])
        turns = []
        while outbox.send() is Sent.FULL:
            turns.append(target.stat().st_size)
    assert turns == [TURN_BYTES * turn for turn in range(1, 5)]
    assert target.stat().st_size == TOTAL_BYTES
