"""Runs the client tests against Braid, then the same tests against Apache Kafka.

The second run checks the tests: what they ask of Braid is what Kafka does. If Kafka's jars cannot be
downloaded, that run and the Java client are skipped with a message. Spark applications run on this machine
and on a standalone master with two workers. Other steps run the same tests against a cluster of three
brokers, open 10,000 idle connections, and check the metadata store against an installed etcd (BRAID_ETCD, or
on PATH).

The Spark tests run again on the oldest pyspark that pyproject.toml allows, in an environment of its own
(.venv-oldest), together with tests of the lake in Delta and Iceberg format.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

from bench.kafka import Kafka, KafkaUnavailableError, obtain
from tests.chaos import server
from tests.compat import lake_jars, oldest_pyspark

ROOT = Path(__file__).parents[2]
IDLE_CONNECTIONS = 10_000
CLUSTER_BROKERS = 3
SPARK = {"BRAID_COMPAT_SPARK": "1"}


def pytest(*arguments: str, python: str | Path = sys.executable, **environment: str) -> bool:
    command = [str(python), "-m", "pytest", "-q", *arguments]
    return subprocess.run(command, cwd=ROOT, env={**os.environ, **environment}).returncode == 0


def against_braid(libs: Path | None) -> bool:
    say("stock clients against Braid")
    return pytest("tests/compat", BRAID_COMPAT_STEPS="all", **SPARK, **java_client(jars_of_kafka(libs)))


def against_cluster(libs: Path | None) -> bool:
    say(f"the same tests against {CLUSTER_BROKERS} brokers")
    jars = java_client(jars_of_kafka(libs))
    return pytest("tests/compat", BRAID_COMPAT_BROKERS=str(CLUSTER_BROKERS), **SPARK, **jars)


def installed_etcd() -> bool:
    found = os.environ.get("BRAID_ETCD") or shutil.which("etcd")
    if found is None:
        say("without an installed etcd: BRAID_ETCD names none, and there is none on PATH")
        return True
    say(f"the metadata store on {found}")
    return pytest("tests/conformance", BRAID_ETCD=found)


def idle_connections() -> bool:
    say(f"{IDLE_CONNECTIONS:,} idle connections")
    return pytest("tests/hostile", "-k", "idle_connections", BRAID_IDLE_CONNECTIONS=str(IDLE_CONNECTIONS))


def against_kafka(libs: Path | None) -> bool:
    jars = jars_of_kafka(libs)
    if jars is None:
        return True
    say(f"the same tests against Apache Kafka {Kafka.version(jars)}")
    with server.kafka(jars) as running:
        bootstrap = running.bootstrap
        return pytest("tests/compat", BRAID_COMPAT_BOOTSTRAP=bootstrap, **SPARK, **java_client(jars))


def on_the_oldest_pyspark() -> bool:
    say(f"tests/spark on pyspark {oldest_pyspark.oldest()}, the oldest that pyproject.toml allows")
    return pytest("tests/spark", python=oldest_pyspark.prepare())


def lake_formats(libs: Path | None) -> bool:
    version = oldest_pyspark.oldest()
    try:
        jars = lake_jars.obtain(libs, version)
    except lake_jars.LakeJarsUnavailableError as reason:
        say(f"without Delta Lake and Iceberg: {reason}")
        return True
    say(f"the lake on pyspark {version} with {lake_jars.describe(jars)}")
    python = oldest_pyspark.prepare()
    return pytest("tests/compat/test_lake_formats.py", python=python, BRAID_COMPAT_LAKE_JARS=str(jars))


def jars_of_kafka(given: Path | None) -> Path | None:
    try:
        return obtain(given)
    except KafkaUnavailableError as reason:
        say(f"without the Java client and without Apache Kafka: {reason}")
        return None


def java_client(jars: Path | None) -> dict[str, str]:
    return {} if jars is None else {"BRAID_COMPAT_JARS": str(jars)}


def say(text: str) -> None:
    sys.stdout.write(f"--- {text}\n")
    sys.stdout.flush()


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/compat", description=__doc__)
    parser.add_argument("--kafka-libs", type=Path, metavar="DIR", help="Kafka's jars; default: from Maven")
    parser.add_argument(
        "--lake-libs", type=Path, metavar="DIR", help="jars in DIR/delta and DIR/iceberg; default: from Maven"
    )
    names = ("braid", "cluster", "etcd", "idle", "kafka", "oldest-pyspark", "lake")
    parser.add_argument("--only", action="append", choices=names, help="only this step; may repeat")
    given = parser.parse_args()
    steps: tuple[Callable[[], bool], ...] = (
        partial(against_braid, given.kafka_libs),
        partial(against_cluster, given.kafka_libs),
        installed_etcd,
        idle_connections,
        partial(against_kafka, given.kafka_libs),
        on_the_oldest_pyspark,
        partial(lake_formats, given.lake_libs),
    )
    chosen = [step for name, step in zip(names, steps, strict=True) if not given.only or name in given.only]
    failed = [step for step in chosen if not step()]
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
