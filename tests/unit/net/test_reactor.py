"""The reactor where something goes wrong in what it calls."""

from __future__ import annotations

import asyncio
import logging

import pytest

from braidmq.config import configure
from braidmq.net.connection import Connection, Session
from braidmq.net.reactor import Reactor
from braidmq.platform.network import SocketNetwork


def test_a_connection_that_nobody_takes_is_closed(caplog: pytest.LogCaptureFixture) -> None:
    """W2: a defect at its start is logged, and its client does not wait for ever."""

    def no_session(_: Connection) -> Session:
        raise AttributeError("planted")

    async def run() -> None:
        loop = asyncio.get_running_loop()
        reactor = Reactor(configure({}), loop, SocketNetwork(), lambda *_: None)
        address = reactor.listen("127.0.0.1", 0, no_session)
        reader, writer = await asyncio.open_connection(*address)
        async with asyncio.timeout(10):
            assert await reader.read() == b""
        writer.close()
        assert reactor.connection_count == 0
        await reactor.drain()

    with caplog.at_level(logging.ERROR):
        asyncio.run(run())
    assert "could not be taken" in caplog.text
