"""kill -9 of a Spark driver, again and again, in the midst of a stream from a topic to another.

The driver's whole session is killed, JVM and Python workers with it, or now and then only one Python process
first; then the stream is started from its checkpoint. Kills come at random times, and most of them at a kind
of moment chosen by chance (`spark_moments.py`): the driver is stopped at random times until it is found
before a task has written, while they write, before the batch is decided, in its commit, or after it. At the
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
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil
from confluent_kafka import Consumer, TopicPartition
from tests.chaos.load import ChaosFailed
from tests.chaos.server import Server
from tests.chaos.spark_moments import MID_BATCH, Moment, Watch, last_batch

from braidmq.client import Admin, Cluster, Producer

SOURCE, SINK = "source", "sink"
PARTITIONS = 4
ROWS_PER_BATCH = 50
ROWS_PER_LAST_BATCH = 20_000
START_SECONDS_MAX = 180
FINISH_SECONDS_MAX = 900
RUN_SECONDS_MAX = 3.0
EARLY_SHARE = 0.2
"""Of the kills, those that come in the first batch of a run: mostly one that is done again."""
WORKER_SHARE = 0.25
"""Of the kills, those that hit one Python process first: a task or a commit fails under Spark."""
AIMS = (None, *MID_BATCH)
"""What kills wait for; None: for nothing."""
AIM_SECONDS_MAX = 90.0
LOOK_SECONDS_MAX, STEP_SECONDS_MAX = 0.1, 0.015
"""Between two looks at a driver, at most."""


@dataclass(frozen=True, slots=True)
class Plan:
    kills: int
    rows: int
    """Ahead of the stream each time it starts: one that runs out of rows has no batch to be killed in."""
    seed: int
    aims: tuple[Moment | None, ...] = AIMS
    sabotage: str | None = None
    """A bug of `spark_sabotage.py`."""


@dataclass(slots=True)
class Done:
    """What happened."""

    rows: int = 0
    batches: int = 0
    hit: Counter[Moment] = field(default_factory=Counter)

    @property
    def kills(self) -> int:
        return self.hit.total()

    @property
    def kills_mid_batch(self) -> int:
        return sum(self.hit[moment] for moment in MID_BATCH)

    def __str__(self) -> str:
        hits = ", ".join(f"{self.hit[moment]} {moment}" for moment in Moment if self.hit[moment])
        return (
            f"{self.kills} kills, {self.kills_mid_batch} of them within a batch ({hits});"
            f" {self.batches} batches, {self.rows:,} rows"
        )


def run(
    serve: Callable[[], AbstractContextManager[Server]], plan: Plan, report: Callable[[object], None]
) -> Done:
    """Kills the stream so often, lets it finish, and checks; ChaosFailed tells what is wrong."""
    chance = random.Random(plan.seed)
    done = Done()
    with (
        serve() as server,
        tempfile.TemporaryDirectory(prefix="braid-chaos-") as scratch,
        Cluster(server.bootstrap) as cluster,
    ):
        runs = Runs(server.bootstrap, Path(scratch), plan.sabotage)
        create_topics(server.bootstrap)
        while done.kills < plan.kills:
            rows = done.batches * ROWS_PER_BATCH + plan.rows
            send(server.bootstrap, range(done.rows, rows))
            done.rows = rows
            watch = Watch(cluster, runs.checkpoint, PARTITIONS)
            with runs.stream(ROWS_PER_BATCH) as driver:
                kill_somewhere(driver, runs.checkpoint, watch, chance, chance.choice(plan.aims))
            done.hit[watch.moment()] += 1
            done.batches = last_batch(runs.checkpoint, "commits") + 1
            report(done)
        with runs.stream(ROWS_PER_LAST_BATCH, "--finish") as driver:
            said, _ = driver.communicate(timeout=FINISH_SECONDS_MAX)
        done.batches = last_batch(runs.checkpoint, "commits") + 1
        found = check(server.bootstrap, done.rows)
        verdict = said.strip().rpartition("\n")[2]
        if verdict != "equal":
            found.append(f"the audit says: {verdict if driver.returncode == 0 else runs.last_words()}")
        if found:
            raise ChaosFailed(f"seed {plan.seed}: {done}; " + "; ".join(found))
    return done


def create_topics(bootstrap: str) -> None:
    with Admin(bootstrap) as admin:
        for topic in (SOURCE, SINK):
            admin.create_topic(topic, PARTITIONS)


def send(bootstrap: str, numbers: range) -> None:
    """Numbered rows; a key is the partition a row came from: rows of a key must keep their order."""
    with Producer(bootstrap) as producer:
        for number in numbers:
            place = number % PARTITIONS
            producer.send(SOURCE, b"%d" % number, key=b"%d" % place, partition=place)


@dataclass(frozen=True, slots=True)
class Runs:
    """The runs of one query."""

    bootstrap: str
    scratch: Path
    sabotage: str | None

    @property
    def checkpoint(self) -> Path:
        return self.scratch / "checkpoint"

    def last_words(self) -> str:
        return (self.scratch / "log").read_text()[-2000:]

    @contextmanager
    def stream(self, rows_per_batch: int, *flags: str) -> Iterator[subprocess.Popen[str]]:
        """The stream in a session of its own, running; nothing of it is left at the end."""
        module = [sys.executable, "-m", "tests.chaos.spark_stream"]
        command = [*module, self.bootstrap, SOURCE, SINK, str(self.checkpoint), str(rows_per_batch), *flags]
        if self.sabotage is not None:
            command += ["--sabotage", self.sabotage]
        with open(self.scratch / "log", "ab") as errors:
            driver = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=errors, text=True, start_new_session=True
            )
        try:
            yield driver
        finally:
            # Before anything else: the moment was chosen.
            while kill_session(driver.pid):
                driver.poll()
                time.sleep(0.01)
            driver.wait()
            if driver.stdout is not None:
                driver.stdout.close()


def kill_session(session: int) -> int:
    """Kills every process of a session; how many there were. Workers have groups of their own, and outlive
    their parents: only the session holds them together."""
    return signal_session(session, signal.SIGKILL)


def signal_session(session: int, number: signal.Signals) -> int:
    living = processes_of(session)
    for pid in living:
        with suppress(ProcessLookupError):
            os.kill(pid, number)
    return len(living)


def processes_of(session: int) -> list[int]:
    found = []
    for pid in psutil.pids():
        try:
            if os.getsid(pid) == session and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
                found.append(pid)
        except (ProcessLookupError, psutil.NoSuchProcess):
            continue
    return found


def kill_somewhere(
    driver: subprocess.Popen[str], checkpoint: Path, watch: Watch, chance: random.Random, aim: Moment | None
) -> None:
    """Waits for the moment to kill, and lets one Python process go first now and then; the rest is killed by
    the caller."""
    assert driver.stdout is not None
    if not select.select([driver.stdout], [], [], START_SECONDS_MAX)[0] or not driver.stdout.readline():
        raise ChaosFailed(f"the stream did not come up; it ended with {driver.poll()}")
    if chance.random() < EARLY_SHARE:
        wait_until(lambda: watch.moment() is not Moment.STARTING, START_SECONDS_MAX)
    else:
        before = last_batch(checkpoint, "commits")
        wait_until(lambda: last_batch(checkpoint, "commits") > before, START_SECONDS_MAX)
        time.sleep(chance.uniform(0, RUN_SECONDS_MAX))
    stop_at(driver.pid, watch, chance, aim)
    if driver.poll() is not None:
        raise ChaosFailed(f"the stream ended by itself with {driver.poll()}")
    others = [pid for pid in processes_of(driver.pid) if pid != driver.pid]
    workers = [pid for pid in others if "python" in psutil.Process(pid).name()]
    if workers and chance.random() < WORKER_SHARE:
        os.kill(chance.choice(workers), signal.SIGKILL)
        signal_session(driver.pid, signal.SIGCONT)
        time.sleep(chance.uniform(0, 1.0))


def stop_at(session: int, watch: Watch, chance: random.Random, aim: Moment | None) -> None:
    """Stops a driver again and again until it is found at a moment, and leaves it so."""
    deadline = time.monotonic() + AIM_SECONDS_MAX
    while True:
        signal_session(session, signal.SIGSTOP)
        if aim is None or (found := watch.moment()) is aim or time.monotonic() > deadline:
            return
        signal_session(session, signal.SIGCONT)
        # Moments are short; in the batch that is coming to this one, in small steps.
        is_near = found in MID_BATCH and MID_BATCH.index(found) < MID_BATCH.index(aim)
        time.sleep(chance.uniform(0, STEP_SECONDS_MAX if is_near else LOOK_SECONDS_MAX))


def wait_until(is_so: Callable[[], bool], seconds_max: float) -> None:
    """As long as that takes, or not for ever."""
    deadline = time.monotonic() + seconds_max
    while not is_so() and time.monotonic() < deadline:
        time.sleep(0.001)


def check(bootstrap: str, rows: int) -> list[str]:
    """What is wrong as a stock client reads it: each row once, and those of a key in their order."""
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
            consumer.close()
            return ["the sink cannot be read to its end; a transaction is open"]
        if message.error() is None:
            found[message.key()].append(int(message.value()))
        else:
            ended += 1
    consumer.close()
    wrong = []
    for key, numbers in found.items():
        wanted = list(range(int(key), rows, PARTITIONS))
        if numbers != wanted:
            lost, twice = len(set(wanted) - set(numbers)), len(numbers) - len(set(numbers))
            wrong.append(f"key {key.decode()}: {lost} rows lost, {twice} doubled, or out of order")
    return wrong
