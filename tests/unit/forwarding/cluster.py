"""Three brokers in one process, over one store in memory; one of them also listens for those who forward."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest

from braidmq.broker import metadata as metadata_module
from braidmq.broker.broker import Broker
from braidmq.cluster.kv_store import KvStore
from braidmq.config import configure
from braidmq.platform.clock import SystemClock
from braidmq.platform.network import SocketNetwork
from braidmq.serve import Service

T = TypeVar("T")
NODES = (1, 2, 3)


class SharedStore:
    """A store that outlives the brokers that use it."""

    def __init__(self, store: KvStore) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def start(self) -> None: ...
    async def close(self) -> None: ...
    async def end_leases(self) -> None: ...


class Cluster:
    """Brokers that run in a thread of their own."""

    def __init__(self, data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._data = data
        self._monkeypatch = monkeypatch
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self.brokers: dict[int, Broker] = {}
        self.services: dict[int, Service] = {}
        self.forwarding = ""

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(60)

    async def start(self) -> None:
        self._store = store = KvStore(SystemClock())
        await store.start()
        self._monkeypatch.setattr(metadata_module, "FileStore", lambda *_: SharedStore(store))
        self._monkeypatch.setattr(Broker, "in_cluster", property(lambda _: True))
        for node_id in NODES:
            await self.start_one(node_id)
        host, port = self.services[1].forwarding or ("", 0)
        self.forwarding = f"{host}:{port}"

    async def start_one(self, node_id: int) -> None:
        options: dict[str, object] = {
            "node.id": node_id,
            "num.partitions": 6,
            "group.initial.rebalance.delay.ms": 0,
            "offsets.topic.num.partitions": 6,
            "transaction.state.log.num.partitions": 6,
        }
        if node_id == 1:
            options["forward.listen"] = "127.0.0.1:0"
        broker = Broker(configure(options), self._data / str(node_id))
        await broker.start()
        service = Service(broker, SocketNetwork())
        await service.listen(("127.0.0.1", 0))
        self.brokers[node_id], self.services[node_id] = broker, service

    async def stop_one(self, node_id: int) -> None:
        await self.services.pop(node_id).drain()
        await self.brokers.pop(node_id).stop()

    def close(self) -> None:
        for node_id in list(self.brokers):
            self.run(self.stop_one(node_id))
        self.run(self._store.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()


@contextmanager
def running(data: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    cluster = Cluster(data, monkeypatch)
    try:
        cluster.run(cluster.start())
        yield cluster
    finally:
        cluster.close()
