"""`scripts/bench`: measures Braid and Apache Kafka side by side and writes the results."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import fnmatch
import resource
import sys
import tempfile
from pathlib import Path

from rich.console import Console

from . import report
from .braid import Braid, Brokers, OtherCheckout
from .kafka import Kafka, KafkaUnavailableError, java_version, obtain
from .machine import describe
from .plan import FULL, QUICK, Load, loads
from .publish import RESULTS, Subject, publish
from .run import MEMORY, Make, run
from .server import end_on_sigterm

STOCK = "librdkafka"
"""How loads begin that are made by a stock client; the others know a single address."""


def main() -> int:
    options = _options()
    size = QUICK if options.quick else FULL
    if options.rounds:
        size = dataclasses.replace(size, rounds=options.rounds)
    chosen = _chosen(loads(size), options.only)
    if options.brokers:
        chosen = [load for load in chosen if load.name.startswith(STOCK)]
    if options.list:
        print("\n".join(load.name for load in chosen))
        return 0
    if not chosen:
        print(
            f"bench: no load matches {', '.join(options.only)}; scripts/bench --list shows them all",
            file=sys.stderr,
        )
        return 2
    makes, versions = _servers(options)
    _raise_open_file_limit()
    with tempfile.TemporaryDirectory(prefix="braid-bench-", dir=options.scratch) as scratch:
        machine = describe(Path(scratch), versions)
        results = run(makes, chosen, size, Path(scratch))
    if options.only:
        # The memory after some loads is not that after all of them.
        results.rows = [row for row in results.rows if row.load != MEMORY]
    if options.other is not None or options.brokers:
        print(report.comparison(results, Brokers.name if options.brokers else OtherCheckout.name))
        return 0
    results.stamp(machine | {"rounds": str(size.rounds)})
    report.print_table(results, Console(width=None if sys.stdout.isatty() else 140))
    out = options.out or (RESULTS if len(makes) == 2 and not options.quick else None)
    if out is None:
        print("a quick or one-sided run is not written down; --out DIR does")
    else:
        publish(results, Subject.BROKER, out)
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a few minutes, small sizes, one round")
    parser.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="NAME",
        help="only workloads whose name contains NAME (or matches it, with * and ?); may repeat",
    )
    parser.add_argument("--list", action="store_true", help="list the workloads and exit")
    alone = parser.add_mutually_exclusive_group()
    alone.add_argument("--braid-only", action="store_true", help="measure Braid alone")
    alone.add_argument("--kafka-only", action="store_true", help="measure Kafka alone")
    alone.add_argument(
        "--other", type=Path, metavar="DIR", help="compare with the Braid checked out (and built) in DIR"
    )
    alone.add_argument(
        "--brokers",
        type=int,
        metavar="N",
        help="compare with `braid serve --brokers N`; only loads of stock clients, which find leaders",
    )
    parser.add_argument("--rounds", type=int, metavar="N", help="rounds per server; the median is reported")
    parser.add_argument(
        "--kafka-libs", type=Path, metavar="DIR", help="Kafka's jars; default: downloaded from Maven"
    )
    parser.add_argument(
        "--scratch", type=Path, metavar="DIR", help="directory for the servers' data during the run"
    )
    parser.add_argument(
        "--out",
        type=Path,
        metavar="DIR",
        help="directory for the results (default for a full run: bench/results)",
    )
    return parser.parse_args()


def _chosen(every: list[Load], patterns: list[str]) -> list[Load]:
    if not patterns:
        return every
    return [
        load for load in every if any(p in load.name or fnmatch.fnmatchcase(load.name, p) for p in patterns)
    ]


def _servers(options: argparse.Namespace) -> tuple[list[Make], dict[str, str]]:
    makes: list[Make] = []
    versions: dict[str, str] = {}
    if options.other is not None:
        return [Braid, lambda directory: OtherCheckout(directory, options.other.resolve())], versions
    if options.brokers:
        return [Braid, lambda directory: Brokers(directory, options.brokers)], versions
    if not options.kafka_only:
        makes.append(Braid)
        versions["Braid"] = Braid.version()
    if not options.braid_only:
        try:
            libs = obtain(options.kafka_libs)
        except KafkaUnavailableError as error:
            print(f"Kafka is skipped: {error}", flush=True)
        else:
            makes.append(lambda directory: Kafka(directory, libs))
            versions["Apache Kafka"] = f"{Kafka.version(libs)} on Java {java_version()}"
    return makes, versions


def _raise_open_file_limit() -> None:
    """Ten thousand connections need as many descriptors here and in the server, which inherits the limit."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


if __name__ == "__main__":
    end_on_sigterm()
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
