"""Serves the metadata store of this process to others, over a Unix socket or TCP.

For one machine with several brokers, and for a cluster without etcd: one process, so while it is down
nothing can be changed. A Unix socket is open to the owner of its file; TCP needs a token.

Everything a client can make grow is bounded: connections, requests under way, watches, the size of a frame,
and the time it may take to read what it is sent. A client that does not read is disconnected; its watches
continue where they were when it comes back, or are `Lost` if the history has moved on.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

from braidmq.cluster.file_store import FileStore
from braidmq.cluster.metadata_store import Item, Lost, StoreError, Watch
from braidmq.cluster.store_frames import (
    GREETING_BYTES_MAX,
    SILENCE_S_MAX,
    TOKEN_BYTES_MIN,
    VERSION,
    BadFrame,
    Frame,
    encode_frame,
    error_to_frame,
    is_proof,
    proof,
    read_frame,
)
from braidmq.cluster.store_json import (
    change_to_json,
    compare_from_json,
    item_to_json,
    number,
    put_from_json,
    sequence,
    string,
)
from braidmq.platform.randomness import new_uuid

CONNECTIONS_MAX = 1000
STRANGERS_MAX = 100
"""Connections that have not proved themselves yet; past it, the oldest of them makes room for the next."""
REQUESTS_MAX = 256
"""Under way for one connection; the next one is read when one of them is answered."""
WATCHES_MAX = 64
PAGE_ITEMS = 1000
PAGE_BYTES = 1024 * 1024
SEND_S_MAX = 10.0
GREETING_S_MAX = 5.0
SEND_BUFFER_BYTES = 256 * 1024

log = logging.getLogger("braid.store")


class StoreServer:
    """Listens until closed. The store is its owner's to start and close."""

    def __init__(self, store: FileStore, token: bytes | None = None) -> None:
        if token is not None and len(token) < TOKEN_BYTES_MIN:
            raise ValueError(f"a token of {len(token)} bytes; at least {TOKEN_BYTES_MIN} are needed")
        self._store = store
        self._token = token
        self._servers: list[asyncio.Server] = []
        self._connections: dict[_Connection, asyncio.Task[None]] = {}
        self._closed = False

    async def listen_unix(self, path: Path) -> None:
        """The owner of the directory is known to be alone in it, so a socket that is there is left over."""
        path.unlink(missing_ok=True)
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            listening.bind(str(path))
            # Before it listens, so that nobody else can connect in between.
            path.chmod(0o600)
            listening.setblocking(False)
            self._servers.append(await asyncio.start_unix_server(self._accept, sock=listening))
        except BaseException:
            listening.close()
            raise

    async def listen_tcp(self, host: str, port: int) -> int:
        """The port that was bound."""
        if self._token is None:
            raise ValueError("a metadata store is served over TCP only with a token")
        server = await asyncio.start_server(self._accept, host, port)
        self._servers.append(server)
        bound: int = server.sockets[0].getsockname()[1]
        return bound

    async def close(self) -> None:
        self._closed = True
        for server in self._servers:
            server.close()
        tasks = list(self._connections.values())
        for connection, task in self._connections.items():
            task.cancel()
            connection.abort()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._closed:
            writer.transport.abort()
            return
        strangers = [one for one in self._connections if not one.greeted]
        if len(self._connections) - len(strangers) >= CONNECTIONS_MAX:
            log.warning("%d connections to the metadata store are open; another is refused", CONNECTIONS_MAX)
            writer.transport.abort()
            return
        if len(strangers) >= STRANGERS_MAX:
            self._connections.pop(strangers[0]).cancel()
            strangers[0].abort()
        connection = _Connection(self._store, self._token, reader, writer)
        task = asyncio.get_running_loop().create_task(connection.run(), name="store-connection")
        self._connections[connection] = task
        task.add_done_callback(lambda _: self._connections.pop(connection, None))


class _Connection:
    """One client: its requests, its watches, and the order of what is sent to it."""

    def __init__(
        self,
        store: FileStore,
        token: bytes | None,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        self._store = store
        self._token = token
        self._reader = reader
        self._writer = writer
        self._sending = asyncio.Lock()
        self._slots = asyncio.Semaphore(REQUESTS_MAX)
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._watches: dict[int, Watch] = {}
        self.greeted = False
        """Whether it has proved itself."""
        writer.transport.set_write_buffer_limits(high=SEND_BUFFER_BYTES)

    def abort(self) -> None:
        """Closes the socket, also where `run` has not begun yet."""
        self._writer.transport.abort()

    async def run(self) -> None:
        try:
            # Not `wait_for`: in Python 3.11 it loses a cancellation that comes together with a frame.
            async with asyncio.timeout(GREETING_S_MAX):
                self.greeted = await self._greet()
            while self.greeted:
                await self._slots.acquire()
                async with asyncio.timeout(2 * SILENCE_S_MAX):
                    frame = await read_frame(self._reader)
                await self._take(frame)
        except (BadFrame, StoreError, ValueError, KeyError) as error:
            log.warning("a client of the metadata store is disconnected: %s", error)
        except (OSError, TimeoutError):
            pass
        finally:
            for watch in list(self._watches.values()):
                await watch.close()
            for task in self._tasks:
                task.cancel()
            self._writer.transport.abort()

    async def _greet(self) -> bool:
        nonce = new_uuid().hex()
        await self._send({"braid-store": [VERSION], "store": self._store.identity, "nonce": nonce})
        answer = await read_frame(self._reader, GREETING_BYTES_MAX)
        if answer.get("version") != VERSION:
            await self._send({"error": "refused", "text": f"this metadata store speaks version {VERSION}"})
            return False
        theirs = string(answer.get("nonce"))
        if self._token is None:
            await self._send({"ok": True})
            return True
        if not is_proof(self._token, "client", nonce, theirs, answer.get("proof")):
            await self._send({"error": "refused", "text": "the token is wrong or missing"})
            return False
        await self._send({"ok": True, "proof": proof(self._token, "server", nonce, theirs)})
        return True

    async def _send(self, frame: Frame) -> None:
        async with self._sending:
            # Not before: all answers that wait for their turn would be held twice.
            self._writer.write(encode_frame(frame))
            try:
                async with asyncio.timeout(SEND_S_MAX):
                    await self._writer.drain()
            except TimeoutError:
                log.warning("a client of the metadata store does not read what it is sent: disconnected")
                self._writer.transport.abort()
                raise ConnectionError("the client does not read") from None

    async def _take(self, frame: Frame) -> None:
        request_id = number(frame.get("id"))
        verb = string(frame.get("do"))
        if verb == "watch":
            self._slots.release()
            if len(self._watches) >= WATCHES_MAX or request_id in self._watches:
                raise BadFrame(f"more than {WATCHES_MAX} watches, or one twice")
            watch = self._store.watch(string(frame["prefix"]), number(frame["after"]))
            self._watches[request_id] = watch
            self._own(self._follow(request_id, watch))
        elif verb == "cancel":
            self._slots.release()
            if (ended := self._watches.pop(request_id, None)) is not None:
                await ended.close()
        else:
            # Each in a task of its own: a renewal must not wait for the disk behind a commit.
            self._own(self._answer(request_id, verb, frame))

    def _own(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks[task] = None
        task.add_done_callback(lambda done: self._tasks.pop(done, None))

    async def _answer(self, request_id: int, verb: str, frame: Frame) -> None:
        try:
            try:
                answer = {"id": request_id, "ok": await self._do(request_id, verb, frame)}
            except StoreError as error:
                answer = {"id": request_id, **error_to_frame(error)}
            await self._send(answer)
        except (BadFrame, ValueError, KeyError, TypeError) as error:
            log.warning("a client of the metadata store is disconnected: %s", error)
            self._writer.transport.abort()
        except OSError:
            pass
        finally:
            self._slots.release()

    async def _do(self, request_id: int, verb: str, frame: Frame) -> object:
        store = self._store
        if verb == "ping":
            return None
        if verb == "get":
            item = await store.get(string(frame["key"]))
            return None if item is None else item_to_json(item)
        if verb == "snapshot":
            found = await store.snapshot(string(frame["prefix"]))
            await self._send_pages(request_id, found.items)
            return found.revision
        if verb == "commit":
            return await store.commit(
                [compare_from_json(compare) for compare in sequence(frame["compares"])],
                [put_from_json(put) for put in sequence(frame["puts"])],
                [string(key) for key in sequence(frame["deletes"])],
            )
        if verb == "lease":
            return list(await store.lease(number(frame["ttl"])))
        if verb == "renew":
            return await store.renew(number(frame["lease"]))
        if verb == "revoke":
            await store.revoke(number(frame["lease"]))
            return None
        if verb == "compact":
            await store.compact(number(frame["revision"]))
            return None
        raise BadFrame(f"no such request: {verb!r:.100}")

    async def _send_pages(self, request_id: int, items: tuple[Item, ...]) -> None:
        page: list[Item] = []
        size = 0
        for item in items:
            page.append(item)
            size += len(item.key) + len(item.value)
            if len(page) == PAGE_ITEMS or size >= PAGE_BYTES:
                await self._send({"id": request_id, "page": [item_to_json(each) for each in page]})
                page, size = [], 0
        await self._send({"id": request_id, "page": [item_to_json(each) for each in page]})

    async def _follow(self, watch_id: int, watch: Watch) -> None:
        try:
            async for change in watch:
                try:
                    await self._send({"id": watch_id, "change": change_to_json(change)})
                except BadFrame:
                    # More keys of one lease than a frame holds: the client must look for itself.
                    raise Lost(change.revision) from None
        except Lost as error:
            self._watches.pop(watch_id, None)
            with contextlib.suppress(OSError):
                await self._send({"id": watch_id, **error_to_frame(error)})
        except (OSError, StoreError):
            # The store has ended: the client asks again when there is one.
            self._writer.transport.abort()
        finally:
            await watch.close()
