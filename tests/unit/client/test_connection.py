"""What the client says when what it reaches is not a broker, or nothing at all."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from braidmq.address import Address, AddressError, parse_address, parse_addresses
from braidmq.client import ClientError, Cluster, Connection, TimedOut, Unreachable
from braidmq.wire.messages.metadata import MetadataRequest, MetadataResponse


@contextmanager
def server(answer: bytes | None) -> Iterator[Address]:
    """Takes one connection, reads a little and answers with fixed bytes (None: never)."""
    done = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def run() -> None:
            connection, _ = listening.accept()
            with connection:
                connection.recv(1000)
                if answer is None:
                    done.wait(10)
                else:
                    connection.sendall(answer)

        thread = threading.Thread(target=run)
        thread.start()
        try:
            yield Address(*listening.getsockname())
        finally:
            done.set()
            thread.join()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return int(listening.getsockname()[1])


def test_nothing_there_is_said_at_once() -> None:
    """N2: the address and what to check."""
    with (
        pytest.raises(Unreachable, match="is a broker running there"),
        Cluster(f"127.0.0.1:{free_port()}") as cluster,
    ):
        cluster.refresh(None)


def test_the_next_bootstrap_address_is_used_when_one_is_down(bootstrap: str) -> None:
    """N2: any of the addresses will do."""
    with Cluster(f"127.0.0.1:{free_port()},{bootstrap}") as cluster:
        cluster.refresh(None)
        assert str(next(iter(cluster.brokers.values()))) == bootstrap


@pytest.mark.parametrize(
    "answer", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\x00\x00\x00\x05\x00\x00\x00\x01\xff", b""]
)
def test_a_server_that_is_not_a_broker_gives_a_clear_error(answer: bytes) -> None:
    """W5: from the client's side too, odd bytes are an error and not a crash."""
    with server(answer) as address, pytest.raises(ClientError, match=r"127\.0\.0\.1"):
        Connection(address, timeout_s=5)


def test_a_server_that_never_answers_times_out() -> None:
    """P4: waits end."""
    with server(None) as address, pytest.raises(TimedOut):
        Connection(address, timeout_s=0.1)


def test_a_closed_connection_says_so(bootstrap: str) -> None:
    """N2: using it again is an error of its own kind, so that it can be made anew."""
    connection = Connection(parse_address(bootstrap))
    connection.close()
    with pytest.raises(Unreachable):
        connection.call(MetadataRequest(topics=[]), MetadataResponse)


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:9000", Address("127.0.0.1", 9000)),
        ("queue", Address("queue", 9092)),
        ("[::1]:9000", Address("::1", 9000)),
        ("[::1]", Address("::1", 9092)),
    ],
)
def test_addresses_are_read_as_people_write_them(text: str, address: Address) -> None:
    """N2: with and without port, IPv6 in brackets."""
    assert parse_address(text) == address
    assert parse_address(str(address)) == address


@pytest.mark.parametrize("text", ["", ":9092", "::1", "[::1", "[::1]x", "host:port", "host:65536", "host:-1"])
def test_what_is_not_an_address_is_refused(text: str) -> None:
    """N2: with an example of one that is."""
    with pytest.raises(AddressError):
        parse_addresses(text)
