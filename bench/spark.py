"""`scripts/bench-spark`: Spark through Braid's reads, format and sink, and through its own Kafka connector.

One broker (Braid) holds the topics. The two sides take turns over the rounds, each in a process of its own
with the same settings; where Braid is measured against itself they take turns run by run in one process,
since two sessions of one program differ by more than what is to be seen. In the tables the column
Kafka is Spark's connector (or, for the local log, Braid's own network path).
"""

from __future__ import annotations

import argparse
import dataclasses
import fnmatch
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyspark
from rich.console import Console

from braidmq.client import Admin

from . import report, spark_connector
from .braid import Braid
from .kafka import KafkaUnavailableError
from .load_spark import FULL, QUICK, Kind, SparkLoad, loads
from .machine import describe
from .metric import CPU_PER_MILLION_ROWS, MEMORY_PEAK, Figures, Metric
from .publish import RESULTS, Subject, publish
from .results import Results
from .server import end_on_sigterm
from .spark_topics import fill

SIDES = ("braid", "kafka")
MEMORY_MB = 4_096


def main() -> int:
    options = _options()
    size = QUICK if options.quick else FULL
    if options.rounds:
        size = dataclasses.replace(size, rounds=options.rounds)
    chosen = [load for load in loads(size) if _wanted(load.name, options.only)]
    if options.list or not chosen:
        print("\n".join(load.name for load in chosen) or "no load has that name; --list shows them all")
        return 0 if options.list else 2
    try:
        jars = spark_connector.obtain(options.connector_libs, pyspark.__version__)
    except KafkaUnavailableError as error:
        print(f"Spark's own connector is left out: {error}", flush=True)
        jars = []
    versions = {"Spark": pyspark.__version__, "Spark's Kafka connector": spark_connector.describe(jars)}
    with tempfile.TemporaryDirectory(prefix="braid-bench-", dir=options.scratch) as scratch:
        machine = describe(Path(scratch), {"Braid": Braid.version()} | versions)
        results = _run(chosen, size.rounds, jars, Path(scratch))
    results.stamp(machine | {"rounds": str(size.rounds)})
    report.print_table(results, Console(width=None if sys.stdout.isatty() else 140))
    out = options.out or (RESULTS if jars and not options.quick else None)
    if out is None:
        print("a quick or one-sided run is not written down; --out DIR does")
    else:
        publish(results, Subject.SPARK, out)
    return 0


def _run(chosen: list[SparkLoad], rounds: int, jars: list[Path], scratch: Path) -> Results:
    results = Results()
    broker = Braid(scratch / "broker")
    broker.start()
    try:
        for mine in _phases(chosen):
            with _topics(broker, mine):
                for number in range(rounds):
                    print(f"round {number + 1} of {rounds}", flush=True)
                    for sides in _turns(number, mine, with_connector=bool(jars)):
                        for load, side, found in _job(sides, mine, broker, jars, scratch):
                            results.add(load.name, load.group, side, found)
                        broker.check_alive()
    finally:
        broker.stop()
    return results


def _phases(chosen: list[SparkLoad]) -> list[list[SparkLoad]]:
    """Loads whose topics are there at the same time: all of them would be more than the page cache holds."""
    phases: dict[tuple[bool, bool], list[SparkLoad]] = {}
    for load in chosen:
        phases.setdefault((load.against_itself, load.grows), []).append(load)
    return list(phases.values())


@contextmanager
def _topics(broker: Braid, mine: list[SparkLoad]) -> Iterator[None]:
    sources = {load.source: load for load in mine if load.reads}
    for load in sources.values():
        print(f"filling {load.source}", flush=True)
        fill(broker.bootstrap, load.source, load.rows, load.value_bytes, load.codec, load.batch_bytes)
    yield
    with Admin(broker.bootstrap) as admin:
        for name in sources:
            admin.delete_topic(name)


def _turns(number: int, mine: list[SparkLoad], with_connector: bool) -> list[tuple[str, ...]]:
    """The sides that share a process, one process after the other."""
    sides = SIDES if number % 2 == 0 else SIDES[::-1]
    if mine[0].against_itself:
        return [sides]
    return [(side,) for side in sides if side == "braid" or with_connector]


def _job(
    sides: tuple[str, ...], mine: list[SparkLoad], broker: Braid, jars: list[Path], scratch: Path
) -> Iterator[tuple[SparkLoad, str, Figures]]:
    """A process that runs all loads and reports each side of each when it is done."""
    job_spec = {
        "bootstrap": broker.bootstrap,
        "jars": ",".join(map(str, jars)) if sides == ("kafka",) else "",
        "cores": os.cpu_count() or 1,
        "memory_mb": MEMORY_MB,
        "scratch": str(scratch),
        "loads": [{side: load.plain(side) for side in sides} for load in mine],
    }
    by_name = {load.name: load for load in mine}
    command = [sys.executable, "-m", "bench.spark_job"]
    with open(scratch / f"{'-'.join(sides)}.log", "ab") as log:
        job = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True)
    assert job.stdin is not None
    assert job.stdout is not None
    started = time.monotonic()
    with job, stopped(job):
        job.stdin.write(json.dumps(job_spec))
        job.stdin.close()
        for line in job.stdout:
            if not line.startswith("{"):
                continue
            found = json.loads(line)
            load, side = by_name[found.pop("load")], found.pop("side")
            shown = found.get("error") or ", ".join(f"{name} {value:,.4g}" for name, value in found.items())
            print(f"[{time.monotonic() - started:5.0f} s] {side:5} {load.name}: {shown}", flush=True)
            yield load, side, {} if "error" in found else _figures(load, found)


@contextmanager
def stopped(job: subprocess.Popen[str]) -> Iterator[None]:
    """Kills the job if the run is stopped."""
    try:
        yield
    except BaseException:
        job.kill()
        raise


def _figures(load: SparkLoad, found: dict[str, Any]) -> Figures:
    streams = load.kind in (Kind.STREAM_IN, Kind.STREAM_THROUGH)
    figure: dict[Metric, float] = {
        load.metric: found["seconds"] * 1000 if streams else load.rows / found["seconds"]
    }
    return figure | {
        CPU_PER_MILLION_ROWS: found["cpu_seconds"] / load.rows * 1e6,
        MEMORY_PEAK: found["memory_mb"],
    }


def _wanted(name: str, patterns: list[str]) -> bool:
    return not patterns or any(each in name or fnmatch.fnmatchcase(name, each) for each in patterns)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/bench-spark", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a few minutes, small sizes, one round")
    parser.add_argument(
        "--only", action="append", default=[], metavar="NAME", help="only workloads whose name contains NAME"
    )
    parser.add_argument("--list", action="store_true", help="list the workloads and exit")
    parser.add_argument("--rounds", type=int, metavar="N", help="rounds per side; the median is reported")
    parser.add_argument(
        "--connector-libs",
        type=Path,
        metavar="DIR",
        help="the connector's jars; default: downloaded from Maven",
    )
    parser.add_argument("--scratch", type=Path, metavar="DIR", help="directory for data during the run")
    parser.add_argument(
        "--out",
        type=Path,
        metavar="DIR",
        help="directory for the results (default for a full run: bench/results)",
    )
    return parser.parse_args()


if __name__ == "__main__":
    end_on_sigterm()
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
