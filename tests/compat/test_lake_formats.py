"""The lake in formats of others: `braid lake` as a user runs it, with the jars of Delta Lake or Iceberg.

BRAID_COMPAT_LAKE_JARS names a folder with a subfolder of jars for each format that there is; `scripts/compat`
fills it. The archiver is killed in the middle of batches and started again, as in tests/spark for Parquet.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from tests.compat import confluent_calls

JARS = "BRAID_COMPAT_LAKE_JARS"
FORMATS = ("delta", "iceberg")
RECORDS = 600
PARTITIONS = 2
KILLS = 3
COMMAND_TIMEOUT_S = 180
FIRST_MS = 1_794_700_800_000 - 250 * 1000
"""The records are a second apart, and go over midnight of 2026-11-15 (UTC)."""

pytestmark = [
    pytest.mark.skipif(JARS not in os.environ, reason="scripts/compat brings the jars of Delta and Iceberg"),
    pytest.mark.timeout(900),
]


@dataclass(frozen=True)
class Place:
    """A table of one format, where its query keeps its offsets, and the settings a session needs for it."""

    format: str
    table: str
    checkpoint: Path
    settings: dict[str, str]

    def words(self) -> list[str]:
        return [word for name, text in self.settings.items() for word in ("--conf", f"{name}={text}")]


@pytest.fixture(params=FORMATS)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    jars = sorted((Path(os.environ[JARS]) / request.param).glob("*.jar"))
    if not jars:
        pytest.skip(f"there is no {request.param} for this Spark")
    settings = {
        "spark.jars": ",".join(map(str, jars)),
        "spark.driver.memory": "1g",
        "spark.sql.shuffle.partitions": "2",
        "spark.local.dir": str(tmp_path / "scratch"),
        "spark.sql.warehouse.dir": str(tmp_path / "warehouse"),
    }
    checkpoint = tmp_path / "checkpoint"
    if request.param == "delta":
        settings["spark.sql.extensions"] = "io.delta.sql.DeltaSparkSessionExtension"
        settings["spark.sql.catalog.spark_catalog"] = "org.apache.spark.sql.delta.catalog.DeltaCatalog"
        return Place("delta", str(tmp_path / "orders"), checkpoint, settings)
    settings["spark.sql.catalog.lake"] = "org.apache.iceberg.spark.SparkCatalog"
    settings["spark.sql.catalog.lake.type"] = "hadoop"
    settings["spark.sql.catalog.lake.warehouse"] = str(tmp_path / "warehouse")
    return Place("iceberg", "lake.shop.orders", checkpoint, settings)


@dataclass(frozen=True)
class Braid:
    """`braid lake` in processes of its own."""

    bootstrap: str
    place: Place

    def start(self, *words: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "braidmq", "lake", *words, *self.place.words()]
        environment = {**os.environ, "BRAID_BOOTSTRAP": self.bootstrap, "BRAID_SPARK_MASTER": "local[2]"}
        return subprocess.Popen(
            command,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def run(self, *words: str) -> str:
        running = self.start(*words)
        try:
            out, err = running.communicate(timeout=COMMAND_TIMEOUT_S)
        finally:
            end(running)
        assert running.returncode == 0, err[-4000:]
        return out

    def archive(self, topic: str, *words: str) -> list[str]:
        where = ["--to-dir", self.place.table, "--format", self.place.format]
        where += ["--checkpoint", str(self.place.checkpoint), "--rows-per-commit", "60", "--decode", "json"]
        return ["archive", topic, *where, *words]

    def query(self, sql: str) -> list[dict[str, object]]:
        lines = self.run("query", self.place.table, sql, "--output", "json").splitlines()
        return [json.loads(line) for line in lines]


def end(running: subprocess.Popen[str]) -> None:
    """kill -9 of everything the command has started."""
    if running.poll() is None:
        os.killpg(running.pid, signal.SIGKILL)
    running.communicate()


def send(bootstrap: str, topic: str, numbers: range) -> None:
    producer = Producer({"bootstrap.servers": bootstrap})
    for number in numbers:
        producer.produce(
            topic,
            json.dumps({"id": number, "who": "ada"}).encode(),
            key=b"k%d" % (number % 5),
            headers=[("n", b"%d" % number)],
            partition=number % PARTITIONS,
            timestamp=FIRST_MS + 1000 * number,
        )
    assert producer.flush(30) == 0


def planned(place: Place) -> int:
    """How many batches the checkpoint has begun."""
    return len([each for each in place.checkpoint.glob("offsets/*") if each.name.isdigit()])


def kill_in_a_batch(braid: Braid, topic: str, chance: random.Random) -> None:
    """Starts an archiver and kills it soon after it has planned a batch, the second of this run or later."""
    before = planned(braid.place)
    running = braid.start(*braid.archive(topic, "--schema", "id BIGINT", "--interval", "1"))
    try:
        until = time.monotonic() + COMMAND_TIMEOUT_S
        while planned(braid.place) < before + 2:
            assert running.poll() is None, running.communicate()[1][-4000:]
            assert time.monotonic() < until, "no batch was begun"
            time.sleep(0.02)
        time.sleep(chance.uniform(0, 1))
    finally:
        end(running)


def read_all(bootstrap: str, topic: str, count: int) -> list[tuple[object, ...]]:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": topic, "enable.auto.commit": False})
    consumer.assign([TopicPartition(topic, number, 0) for number in range(PARTITIONS)])
    found = []
    while len(found) < count:
        message = consumer.poll(30)
        assert message is not None, f"{len(found)} of {count} records"
        assert message.error() is None
        found.append((message.key(), message.value(), message.headers(), message.timestamp()[1]))
    assert consumer.poll(2) is None
    consumer.close()
    return sorted(found, key=lambda each: json.loads(each[1])["id"])


def test_a_table_has_every_record_once_and_gives_it_back(
    bootstrap: str, new_name: Callable[[], str], place: Place
) -> None:
    """S5: killed in the middle of batches, queried with SQL, a column added, sent back to a topic."""
    seed = random.randrange(2**32)
    sys.stdout.write(f"seed {seed}\n")
    chance = random.Random(seed)
    topic, target = new_name(), new_name()
    for name in (topic, target):
        confluent_calls.create_topic(bootstrap, name, partitions=PARTITIONS)
    braid = Braid(bootstrap, place)
    send(bootstrap, topic, range(RECORDS))
    for _ in range(KILLS):
        kill_in_a_batch(braid, topic, chance)
    braid.run(*braid.archive(topic, "--schema", "id BIGINT", "--once"))
    send(bootstrap, topic, range(RECORDS, RECORDS + 10))
    out = braid.run(*braid.archive(topic, "--schema", "id BIGINT, who STRING", "--once"))
    assert out == f"archived {topic} into {place.table}\n"

    found = braid.query("SELECT id, who, partition, offset, date, key FROM lake ORDER BY id")
    assert found == [
        {
            "id": number,
            "who": None if number < RECORDS else "ada",
            "partition": number % PARTITIONS,
            "offset": number // PARTITIONS,
            "date": "2026-11-14" if number < 250 else "2026-11-15",
            "key": f"k{number % 5}",
        }
        for number in range(RECORDS + 10)
    ]

    words = ("replay", place.table, "--to-topic", target, "--keys", "k3", "--until", "2026-11-15", "--yes")
    assert braid.run(*words, "--id", "again").endswith(f"sent 50 records to {target}\n")
    assert "sent nothing: again was sent before" in braid.run(*words, "--id", "again")
    assert read_all(bootstrap, target, 50) == [
        (
            b"k3",
            json.dumps({"id": number, "who": "ada"}).encode(),
            [("n", b"%d" % number)],
            FIRST_MS + 1000 * number,
        )
        for number in range(3, 250, 5)
    ]
