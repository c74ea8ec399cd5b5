"""Two brokers that take each other for one cluster, each with its own store: enough to test what they say."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from braidmq.broker.broker import Broker
from braidmq.net.peer import Peers
from braidmq.platform.network import SocketNetwork
from braidmq.serve import Service
from unit.embedded import embedded

SECRET = b"a secret of thirty-two bytes, no less"


class Directory:
    """What a broker knows, as a test says."""

    def __init__(self, node_id: int, epoch: int = 7, secret: bytes = SECRET, cluster_id: str = "one") -> None:
        self.node_id = node_id
        self.epoch = epoch
        self.secret = secret
        self.cluster_id = cluster_id
        self.epochs: dict[int, int] = {}
        self.addresses: dict[int, tuple[str, int]] = {}

    def epoch_of(self, node_id: int) -> int:
        return self.epochs.get(node_id, -1)

    def address_of(self, node_id: int) -> tuple[str, int] | None:
        return self.addresses.get(node_id)


@asynccontextmanager
async def called(
    data: Path, directory: Directory, **options: object
) -> AsyncIterator[tuple[Broker, Service]]:
    """A broker that listens and knows what `directory` says."""
    async with embedded(data, node_id=directory.node_id, **options) as broker:
        broker.peers.directory = directory
        service = Service(broker, SocketNetwork())
        directory.addresses[directory.node_id] = await service.listen(("127.0.0.1", 0))
        try:
            yield broker, service
        finally:
            await service.drain()


@asynccontextmanager
async def calling(directory: Directory) -> AsyncIterator[Peers]:
    peers = Peers(SocketNetwork(), directory)
    try:
        yield peers
    finally:
        await peers.close()
