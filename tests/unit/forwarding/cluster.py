"""Three brokers in a thread of this process, for clients that block; each also has a forwarding listener."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Iterator
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from typing import Any, TypeVar

from cluster import Cluster, ClusterNode, cluster

T = TypeVar("T")
OPTIONS = {
    "num_partitions": 6,
    "group_initial_rebalance_delay_ms": 0,
    "offsets_topic_num_partitions": 6,
    "transaction_state_log_num_partitions": 6,
    "forward_listen": "127.0.0.1:0",
}


class Front:
    """A cluster, and the one address that its clients know: that of broker 1."""

    def __init__(self, brokers: Cluster, loop: asyncio.AbstractEventLoop) -> None:
        self.brokers = brokers
        self._loop = loop
        host, port = brokers[1].service.forwarding or ("", 0)
        self.address = f"{host}:{port}"

    def __getitem__(self, node_id: int) -> ClusterNode:
        return self.brokers[node_id]

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(60)


@contextmanager
def fronted(data: Path) -> Iterator[Front]:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    stack = AsyncExitStack()

    async def start() -> Front:
        return Front(await stack.enter_async_context(cluster(data, 3, **OPTIONS)), loop)

    try:
        yield asyncio.run_coroutine_threadsafe(start(), loop).result(60)
    finally:
        asyncio.run_coroutine_threadsafe(stack.aclose(), loop).result(60)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.close()
