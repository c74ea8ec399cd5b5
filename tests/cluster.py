"""A cluster of brokers inside the test's own event loop, with real sockets, over one served store.

    async with cluster(tmp_path, 3) as found:
        topic = await found[1].broker.topics.create("t", 6, {})
        await found.shown(topic.id)                 # every broker knows it
        client = found.bootstrap                    # for clients of any kind

`found[n]` is node n, counted from 1. `stop` stops one in good order; `start` brings it back at its old port.
"""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from braidmq.broker.broker import Broker
from braidmq.broker.metadata import joining
from braidmq.cluster.file_store import FileStore
from braidmq.cluster.store_server import StoreServer
from braidmq.config import configure
from braidmq.platform.clock import SystemClock
from braidmq.platform.disk import RealDisk
from braidmq.platform.host import Host
from braidmq.platform.network import SocketNetwork
from braidmq.serve import Service

WAIT_S = 10.0


class ClusterNode:
    """A broker of the cluster, and the service that clients find."""

    def __init__(self, broker: Broker, service: Service, port: int) -> None:
        self.broker = broker
        self.service = service
        self.port = port

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"


class Cluster:
    """Brokers 1 to n over one store."""

    def __init__(self, data: Path, socket: Path, options: dict[str, object]) -> None:
        self.data = data
        self.store = f"unix:{socket}"
        self._socket = socket
        self._file: FileStore | None = None
        self._server: StoreServer | None = None
        self._options = options
        self._nodes: dict[int, ClusterNode] = {}
        self._ports: dict[int, int] = {}

    def __getitem__(self, node_id: int) -> ClusterNode:
        return self._nodes[node_id]

    def __iter__(self) -> Iterator[ClusterNode]:
        return iter(list(self._nodes.values()))

    @property
    def bootstrap(self) -> str:
        return ",".join(node.address for node in self)

    async def start_store(self) -> None:
        self._file = FileStore(RealDisk(), self.data / "store", SystemClock())
        await self._file.start()
        self._server = StoreServer(self._file)
        await self._server.listen_unix(self._socket)

    async def stop_store(self) -> None:
        """Takes the store away; `start_store` brings it back with what it held."""
        assert self._server is not None
        assert self._file is not None
        await self._server.close()
        await self._file.close()

    async def start(
        self,
        node_id: int,
        *,
        host: Host | None = None,
        through: Callable[[Any], Any] | None = None,
        data: Path | None = None,
        **options: object,
    ) -> ClusterNode:
        """Starts a node, at the port it had before if it had one; `through` wraps the store it sees."""
        given = {"node.id": node_id, "store": self.store, **self._options}
        given.update((name.replace("_", "."), value) for name, value in options.items())
        config = configure(given)
        how = joining(config)
        if through is not None:
            how = replace(how, store=through(how.store))
        broker = Broker(config, data or self.data / str(node_id), host, how)
        await broker.start()
        service = Service(broker, SocketNetwork())
        try:
            _, port = await service.listen(("127.0.0.1", self._ports.get(node_id, 0)))
        except BaseException:
            await service.drain()
            await broker.stop()
            raise
        self._ports[node_id] = port
        self._nodes[node_id] = ClusterNode(broker, service, port)
        return self._nodes[node_id]

    async def stop(self, node_id: int) -> None:
        """Stops a node in good order."""
        node = self._nodes.pop(node_id)
        await node.service.drain()
        await node.broker.stop()

    async def restart(self, node_id: int, **options: object) -> ClusterNode:
        if node_id in self._nodes:
            await self.stop(node_id)
        return await self.start(node_id, **options)

    async def until(self, condition: Callable[[Broker], object]) -> None:
        """Returns when every running broker fulfils the condition."""
        async with asyncio.timeout(WAIT_S):
            while not all(condition(node.broker) for node in self):
                await asyncio.sleep(0.01)

    async def complete(self, count: int) -> None:
        """Returns when every broker sees `count` running brokers."""
        await self.until(lambda broker: len(list(broker.view.live_nodes())) == count)

    async def shown(self, topic_id: bytes) -> None:
        """Returns when every broker knows a topic."""
        await self.until(lambda broker: broker.topics.find_by_id(topic_id))

    async def close(self) -> None:
        for node_id in list(self._nodes):
            with contextlib.suppress(Exception):
                await self.stop(node_id)


@asynccontextmanager
async def cluster(data: Path, count: int = 3, **options: object) -> AsyncIterator[Cluster]:
    """A cluster of `count` brokers, each of which sees all; options are written with underscores for dots."""
    given = {name.replace("_", "."): value for name, value in options.items()}
    (data / "store").mkdir(parents=True, exist_ok=True)
    # The path of a socket may not be long, and those of tests are.
    with tempfile.TemporaryDirectory(prefix="braid-") as place:
        found = Cluster(data, Path(place) / "store", given)
        await found.start_store()
        try:
            await asyncio.gather(*(found.start(node_id) for node_id in range(1, count + 1)))
            await found.complete(count)
            yield found
        finally:
            await found.close()
            await found.stop_store()
