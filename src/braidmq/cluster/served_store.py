"""Client of a metadata store that another process serves (`cluster/store_server.py`).

One connection, made again when it breaks. Requests that may be asked twice are asked again on the next
connection until their time is over; a commit is sent once, and is `Unknown` if its answer does not come. A
watch continues after its last revision on every new connection, so it has no gap: the server replays what was
missed, or says that it is `Lost`.

A watch holds a bounded number and size of changes for a slow reader. Beyond that it is given up on the
server, and asked for again from where it was when the reader has caught up.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Sequence
from typing import Any

from braidmq.address import parse_address
from braidmq.cluster.metadata_store import (
    Change,
    Compare,
    Item,
    Lease,
    Put,
    Snapshot,
    StoreClosed,
    StoreError,
    Unavailable,
    Unknown,
    Watch,
    change_bytes,
    check_commit,
    check_key,
    check_prefix,
    check_ttl,
)
from braidmq.cluster.store_frames import (
    GREETING_BYTES_MAX,
    PING_EVERY_S,
    SILENCE_S_MAX,
    VERSION,
    BadFrame,
    Frame,
    encode_frame,
    error_from_frame,
    is_proof,
    proof,
    read_frame,
)
from braidmq.cluster.store_json import (
    change_from_json,
    compare_to_json,
    fields,
    item_from_json,
    number,
    put_to_json,
    sequence,
    string,
)
from braidmq.platform.randomness import new_uuid

DEFAULT_PORT = 9190
TIMEOUT_S = 5.0
CONNECT_S_MAX = 5.0
PAUSE_S_MIN = 0.05
PAUSE_S_MAX = 1.0
WATCH_CHANGES_MAX = 1000
WATCH_BYTES_MAX = 8 * 1024 * 1024
UNSENT_BYTES_MAX = 16 * 1024 * 1024
UNIX_PREFIX = "unix:"

log = logging.getLogger("braid.store")


class ServedStore:
    """A store at `unix:PATH` or `HOST:PORT`. `start` it before use; `close` it at the end."""

    kind = "served"

    def __init__(self, address: str, token: bytes | None = None, timeout_s: float = TIMEOUT_S) -> None:
        self._address = address
        self._token = token
        self._timeout_s = timeout_s
        self._link: _Link | None = None
        self._changed: asyncio.Future[None] | None = None
        """Done when the link comes or goes, for those who wait for that."""
        self._why = "not connected yet"
        self._identity: str | None = None
        self._task: asyncio.Task[None] | None = None
        self._closed = False

    async def start(self) -> None:
        """Begins to connect; requests wait for that."""
        self._task = asyncio.get_running_loop().create_task(self._keep_connected(), name="store-client")
        self._task.add_done_callback(_say_why)

    async def close(self) -> None:
        self._closed = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._note_change()

    # -- the interface --------------------------------------------------------------------------

    async def get(self, key: str) -> Item | None:
        check_key(key)
        found = await self._ask({"do": "get", "key": key})
        return None if found is None else item_from_json(found)

    async def snapshot(self, prefix: str) -> Snapshot:
        check_prefix(prefix)
        items: list[Item] = []
        revision = number(await self._ask({"do": "snapshot", "prefix": prefix}, items))
        return Snapshot(revision, tuple(items))

    async def commit(
        self, compares: Sequence[Compare] = (), puts: Sequence[Put] = (), deletes: Sequence[str] = ()
    ) -> int:
        check_commit(compares, puts, deletes)
        request = {
            "do": "commit",
            "compares": [compare_to_json(compare) for compare in compares],
            "puts": [put_to_json(put) for put in puts],
            "deletes": list(deletes),
        }
        deadline = asyncio.get_running_loop().time() + self._timeout_s
        link = await self.linked(deadline)
        try:
            return number(await link.ask(request, [], self._timeout_s))
        except (ConnectionError, TimeoutError, ValueError) as error:
            raise Unknown(f"no answer to a commit from the metadata store at {self._address}") from error

    def watch(self, prefix: str, after_revision: int) -> Watch:
        check_prefix(prefix)
        return ServedWatch(self, prefix, after_revision)

    async def lease(self, ttl_s: int) -> Lease:
        check_ttl(ttl_s)
        lease_id, granted_s = fields(await self._ask({"do": "lease", "ttl": ttl_s}), 2)
        return Lease(number(lease_id), number(granted_s))

    async def renew(self, lease_id: int) -> int:
        return number(await self._ask({"do": "renew", "lease": lease_id}))

    async def revoke(self, lease_id: int) -> None:
        await self._ask({"do": "revoke", "lease": lease_id})

    async def compact(self, revision: int) -> None:
        await self._ask({"do": "compact", "revision": revision})

    # -- requests -------------------------------------------------------------------------------

    async def _ask(self, request: Frame, pages: list[Item] | None = None) -> Any:
        """Asks until there is an answer or the time is over; for what may be asked twice."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._timeout_s
        while True:
            link = await self.linked(deadline)
            items: list[Item] = []
            try:
                answer = await link.ask(request, items, max(0.0, deadline - loop.time()))
            except ConnectionError:
                continue
            except TimeoutError:
                text = f"the metadata store at {self._address} did not answer within {self._timeout_s:g} s"
                raise Unavailable(text) from None
            if pages is not None:
                pages.extend(items)
            return answer

    async def linked(self, deadline: float | None) -> _Link:
        """The connection, as soon as there is one; `Unavailable` if there is none in time."""
        loop = asyncio.get_running_loop()
        while self._link is None:
            if self._closed:
                raise StoreClosed("the metadata store is closed")
            left_s = None if deadline is None else deadline - loop.time()
            if left_s is not None and left_s <= 0:
                raise Unavailable(f"the metadata store at {self._address} cannot be reached: {self._why}")
            if self._changed is None:
                self._changed = loop.create_future()
            # Not `asyncio.timeout`: handlers of requests wait here, and they are no tasks.
            await asyncio.wait([self._changed], timeout=left_s)
        return self._link

    # -- the connection -------------------------------------------------------------------------

    async def _keep_connected(self) -> None:
        loop = asyncio.get_running_loop()
        pause = PAUSE_S_MIN
        while True:
            started = loop.time()
            try:
                # Not `wait_for`: in Python 3.11 it loses a cancellation that comes together with the result.
                async with asyncio.timeout(CONNECT_S_MAX):
                    link = await self._connect()
            except (OSError, TimeoutError, BadFrame, StoreError, ValueError) as error:
                self._why = str(error) or type(error).__name__
            else:
                self._link = link
                self._note_change()
                try:
                    await link.run()
                except (OSError, BadFrame, ValueError, KeyError) as error:
                    self._why = str(error) or type(error).__name__
                    log.warning("lost the metadata store at %s: %s", self._address, self._why)
                finally:
                    self._link = None
                    link.end()
                    self._note_change()
            pause = PAUSE_S_MIN if loop.time() - started > PAUSE_S_MAX else min(2 * pause, PAUSE_S_MAX)
            await asyncio.sleep(pause)

    def _note_change(self) -> None:
        changed, self._changed = self._changed, None
        if changed is not None:
            changed.set_result(None)

    async def _connect(self) -> _Link:
        if self._address.startswith(UNIX_PREFIX):
            path = self._address.removeprefix(UNIX_PREFIX)
            reader, writer = await asyncio.open_unix_connection(path)
        else:
            address = parse_address(self._address, DEFAULT_PORT)
            reader, writer = await asyncio.open_connection(address.host, address.port)
        try:
            await self._greet(reader, writer)
        except BaseException:
            writer.transport.abort()
            raise
        return _Link(reader, writer)

    async def _greet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        greeting = await read_frame(reader, GREETING_BYTES_MAX)
        if VERSION not in sequence(greeting.get("braid-store")):
            raise Unavailable(f"it speaks versions {greeting['braid-store']}, this release {VERSION}")
        theirs, ours = string(greeting.get("nonce")), new_uuid().hex()
        answer: Frame = {"version": VERSION, "nonce": ours}
        if self._token is not None:
            answer["proof"] = proof(self._token, "client", theirs, ours)
        writer.write(encode_frame(answer))
        verdict = await read_frame(reader, GREETING_BYTES_MAX)
        if "error" in verdict:
            raise error_from_frame(verdict)
        if self._token is not None and not is_proof(
            self._token, "server", theirs, ours, verdict.get("proof")
        ):
            raise Unavailable("it does not know the token; it may be somebody else")
        identity = string(greeting.get("store"))
        if self._identity not in (None, identity):
            # Its revisions and leases mean something else: nothing that is known here holds there.
            raise Unavailable("it is not the store it was before; restart this process to take the new one")
        self._identity = identity


def _say_why(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        log.critical("the connection to the metadata store is not kept any more", exc_info=error)


class _Question:
    __slots__ = ("answer", "items", "progressed")

    def __init__(self, items: list[Item]) -> None:
        self.answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.items = items
        self.progressed = False


class _Link:
    """One connection: questions under way, watches, and the task that reads."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._next_id = 0
        self._questions: dict[int, _Question] = {}
        self._watches: dict[int, ServedWatch] = {}
        self.ended = False

    async def run(self) -> None:
        """Reads until the connection breaks or the server falls silent."""
        pinging = asyncio.get_running_loop().create_task(self._ping())
        try:
            while True:
                async with asyncio.timeout(SILENCE_S_MAX):
                    frame = await read_frame(self._reader)
                self._take(frame)
        except TimeoutError:
            raise ConnectionError(f"it has sent nothing for {SILENCE_S_MAX:g} s") from None
        finally:
            pinging.cancel()
            await asyncio.gather(pinging, return_exceptions=True)

    def end(self) -> None:
        self.ended = True
        self._writer.transport.abort()
        for question in self._questions.values():
            if not question.answer.done():
                question.answer.set_exception(ConnectionResetError("the connection broke"))
        self._questions.clear()
        for watch in self._watches.values():
            watch.unsubscribed()
        self._watches.clear()

    async def _ping(self) -> None:
        while True:
            await asyncio.sleep(PING_EVERY_S)
            self._next_id += 1
            self._writer.write(encode_frame({"id": self._next_id, "do": "ping"}))

    async def ask(self, request: Frame, items: list[Item], timeout_s: float) -> Any:
        """The answer; `ConnectionError` or `TimeoutError` if it did not come, with pages counted as signs
        of life."""
        if self._writer.transport.get_write_buffer_size() > UNSENT_BYTES_MAX:
            raise Unavailable("the metadata store is too slow to take more requests")
        self._next_id += 1
        request_id = self._next_id
        self._writer.write(encode_frame({"id": request_id, **request}))
        question = self._questions[request_id] = _Question(items)
        try:
            while True:
                done, _ = await asyncio.wait([question.answer], timeout=timeout_s)
                if done:
                    return question.answer.result()
                if not question.progressed:
                    raise TimeoutError
                question.progressed = False
        finally:
            self._questions.pop(request_id, None)
            question.answer.cancel()

    def subscribe(self, watch: ServedWatch, prefix: str, after_revision: int) -> int:
        self._next_id += 1
        self._watches[self._next_id] = watch
        request = {"id": self._next_id, "do": "watch", "prefix": prefix, "after": after_revision}
        self._writer.write(encode_frame(request))
        return self._next_id

    def unsubscribe(self, watch_id: int) -> None:
        if self._watches.pop(watch_id, None) is not None and not self.ended:
            self._writer.write(encode_frame({"id": watch_id, "do": "cancel"}))

    def _take(self, frame: Frame) -> None:
        frame_id = number(frame.get("id"))
        if (watch := self._watches.get(frame_id)) is not None:
            if "error" in frame:
                del self._watches[frame_id]
                watch.fail(error_from_frame(frame))
            else:
                watch.take(change_from_json(frame["change"]))
            return
        # What is not known any more was given up: its answer came too late.
        if (question := self._questions.get(frame_id)) is None or question.answer.done():
            return
        if "page" in frame:
            question.items.extend(item_from_json(item) for item in sequence(frame["page"]))
            question.progressed = True
        elif "error" in frame:
            question.answer.set_exception(error_from_frame(frame))
        else:
            question.answer.set_result(frame["ok"])


class ServedWatch:
    """A watch that outlives connections."""

    def __init__(self, store: ServedStore, prefix: str, after_revision: int) -> None:
        self._store = store
        self._prefix = prefix
        self._position = after_revision
        """The last revision that was handed out or is waiting here."""
        self._changes: deque[Change] = deque()
        self._bytes = 0
        self._error: StoreError | None = None
        self._link: _Link | None = None
        self._watch_id = 0
        self._event = asyncio.Event()
        self._closed = False

    def __aiter__(self) -> AsyncIterator[Change]:
        return self

    async def __anext__(self) -> Change:
        while not self._closed:
            if self._changes:
                change = self._changes.popleft()
                self._bytes -= change_bytes(change)
                return change
            if self._error is not None:
                raise self._error
            self._event.clear()
            if self._link is None:
                await self._subscribe()
            else:
                await self._event.wait()
        raise StopAsyncIteration

    async def _subscribe(self) -> None:
        """Asks for the watch on the connection, once there is one, unless the watch is closed first."""
        linked = asyncio.ensure_future(self._store.linked(None))
        closed = asyncio.ensure_future(self._event.wait())
        try:
            await asyncio.wait([linked, closed], return_when=asyncio.FIRST_COMPLETED)
            if self._closed:
                return
            link = await linked
            # It may have broken since it was handed out: nobody would wake us.
            if not link.ended:
                self._link = link
                self._watch_id = link.subscribe(self, self._prefix, self._position)
        finally:
            for waiting in (linked, closed):
                waiting.cancel()
            await asyncio.gather(linked, closed, return_exceptions=True)

    def take(self, change: Change) -> None:
        if change.revision <= self._position:
            raise BadFrame(f"revision {change.revision} follows {self._position} in a watch")
        self._position = change.revision
        self._changes.append(change)
        self._bytes += change_bytes(change)
        if len(self._changes) >= WATCH_CHANGES_MAX or self._bytes >= WATCH_BYTES_MAX:
            self._unsubscribe()
        self._event.set()

    def fail(self, error: StoreError) -> None:
        self._error = error
        self._event.set()

    def unsubscribed(self) -> None:
        self._link = None
        self._event.set()

    async def close(self) -> None:
        self._closed = True
        self._unsubscribe()
        self._event.set()

    def _unsubscribe(self) -> None:
        if self._link is not None:
            self._link.unsubscribe(self._watch_id)
            self._link = None
