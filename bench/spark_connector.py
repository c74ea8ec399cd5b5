"""Spark's own Kafka connector, the peer of the Spark rows: its jars through Maven, into a cache, once.

Asked for in the version of the Spark that is installed, and where that is not to be had in the newest before
it. Each part is asked for by itself: what they depend on besides is in Spark already.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from .kafka import KafkaUnavailableError

SPARK = "org.apache.spark"
PARTS = {
    f"{SPARK}:spark-sql-kafka-0-10_2.13": (),
    f"{SPARK}:spark-token-provider-kafka-0-10_2.13": (),
    "org.apache.kafka:kafka-clients": ("3.9.2", "3.9.1"),
    "org.apache.commons:commons-pool2": ("2.13.1", "2.12.1", "2.12.0"),
}
SPARK_VERSIONS = ("4.3.0", "4.2.1", "4.2.0", "4.1.1", "4.1.0", "4.1.0-preview1", "4.0.1", "4.0.0")
MAVEN_SECONDS_MAX = 300


def obtain(given: Path | None, spark_version: str) -> list[Path]:
    """The jars: from the given directory, from the cache, or through Maven."""
    if given is not None:
        return _checked(given)
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "braid-bench"
    libs = cache / f"spark-connector-{spark_version}"
    if not libs.is_dir():
        maven = shutil.which("mvn")
        if maven is None:
            raise KafkaUnavailableError("Maven (mvn) is not installed")
        print("getting Spark's Kafka connector through Maven (once) …", flush=True)
        unfinished = cache / f"{libs.name}.unfinished"
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(parents=True)
        for part, versions in PARTS.items():
            _copy(maven, part, versions or _up_to(spark_version), unfinished)
        unfinished.rename(libs)
    return _checked(libs)


def describe(jars: list[Path]) -> str:
    """The versions of the connector and of the Kafka client in it."""
    names = sorted(jar.stem for jar in jars if "spark-sql-kafka" in jar.name or "kafka-clients" in jar.name)
    return ", ".join(names)


def _up_to(version: str) -> tuple[str, ...]:
    older = [each for each in SPARK_VERSIONS if _order(each) <= _order(version)]
    return tuple(dict.fromkeys([version, *older]))


def _order(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.partition("-")[0].split("."))


def _copy(maven: str, part: str, versions: tuple[str, ...], libs: Path) -> None:
    """The first of these versions that there is."""
    for version in versions:
        command = [maven, "--batch-mode", "--quiet", "dependency:copy", f"-Dartifact={part}:{version}"]
        command.append(f"-DoutputDirectory={libs}")
        try:
            done = subprocess.run(command, cwd=libs, capture_output=True, timeout=MAVEN_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            raise KafkaUnavailableError(f"Maven did not finish within {MAVEN_SECONDS_MAX} s") from None
        if done.returncode == 0:
            return
    raise KafkaUnavailableError(f"Maven has {part} in none of the versions {', '.join(versions)}")


def _checked(libs: Path) -> list[Path]:
    jars = sorted(libs.glob("*.jar"))
    if not any("spark-sql-kafka" in jar.name for jar in jars):
        raise KafkaUnavailableError(f"no spark-sql-kafka jar in {libs}")
    return jars
