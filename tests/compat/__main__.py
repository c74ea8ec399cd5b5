"""`python -m tests.compat`: the client suite against Braid, then the very same tests against Apache Kafka.

The second run proves the tests: what they demand of Braid is what Kafka does. It is left out, with a message,
where Kafka cannot be had. The slow checks of the hostile suite (10,000 idle connections) are run as well.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from bench.kafka import Kafka, KafkaUnavailableError, obtain

ROOT = Path(__file__).parents[2]
IDLE_CONNECTIONS = 10_000


def pytest(*arguments: str, **environment: str) -> bool:
    command = [sys.executable, "-m", "pytest", "-q", *arguments]
    return subprocess.run(command, cwd=ROOT, env={**os.environ, **environment}).returncode == 0


def against_kafka(libs: Path | None) -> bool:
    try:
        jars = obtain(libs)
    except KafkaUnavailableError as reason:
        say(f"not run against Apache Kafka: {reason}")
        return True
    with tempfile.TemporaryDirectory(prefix="compat-") as directory:
        server = Kafka(Path(directory), jars)
        say(f"the same tests against Apache Kafka {Kafka.version(jars)}")
        server.start()
        try:
            return pytest("tests/compat", BRAID_COMPAT_BOOTSTRAP=server.bootstrap)
        finally:
            server.stop()


def say(text: str) -> None:
    sys.stdout.write(f"--- {text}\n")
    sys.stdout.flush()


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/compat", description=__doc__)
    parser.add_argument(
        "--kafka-libs", type=Path, help="directory of Kafka's jars; by default Maven gets them"
    )
    given = parser.parse_args()
    say("stock clients against Braid")
    good = pytest("tests/compat")
    say(f"{IDLE_CONNECTIONS:,} idle connections")
    good &= pytest("tests/hostile", "-k", "idle_connections", BRAID_IDLE_CONNECTIONS=str(IDLE_CONNECTIONS))
    good &= against_kafka(given.kafka_libs)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
