"""Ten thousand idle members: what their heartbeats cost, what they weigh, and that none is lost."""

from __future__ import annotations

import time

from .idle_members import MEMBERS_EACH, joined
from .metric import CPU_SHARE, GROUPS_JOINED, RSS_LOADED, Figures
from .server import Durability, Server
from .topics import create, topic_id, wait_writable

TOPIC = "watched"
CALM_SECONDS = 6.0
"""Until assignments have settled: more than the heartbeat interval of either server."""


def idle_members(server: Server, members: int, seconds: float) -> Figures:
    """Expects a server that is stopped; leaves it stopped."""
    server.start()
    create(server, [TOPIC], MEMBERS_EACH, server.topic_config(Durability.CACHED))
    wait_writable(server, TOPIC, MEMBERS_EACH)
    with joined(server, members, TOPIC, topic_id(server, TOPIC)) as joined_seconds:
        time.sleep(CALM_SECONDS)
        cpu_before = server.cpu_seconds()
        time.sleep(seconds)
        cpu = server.cpu_seconds() - cpu_before
        rss = server.rss_mb()
    server.stop()
    return {GROUPS_JOINED: joined_seconds, CPU_SHARE: cpu / seconds * 100, RSS_LOADED: rss}
