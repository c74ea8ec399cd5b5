"""The operating system's network, as a broker uses it."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import pytest

from braidmq.platform.network import SocketNetwork


def test_a_file_goes_through_a_connection_that_was_begun_without_waiting(tmp_path: Path) -> None:
    """L14: neither end blocks; the range asked for arrives, not the file."""
    path = tmp_path / "segment"
    path.write_bytes(b"before|the range|after")

    async def scenario() -> None:
        network, loop = SocketNetwork(), asyncio.get_running_loop()
        listener = network.listen("127.0.0.1", 0)
        ours = network.connect("127.0.0.1", listener.getsockname()[1])
        theirs, _ = await loop.sock_accept(listener)
        with listener, ours, theirs, path.open("rb") as file:
            assert (ours.gettimeout(), listener.gettimeout()) == (0.0, 0.0)
            assert network.send_file(theirs.fileno(), file.fileno(), 7, 9) == 9
            assert await loop.sock_recv(ours, 100) == b"the range"

    asyncio.run(scenario())


def test_a_refused_connection_is_told_when_it_is_writable() -> None:
    """W2: and an address that is taken is refused at once."""

    async def scenario() -> None:
        network, loop = SocketNetwork(), asyncio.get_running_loop()
        with network.listen("127.0.0.1", 0) as listener:
            port = listener.getsockname()[1]
            with pytest.raises(OSError, match="in use"):
                network.listen("127.0.0.1", port)
        with network.connect("127.0.0.1", port) as ours:
            writable = loop.create_future()
            loop.add_writer(ours, writable.set_result, None)
            await writable
            loop.remove_writer(ours)
            assert ours.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) != 0

    asyncio.run(scenario())
