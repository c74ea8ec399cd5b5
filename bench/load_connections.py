"""Ten thousand idle connections: what they weigh, and whether an active client among them notices."""

from __future__ import annotations

import time

from .channel import Channel
from .load_latency import latency
from .metric import RSS_LOADED, Figures
from .server import Durability, Server
from .wire import api_versions_frame

RATE = 1_000
CONNECT_PAUSE_EVERY = 200
CONNECT_PAUSE_SECONDS = 0.01
WARMUP_SECONDS = 5.0


def idle_connections(server: Server, connections: int, seconds: float) -> Figures:
    """Expects a server that is stopped; leaves it stopped.

    Every connection has shaken hands (ApiVersions) and then says nothing.
    """
    server.start()
    latency(server, RATE, WARMUP_SECONDS, Durability.CACHED)
    hello = api_versions_frame()
    channels: list[Channel] = []
    try:
        for number in range(connections):
            channel = Channel(server.address)
            channel.ask(hello)
            channels.append(channel)
            if number % CONNECT_PAUSE_EVERY == 0:
                time.sleep(CONNECT_PAUSE_SECONDS)
        figures = latency(server, RATE, seconds, Durability.CACHED)
        figures[RSS_LOADED] = server.rss_mb()
        return figures
    finally:
        for channel in channels:
            channel.close()
        server.stop()
