"""A served store, its server and its clients, for tests."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

from braidmq.cluster.file_store import FileStore
from braidmq.cluster.metadata_store import Watch
from braidmq.cluster.served_store import ServedStore
from braidmq.cluster.store_frames import encode_frame, proof, read_frame
from braidmq.cluster.store_server import StoreServer
from braidmq.platform.clock import SystemClock
from braidmq.platform.disk import RealDisk

TOKEN = b"a token of the test"


class Served:
    """A store, its server on TCP, and a relay in front of it that can lose what it carries."""

    def __init__(self, directory: Path, token: bytes = TOKEN) -> None:
        self.directory = directory
        self.token = token
        self.carried = bytearray()
        self.muted = 0
        """How many of the connections that were made get no answers any more."""
        self.port = 0
        self._connections = 0
        self._relay: asyncio.Server | None = None
        self._pipes: dict[asyncio.Task[None], None] = {}
        self._writers: list[asyncio.StreamWriter] = []

    async def start(self) -> None:
        self.directory.mkdir(exist_ok=True)
        self.store = FileStore(RealDisk(), self.directory, SystemClock())
        await self.store.start()
        self.server = StoreServer(self.store, self.token)
        self.inner = await self.server.listen_tcp("127.0.0.1", 0)
        if self._relay is None:
            self._relay = await asyncio.start_server(self._accept, "127.0.0.1", 0)
            self.port = self._relay.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        await self.server.close()
        await self.store.close()

    async def close(self) -> None:
        await self.stop()
        assert self._relay is not None
        self._relay.close()
        self.cut()
        await asyncio.gather(*self._pipes, return_exceptions=True)

    def mute(self) -> None:
        """Lets the connections there are get no answers any more, as if the server had lost its power."""
        self.muted = self._connections

    def cut(self) -> None:
        """Breaks every connection there is."""
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()

    async def client(self, token: bytes | None = TOKEN, timeout_s: float = 5.0) -> ServedStore:
        client = ServedStore(f"127.0.0.1:{self.port}", token, timeout_s)
        await client.start()
        return client

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            inner_reader, inner_writer = await asyncio.open_connection("127.0.0.1", self.inner)
        except OSError:
            writer.transport.abort()
            return
        self._writers += [writer, inner_writer]
        self._connections += 1
        for source, target, answers_of in (
            (reader, inner_writer, None),
            (inner_reader, writer, self._connections),
        ):
            self._pipes[asyncio.ensure_future(self._pipe(source, target, answers_of))] = None

    async def _pipe(
        self, source: asyncio.StreamReader, target: asyncio.StreamWriter, answers_of: int | None
    ) -> None:
        try:
            while content := await source.read(65536):
                self.carried += content
                if answers_of is None or answers_of > self.muted:
                    target.write(content)
        except OSError:
            pass
        target.transport.abort()


async def read(watch: Watch, count: int) -> list[int]:
    return [(await anext(watch)).revision for _ in range(count)]


def told(directory: Path, story: Callable[[Served], Awaitable[None]]) -> None:
    async def tell() -> None:
        served = Served(directory / "store")
        await served.start()
        try:
            await asyncio.wait_for(story(served), 60)
        finally:
            await served.close()

    asyncio.run(tell())


async def greeted(served: Served) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection that has proved the token."""
    reader, writer = await asyncio.open_connection("127.0.0.1", served.inner)
    greeting = await read_frame(reader)
    said = proof(TOKEN, "client", greeting["nonce"], "mine")
    writer.write(encode_frame({"version": 1, "nonce": "mine", "proof": said}))
    assert (await read_frame(reader))["ok"] is True
    return reader, writer
