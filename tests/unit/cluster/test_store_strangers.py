"""A served metadata store, and connections that prove nothing."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from braidmq.cluster.metadata_store import Put
from unit.cluster.served import Served, told


def test_strangers_do_not_keep_brokers_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """N4: connections that prove nothing take no room from those that have the token."""
    monkeypatch.setattr("braidmq.cluster.store_server.CONNECTIONS_MAX", 3)
    monkeypatch.setattr("braidmq.cluster.store_server.STRANGERS_MAX", 3)

    async def story(served: Served) -> None:
        first = await served.client()
        await first.commit(puts=[Put("k", b"")])
        strangers = [await asyncio.open_connection("127.0.0.1", served.inner) for _ in range(20)]
        second = await served.client(timeout_s=3)
        assert await second.get("k") is not None
        assert await first.get("k") is not None
        async with asyncio.timeout(3):
            assert await strangers[0][0].read() != b"", "a greeting, then the end"
        for _, writer in strangers:
            writer.transport.abort()
        await first.close()
        await second.close()

    told(tmp_path, story)
