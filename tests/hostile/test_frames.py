"""Frames no client would send: sizes that lie, requests cut anywhere, other protocols, and slow ones."""

from __future__ import annotations

import random
import socket

import pytest
from tests.hostile import batches, calls, raw
from tests.hostile.conftest import FRAME_BYTES_MAX, MEBIBYTE, Victim, peak_bytes
from tests.hostile.raw import Connection, framed, i16, i32, is_refused, request

from braidmq.testing import broker

TLS_HELLO = bytes.fromhex("16030100ea010000e60303") + bytes(range(220))
OTHERS = {
    "HTTP": b"GET / HTTP/1.1\r\nHost: broker\r\n\r\n",
    "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "TLS": TLS_HELLO,
    "SSH": b"SSH-2.0-OpenSSH_9.2\r\n",
    "AMQP": b"AMQP\x00\x00\x09\x01",
    "Redis": b"*1\r\n$4\r\nPING\r\n",
    "SOCKS": b"\x05\x01\x00",
    "PostgreSQL": bytes.fromhex("00000008 04d2162f"),
}


@pytest.mark.parametrize("size", [-1, -(2**31), 0, 1, 7, FRAME_BYTES_MAX + 1, 2**31 - 1])
def test_a_size_that_cannot_be_closes_the_connection(bootstrap: str, size: int) -> None:
    """W4 W5: negative, zero, shorter than a header, larger than the limit, 2 GiB."""
    assert is_refused(bootstrap, i32(size) + b"\x00" * min(max(size, 0), 64))


def test_a_size_over_the_limit_closes_at_once(bootstrap: str) -> None:
    """W4: the broker does not wait for bytes it would never accept."""
    with Connection(bootstrap) as connection:
        connection.send(i32(2**31 - 1))
        assert connection.closed()


@pytest.mark.parametrize("greeting", OTHERS.values(), ids=OTHERS.keys())
def test_another_protocol_closes_the_connection(bootstrap: str, greeting: bytes) -> None:
    """W5: a browser, a scanner or a TLS client on the plain port."""
    assert is_refused(bootstrap, greeting)


def test_a_produce_cut_at_each_byte_writes_nothing(
    bootstrap: str, connection: Connection, topic: str
) -> None:
    """W5 L6: a client that dies within a request, at every possible place."""
    whole = framed(request(raw.PRODUCE, 7, calls.produce_body(topic, batches.simple(b"half"))))
    for size in range(len(whole)):
        assert is_refused(bootstrap, whole[:size]), f"answered {size} of {len(whole)} bytes"
    assert calls.list_offset(connection, topic) == (0, 0)


def test_a_client_that_resets_in_the_middle_is_forgotten(
    bootstrap: str, connection: Connection, topic: str
) -> None:
    """W5: RST instead of a polite close."""
    whole = framed(request(raw.PRODUCE, 7, calls.produce_body(topic, batches.simple(b"half"))))
    for size in range(0, len(whole), 3):
        with Connection(bootstrap) as victimiser:
            victimiser.send(whole[:size])
            linger_off = bytes([1, 0, 0, 0, 0, 0, 0, 0])
            victimiser.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger_off)
    assert calls.list_offset(connection, topic) == (0, 0)


def test_one_byte_at_a_time_is_still_a_request(connection: Connection, topic: str) -> None:
    """W5 W1: a slow link is not an attack."""
    whole = framed(
        request(raw.PRODUCE, 7, calls.produce_body(topic, batches.simple(b"slow")), correlation=42)
    )
    for at in range(len(whole)):
        connection.send(whole[at : at + 1])
    answer = connection.frame()
    assert answer is not None
    assert answer[:4] == i32(42)
    assert calls.list_offset(connection, topic) == (0, 1)


def test_requests_cut_and_glued_at_random_places_are_all_answered_in_order(connection: Connection) -> None:
    """W1 W2: the stream has no message boundaries."""
    seed = random.randrange(2**32)
    chance = random.Random(seed)
    stream = b"".join(framed(request(raw.API_VERSIONS, 0, b"", correlation=number)) for number in range(300))
    at = 0
    while at < len(stream):
        size = chance.choice([1, 2, 3, 5, 30, 200])
        connection.send(stream[at : at + size])
        at += size
    for number in range(300):
        answer = connection.frame()
        assert answer is not None, f"seed {seed}"
        assert answer[:4] == i32(number), f"seed {seed}"


def test_a_request_that_never_ends_is_given_up() -> None:
    """W4: half a frame, then silence."""
    with broker(net_frame_timeout_ms=200) as server, Connection(server.bootstrap) as connection:
        connection.send(i32(1000) + b"\x00" * 10)
        assert connection.closed()


def test_only_a_produce_request_may_be_very_large() -> None:
    """W4: a list of a hundred megabytes would take gigabytes in memory; the broker does not wait for it."""
    with broker(net_request_bytes_max=65_536) as server, Connection(server.bootstrap) as connection:
        assert calls.create_topic(connection, "t")[0] == 0
        assert calls.produce(connection, "t", batches.simple(bytes(200_000))).code == 0
        connection.send(i32(100_000) + i16(raw.METADATA) + i16(4))
        assert connection.closed()


def test_a_request_that_trickles_is_given_up() -> None:
    """W4: a byte now and then must not keep a frame alive for ever."""
    with broker(net_frame_timeout_ms=300) as server, Connection(server.bootstrap, wait_s=0.05) as connection:
        connection.send(i32(100_000))
        for _ in range(400):
            connection.send(b"\x00")
            try:
                assert connection.closed()
                return
            except TimeoutError:
                continue
        raise AssertionError("the broker still waits")


def test_a_silent_connection_is_closed_in_the_end() -> None:
    """W4: net.idle.ms."""
    with broker(net_idle_ms=1_000) as server, Connection(server.bootstrap, wait_s=30) as connection:
        assert connection.closed()


def test_declared_sizes_cost_no_memory(victim: Victim) -> None:
    """W4 W5: two hundred frames of eight megabytes are announced and never sent."""
    before = peak_bytes(victim.process.pid) if victim.process else 0
    opened = [Connection(victim.bootstrap) for _ in range(200)]
    try:
        for connection in opened:
            connection.send(i32(FRAME_BYTES_MAX) + b"\x00" * 100)
        victim.examine()
        if victim.process:
            assert peak_bytes(victim.process.pid) < before + 96 * MEBIBYTE
    finally:
        for connection in opened:
            connection.socket.close()


def test_large_frames_half_sent_by_many_stay_within_the_limit(victim: Victim) -> None:
    """W4: 20 clients with 4 MiB each of an 8 MiB frame, past the limit for all; small requests still pass."""
    opened = [Connection(victim.bootstrap, wait_s=0.1) for _ in range(20)]
    half = i32(FRAME_BYTES_MAX) + bytes(4 * MEBIBYTE)
    try:
        for connection in opened:
            try:
                connection.send(half)
            except TimeoutError:
                pass
        victim.examine()
    finally:
        for connection in opened:
            connection.socket.close()


@pytest.mark.parametrize("round_number", range(4))
def test_random_bytes_are_answered_or_refused(bootstrap: str, round_number: int) -> None:
    """W5: garbage as it comes, and garbage behind a plausible header."""
    seed = random.randrange(2**32)
    chance = random.Random(seed)
    for _ in range(50):
        junk = chance.randbytes(chance.randrange(1, 300))
        if round_number % 2:
            api = chance.choice([0, 1, 2, 3, 18, 19, 20, 21, 22, 23, 32, 33, 35, 37, 44, 60, 61, 75])
            junk = request(api, chance.randrange(0, 18), junk)
        try:
            raw.outcome(bootstrap, framed(junk) if round_number else junk)
        except (AssertionError, TimeoutError) as error:
            raise AssertionError(f"seed {seed}: {junk.hex()}") from error
