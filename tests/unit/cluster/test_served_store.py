"""A served metadata store: broken connections, lost answers, strangers, and readers that do not read."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from braidmq.cluster import served_store
from braidmq.cluster.file_store import FileStore
from braidmq.cluster.metadata_store import Put, StoreClosed, Unavailable, Unknown
from braidmq.cluster.served_store import ServedStore
from braidmq.cluster.store_frames import encode_frame, proof, read_frame
from braidmq.cluster.store_server import StoreServer
from braidmq.platform.clock import SystemClock
from braidmq.platform.disk import RealDisk
from unit.cluster.served import TOKEN, Served, read, told


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
