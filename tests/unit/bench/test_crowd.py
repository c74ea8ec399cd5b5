"""Many clients on one thread, against a server that answers in pieces."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator

import pytest
from bench.channel import Address
from bench.crowd import Ask, Client, Crowd, Pause


def frame(content: bytes) -> bytes:
    return len(content).to_bytes(4) + content


@pytest.fixture
def echo() -> Iterator[Address]:
    """Answers every frame with its own content, three bytes at a time."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve(connection: socket.socket) -> None:
        with connection:
            while content := connection.recv(65_536):
                for at in range(0, len(content), 3):
                    connection.sendall(content[at : at + 3])

    def accept() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            threading.Thread(target=serve, args=(connection,), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    yield listener.getsockname()
    listener.close()


def test_every_client_gets_its_own_answers_in_order(echo: Address) -> None:
    crowd = Crowd(echo)
    heard: dict[int, list[bytes]] = {number: [] for number in range(5)}

    def client(number: int) -> Client:
        channel = crowd.connect()
        for turn in range(20):
            heard[number].append((yield Ask(channel, frame(b"%d-%d" % (number, turn)))))
            yield Pause(0.0)

    crowd.start(client(number) for number in heard)
    crowd.run(lambda: False)
    crowd.close()
    assert heard == {number: [b"%d-%d" % (number, turn) for turn in range(20)] for number in heard}


def test_a_crowd_stops_when_told_while_clients_wait(echo: Address) -> None:
    crowd = Crowd(echo)
    turns = 0

    def client() -> Client:
        nonlocal turns
        while True:
            turns += 1
            yield Pause(0.001)

    crowd.start([client()])
    crowd.run(lambda: turns == 3)
    crowd.close()
    assert turns == 3


def test_a_pause_is_not_shorter_than_asked_for(echo: Address) -> None:
    crowd = Crowd(echo)

    def client() -> Client:
        yield Pause(0.03)

    started = time.perf_counter()
    crowd.start([client()])
    crowd.run(lambda: False)
    crowd.close()
    assert time.perf_counter() - started >= 0.03
