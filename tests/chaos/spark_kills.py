"""kill -9 of a Spark driver, again and again, in the midst of a stream from a topic to another.

The driver's whole process group is killed, JVM and Python workers with it, or now and then only one Python
process, at a random moment within the first batches; then the stream is started from its checkpoint. At the
end the second topic must hold what the first does, each record once and in the order of its key: by an audit
of our own, and by a stock client that reads committed records.
"""

from __future__ import annotations

import os
import random
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
from confluent_kafka import Consumer, TopicPartition
from tests.chaos.load import ChaosFailed
from tests.chaos.server import Server

from braidmq.client import Admin, Producer

SOURCE, SINK = "source", "sink"
PARTITIONS = 4
ROWS_PER_BATCH = 400
ROWS_PER_LAST_BATCH = 20_000
START_SECONDS_MAX = 180
FINISH_SECONDS_MAX = 900
RUN_SECONDS_MAX = 3.0
EARLY_SHARE = 0.3
"""Of the kills, those that do not wait for a first batch to be through: they hit a batch done again."""
WORKER_SHARE = 0.25
"""Of the kills, those that hit one Python process first: a task or a commit fails under Spark."""


@dataclass(slots=True)
class Done:
    """What happened."""

    kills: int = 0
    batches: int = 0
    rows: int = 0

    def __str__(self) -> str:
        return f"{self.kills} kills, {self.batches} batches, {self.rows:,} rows"


def run(
    serve: Callable[[], AbstractContextManager[Server]],
    kills: int,
    rows: int,
    seed: int,
    report: Callable[[object], None],
) -> Done:
    """Kills the stream so often, lets it finish, and checks; ChaosFailed tells what is wrong."""
    chance = random.Random(seed)
    done = Done(rows=rows)
    with serve() as server, tempfile.TemporaryDirectory(prefix="braid-chaos-") as scratch:
        checkpoint = Path(scratch) / "checkpoint"
        fill(server.bootstrap, rows)
        while done.kills < kills:
            with stream(server, checkpoint, Path(scratch) / "log", ROWS_PER_BATCH) as driver:
                kill_somewhere(driver, checkpoint, chance)
            done.kills += 1
            done.batches = batch_count(checkpoint)
            report(done)
        with stream(server, checkpoint, Path(scratch) / "log", ROWS_PER_LAST_BATCH, "--finish") as driver:
            said, _ = driver.communicate(timeout=FINISH_SECONDS_MAX)
        done.batches = batch_count(checkpoint)
        if driver.returncode or not said.strip().endswith("equal"):
            raise ChaosFailed(f"seed {seed}: {said.strip() or (Path(scratch) / 'log').read_text()[-2000:]}")
        check(server.bootstrap, rows, seed)
    return done


def fill(bootstrap: str, rows: int) -> None:
    """Numbered rows; a key is the partition a row came from: rows of a key must keep their order."""
    with Admin(bootstrap) as admin:
        for topic in (SOURCE, SINK):
            admin.create_topic(topic, PARTITIONS)
    with Producer(bootstrap) as producer:
        for number in range(rows):
            place = number % PARTITIONS
            producer.send(SOURCE, b"%d" % number, key=b"%d" % place, partition=place)


@contextmanager
def stream(
    server: Server, checkpoint: Path, log: Path, rows: int, *flags: str
) -> Iterator[subprocess.Popen[str]]:
    """The stream in a process group of its own, running; nothing of it is left at the end."""
    module = [sys.executable, "-m", "tests.chaos.spark_stream"]
    command = [*module, server.bootstrap, SOURCE, SINK, str(checkpoint), str(rows), *flags]
    with open(log, "ab") as errors:
        driver = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=errors, text=True, start_new_session=True
        )
    try:
        yield driver
    finally:
        group = psutil.Process(driver.pid).children(recursive=True) if driver.poll() is None else []
        with_group(driver.pid)
        for process in group:
            try:
                process.kill()
            except psutil.NoSuchProcess:
                continue
        driver.wait()
        if driver.stdout is not None:
            driver.stdout.close()


def with_group(group: int) -> None:
    try:
        os.killpg(group, signal.SIGKILL)
    except ProcessLookupError:
        return


def kill_somewhere(driver: subprocess.Popen[str], checkpoint: Path, chance: random.Random) -> None:
    """Waits until the stream runs and a random time more; what is left of it is killed at the end."""
    assert driver.stdout is not None
    if not select.select([driver.stdout], [], [], START_SECONDS_MAX)[0] or not driver.stdout.readline():
        raise ChaosFailed(f"the stream did not come up; it ended with {driver.poll()}")
    before, deadline = last_batch(checkpoint, "commits"), time.monotonic() + START_SECONDS_MAX
    if chance.random() >= EARLY_SHARE:
        while last_batch(checkpoint, "commits") == before and time.monotonic() < deadline:
            time.sleep(0.01)
    time.sleep(chance.uniform(0, RUN_SECONDS_MAX))
    if driver.poll() is not None:
        raise ChaosFailed(f"the stream ended by itself with {driver.poll()}")
    workers = [
        each for each in psutil.Process(driver.pid).children(recursive=True) if "python" in each.name()
    ]
    if workers and chance.random() < WORKER_SHARE:
        chance.choice(workers).kill()
        time.sleep(chance.uniform(0, 1.0))


def last_batch(checkpoint: Path, log: str) -> int:
    """The highest number in one of the checkpoint's logs, or -1."""
    if not (checkpoint / log).is_dir():
        return -1
    return max((int(path.name) for path in (checkpoint / log).iterdir() if path.name.isdigit()), default=-1)


def batch_count(checkpoint: Path) -> int:
    return last_batch(checkpoint, "commits") + 1


def check(bootstrap: str, rows: int, seed: int) -> None:
    """Each row once, and those of a key in their order, as a stock client reads them."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "check",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "enable.auto.commit": False,
        }
    )
    consumer.assign([TopicPartition(SINK, number, 0) for number in range(PARTITIONS)])
    found: dict[bytes, list[int]] = {b"%d" % place: [] for place in range(PARTITIONS)}
    ended = 0
    while ended < PARTITIONS:
        message = consumer.poll(60)
        if message is None:
            raise ChaosFailed(f"seed {seed}: the sink cannot be read to its end; a transaction is open")
        if message.error() is None:
            found[message.key()].append(int(message.value()))
        else:
            ended += 1
    consumer.close()
    for key, numbers in found.items():
        wanted = list(range(int(key), rows, PARTITIONS))
        if numbers != wanted:
            lost, twice = len(set(wanted) - set(numbers)), len(numbers) - len(set(numbers))
            raise ChaosFailed(f"seed {seed}: key {key!r}: {lost} rows lost, {twice} doubled, or out of order")
