"""Ten thousand idle connections: what they weigh, and whether an active client among them notices."""

from __future__ import annotations

from .idle import held
from .load_latency import latency
from .metric import RSS_LOADED, Figures
from .server import Durability, Server

RATE = 1_000
WARMUP_SECONDS = 5.0


def idle_connections(server: Server, connections: int, seconds: float) -> Figures:
    """Expects a server that is stopped; leaves it stopped."""
    server.start()
    latency(server, RATE, WARMUP_SECONDS, Durability.CACHED)
    with held(server.address, connections):
        figures = latency(server, RATE, seconds, Durability.CACHED)
        figures[RSS_LOADED] = server.rss_mb()
    server.stop()
    return figures
