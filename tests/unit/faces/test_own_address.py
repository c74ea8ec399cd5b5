"""A broker that asks itself, as forwarding does, where clients reach it by another address."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from braidmq.platform.network import SocketNetwork
from braidmq.serve import Service
from braidmq.wire.messages.cluster import DescribeClusterRequest, DescribeClusterResponse
from unit.embedded import embedded


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_a_broker_reaches_itself_where_it_listens(tmp_path: Path, host: str) -> None:
    """N5: from the machine itself, the advertised address may lead nowhere."""

    async def run() -> None:
        async with embedded(tmp_path) as broker:
            service = Service(broker, SocketNetwork())
            await service.listen((host, 0), ("nowhere.invalid", 9092))
            answer = await broker.peers.call(broker.node_id, DescribeClusterRequest(), timeout_s=5)
            assert isinstance(answer, DescribeClusterResponse)
            assert [one.host for one in answer.brokers] == ["nowhere.invalid"]
            await service.drain()

    asyncio.run(run())
