"""Runs a name server process: `braid nameserver`, until SIGTERM or SIGINT.

It has no opinion and next to no state: what it knows comes from the brokers' heartbeats. It needs the
cluster's key to tell brokers from strangers, from a file or from the metadata store, and keeps a copy.

With a file store of its own (`--store file:DIR`) the process also serves that store to brokers on other
machines, over TCP, to those who have the token: a cluster without etcd. While this process is down, nothing
can be changed; data flows.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from braidmq.address import Address
from braidmq.cluster.cluster_key import BadKey, ClusterKey, read_key_file, read_stored_key
from braidmq.cluster.file_store import FileStore
from braidmq.cluster.metadata_store import MetadataStore, StoreError
from braidmq.cluster.name_server import NameServer
from braidmq.cluster.name_server_config import NameServerConfig
from braidmq.cluster.records import BadRecord
from braidmq.cluster.store_server import StoreServer
from braidmq.config import Config
from braidmq.faces.kafka.name_server import Directory, NameServerFace
from braidmq.faces.kafka.name_servers import NAME_SERVER
from braidmq.faces.kafka.session import KafkaSession
from braidmq.net.reactor import Reactor
from braidmq.platform.clock import SystemClock
from braidmq.platform.disk import RealDisk
from braidmq.platform.network import SocketNetwork
from braidmq.platform.threads import DiskThreads

SCAN_S = 1.0
LOOK_FOR_KEY_S = 0.5
KEY_FILE = "key"

log = logging.getLogger("braid.nameserver")

OpenStore = Callable[[], Awaitable[MetadataStore]]


@dataclass(frozen=True, slots=True)
class ServedStoreOptions:
    """A file store that this process keeps and serves."""

    directory: Path
    listen: Address
    token: bytes


@dataclass(frozen=True, slots=True)
class Options:
    """What a name server is started with; the key comes from one of the three."""

    config: Config
    data: Path
    listen: Address
    key_file: Path | None = None
    open_store: OpenStore | None = None
    served: ServedStoreOptions | None = None


def run(options: Options, ready: Callable[[str], None]) -> None:
    """Serves until it is stopped. `ready` gets the line that says clients are accepted."""
    asyncio.run(serve(options, ready))


async def serve(
    options: Options, ready: Callable[[str], None], stopping: asyncio.Event | None = None
) -> None:
    if stopping is None:
        stopping = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    async with contextlib.AsyncExitStack() as stack:
        running = NameServerProcess(options)
        await running.start(stack)
        ready(running.line)
        await stopping.wait()
        log.info("stopping")


class NameServerProcess:
    """A name server that listens."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._disk, self._clock = RealDisk(), SystemClock()
        self._key = ClusterKey()
        self.known = NameServer()
        self.line = ""

    async def start(self, stack: contextlib.AsyncExitStack) -> None:
        """Everything that `stack` closes at the end."""
        options = self._options
        self._disk.makedirs(options.data)
        stack.callback(self._disk.lock(options.data).release)
        loop = asyncio.get_running_loop()
        served = "" if options.served is None else await self._serve_store(stack, options.served)
        await self._find_key(stack)
        threads = DiskThreads(loop, 1)
        stack.callback(threads.stop, 1.0)
        reactor = Reactor(options.config, loop, SocketNetwork(), threads.submit)
        directory = Directory(self.known, self._key, NAME_SERVER)
        entries = NameServerConfig(self._disk, options.data)
        face = NameServerFace(options.config, self._clock, self.known, directory, entries)
        bound = reactor.listen(*options.listen, lambda connection: KafkaSession(face, connection))  # type: ignore[arg-type]
        stack.push_async_callback(reactor.drain)
        self._own(stack, _scan(face), "name-server-scan")
        self.line = f"ready {Address(*bound)} data={options.data}{served}"

    async def _serve_store(self, stack: contextlib.AsyncExitStack, served: ServedStoreOptions) -> str:
        self._disk.makedirs(served.directory)
        if served.directory.resolve() != self._options.data.resolve():
            stack.callback(self._disk.lock(served.directory).release)
        store = FileStore(self._disk, served.directory, self._clock)
        await store.start()
        stack.push_async_callback(store.close)
        server = StoreServer(store, served.token)
        port = await server.listen_tcp(*served.listen)
        stack.push_async_callback(server.close)
        self._store: MetadataStore = store
        return f" store=braid://{Address(served.listen.host, port)}"

    # -- the key --------------------------------------------------------------------------------

    async def _find_key(self, stack: contextlib.AsyncExitStack) -> None:
        options, kept = self._options, self._options.data / KEY_FILE
        if options.key_file is not None:
            self._key.take(read_key_file(options.key_file))
            return
        if options.served is None and options.open_store is not None:
            self._store = await options.open_store()
            stack.push_async_callback(self._store.close)
        if kept.exists():
            self._key.take(read_key_file(kept))
        self._own(stack, self._look_for_key(), "name-server-key")

    async def _look_for_key(self) -> None:
        """Takes the key from the store, as soon as there is one; the copy is only for when it is away."""
        said = False
        while True:
            try:
                found = await read_stored_key(self._store, self._options.config.cluster_name)
            except (StoreError, BadRecord, BadKey) as error:
                log.warning("the cluster's key cannot be read from the store: %s", error)
                found = None
            if found is not None:
                self._key.take(found)
                _keep(self._options.data / KEY_FILE, found)
                log.info("this is a name server of the cluster %s", found.cluster_id)
                return
            if not said:
                log.info("the store holds no cluster %r yet", self._options.config.cluster_name)
                said = True
            await asyncio.sleep(LOOK_FOR_KEY_S)

    def _own(self, stack: contextlib.AsyncExitStack, work: Awaitable[None], name: str) -> None:
        task: asyncio.Future[None] = asyncio.ensure_future(work)
        task.add_done_callback(lambda done: _say_why(done, name))

        async def end() -> None:
            task.cancel()
            await asyncio.wait([task])

        stack.push_async_callback(end)


async def _scan(face: NameServerFace) -> None:
    while True:
        await asyncio.sleep(SCAN_S)
        face.forget_silent()


def _keep(path: Path, key: ClusterKey) -> None:
    """A copy that only the owner can read."""
    with contextlib.suppress(FileNotFoundError):
        path.unlink()
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
        file.write(key.text() + "\n")


def _say_why(task: asyncio.Future[None], name: str) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        log.critical("%s has ended", name, exc_info=error)
