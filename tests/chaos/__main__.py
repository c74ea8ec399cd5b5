"""Kills and stops of a loaded broker, or of all parts of an exactly-once pipeline, or a full disk, often.

Every acked record is checked, and in a pipeline that each record was transformed exactly once.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from bench.kafka import obtain
from tests.chaos import exactly_once, full_disk, kills, planted, recovery, server
from tests.chaos.kills import Plan
from tests.chaos.load import ChaosFailed

REPORT_EVERY_S = 2.0


def main() -> int:
    given = arguments()
    if given.recovery_gb:
        sys.stdout.write(f"{recovery.measure(given.recovery_gb)}\n")
        return 0
    seed = given.seed if given.seed is not None else random.randrange(2**32)
    sys.stdout.write(f"seed {seed}\n")
    try:
        if given.spark_kills:
            stream(given, seed)
        elif given.planted:
            catch_planted()
        elif given.exactly_once:
            transform(given, seed)
        else:
            produce(given, seed)
    except (ChaosFailed, full_disk.CannotMountError) as failure:
        sys.stdout.write(f"FAILED: {failure}\n")
        return 1
    return 0


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/chaos", description=__doc__)
    parser.add_argument(
        "--kills", type=int, default=1_000, metavar="N", help="kill the broker N times (default 1000)"
    )
    parser.add_argument("--fills", type=int, metavar="N", help="instead: fill the disk N times (needs root)")
    parser.add_argument(
        "--recovery-gb", type=float, metavar="GB", help="instead: time the recovery of a log of GB"
    )
    parser.add_argument("--seconds", type=float, metavar="S", help="stop after S seconds")
    parser.add_argument("--seed", type=int, help="repeat the run that printed this seed")
    parser.add_argument("--partitions", type=int, default=6, metavar="N", help="partitions (default 6)")
    parser.add_argument(
        "--senders", type=int, default=3, metavar="N", help="idempotent producers (default 3)"
    )
    parser.add_argument("--flush", choices=("sync", "async"), default="sync", help="default: sync")
    pipelines = parser.add_argument_group("pipelines")
    pipelines.add_argument(
        "--exactly-once", action="store_true", help="instead: consume, transform and produce in transactions"
    )
    pipelines.add_argument(
        "--brokers",
        type=int,
        default=1,
        metavar="N",
        help="with --exactly-once: a cluster of N, one of which is killed at a time (default 1)",
    )
    pipelines.add_argument(
        "--spark-kills", type=int, metavar="N", help="instead: kill a Spark driver N times"
    )
    pipelines.add_argument(
        "--runs", type=int, default=20, metavar="N", help="runs, each on a new broker (default 20)"
    )
    pipelines.add_argument(
        "--messages", type=int, default=100_000, metavar="N", help="messages per run (default 100000)"
    )
    pipelines.add_argument(
        "--protocol",
        choices=exactly_once.PROTOCOLS,
        help="group protocol of the transformers; default: each in turn",
    )
    pipelines.add_argument(
        "--planted", action="store_true", help="instead: check that every planted bug is found"
    )
    pipelines.add_argument(
        "--kafka", action="store_true", help="run against Apache Kafka, to check the checks"
    )
    pipelines.add_argument("--kafka-libs", type=Path, metavar="DIR", help="Kafka's jars; default: from Maven")
    return parser.parse_args()


def produce(given: argparse.Namespace, seed: int) -> None:
    plan = Plan(
        given.fills or given.kills, seed, given.seconds, given.partitions, given.senders, flush=given.flush
    )
    report = now_and_then()
    done = full_disk.run(plan, report) if given.fills else kills.run(plan, report)
    sys.stdout.write(f"{done}\nnothing acked was lost, doubled, reordered or changed\n")


def transform(given: argparse.Namespace, seed: int) -> None:
    serve = _serve(given)
    began, total = time.monotonic(), exactly_once.Totals()
    for number in range(given.runs):
        if given.seconds is not None and time.monotonic() - began > given.seconds:
            break
        protocol = given.protocol or exactly_once.PROTOCOLS[number % len(exactly_once.PROTOCOLS)]
        plan = exactly_once.Plan(seed + number, given.messages, protocol)
        done = exactly_once.run(plan, now_and_then(), serve)
        total.add(done)
        sys.stdout.write(f"run {number + 1}, seed {plan.seed}: {done}\n")
    sys.stdout.write(f"{total}\neach message was transformed exactly once\n")


def _serve(given: argparse.Namespace) -> exactly_once.Serve:
    if given.kafka:
        return partial(server.kafka, obtain(given.kafka_libs))
    return server.braid if given.brokers == 1 else partial(server.braid_cluster, given.brokers)


def stream(given: argparse.Namespace, seed: int) -> None:
    # Spark is needed for this one only.
    from tests.chaos import spark_kills

    serve = partial(server.kafka, obtain(given.kafka_libs)) if given.kafka else server.braid
    plan = spark_kills.Plan(given.spark_kills, given.messages, seed)
    done = spark_kills.run(serve, plan, now_and_then())
    sys.stdout.write(f"{done}\neach row was written exactly once\n")


def catch_planted() -> None:
    for name in planted.PLANTED:
        caught = planted.catch(name)
        found = {**caught.feed.counts, **caught.transform.counts}
        sys.stdout.write(f"{name}: " + ", ".join(f"{count} {what}" for what, count in found.items()) + "\n")
        sys.stdout.flush()
    for name in planted.PLANTED_UNDER_TESTS:
        sys.stdout.write(f"{name}: {planted.catch_under_test(name)}\n")
        sys.stdout.flush()
    for name in planted.PLANTED_IN_STOPS:
        sys.stdout.write(f"{name}: {planted.catch_in_stops(name)}\n")
        sys.stdout.flush()
    for name in planted.PLANTED_IN_SPARK:
        sys.stdout.write(f"{name}: {planted.catch_in_spark(name)}\n")
        sys.stdout.flush()


def now_and_then() -> Callable[[Any], None]:
    last = 0.0

    def report(progress: object) -> None:
        nonlocal last
        if time.monotonic() - last > REPORT_EVERY_S:
            last = time.monotonic()
            sys.stdout.write(f"{progress}\n")
            sys.stdout.flush()

    return report


if __name__ == "__main__":
    sys.exit(main())
