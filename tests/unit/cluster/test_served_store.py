"""A served metadata store: broken connections, lost answers, strangers, and readers that do not read."""

from __future__ import annotations

import asyncio
import gc
import json
import struct
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from braidmq.cluster import kv as kv_module
from braidmq.cluster import served_store, store_server
from braidmq.cluster.file_store import FileStore
from braidmq.cluster.metadata_store import Lost, Put, StoreClosed, Unavailable, Unknown, Watch
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


def test_a_watch_goes_on_without_a_gap_when_the_server_restarts(tmp_path: Path) -> None:
    """N4: what happened while nobody was connected is replayed, and nothing comes twice."""

    async def story(served: Served) -> None:
        client = await served.client()
        base = await client.commit(puts=[Put("k", b"0")])
        watch = client.watch("", base)
        for restart in range(3):
            await client.commit(puts=[Put("k", b"%d" % restart)])
            if restart != 1:
                assert (await anext(watch)).revision
            await served.stop()
            await served.start()
            await served.store.commit(puts=[Put("k", b"missed")])
        assert await read(watch, 4) == list(range(base + 3, base + 7))
        assert (await client.snapshot("")).revision == base + 6
        await client.close()
        with pytest.raises(StoreClosed):
            await client.get("k")

    told(tmp_path, story)


def test_a_commit_whose_answer_is_lost_is_unknown(tmp_path: Path) -> None:
    """N4: it may have happened, and here it has; what may be asked twice is asked again."""

    async def story(served: Served) -> None:
        client = await served.client()
        lease = await client.lease(60)
        served.mute()
        commit = asyncio.ensure_future(client.commit(puts=[Put("k", b"1")]))
        reading = asyncio.ensure_future(client.get("k"))
        renewing = asyncio.ensure_future(client.renew(lease.lease_id))
        while await served.store.get("k") is None:
            await asyncio.sleep(0.01)
        served.cut()
        with pytest.raises(Unknown):
            await commit
        item = await reading
        assert item is not None
        assert (item.value, await renewing) == (b"1", 60)
        await client.close()

    told(tmp_path, story)


def test_a_silent_server_makes_commits_unknown_and_reads_unavailable(tmp_path: Path) -> None:
    """N4: after the time-out, with a reason."""

    async def story(served: Served) -> None:
        client = await served.client(timeout_s=0.3)
        await client.get("k")
        served.mute()
        with pytest.raises(Unknown):
            await client.commit(puts=[Put("k", b"1")])
        with pytest.raises(Unavailable, match="did not answer"):
            await client.snapshot("")
        served.cut()
        item = await client.get("k")
        assert item is not None
        await client.close()

    told(tmp_path, story)


def test_a_silent_connection_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """N4: a watch on a machine that lost its power does not wait for ever."""
    monkeypatch.setattr(served_store, "PING_EVERY_S", 0.05)
    monkeypatch.setattr(served_store, "SILENCE_S_MAX", 0.4)

    async def story(served: Served) -> None:
        client = await served.client()
        base = await client.commit(puts=[Put("k", b"0")])
        watch = client.watch("", base)
        waiting = asyncio.ensure_future(anext(watch))
        await client.commit(puts=[Put("k", b"1")])
        assert (await waiting).revision == base + 1
        served.mute()
        await served.store.commit(puts=[Put("k", b"2")])
        waiting = asyncio.ensure_future(anext(watch))
        assert (await waiting).revision == base + 2
        await client.close()

    told(tmp_path, story)


def test_a_renewal_does_not_wait_behind_a_commit(tmp_path: Path) -> None:
    """N4: a slow disk of the server must not end the leases of its clients."""

    async def story() -> None:
        gate = asyncio.Event()
        gate.set()

        async def gated(job: Callable[[], None]) -> None:
            await gate.wait()
            job()

        store = FileStore(RealDisk(), tmp_path, SystemClock(), gated)
        await store.start()
        server = StoreServer(store)
        await server.listen_unix(tmp_path / "socket")
        client = ServedStore(f"unix:{tmp_path / 'socket'}")
        await client.start()
        lease = await client.lease(60)
        gate.clear()
        commit = asyncio.ensure_future(client.commit(puts=[Put("k", b"")]))
        await asyncio.sleep(0.05)
        assert await client.renew(lease.lease_id) == 60
        assert not commit.done()
        gate.set()
        assert await commit == 2
        await client.close()
        await server.close()
        await store.close()

    asyncio.run(story())


def test_nobody_listening_is_unavailable_and_nothing_was_done(tmp_path: Path) -> None:
    """N4: a commit that could not be sent is not Unknown; the message says where and why."""

    async def story() -> None:
        client = ServedStore(f"unix:{tmp_path / 'none'}", timeout_s=0.2)
        await client.start()
        with pytest.raises(Unavailable, match=r"none cannot be reached: .*No such file"):
            await client.commit(puts=[Put("k", b"")])
        watch = client.watch("", 0)
        waiting = asyncio.ensure_future(anext(watch, None))
        await asyncio.sleep(0.01)
        await watch.close()
        assert await waiting is None
        await client.close()

    asyncio.run(story())


def test_the_token_is_proved_by_both_sides_and_never_sent(tmp_path: Path) -> None:
    """N4: a wrong one, none, and a server that has another are refused."""

    async def story(served: Served) -> None:
        for wrong in (b"another token of the test", None):
            client = await served.client(wrong, timeout_s=0.3)
            with pytest.raises(Unavailable, match="token is wrong or missing"):
                await client.commit(puts=[Put("k", b"")])
            await client.close()
        client = await served.client()
        await client.commit(puts=[Put("k", b"")])
        assert TOKEN not in served.carried
        await client.close()
        with pytest.raises(ValueError, match="only with a token"):
            await StoreServer(served.store).listen_tcp("127.0.0.1", 0)
        with pytest.raises(ValueError, match="at least 16"):
            StoreServer(served.store, b"short")

    told(tmp_path, story)


def test_a_server_without_the_token_is_not_believed(tmp_path: Path) -> None:
    """N4: it could be anybody who got hold of the port."""

    async def pretend(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(encode_frame({"braid-store": [1], "store": "x", "nonce": "00"}))
        answer = await read_frame(reader)
        said = proof(b"a token that is wrong", "server", "00", answer["nonce"])
        writer.write(encode_frame({"ok": True, "proof": said}))
        await reader.read()
        writer.close()

    async def story() -> None:
        path = tmp_path / "socket"
        server = await asyncio.start_unix_server(pretend, str(path))
        client = ServedStore(f"unix:{path}", TOKEN, timeout_s=0.3)
        await client.start()
        with pytest.raises(Unavailable, match="does not know the token"):
            await client.commit(puts=[Put("k", b"")])
        await client.close()
        server.close()
        await asyncio.sleep(0.05)

    asyncio.run(story())


def test_another_version_is_refused_by_either_side(tmp_path: Path) -> None:
    """N4: with the versions in the message."""

    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(encode_frame({"braid-store": [7, 8], "store": "x", "nonce": "00"}))
        await reader.read()
        writer.close()

    async def story(served: Served) -> None:
        newer = await asyncio.start_unix_server(greet, str(tmp_path / "socket"))
        client = ServedStore(f"unix:{tmp_path / 'socket'}", timeout_s=0.3)
        await client.start()
        with pytest.raises(Unavailable, match=r"versions \[7, 8\]"):
            await client.get("k")
        await client.close()
        newer.close()
        reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
        assert (await read_frame(reader))["braid-store"] == [1]
        writer.write(encode_frame({"version": 2, "nonce": "00"}))
        assert "version 1" in (await read_frame(reader))["text"]
        assert await reader.read() == b""
        writer.close()

    told(tmp_path, story)


def test_another_store_at_the_same_address_is_not_taken_for_the_first(tmp_path: Path) -> None:
    """N4: revisions and leases would mean something else there."""

    async def story(served: Served) -> None:
        client = await served.client(timeout_s=0.5)
        await client.commit(puts=[Put("k", b"")])
        await served.stop()
        (served.directory / "metadata.store").unlink()
        await served.start()
        with pytest.raises(Unavailable, match="not the store it was before"):
            await client.commit(puts=[Put("k", b"")])
        assert await served.store.get("k") is None
        await client.close()

    told(tmp_path, story)


def test_a_slow_reader_loses_its_place_and_costs_nobody_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """N4: what waits for it is bounded; it goes on if the history still has its place, else it is Lost."""
    monkeypatch.setattr(served_store, "WATCH_CHANGES_MAX", 5)
    monkeypatch.setattr(kv_module, "HISTORY_REVISIONS_MAX", 40)

    async def story(served: Served) -> None:
        client = await served.client()
        base = (await client.snapshot("")).revision
        watch = client.watch("", base)
        waiting = asyncio.ensure_future(anext(watch))
        for number in range(30):
            await client.commit(puts=[Put("k", b"%d" % number)])
        revisions = [(await waiting).revision, *await read(watch, 29)]
        assert revisions == list(range(base + 1, base + 31))
        waiting = asyncio.ensure_future(anext(watch))
        for number in range(100):
            await client.commit(puts=[Put("k", b"%d" % number)])
        await waiting
        with pytest.raises(Lost):
            await read(watch, 100)
        await client.close()

    told(tmp_path, story)


def test_a_client_that_does_not_read_is_disconnected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """N4 W4: others are not held up by it."""
    monkeypatch.setattr(store_server, "SEND_S_MAX", 0.2)

    async def story(served: Served) -> None:
        path = tmp_path / "socket"
        server = StoreServer(served.store)
        await server.listen_unix(path)
        assert path.stat().st_mode & 0o077 == 0
        # A small limit of our own, so that the stream stops reading from the socket soon.
        reader, writer = await asyncio.open_unix_connection(str(path), limit=1024)
        writer.write(encode_frame({"version": 1, "nonce": "00"}))
        for number in range(40):
            writer.write(encode_frame({"id": number, "do": "watch", "prefix": "", "after": 0}))
        client = await served.client()
        for _ in range(10):
            await client.commit(puts=[Put("k", b"x" * 1_000_000)])
        await client.close()
        while not reader.at_eof():
            try:
                await asyncio.wait_for(reader.read(65536), 30)
            except ConnectionError:
                break
            await asyncio.sleep(0.01)
        writer.close()
        await server.close()
        assert await served.store.get("k") is not None

    told(tmp_path, story)


@pytest.mark.parametrize(
    "hostile",
    [
        b"\xff\xff\xff\xff",
        struct.pack(">I", 5000) + b"x" * 5000,
        struct.pack(">I", 0),
        struct.pack(">I", 4) + b"\xff\xfe\x00\x01",
        struct.pack(">I", 2) + b"[]",
        struct.pack(">I", 3000) + b"[" * 3000,
        b"GET / HTTP/1.1\r\n\r\n",
    ],
)
@pytest.mark.parametrize("after_greeting", [False, True])
def test_what_is_no_frame_ends_the_connection(tmp_path: Path, hostile: bytes, after_greeting: bool) -> None:
    """W5 N4: and nothing else; a length is not believed."""

    async def story(served: Served) -> None:
        server = StoreServer(served.store)
        await server.listen_unix(tmp_path / "socket")
        reader, writer = await asyncio.open_unix_connection(str(tmp_path / "socket"))
        if after_greeting:
            writer.write(encode_frame({"version": 1, "nonce": "00"}))
        writer.write(hostile)
        writer.write_eof()
        try:
            await asyncio.wait_for(reader.read(), 30)
        except ConnectionError:
            pass
        writer.close()
        client = await served.client()
        assert await client.get("k") is None
        await client.close()
        await server.close()

    told(tmp_path, story)


@pytest.mark.parametrize(
    "request_frame",
    [
        {"id": 1},
        {"id": -1, "do": "get", "key": "k"},
        {"id": 1, "do": "nothing"},
        {"id": 1, "do": "get"},
        {"id": 1, "do": "commit", "compares": [["mod", "k"]], "puts": [], "deletes": []},
        {"id": 1, "do": "commit", "compares": [], "puts": [["k", 1, 0]], "deletes": []},
        {"id": 1, "do": "watch", "prefix": 3, "after": 0},
        {"id": 1, "do": "lease", "ttl": "x"},
    ],
)
def test_a_request_that_cannot_be_understood_ends_the_connection(
    tmp_path: Path, request_frame: dict[str, object]
) -> None:
    """W5 N4: whoever sent it is no client of ours."""

    async def story(served: Served) -> None:
        server = StoreServer(served.store)
        await server.listen_unix(tmp_path / "socket")
        reader, writer = await asyncio.open_unix_connection(str(tmp_path / "socket"))
        writer.write(encode_frame({"version": 1, "nonce": "00"}))
        assert "nonce" in await read_frame(reader)
        assert (await read_frame(reader))["ok"]
        writer.write(encode_frame(json.loads(json.dumps(request_frame))))
        try:
            assert await asyncio.wait_for(reader.read(), 30) == b""
        except ConnectionError:
            pass
        writer.close()
        assert (await served.store.snapshot("")).items == ()
        await server.close()

    told(tmp_path, story)


def test_a_connection_that_breaks_as_it_is_made_does_not_keep_a_watch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """N4: a watch that has just been given a connection asks again on the next one."""

    async def story(served: Served) -> None:
        client = await served.client()
        linked = client.linked
        broken: list[object] = []

        async def linked_and_cut(deadline: float | None) -> object:
            link = await linked(deadline)
            if deadline is None and not broken:
                broken.append(link)
                served.cut()
                while link is await linked(None):
                    await asyncio.sleep(0)
            return link

        monkeypatch.setattr(client, "linked", linked_and_cut)
        watch = client.watch("", 1)
        waiting = asyncio.ensure_future(anext(watch))
        await asyncio.sleep(0.1)
        await served.store.commit(puts=[Put("a", b"")])
        assert (await asyncio.wait_for(waiting, 20)).revision == 2
        await watch.close()
        await client.close()

    told(tmp_path, story)


def test_a_slow_reader_of_large_changes_costs_little_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """N4: changes that wait are bounded in bytes, not only in number."""
    monkeypatch.setattr(served_store, "WATCH_BYTES_MAX", 100_000)

    async def story(served: Served) -> None:
        client = await served.client()
        watch = client.watch("", 1)
        await served.store.commit(puts=[Put("a", b"0")])
        assert await read(watch, 1) == [2]
        for _ in range(50):
            await served.store.commit(puts=[Put("a", b"x" * 20_000)])
            # Whatever is on the way for this watch arrives before the answer.
            await client.get("b")
        assert len(served.carried) < 300_000
        assert await read(watch, 50) == list(range(3, 53))
        await watch.close()
        await client.close()

    told(tmp_path, story)


async def greeted(served: Served) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection that has proved the token."""
    reader, writer = await asyncio.open_connection("127.0.0.1", served.inner)
    greeting = await read_frame(reader)
    said = proof(TOKEN, "client", greeting["nonce"], "mine")
    writer.write(encode_frame({"version": 1, "nonce": "mine", "proof": said}))
    assert (await read_frame(reader))["ok"] is True
    return reader, writer


def test_a_watch_that_the_store_refuses_ends_the_connection_in_order(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """N4: what no client of ours sends is a line in the log, not a task that dies."""

    async def story(served: Served) -> None:
        reader, writer = await greeted(served)
        writer.write(encode_frame({"id": 1, "do": "watch", "prefix": "\ud800", "after": 1}))
        with pytest.raises(ConnectionError):
            await read_frame(reader)
        assert "disconnected" in caplog.text
        writer.close()

    failures: list[object] = []

    async def watched(served: Served) -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: failures.append(context))
        await story(served)

    told(tmp_path, watched)
    gc.collect()
    assert failures == []


def test_answers_are_not_written_out_before_it_is_their_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """N4: a client that asks for much and reads nothing holds one answer in the server's memory, not all."""
    encoded: list[int] = []

    def counted(frame: dict[str, object]) -> bytes:
        encoded.append(1)
        return encode_frame(frame)

    async def story(served: Served) -> None:
        await served.store.commit(puts=[Put("a", b"x" * 1_400_000)])
        _, writer = await greeted(served)
        monkeypatch.setattr(store_server, "encode_frame", counted)
        for number in range(100):
            writer.write(encode_frame({"id": number, "do": "get", "key": "a"}))
        while not encoded:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.3)
        writer.transport.abort()
        assert len(encoded) < 20

    told(tmp_path, story)
