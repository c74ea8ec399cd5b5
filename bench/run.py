"""The rounds: Braid and Kafka take turns, each in a directory of its own, and are never up together."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from .load_latency import latency
from .load_many import many_producers
from .load_produce import Volume, produce
from .metric import RSS_LOADED, Figures
from .plan import Load, Size, Stage
from .results import Results
from .server import Durability, Server
from .topics import settle

Make = Callable[[Path], Server]
BOOT_SECONDS = 8
MEMORY = "memory after all loads of a round"


class Progress:
    """One line per measurement: how far, how long still, what was found."""

    def __init__(self, seconds_total: float) -> None:
        self._started = time.monotonic()
        self._planned_total = seconds_total
        self._planned_done = 0.0

    def done(self, server: str, load: str, planned_seconds: float, figures: Figures) -> None:
        self._planned_done += planned_seconds
        share = min(1.0, self._planned_done / self._planned_total)
        elapsed = time.monotonic() - self._started
        left = elapsed / share * (1 - share) if share else 0
        found = ", ".join(f"{metric.name} {value:,.4g} {metric.unit}" for metric, value in figures.items())
        print(f"[{share:4.0%}, {left / 60:4.1f} min left] {server:5} {load}: {found}", flush=True)


def run(makes: Sequence[Make], loads: Sequence[Load], size: Size, scratch: Path) -> Results:
    """All rounds of all loads; in every second round the servers swap turns."""
    results = Results()
    progress = Progress(_planned_seconds(loads, size, len(makes)))
    for number in range(size.rounds):
        print(f"round {number + 1} of {size.rounds}", flush=True)
        mine = [load for load in loads if number < load.rounds_max]
        for make in makes if number % 2 == 0 else list(reversed(makes)):
            for load in mine:
                if load.stage is Stage.STOPPED:
                    with _server(make, scratch) as server:
                        _measure(server, load, results, progress)
            warm = [load for load in mine if load.stage is Stage.WARM]
            if warm:
                _warm_round(make, warm, size, scratch, results, progress)
    return results


def _warm_round(
    make: Make, loads: Sequence[Load], size: Size, scratch: Path, results: Results, progress: Progress
) -> None:
    with _server(make, scratch) as server:
        server.start()
        if server.leads_everything:
            warm_up(server, size.warmup_seconds)
        for load in loads:
            _measure(server, load, results, progress)
        peak = {RSS_LOADED: server.rss_peak_mb()}
        results.add(MEMORY, "memory", server.name, peak)
        progress.done(server.name, MEMORY, size.warmup_seconds + BOOT_SECONDS, peak)


def _measure(server: Server, load: Load, results: Results, progress: Progress) -> None:
    try:
        figures = load.run(server)
    except Exception as error:
        # One broken load must not cost the figures of the others; its row stays empty, the reason is shown.
        print(f"{server.name} {load.name}: FAILED: {error!r}", flush=True)
        figures = {}
        if load.stage is Stage.WARM:
            server.check_alive()
    results.add(load.name, load.group, server.name, figures)
    progress.done(server.name, load.name, load.seconds, figures)


def warm_up(server: Server, seconds: float) -> None:
    """A bit of everything before anything counts: a JVM compiles what it sees often."""
    each = Volume(seconds / 5, 1_000_000_000)
    produce(server, 100, 16, 1, Durability.CACHED, each)
    produce(server, 1_000, 1, -1, Durability.CACHED, each)
    produce(server, 1_000, 16, -1, Durability.SYNCED, each)
    many_producers(server, seconds / 5, Durability.CACHED)
    latency(server, 5_000, max(1.0, seconds / 5 - 1), Durability.CACHED)


@contextmanager
def _server(make: Make, scratch: Path) -> Iterator[Server]:
    directory = scratch / "server"
    server = make(directory)
    try:
        yield server
    finally:
        server.stop()
        shutil.rmtree(directory, ignore_errors=True)
        settle()


def _planned_seconds(loads: Sequence[Load], size: Size, servers: int) -> float:
    each = sum(load.seconds * min(load.rounds_max, size.rounds) for load in loads)
    warm = size.rounds * (size.warmup_seconds + BOOT_SECONDS)
    return servers * (each + warm)
