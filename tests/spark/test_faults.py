"""Streams from topic to topic when workers die and brokers go away: nothing lost, nothing twice."""

from __future__ import annotations

import itertools
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from tests.patience import WAIT_S, wait_until
from tests.spark.committed import committed
from tests.spark.running_workers import end_idle_workers, talks_to, task_workers

from braidmq.client import Cluster, Producer
from braidmq.client.transactions import ONGOING, TransactionAdmin
from braidmq.spark.pipelines import pipeline
from braidmq.spark.pipelines.runner import run
from braidmq.testing import BrokerProcess

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import StreamingQuery

NewTopic = Callable[..., str]
AWAY_S = 4.0
pytestmark = pytest.mark.braid(num_partitions=1)
ROWS = 80_000
FILLING = b"." * 200
"""More than a worker can have on its way, and more than one Arrow batch of Spark (10,000 rows)."""


def fill(bootstrap: str, topic: str, numbers: range, filling: bytes = b"") -> list[bytes]:
    values = [b"%07d" % number + filling for number in numbers]
    with Producer(bootstrap) as producer:
        for value in values:
            producer.send(topic, value)
    return values


class Copy:
    """A stream from one topic to another on one checkpoint, started as often as a story needs."""

    def __init__(self, spark: SparkSession, bootstrap: str, source: str, target: str, place: Path) -> None:
        self._spark = spark
        self._bootstrap = bootstrap
        self._source = source
        self._target = target
        self.place = place

    def start(
        self, through: Any = None, once: bool = True, rows_per_batch: int = ROWS, **options: str
    ) -> StreamingQuery:
        reader = self._spark.readStream.format("braid").options(**options)
        reader = reader.option("bootstrap.servers", self._bootstrap).option("subscribe", self._source)
        reader = reader.option("maxOffsetsPerTrigger", rows_per_batch)
        rows = reader.option("startingOffsets", "earliest").load().select("value")
        if through is not None:
            rows = rows.mapInArrow(through, "value binary")
        writer = rows.writeStream.format("braid").options(**options)
        writer = writer.option("bootstrap.servers", self._bootstrap).option("topic", self._target)
        writer = writer.option("checkpointLocation", str(self.place / "checkpoint"))
        how = {"availableNow": True} if once else {"processingTime": "0 seconds"}
        return writer.trigger(**how).start()

    def finish(self) -> None:
        assert self.start().awaitTermination(WAIT_S)

    def written(self) -> Counter[bytes]:
        return Counter(message.value() for message in committed(self._bootstrap, self._target, 1))


class Gate:
    """Where a step stands still in the midst of a batch, until it is opened for good."""

    def __init__(self, place: Path) -> None:
        self._stands = place / "stands"
        self._open = place / "open"

    def step(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Lets some batches through, since pipes hold back the last, and says which process it is."""
        yield from itertools.islice(batches, 3)
        self._stands.write_text(str(os.getpid()))
        while not self._open.exists():
            time.sleep(0.05)
        yield from batches

    @property
    def pid(self) -> int | None:
        text = self._stands.read_text() if self._stands.exists() else ""
        return int(text) if text else None

    def open(self) -> None:
        self._open.touch()


def open_transactions(bootstrap: str) -> list[str]:
    with Cluster(bootstrap) as cluster:
        return [each.transactional_id for each in TransactionAdmin(cluster).all(states=[ONGOING])]


@pytest.mark.parametrize("victim", ["source", "sink"])
def test_a_worker_killed_in_the_midst_of_a_batch_costs_nothing_but_time(
    spark: SparkSession, braid_broker: BrokerProcess, tmp_path: Path, victim: str
) -> None:
    """S2 S3: kill -9 of the worker that reads, or of the one that writes.

    At that moment the source has more to send, and the sink has an open transaction with rows in it.
    """
    bootstrap = braid_broker.bootstrap
    values = fill(bootstrap, "from", range(ROWS), FILLING)
    copy, gate = Copy(spark, bootstrap, "from", "to", tmp_path), Gate(tmp_path)
    end_idle_workers()
    query = copy.start(gate.step)
    wait_until(lambda: gate.pid and open_transactions(bootstrap))
    os.kill(find(victim, gate, bootstrap), signal.SIGKILL)
    gate.open()
    with pytest.raises(StreamingQueryException, match="Python worker exited unexpectedly"):
        query.awaitTermination(WAIT_S)
    assert copy.written() == Counter()
    copy.finish()
    assert copy.written() == Counter(values)
    assert open_transactions(bootstrap) == []


def test_a_pipeline_goes_on_by_itself_when_a_worker_is_killed(
    spark: SparkSession, braid_broker: BrokerProcess, tmp_path: Path
) -> None:
    """S4 S3: the runner starts the query again from its checkpoint, and says so."""
    bootstrap = braid_broker.bootstrap
    values = fill(bootstrap, "from", range(ROWS), FILLING)
    gate, said = Gate(tmp_path), list[str]()
    pipe = pipeline("copy", bootstrap=bootstrap, checkpoint=str(tmp_path / "checkpoint"))
    pipe.source("rows", topic="from", format="raw")
    pipe.step("held")(lambda rows: rows.mapInArrow(gate.step, "value binary"))
    pipe.sink("out", source="held", topic="to", format="raw")
    end_idle_workers()
    options = {"once": True, "spark": spark, "tell": said.append}
    runner = threading.Thread(target=run, args=(pipe.build(),), kwargs=options)
    runner.start()
    wait_until(lambda: gate.pid and open_transactions(bootstrap))
    os.kill(find("step", gate, bootstrap), signal.SIGKILL)
    gate.open()
    runner.join(WAIT_S)
    assert Copy(spark, bootstrap, "from", "to", tmp_path).written() == Counter(values)
    assert any("restarting it in 1 s" in each for each in said)


def find(victim: str, gate: Gate, bootstrap: str) -> int:
    """By what tells them apart: the step has told its number, and of the others the sink is connected.

    The source reads the segments of a broker on its own machine from the disk.
    """
    step = gate.pid
    assert step is not None
    port = int(bootstrap.rpartition(":")[2])
    others = {pid: talks_to(each, port) for pid, each in task_workers().items() if pid != step}
    found = {"step": [step], "sink": [pid for pid, talks in others.items() if talks]}
    found["source"] = [pid for pid, talks in others.items() if not talks]
    assert all(len(each) == 1 for each in found.values()), found
    return found[victim][0]


def stopped(broker: BrokerProcess) -> Iterator[None]:
    """Alive and deaf: connections stand, and nobody answers."""
    os.kill(broker.pid, signal.SIGSTOP)
    yield
    os.kill(broker.pid, signal.SIGCONT)


def started_again(broker: BrokerProcess) -> Iterator[None]:
    """Gone: connections break, and new ones are refused."""
    broker.stop()
    yield
    broker.start()


AWAY = [stopped, started_again]
Away = Callable[[BrokerProcess], Iterator[None]]


@pytest.mark.parametrize("away", AWAY)
def test_a_broker_that_is_away_for_a_while_is_waited_for(
    spark: SparkSession, braid_broker: BrokerProcess, tmp_path: Path, away: Away
) -> None:
    """S2 S3: the same run of the query goes on, and what comes later is copied too."""
    copy_through(spark, braid_broker, tmp_path, away, AWAY_S)


def copy_through(spark: SparkSession, broker: BrokerProcess, place: Path, away: Away, away_s: float) -> None:
    """A copy in small batches, so that the broker goes away while one is under way."""
    values = fill(broker.bootstrap, "from", range(500))
    copy = Copy(spark, broker.bootstrap, "from", "to", place)
    query = copy.start(once=False, rows_per_batch=50)
    wait_until(lambda: not query.isActive or (query.lastProgress and query.lastProgress["batchId"] >= 1))
    for _ in away(broker):
        time.sleep(away_s)
    values += fill(broker.bootstrap, "from", range(500, 800))
    query.processAllAvailable()
    query.stop()
    assert query.exception() is None
    assert copy.written() == Counter(values)


def test_a_broker_that_stays_away_is_named_in_a_sentence(
    spark: SparkSession, braid_broker: BrokerProcess, tmp_path: Path
) -> None:
    """S2 S3: after the time-out, with its address and what to look at; then from the checkpoint on."""
    bootstrap = braid_broker.bootstrap
    values = fill(bootstrap, "from", range(100))
    copy = Copy(spark, bootstrap, "from", "to", tmp_path)
    query = copy.start(once=False, **{"kafka.request.timeout.ms": "1500"})
    query.processAllAvailable()
    os.kill(braid_broker.pid, signal.SIGSTOP)
    with pytest.raises(StreamingQueryException) as failed:
        query.awaitTermination(WAIT_S)
    os.kill(braid_broker.pid, signal.SIGCONT)
    told = str(failed.value)
    assert f"{bootstrap} did not answer in 1.5 s; it is stopped, overloaded or cut off" in told
    assert "Traceback" not in told
    values += fill(bootstrap, "from", range(100, 200))
    copy.finish()
    assert copy.written() == Counter(values)
