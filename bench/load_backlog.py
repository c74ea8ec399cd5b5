"""Producers while a hundred million messages lie unread: as fast as in front of an empty topic?"""

from __future__ import annotations

from .load_consume import evict_segments
from .load_produce import BATCH_BYTES, Volume, partition_frames, prime, saturate, throughput
from .metric import BYTES_RATE, RATE_KEPT, Figures
from .server import Durability, Server
from .topics import fresh_topic, settle

PARTITIONS = 16
VALUE_BYTES = 100
FILL_SECONDS_MAX = 600.0
RUNS = 3


def backlog(server: Server, messages: int, volume: Volume) -> Figures:
    """Throughput with the backlog, and which share that is of the throughput without.

    The backlog is written out and dropped from the page cache, as one that has lain there for long.
    """
    with fresh_topic(server, PARTITIONS, Durability.CACHED) as topic:
        count = BATCH_BYTES // VALUE_BYTES
        frames = partition_frames(topic, VALUE_BYTES, count, PARTITIONS, acks=1)
        prime(server, topic, PARTITIONS)
        before = _median(server, frames, count, volume)
        filled = saturate(server, frames, FILL_SECONDS_MAX, messages // count)
        if filled.requests * count < messages:
            raise RuntimeError(f"{server.name} took {filled.requests * count:,} messages and no more")
        evict_segments(server.directory)
        after = _median(server, frames, count, volume)
        return after | {RATE_KEPT: 100 * after[BYTES_RATE] / before[BYTES_RATE]}


def _median(server: Server, frames: list[bytes], count: int, volume: Volume) -> Figures:
    """The middle one of a few runs, since single ones scatter by half and two are to be compared."""
    runs: list[Figures] = []
    for _ in range(RUNS):
        settle()
        runs.append(throughput(server, frames, BATCH_BYTES, count, volume))
    return sorted(runs, key=lambda run: run[BYTES_RATE])[RUNS // 2]
