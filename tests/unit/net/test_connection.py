"""The connection: frames in, answers out in order, and back-pressure; over real socket pairs."""

from __future__ import annotations

import asyncio
import os
import socket
import struct
from collections.abc import Callable, Coroutine
from pathlib import Path

import pytest

from braidmq.net import connection as connection_module
from braidmq.net.buffers import FIRST_BYTES, BufferPool, size_class
from braidmq.net.connection import Connection, Limits, PendingReply
from braidmq.net.outbox import Parts
from braidmq.platform.network import SocketNetwork
from braidmq.platform.page_cache import is_resident, read_through
from braidmq.wire.errors import ProtocolError

Answer = Callable[[bytes], Parts | PendingReply | None]


class FileRange:
    """A range of a file, as the log gives it."""

    def __init__(self, path: Path, position: int, size: int, hot: bool = True) -> None:
        self.path = path
        self.file = path.open("rb")
        self.position = position
        self.size = size
        self.hot = hot
        self.released = False
        self.copies: list[FileRange] = []

    def shared(self) -> FileRange:
        self.copies.append(FileRange(self.path, self.position, self.size, self.hot))
        return self.copies[-1]

    def release(self) -> None:
        self.released = True
        self.file.close()


class Echo:
    """Frames of a 4-byte length and a body, answered by a function."""

    def __init__(self, answer: Answer, frame_max: int = 1 << 24) -> None:
        self._answer = answer
        self._frame_max = frame_max
        self.seen: list[bytes] = []
        self.closed = False

    def frame_bytes(self, view: memoryview, at: int, filled: int) -> int:
        if filled - at < 4:
            return 0
        size: int = struct.unpack_from(">i", view, at)[0]
        if not 0 <= size <= self._frame_max:
            raise ProtocolError("bad size")
        return size + 4

    def on_frame(self, frame: memoryview) -> Parts | PendingReply | None:
        self.seen.append(bytes(frame[4:]))
        return self._answer(self.seen[-1])

    def on_closed(self) -> None:
        self.closed = True


class Peer:
    """The client's end of a connection, and everything around the server's."""

    def __init__(self, session: Echo, limits: Limits, pool: BufferPool) -> None:
        self.client, server = socket.socketpair()
        server.setblocking(False)
        self.client.setblocking(False)
        self.reasons: list[str] = []
        self.session = session
        self.pool = pool
        loop = asyncio.get_running_loop()
        self.reads: list[tuple[Callable[[], None], Callable[[BaseException | None], None]]] = []
        """What the connection wants to have read from the disk."""
        self.connection = Connection(
            server,
            "peer",
            SocketNetwork(),
            loop,
            pool,
            limits,
            lambda _, why, __: self.reasons.append(why),
            lambda run, done: self.reads.append((run, done)),
        )
        self.connection.start(session)

    async def send(self, data: bytes) -> None:
        await asyncio.get_running_loop().sock_sendall(self.client, data)

    async def receive(self, size: int) -> bytes:
        got = b""
        while len(got) < size:
            chunk = await asyncio.wait_for(
                asyncio.get_running_loop().sock_recv(self.client, size - len(got)), 5
            )
            if not chunk:
                break
            got += chunk
        return got


class Peers:
    """Makes connections and closes them while their loop still runs."""

    def __init__(self) -> None:
        self._made: list[Peer] = []

    def __call__(
        self,
        answer: Answer,
        requests_max: int = 100,
        send_bytes_max: int = 1 << 20,
        pool: BufferPool | None = None,
    ) -> Peer:
        peer = Peer(Echo(answer), Limits(requests_max, send_bytes_max), pool or BufferPool(1 << 26))
        self._made.append(peer)
        return peer

    def run(self, scenario: Coroutine[None, None, None]) -> None:
        async def scenario_then_close() -> None:
            try:
                await scenario
            finally:
                for peer in self._made:
                    peer.connection.close("the test ends")
                    peer.client.close()

        asyncio.run(scenario_then_close())


@pytest.fixture
def connect() -> Peers:
    return Peers()


def frame(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0.001)


@pytest.mark.parametrize("chunk", [1, 3, 1000, 10_000_000])
def test_frames_are_answered_in_order_however_the_bytes_are_cut(connect: Peers, chunk: int) -> None:
    """W2: requests of one connection are answered in order, pipelined."""

    async def run() -> None:
        peer = connect(lambda body: [body])
        bodies = [bytes([n % 256]) * (n * 7 % 50) for n in range(100)]
        sent = b"".join(frame(body) for body in bodies)
        for at in range(0, len(sent), chunk):
            await peer.send(sent[at : at + chunk])
            if chunk < 1000:
                await asyncio.sleep(0)
        assert await peer.receive(sum(map(len, bodies))) == b"".join(bodies)
        assert peer.session.seen == bodies

    connect.run(run())


def test_a_later_answer_waits_for_an_earlier_one(connect: Peers) -> None:
    """W2: answers keep the order of their requests even when a later one is ready first."""

    async def run() -> None:
        waiting: dict[bytes, PendingReply] = {}

        def answer(body: bytes) -> Parts | PendingReply:
            if body.startswith(b"now"):
                return [body]
            waiting[body] = PendingReply()
            return waiting[body]

        peer = connect(answer)
        await peer.send(frame(b"a") + frame(b"b") + frame(b"now") + frame(b"c"))
        await settle()
        waiting[b"b"].complete([b"b"])
        await settle()
        with pytest.raises(BlockingIOError):
            peer.client.recv(1)
        waiting[b"a"].complete([b"a"])
        assert await peer.receive(5) == b"abnow"
        waiting[b"c"].complete(None)
        await peer.send(frame(b"now!"))
        assert await peer.receive(4) == b"now!"

    connect.run(run())


def test_an_answer_that_is_complete_before_anybody_waits_is_sent(connect: Peers) -> None:
    """W2: a handler may turn out not to have to wait; its answer still keeps its place."""

    async def run() -> None:
        late = PendingReply()

        def answer(body: bytes) -> PendingReply:
            if body == b"late":
                return late
            done = PendingReply()
            done.complete([body])
            return done

        peer = connect(answer)
        await peer.send(frame(b"first"))
        assert await peer.receive(5) == b"first"
        await peer.send(frame(b"late") + frame(b"then"))
        await settle()
        with pytest.raises(BlockingIOError):
            peer.client.recv(1)
        late.complete([b"late"])
        assert await peer.receive(8) == b"latethen"

    connect.run(run())


def test_file_ranges_are_sent_between_bytes_and_released(connect: Peers, tmp_path: Path) -> None:
    """W3: a range of a file goes out as it is on disk."""
    path = tmp_path / "segment"
    content = os.urandom(3_000_000)
    path.write_bytes(content)

    async def run() -> None:
        ranges: list[FileRange] = []

        def answer(_: bytes) -> Parts:
            ranges.append(FileRange(path, 1000, 2_500_000))
            return [b"head", ranges[-1], b"tail"]

        peer = connect(answer)
        await peer.send(frame(b"x"))
        assert await peer.receive(2_500_008) == b"head" + content[1000:2_501_000] + b"tail"
        await settle()
        assert ranges[0].released

    connect.run(run())


def test_a_client_that_does_not_read_is_not_read_either(connect: Peers) -> None:
    """W4: a client that does not read is paused, and nothing is lost when it reads again."""

    async def run() -> None:
        block = b"x" * 100_000
        peer = connect(lambda _: [block], send_bytes_max=500_000)
        for _ in range(200):
            await peer.send(frame(b"r"))
        await settle()
        handled = len(peer.session.seen)
        assert handled < 60
        assert not peer.connection.reading
        assert len(await peer.receive(200 * len(block))) == 200 * len(block)
        assert len(peer.session.seen) == 200

    connect.run(run())


@pytest.mark.parametrize("later", [False, True])
def test_answers_that_wait_for_an_earlier_one_count_as_well(connect: Peers, later: bool) -> None:
    """W5: a client could have large answers pile up behind one that takes its time."""

    async def scenario() -> None:
        first, others = PendingReply(), list[PendingReply]()

        def answer(body: bytes) -> Parts | PendingReply:
            if body == b"slow":
                return first
            if later:
                others.append(PendingReply())
                return others[-1]
            return [bytes(1_000)]

        peer = connect(answer, send_bytes_max=10_000)
        await peer.send(frame(b"slow"))
        for _ in range(50):
            await peer.send(frame(b"large"))
            await settle()
            for each in others:
                if not each.done:
                    each.complete([bytes(1_000)])
        await settle()
        assert len(peer.session.seen) <= 14
        first.complete([b"x"])
        received = asyncio.ensure_future(peer.receive(50_001))
        while not received.done():
            await settle()
            for each in others:
                if not each.done:
                    each.complete([bytes(1_000)])
        assert len(await received) == 50_001
        assert len(peer.session.seen) == 51

    connect.run(scenario())


def test_requests_past_the_limit_wait_for_answers(connect: Peers) -> None:
    """W4: requests of one connection that wait for an answer are bounded."""

    async def run() -> None:
        waiting: list[PendingReply] = []

        def answer(_: bytes) -> PendingReply:
            waiting.append(PendingReply())
            return waiting[-1]

        peer = connect(answer, requests_max=10)
        await peer.send(frame(b"r") * 50)
        await settle()
        assert len(waiting) == 10
        for done in range(50):
            waiting[done].complete([b"."])
            await asyncio.sleep(0.001)
        assert await peer.receive(50) == b"." * 50

    connect.run(run())


def test_a_declared_length_allocates_nothing(connect: Peers) -> None:
    """W4: memory follows the bytes received, not the bytes announced."""

    async def run() -> None:
        peer = connect(lambda body: [body])
        await peer.send(struct.pack(">i", 16_000_000) + b"x" * 10)
        await settle()
        assert peer.pool.lent_bytes <= FIRST_BYTES
        peer.connection.shrink()
        assert peer.pool.lent_bytes <= 512
        await peer.send(b"x" * (16_000_000 - 10))
        assert len(await peer.receive(16_000_000)) == 16_000_000
        await settle()
        assert peer.pool.lent_bytes == 0

    connect.run(run())


def test_half_received_requests_share_a_budget(connect: Peers) -> None:
    """W4: bytes of half-received requests are bounded for all connections together."""

    async def run() -> None:
        pool = BufferPool(8 * FIRST_BYTES)
        peers = [connect(lambda _: [b"ok"], pool=pool) for _ in range(12)]
        for peer in peers:
            await peer.send(struct.pack(">i", 1_000_000) + b"x" * 10)
        await settle()
        assert pool.lent_bytes <= 9 * FIRST_BYTES
        # All of them together need twelve times the budget; one after the other they get through.
        sends = [asyncio.ensure_future(peer.send(b"x" * (1_000_000 - 10))) for peer in peers]
        for peer in peers:
            assert await peer.receive(2) == b"ok"
        await asyncio.gather(*sends)
        assert pool.lent_bytes == 0

    connect.run(run())


def test_small_requests_get_through_while_large_ones_hold_all_the_memory(connect: Peers) -> None:
    """W4: a client that never finishes a large request does not shut the others out."""

    async def run() -> None:
        pool = BufferPool(4 * FIRST_BYTES)
        slow = [connect(lambda _: [b"ok"], pool=pool) for _ in range(6)]
        for peer in slow:
            await peer.send(struct.pack(">i", 1_000_000) + b"x" * 60_000)
        await settle()
        quick = connect(lambda body: [body], pool=pool)
        for number in range(3):
            await quick.send(frame(b"%d" % number) * 2)
            assert await quick.receive(2) == b"%d%d" % (number, number)

    connect.run(run())


def test_a_client_that_only_stops_sending_gets_its_answers(connect: Peers) -> None:
    """W2: after a half-close the answers under way still go out, then the connection ends."""

    async def run() -> None:
        pending = PendingReply()
        peer = connect(lambda _: pending)
        await peer.send(frame(b"x"))
        peer.client.shutdown(socket.SHUT_WR)
        await settle()
        assert peer.reasons == []
        assert peer.pool.lent_bytes == 0
        pending.complete([b"answer"])
        assert await peer.receive(7) == b"answer"
        assert peer.reasons == ["closed by the client"]

    connect.run(run())


def test_a_client_that_has_gone_is_not_waited_for(connect: Peers, monkeypatch: pytest.MonkeyPatch) -> None:
    """W4: an answer that takes long is not kept for a client that has gone."""
    monkeypatch.setattr(connection_module, "LINGER_S", 0.01)

    async def run() -> None:
        pending = PendingReply()
        peer = connect(lambda _: pending)
        await peer.send(frame(b"x"))
        await settle()
        peer.client.close()
        await asyncio.sleep(0.1)
        assert peer.reasons == ["closed by the client"]
        assert pending.abandoned

    connect.run(run())


def test_a_broken_frame_closes_the_connection_and_gives_everything_back(connect: Peers) -> None:
    """W5: bytes that cannot be a frame end the connection."""

    async def run() -> None:
        pending = PendingReply()
        peer = connect(lambda body: pending if body == b"wait" else [body])
        await peer.send(frame(b"wait") + b"\xff\xff\xff\xff rubbish")
        assert await peer.receive(1) == b""
        assert peer.reasons == ["bad size"]
        assert peer.session.closed
        assert pending.abandoned
        assert peer.pool.lent_bytes == 0
        pending.complete([b"too late"])

    connect.run(run())


def test_buffers_come_in_powers_of_two() -> None:
    """W4: receive buffers are pooled by size and reused."""
    assert [size_class(n) for n in (0, 1, 512, 513, 65_536, 65_537)] == [512, 512, 512, 1024, 65_536, 131_072]
    pool = BufferPool(1 << 20)
    first = pool.take(1000)
    pool.give(first)
    assert pool.take(1000) is first


def test_a_range_that_is_not_in_memory_is_read_before_it_is_sent(
    connect: Peers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """L14 W3: sendfile never waits for the disk; what follows the range waits with it, in order."""
    content = os.urandom(3_000_000)
    path = tmp_path / "segment"
    path.write_bytes(content)
    monkeypatch.setattr(SocketNetwork, "is_resident", lambda *_: False)
    ranges = [FileRange(path, 0, len(content), hot=False)]

    async def scenario() -> None:
        peer = connect(lambda body: [b"head", *ranges] if body == b"cold" else [b"tail"])
        await peer.send(frame(b"cold") + frame(b"next"))
        got = await peer.receive(4)
        reads = 0
        while len(got) < 4 + len(content) + 4:
            for _ in range(100):
                if peer.reads:
                    break
                await asyncio.sleep(0.001)
            assert len(peer.reads) <= 1, "one read at a time"
            for run, done in peer.reads[:]:
                peer.reads.clear()
                reads += 1
                await asyncio.get_running_loop().run_in_executor(None, run)
                done(None)
            got += await peer.receive(min(1 << 20, 4 + len(content) + 4 - len(got)))
        assert got == b"head" + content + b"tail"
        assert reads == 3
        assert ranges[0].released
        assert all(copy.released for copy in ranges[0].copies)

    connect.run(scenario())


def test_a_range_that_was_just_written_is_sent_without_a_look(
    connect: Peers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """L14 W3: the hot path has no extra system call."""
    path = tmp_path / "segment"
    path.write_bytes(b"x" * 1000)

    def look(*_: object) -> bool:
        raise AssertionError("a hot range was looked at")

    monkeypatch.setattr(SocketNetwork, "is_resident", look)

    async def scenario() -> None:
        peer = connect(lambda _: [FileRange(path, 0, 1000)])
        await peer.send(frame(b"hot"))
        assert await peer.receive(1000) == b"x" * 1000

    connect.run(scenario())


def test_a_client_that_leaves_while_its_range_is_read_leaves_nothing_open(
    connect: Peers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """L14 L7: the read has a hold on the file of its own, and gives it back."""
    path = tmp_path / "segment"
    path.write_bytes(b"x" * 1000)
    monkeypatch.setattr(SocketNetwork, "is_resident", lambda *_: False)
    cold = FileRange(path, 0, 1000, hot=False)

    async def scenario() -> None:
        peer = connect(lambda _: [cold])
        await peer.send(frame(b"cold"))
        while not peer.reads:
            await asyncio.sleep(0.001)
        peer.connection.close("gone")
        ((run, done),) = peer.reads
        assert cold.released
        assert not cold.copies[0].released
        run()
        done(None)
        assert cold.copies[0].released

    connect.run(scenario())


def test_bytes_in_memory_are_told_from_those_on_disk(tmp_path: Path) -> None:
    """L14: what was read through is in memory; past the end of a file there is nothing to wait for."""
    path = tmp_path / "segment"
    path.write_bytes(os.urandom(1_000_000))
    with path.open("rb") as file:
        try:
            os.preadv(file.fileno(), (bytearray(1),), 0, os.RWF_NOWAIT)
        except OSError:
            pytest.skip("this file system does not tell what is in memory")
        read_through(file.fileno(), 0, 2_000_000)
        assert is_resident(file.fileno(), 0, 1_000_000)
