"""Apache Kafka as a server under test: a single KRaft node with the heap and flags of its own start script.

The jars come through Maven (`peer/pom.xml`) into a cache directory, once. Where Maven or Java 17 is missing
or the artifacts cannot be reached, `obtain` says why and the bench goes on with Braid alone.
"""

from __future__ import annotations

import base64
import os
import re
import shutil
import subprocess
import tempfile
import time
import uuid
from pathlib import Path

from .server import Durability, Server, free_port

HERE = Path(__file__).parent
MAVEN_SECONDS_MAX = 600
READY_SECONDS_MAX = 300
JAVA_MAJOR_MIN = 17

# The defaults of Kafka's bin/kafka-server-start.sh and kafka-run-class.sh.
HEAP = ["-Xmx1G", "-Xms1G"]
TUNING = [
    "-server",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
    "-XX:MaxInlineLevel=15",
    "-Djava.awt.headless=true",
]


class KafkaUnavailableError(Exception):
    """Kafka cannot be run here; the text says what is missing."""


def obtain(given: Path | None) -> Path:
    """The directory of Kafka's jars: the given one, the cached one, or a new one filled by Maven."""
    _check_java()
    if given is not None:
        return _checked(given)
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "braid-bench"
    libs = cache / "kafka"
    if any(libs.glob("kafka-streams-*.jar")):
        return _checked(libs)
    shutil.rmtree(libs, ignore_errors=True)  # of an earlier version that did not ask for Kafka Streams
    maven = shutil.which("mvn")
    if maven is None:
        raise KafkaUnavailableError("Maven (mvn) is not installed")
    cache.mkdir(parents=True, exist_ok=True)
    print("getting Apache Kafka through Maven (once) …", flush=True)
    with tempfile.TemporaryDirectory(dir=cache) as scratch:
        shutil.copy(HERE / "peer" / "pom.xml", scratch)
        command = [
            maven,
            "--batch-mode",
            "--quiet",
            "dependency:copy-dependencies",
            "-DoutputDirectory=libs",
            "-DincludeScope=runtime",
        ]
        try:
            done = subprocess.run(command, cwd=scratch, capture_output=True, timeout=MAVEN_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            raise KafkaUnavailableError(f"Maven did not finish within {MAVEN_SECONDS_MAX} s") from None
        if done.returncode:
            text = (done.stdout + done.stderr).decode(errors="replace")
            raise KafkaUnavailableError("Maven could not get its artifacts: " + _first_error(text))
        _checked(Path(scratch) / "libs").rename(libs)
    return libs


def _checked(libs: Path) -> Path:
    if not any(libs.glob("kafka_2.13-*.jar")):
        raise KafkaUnavailableError(f"no kafka_2.13 jar in {libs}")
    return libs


def _first_error(text: str) -> str:
    errors = [line for line in text.splitlines() if "ERROR" in line]
    return errors[0][:300] if errors else text[-300:]


def _check_java() -> None:
    if shutil.which("java") is None:
        raise KafkaUnavailableError("Java is not installed")
    if _java_major(java_version()) < JAVA_MAJOR_MIN:
        raise KafkaUnavailableError(f"Kafka 4 needs Java {JAVA_MAJOR_MIN} or newer; found {java_version()}")


def java_version() -> str:
    shown = subprocess.run(["java", "-version"], capture_output=True, text=True).stderr
    found = re.search(r'version "([^"]+)"', shown)
    return found.group(1) if found else "unknown"


def _java_major(version: str) -> int:
    found = re.match(r"\d+", version)
    return int(found.group()) if found else 0


class Kafka(Server):
    name = "kafka"

    def __init__(self, directory: Path, libs: Path) -> None:
        super().__init__(directory)
        self.libs = libs
        self._properties = self.directory / "server.properties"

    @staticmethod
    def version(libs: Path) -> str:
        jar = next(libs.glob("kafka_2.13-*.jar"))
        return jar.stem.removeprefix("kafka_2.13-")

    def prepare(self) -> None:
        if (self.directory / "data").exists():
            return
        self._write_properties()
        cluster_id = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        command = [
            *self._java(),
            "-Xmx256M",
            "kafka.tools.StorageTool",
            "format",
            "-t",
            cluster_id,
            "-c",
            str(self._properties),
        ]
        subprocess.run(command, check=True, capture_output=True)

    def launch(self) -> None:
        self._write_properties()
        self._log_from = self._output().stat().st_size if self._output().exists() else 0
        with open(self._output(), "ab") as output:
            command = [*self._java(), *HEAP, *TUNING, "kafka.Kafka", str(self._properties)]
            self.process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)

    def wait_ready(self) -> None:
        deadline = time.monotonic() + READY_SECONDS_MAX
        while time.monotonic() < deadline:
            self.check_alive()
            with open(self._output(), "rb") as output:
                output.seek(self._log_from)
                if b"Kafka Server started" in output.read():
                    return
            time.sleep(0.1)
        raise RuntimeError(f"kafka was not ready within {READY_SECONDS_MAX} s; see {self._output()}")

    def topic_config(self, durability: Durability) -> dict[str, str]:
        return {"flush.messages": "1"} if durability is Durability.SYNCED else {}

    def wide_topic_config(self) -> dict[str, str]:
        # Index files are mapped, 10 MB of holes each, and the first touch reads ahead: with a read-ahead of
        # 8 MB a thousand partitions took 39 s and 16 GB of page cache for what 64 KB files do in 0.6 s.
        return {"segment.index.bytes": "65536"}

    def _output(self) -> Path:
        return self.directory / "output"

    def _java(self) -> list[str]:
        return [
            "java",
            "-cp",
            f"{self.libs}/*",
            f"-Dlog4j2.configurationFile={HERE / 'peer' / 'log4j2.properties'}",
        ]

    def _write_properties(self) -> None:
        # Defaults except where one node, or the bench's disk, needs it: copies of internal topics, and
        # deleted topics leave the disk after a second instead of a minute.
        self.address = ("127.0.0.1", free_port())
        controller = f"127.0.0.1:{free_port()}"
        settings = {
            "process.roles": "broker,controller",
            "node.id": "1",
            "controller.quorum.voters": f"1@{controller}",
            "listeners": f"PLAINTEXT://{self.bootstrap},CONTROLLER://{controller}",
            "advertised.listeners": f"PLAINTEXT://{self.bootstrap}",
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
            "log.dirs": str(self.directory / "data"),
            "log.segment.delete.delay.ms": "1000",
            "offsets.topic.replication.factor": "1",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
            "share.coordinator.state.topic.replication.factor": "1",
            "share.coordinator.state.topic.min.isr": "1",
        }
        self._properties.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
