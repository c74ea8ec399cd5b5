"""Clients in the wrong numbers or without manners: idle by the thousand, never reading, flooding."""

from __future__ import annotations

import os
import resource
import time
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.hostile import batches, calls, raw
from tests.hostile.conftest import MEBIBYTE, Victim
from tests.hostile.raw import Connection, framed, i32, request

from braidmq.testing import broker

IDLE_CONNECTIONS = int(os.environ.get("BRAID_IDLE_CONNECTIONS", "2000"))
FILES_SPARE = 200


def open_files(pid: int) -> int:
    if not Path("/proc/self/fd").exists():
        pytest.skip("counts open files in /proc")
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def test_idle_connections_by_the_thousand_are_held(victim: Victim) -> None:
    """W2 W4: 2,000 here, 10,000 with BRAID_IDLE_CONNECTIONS=10000; each is still served at the end."""
    allowed = resource.getrlimit(resource.RLIMIT_NOFILE)[0] - FILES_SPARE
    count = min(IDLE_CONNECTIONS, allowed)
    if count < 500:
        pytest.skip("the limit of open files (ulimit -n) is too low to say anything")
    ask = framed(request(raw.API_VERSIONS, 0, b""))
    with ExitStack() as stack:
        opened = [stack.enter_context(Connection(victim.bootstrap)) for _ in range(count)]
        victim.examine()
        for connection in opened[:: max(1, count // 200)]:
            connection.send(ask)
            assert connection.frame() is not None


def test_connections_that_come_and_go_leave_nothing_behind(victim: Victim) -> None:
    """W2: no descriptor leaks, whether a client says something, half of something, or nothing."""
    if victim.process is None:
        pytest.skip("needs the broker's process id")
    before = open_files(victim.process.pid)
    for number in range(600):
        with Connection(victim.bootstrap) as connection:
            connection.send(framed(request(raw.API_VERSIONS, 0, b""))[: number % 30])
    deadline = time.monotonic() + raw.WAIT_S
    while open_files(victim.process.pid) > before + 10:
        assert time.monotonic() < deadline, f"{open_files(victim.process.pid)} files, {before} before"
        time.sleep(0.05)


def test_connections_past_the_limit_are_closed_and_the_others_kept() -> None:
    """W4: net.connections.max."""
    with broker(net_connections_max=20) as server, ExitStack() as stack:
        kept = [stack.enter_context(Connection(server.bootstrap)) for _ in range(20)]
        for connection in kept:
            connection.call(raw.API_VERSIONS, 0, b"")
        for _ in range(5):
            with Connection(server.bootstrap) as extra:
                assert extra.closed()
        kept.pop().socket.close()
        assert_accepted(server.bootstrap)
        kept[0].call(raw.API_VERSIONS, 0, b"")


def assert_accepted(bootstrap: str) -> None:
    """A place that became free is given to the next client, as soon as the broker has noticed."""
    deadline = time.monotonic() + raw.WAIT_S
    while time.monotonic() < deadline:
        with Connection(bootstrap) as connection:
            connection.send(framed(request(raw.API_VERSIONS, 0, b"")))
            if connection.frame() is not None:
                return
        time.sleep(0.05)
    raise AssertionError("no connection is accepted any more")


def test_connections_of_one_address_are_limited() -> None:
    """W4: net.connections.per.ip.max."""
    with broker(net_connections_per_ip_max=3) as server, ExitStack() as stack:
        kept = [stack.enter_context(Connection(server.bootstrap)) for _ in range(3)]
        for connection in kept:
            connection.call(raw.API_VERSIONS, 0, b"")
        with Connection(server.bootstrap) as extra:
            assert extra.closed()


def fill(connection: Connection, topic: str, mebibytes: int) -> None:
    block = batches.simple(os.urandom(900_000))
    for _ in range(mebibytes):
        assert calls.produce(connection, topic, block).code == 0


def test_a_consumer_that_never_reads_is_paused(victim: Victim, connection: Connection, topic: str) -> None:
    """W4: it asks for gigabytes and reads nothing; the broker holds little and serves the others."""
    fill(connection, topic, 20)
    ask = framed(request(raw.FETCH, 11, calls.fetch_body(topic, 0, max_bytes=20 * MEBIBYTE)))
    with ExitStack() as stack:
        deaf = [stack.enter_context(Connection(victim.bootstrap, wait_s=0.3)) for _ in range(10)]
        for one in deaf:
            try:
                one.socket.sendall(ask * 200)
            except TimeoutError:
                pass
        time.sleep(0.3)
        victim.examine()


def test_small_answers_nobody_reads_are_bounded(victim: Victim) -> None:
    """W4: a flood of metadata requests from clients that never read an answer."""
    ask = framed(request(raw.METADATA, 4, i32(-1) + b"\x00")) * 1_000
    with ExitStack() as stack:
        deaf = [stack.enter_context(Connection(victim.bootstrap, wait_s=0.5)) for _ in range(5)]
        for one in deaf:
            try:
                for _ in range(20):
                    one.socket.sendall(ask)
            except TimeoutError:
                pass
        victim.examine()


def test_a_consumer_that_reads_late_gets_everything(
    victim: Victim, connection: Connection, topic: str
) -> None:
    """W4: being paused loses nothing: all answers come, whole and in order."""
    fill(connection, topic, 4)
    body = calls.fetch_body(topic, 0, max_bytes=2 * MEBIBYTE)
    with Connection(victim.bootstrap) as slow:
        slow.send(b"".join(framed(request(raw.FETCH, 11, body, correlation=number)) for number in range(20)))
        time.sleep(0.2)
        sizes = set()
        for number in range(20):
            answer = slow.frame()
            assert answer is not None
            assert answer[:4] == i32(number)
            sizes.add(len(answer))
        assert len(sizes) == 1


def test_a_pipelining_flood_is_answered_in_order(victim: Victim) -> None:
    """W2 W4: ten thousand requests before the first answer is read."""
    count = 10_000
    asks = b"".join(framed(request(raw.API_VERSIONS, 0, b"", correlation=number)) for number in range(count))
    with Connection(victim.bootstrap) as connection:
        connection.socket.settimeout(30)
        connection.socket.setblocking(True)
        sender = SendInTheBackground(connection, asks)
        for number in range(count):
            answer = connection.frame()
            assert answer is not None
            assert answer[:4] == i32(number)
        sender.join()


class SendInTheBackground:
    """Sends while the caller reads, as a pipelining client does."""

    def __init__(self, connection: Connection, stream: bytes) -> None:
        import threading

        self._thread = threading.Thread(target=connection.send, args=(stream,), daemon=True)
        self._thread.start()

    def join(self) -> None:
        self._thread.join(raw.WAIT_S)
        assert not self._thread.is_alive()


def test_produce_and_fetch_interleaved_keep_their_order(connection: Connection, topic: str) -> None:
    """W2: a fetch that waits holds back the answers behind it, not the connection."""
    waiting = calls.fetch_body(topic, 0, wait_ms=500, min_bytes=1 << 20)
    stream = framed(request(raw.FETCH, 11, waiting, correlation=1))
    stream += framed(request(raw.PRODUCE, 7, calls.produce_body(topic, batches.simple(b"v")), correlation=2))
    stream += framed(request(raw.API_VERSIONS, 0, b"", correlation=3))
    connection.send(stream)
    for number in (1, 2, 3):
        answer = connection.frame()
        assert answer is not None
        assert answer[:4] == i32(number)
    assert calls.list_offset(connection, topic) == (0, 1)


def test_waiting_fetches_of_clients_that_left_are_dropped(victim: Victim, topic: str) -> None:
    """W4 C1: a thousand long polls whose clients hang up."""
    ask = framed(request(raw.FETCH, 11, calls.fetch_body(topic, 0, wait_ms=250_000)))
    for _ in range(1_000):
        with Connection(victim.bootstrap) as connection:
            connection.send(ask)
    if victim.process is not None:
        deadline = time.monotonic() + raw.WAIT_S
        while open_files(victim.process.pid) > 500:
            assert time.monotonic() < deadline
            time.sleep(0.05)


def test_fetch_sessions_by_the_thousand_are_bounded(
    victim: Victim, connection: Connection, topic: str
) -> None:
    """W4: each full fetch may open a session; past the limit the idlest goes."""
    body = calls.fetch_body(topic, 0, session=(0, 0))
    for _ in range(3_000):
        connection.call(raw.FETCH, 11, body)
    assert victim.growth_bytes < 64 * MEBIBYTE


def test_a_fetch_session_nobody_opened_is_refused(connection: Connection, topic: str) -> None:
    """W1: FETCH_SESSION_ID_NOT_FOUND (70)."""
    answer = connection.call(raw.FETCH, 11, calls.fetch_body(topic, 0, session=(123_456, 7)))
    assert calls.fetched(answer).code == 70
