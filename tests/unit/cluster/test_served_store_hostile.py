"""A served store under strangers, slow readers and bytes that make no sense."""

from __future__ import annotations

import asyncio
import gc
import json
import struct
from pathlib import Path

import pytest

from braidmq.cluster import kv as kv_module
from braidmq.cluster import served_store, store_server
from braidmq.cluster.metadata_store import Lost, Put
from braidmq.cluster.store_frames import encode_frame, read_frame
from braidmq.cluster.store_server import StoreServer
from unit.cluster.served import Served, greeted, read, told


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
