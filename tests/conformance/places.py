"""The metadata stores that the conformance suite runs against, each opened fresh and empty."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import TypeVar

from tests.sim.store import SimStore

from braidmq.cluster.etcd_address import parse_etcd_address
from braidmq.cluster.file_store import FileStore
from braidmq.cluster.kv_store import KvStore
from braidmq.cluster.metadata_store import Change, MetadataStore, Watch
from braidmq.cluster.served_store import ServedStore
from braidmq.cluster.store_server import StoreServer
from braidmq.platform.clock import SystemClock
from braidmq.platform.disk import RealDisk

PATIENCE_S = 60.0
TOKEN = b"0123456789abcdef"

Opener = Callable[[], AbstractAsyncContextManager[MetadataStore]]
Result = TypeVar("Result")
numbers = itertools.count(1)


def run(place: Opener, story: Callable[[MetadataStore], Awaitable[Result]]) -> Result:
    """Runs a story with a store of its own."""

    async def tell() -> Result:
        async with place() as store:
            return await asyncio.wait_for(story(store), PATIENCE_S)

    return asyncio.run(tell())


async def take(watch: Watch, count: int) -> list[Change]:
    """The next changes of a watch."""
    return [await asyncio.wait_for(anext(watch), PATIENCE_S) for _ in range(count)]


@asynccontextmanager
async def memory() -> AsyncIterator[MetadataStore]:
    store = KvStore(SystemClock())
    await store.start()
    try:
        yield store
    finally:
        await store.close()


@asynccontextmanager
async def simulated() -> AsyncIterator[MetadataStore]:
    """The store of the simulator, while nothing goes wrong."""
    loop = asyncio.get_running_loop()
    end = SimStore(loop.time, loop.call_later).connect()
    try:
        yield end
    finally:
        await end.close()


@asynccontextmanager
async def file(directory: Path) -> AsyncIterator[FileStore]:
    directory.mkdir(parents=True, exist_ok=True)
    store = FileStore(RealDisk(), directory, SystemClock())
    await store.start()
    try:
        yield store
    finally:
        await store.close()


@asynccontextmanager
async def served_unix(directory: Path) -> AsyncIterator[MetadataStore]:
    async with file(directory) as store:
        server = StoreServer(store)
        await server.listen_unix(directory / "socket")
        client = ServedStore(f"unix:{directory / 'socket'}")
        await client.start()
        try:
            yield client
        finally:
            await client.close()
            await server.close()


@asynccontextmanager
async def served_tcp(directory: Path) -> AsyncIterator[MetadataStore]:
    async with file(directory) as store:
        server = StoreServer(store, TOKEN)
        port = await server.listen_tcp("127.0.0.1", 0)
        client = ServedStore(f"127.0.0.1:{port}", TOKEN)
        await client.start()
        try:
            yield client
        finally:
            await client.close()
            await server.close()


@asynccontextmanager
async def etcd(endpoints: str, options: str = "") -> AsyncIterator[MetadataStore]:
    """A prefix of its own in an etcd that is shared with other tests."""
    from braidmq.cluster.etcd_store import EtcdStore

    address = parse_etcd_address(f"etcd://{endpoints}/test/{next(numbers)}{options}")
    store = EtcdStore(address)
    await store.start()
    try:
        yield store
    finally:
        await store.close()
