"""`python -m tests.compat`: the client suite against Braid, then the very same tests against Apache Kafka.

The second run proves the tests: what they demand of Braid is what Kafka does. Where Kafka's jars cannot be
had it is left out with a message, and the Java client with it. Spark runs as applications of its own, on this
machine and on a standalone master with two workers. 10,000 idle connections are tried as well.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

from bench.kafka import Kafka, KafkaUnavailableError, obtain
from tests.chaos import server

ROOT = Path(__file__).parents[2]
IDLE_CONNECTIONS = 10_000


def pytest(*arguments: str, **environment: str) -> bool:
    command = [sys.executable, "-m", "pytest", "-q", *arguments]
    return subprocess.run(command, cwd=ROOT, env={**os.environ, **environment}).returncode == 0


def jars_of_kafka(given: Path | None) -> Path | None:
    try:
        return obtain(given)
    except KafkaUnavailableError as reason:
        say(f"without the Java client and without Apache Kafka: {reason}")
        return None


def against_kafka(jars: Path, extra: dict[str, str]) -> bool:
    say(f"the same tests against Apache Kafka {Kafka.version(jars)}")
    with server.kafka(jars) as running:
        return pytest("tests/compat", BRAID_COMPAT_BOOTSTRAP=running.bootstrap, **extra)


def say(text: str) -> None:
    sys.stdout.write(f"--- {text}\n")
    sys.stdout.flush()


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/compat", description=__doc__)
    parser.add_argument(
        "--kafka-libs", type=Path, help="directory of Kafka's jars; by default Maven gets them"
    )
    given = parser.parse_args()
    jars = jars_of_kafka(given.kafka_libs)
    extra = {"BRAID_COMPAT_SPARK": "1"}
    if jars is not None:
        extra["BRAID_COMPAT_JARS"] = str(jars)
    say("stock clients against Braid")
    good = pytest("tests/compat", BRAID_COMPAT_STEPS="all", **extra)
    say("Spark Declarative Pipelines")
    good &= pytest("tests/compat/test_declarative_pipelines.py", BRAID_COMPAT_SPARK="1")
    say(f"{IDLE_CONNECTIONS:,} idle connections")
    good &= pytest("tests/hostile", "-k", "idle_connections", BRAID_IDLE_CONNECTIONS=str(IDLE_CONNECTIONS))
    if jars is not None:
        good &= against_kafka(jars, extra)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
