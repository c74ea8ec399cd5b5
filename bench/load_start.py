"""From the start of the process to the first acknowledged record, on a directory that already has a topic.

Also what the process holds once it is up and nobody uses it.
"""

from __future__ import annotations

import time

from .channel import Channel
from .metric import RSS_IDLE, START, Figures
from .server import Durability, Server
from .topics import create, wait_writable
from .wire import produce_error, produce_frame, record_batch

TOPIC = "early"
IDLE_SECONDS = 3.0
FIRST_ACK_SECONDS_MAX = 300.0
RETRY_SECONDS = 0.002


def start_to_first_ack(server: Server) -> Figures:
    """Expects a server that is stopped; leaves it stopped."""
    if not (server.directory / "has-topic").exists():
        server.start()
        create(server, [TOPIC], 1, server.topic_config(Durability.CACHED))
        wait_writable(server, TOPIC, 1)
        server.stop()
        (server.directory / "has-topic").touch()
    started = time.perf_counter()
    server.launch()
    first_ack(server, produce_frame(TOPIC, [(0, record_batch(b"first", 1))], acks=-1))
    seconds = time.perf_counter() - started
    time.sleep(IDLE_SECONDS)
    figures = {START: seconds, RSS_IDLE: server.rss_mb()}
    server.stop()
    return figures


def first_ack(server: Server, frame: bytes) -> None:
    """Tries until the request is accepted; refused connections, and errors while partitions come up, pass."""
    deadline = time.monotonic() + FIRST_ACK_SECONDS_MAX
    while time.monotonic() < deadline:
        server.check_alive()
        try:
            channel = Channel(server.address)
        except OSError:
            time.sleep(RETRY_SECONDS)
            continue
        try:
            while time.monotonic() < deadline:
                if produce_error(channel.ask(frame)) == 0:
                    return
                time.sleep(RETRY_SECONDS)
        except (ConnectionError, TimeoutError):
            continue
        finally:
            channel.close()
    raise RuntimeError(f"{server.name} acknowledged nothing within {FIRST_ACK_SECONDS_MAX:.0f} s")
