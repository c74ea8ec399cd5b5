"""The processes of an exactly-once run: a feeder and transformers, by confluent-kafka.

Run as a program with a `Task` as JSON. A feeder writes numbers to the source topic, in transactions, and
keeps its position, the next number, as the committed offset of a group of its own. A transformer reads the
source topic in a group and writes one record for each it reads, with its offsets in the same transaction.
Both abort some transactions on purpose and do the work again. A process that cannot go on, because another
has taken its place, ends with `FENCED`; whoever comes next with its transactional id carries on.

What the broker confirmed is appended to a file, a line per transaction, which survives the process. A `Doom`
kills or stops the process at one step of one of its transactions.
"""

from __future__ import annotations

import ctypes
import faulthandler
import json
import os
import random
import signal
import struct
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from tests.chaos.load import FILLER, FILLER_BYTES_MAX, ONE_BROKER, ChaosFailed
from tests.history.exactly_once import Fate, Place, Stamp, Work

ROOT = Path(__file__).parents[2]
STAMP = struct.Struct(">QIQIIIB")
KEYS = 97
FENCED = 3
"""Exit code of a process whose place another has taken."""
HUNG_S = 20
"""A transaction may take this long, then SIGALRM ends the process."""
CALL_S = 5.0
POLL_S = 0.05
PR_SET_PDEATHSIG = 1
NOT_NOW = {
    KafkaError._TIMED_OUT,
    KafkaError._TRANSPORT,
    KafkaError._WAIT_COORD,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.NOT_COORDINATOR,
    KafkaError.UNSTABLE_OFFSET_COMMIT,
}
"""Answers to a question about committed offsets that may be another one soon."""


class Step(StrEnum):
    """Where in a transaction a process may be struck."""

    BEGUN = "begun"
    HALF_PRODUCED = "half produced"
    PRODUCED = "produced"
    OFFSETS_SENT = "offsets sent"
    COMMITTING = "committing"
    COMMITTED = "committed"


class Plant(StrEnum):
    """A bug to be planted into a transformer, so that the checker is seen to catch it."""

    NONE = "none"
    OFFSETS_BEFORE = "offsets before"
    """Commits its offsets by the consumer, before the transaction."""
    OFFSETS_AFTER = "offsets after"
    """Commits its offsets by the consumer, after the transaction."""
    READS_UNCOMMITTED = "reads uncommitted"
    UNFENCED = "unfenced"
    """Every life has a transactional id of its own, and its offsets do not say which member sends them."""
    KEEPS_POSITION = "keeps position"
    """Does not go back to where its first aborted transaction began."""


@dataclass(frozen=True, slots=True)
class Doom:
    """The process sends itself this signal at this step of its n-th transaction, or the next that has it."""

    transaction: int
    step: str
    signal: int


@dataclass(frozen=True, slots=True)
class Task:
    """What a process is told."""

    role: str
    """`feed` or `transform`."""
    bootstrap: str
    life: int
    transactional_id: str
    group: str
    source: str
    target: str
    target_partitions: int
    journal: str
    batch: int
    aborts: float
    """Share of the transactions that are aborted on purpose."""
    session_ms: int
    transaction_timeout_ms: int
    protocol: str = "classic"
    """`classic`, `cooperative` or `consumer`."""
    messages: int = 0
    """For a feeder: how many numbers there are."""
    per_s: int = 0
    """For a feeder: numbers per second."""
    plant: str = Plant.NONE
    doom: Doom | None = None

    def command(self) -> list[str]:
        return [sys.executable, "-m", "tests.chaos.transactor", json.dumps(asdict(self))]


def read_task(text: str) -> Task:
    fields = json.loads(text)
    doom = fields.pop("doom")
    return Task(**fields, doom=None if doom is None else Doom(**doom))


def packed(stamp: Stamp) -> bytes:
    """The record's bytes: its stamp, and a filler that follows from what it carries."""
    number = stamp.content
    head = STAMP.pack(number, *stamp.source, *stamp.work, stamp.size, stamp.fate)
    return head + FILLER[number % 251 :][: number * 7 % FILLER_BYTES_MAX]


def unpacked(value: bytes) -> Stamp:
    number, partition, offset, life, transaction, size, fate = STAMP.unpack_from(value)
    stamp = Stamp(number, Place(partition, offset), Work(life, transaction), size, Fate(fate))
    if packed(stamp) != value:
        raise ChaosFailed(f"record {stamp} came back with other bytes: {value.hex()}")
    return stamp


class CannotGoOnError(Exception):
    """Another producer or member has this one's place."""


class MustAbortError(Exception):
    """The transaction cannot be committed; the producer can go on with the next."""


class Given(NamedTuple):
    """A record of the source, to be worked on."""

    place: Place
    content: int


class Transactor:
    """A transactional producer that says what became of each transaction."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self.chance = random.Random(task.life)
        self._journal = os.open(task.journal, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self._number = 0
        self._doom = task.doom
        self._producer = Producer(
            {
                "bootstrap.servers": task.bootstrap,
                "transactional.id": task.transactional_id,
                "transaction.timeout.ms": task.transaction_timeout_ms,
                "linger.ms": 2,
                "retry.backoff.ms": 20,
                "compression.type": ("none", "lz4", "zstd", "snappy", "gzip")[task.life % 5],
                **ONE_BROKER,
            }
        )
        self._persist(self._producer.init_transactions)

    def transact(self, work: list[Given], send_offsets: Callable[[Producer], None]) -> bool:
        """One transaction; False if it was aborted, on purpose or because it had to be."""
        fate = Fate.ABORT if self.chance.random() < self.task.aborts else Fate.COMMIT
        this = Work(self.task.life, self._number)
        signal.alarm(HUNG_S)
        try:
            self._producer.begin_transaction()
            self._strike(Step.BEGUN)
            self._produce(work, this, fate)
            self._strike(Step.PRODUCED)
            self._persist(send_offsets, self._producer)
            self._strike(Step.OFFSETS_SENT)
            if fate is Fate.COMMIT:
                self._strike(Step.COMMITTING)
                self._persist(self._producer.commit_transaction)
                self._strike(Step.COMMITTED)
        except MustAbortError:
            fate = Fate.ABORT
        if fate is Fate.ABORT:
            self._persist(self._producer.abort_transaction)
        signal.alarm(0)
        self._number += 1
        os.write(self._journal, b"%d %d %d\n" % (*this, fate))
        return fate is Fate.COMMIT

    def _produce(self, work: list[Given], this: Work, fate: Fate) -> None:
        for at, given in enumerate(work):
            if at == len(work) // 2:
                self._persist(self._producer.flush, 0.01)
                self._strike(Step.HALF_PRODUCED)
            key = given.content % KEYS
            value = packed(Stamp(given.content, given.place, this, len(work), fate))
            self._produce_one(b"%d" % key, value, key % self.task.target_partitions)

    def _produce_one(self, key: bytes, value: bytes, partition: int) -> None:
        while True:
            try:
                self._producer.produce(self.task.target, value, key, partition)
                return
            except BufferError:
                self._producer.poll(0.02)
            except KafkaException as failure:
                # The transaction has failed in the background; its end will say whether others are possible.
                raise MustAbortError(str(failure)) from None

    def _persist(self, call: Callable[..., Any], *arguments: Any) -> None:
        """Until it is done, or known that it will not be. A broker that is away is only a matter of time."""
        while True:
            try:
                call(*arguments)
                return
            except KafkaException as failure:
                error: KafkaError = failure.args[0]
                if error.fatal():
                    raise CannotGoOnError(str(error)) from None
                if error.txn_requires_abort():
                    raise MustAbortError(str(error)) from None
                if not error.retriable():
                    raise
                time.sleep(0.01)

    def _strike(self, step: Step) -> None:
        doom = self._doom
        if doom is None or doom.transaction > self._number or doom.step != step:
            return
        self._doom = None
        if step is Step.COMMITTING:
            # Somewhere between the request's leaving and its answer.
            delay_s = self.chance.uniform(0, 0.01)
            threading.Timer(delay_s, os.kill, (os.getpid(), doom.signal)).start()
        else:
            os.kill(os.getpid(), doom.signal)


def feed(task: Task) -> None:
    transactor = Transactor(task)
    place = Consumer(
        {
            "bootstrap.servers": task.bootstrap,
            "group.id": task.group,
            "isolation.level": "read_committed",
            **ONE_BROKER,
        }
    )
    position = TopicPartition(task.target, 0)
    number = max(_committed(place, position), 0)
    metadata = place.consumer_group_metadata()
    began, first = time.monotonic(), number
    while number < task.messages:
        end = min(number + task.batch, task.messages)

        def send_offsets(producer: Producer, end: int = end) -> None:
            producer.send_offsets_to_transaction(
                [TopicPartition(position.topic, position.partition, end)], metadata, CALL_S
            )

        if transactor.transact([Given(Place(0, each), each) for each in range(number, end)], send_offsets):
            number = end
        time.sleep(max(0.0, (number - first) / task.per_s - (time.monotonic() - began)))


def _committed(consumer: Consumer, position: TopicPartition) -> int:
    while True:
        try:
            found = consumer.committed([position], CALL_S)[0]
            if found.error is None:
                return int(found.offset)
        except KafkaException as failure:
            if failure.args[0].code() not in NOT_NOW:
                raise
        time.sleep(0.02)


class Transformer:
    """Reads in a group, and writes what it made with its offsets."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self._plant = Plant(task.plant)
        self._transactor = Transactor(task)
        self._consumer = Consumer(consumer_settings(task, self._plant))
        self._stranger = Consumer(consumer_settings(task, self._plant))
        """A consumer that never joins the group, for the planted bug of offsets that nobody vouches for."""
        self._consumer.subscribe([task.source])

    def run(self) -> None:
        while True:
            messages = [m for m in self._consumer.consume(self._task.batch, POLL_S) if _readable(m)]
            if messages:
                self._work_on(messages)

    def _work_on(self, messages: list[Message]) -> None:
        work = [Given(Place(m.partition(), m.offset()), unpacked(m.value()).content) for m in messages]
        ends = {m.partition(): m.offset() + 1 for m in messages}
        offsets = [TopicPartition(self._task.source, *each) for each in ends.items()]
        # Taken now: if the group has gone on without this member by then, the broker must refuse it.
        member = self._stranger if self._plant is Plant.UNFENCED else self._consumer
        metadata = member.consumer_group_metadata()

        def send_offsets(producer: Producer) -> None:
            if self._plant is Plant.OFFSETS_BEFORE:
                self._consumer.commit(offsets=offsets, asynchronous=False)
            elif self._plant is not Plant.OFFSETS_AFTER:
                producer.send_offsets_to_transaction(offsets, metadata, CALL_S)

        if not self._transactor.transact(work, send_offsets):
            self._go_back_to(messages)
        elif self._plant is Plant.OFFSETS_AFTER:
            self._consumer.commit(offsets=offsets, asynchronous=False)

    def _go_back_to(self, messages: list[Message]) -> None:
        if self._plant is Plant.KEEPS_POSITION:
            self._plant = Plant.NONE
            return
        first: dict[int, int] = {}
        for message in messages:
            first.setdefault(message.partition(), message.offset())
        mine = {part.partition for part in self._consumer.assignment()}
        for partition, offset in first.items():
            if partition in mine:
                try:
                    self._consumer.seek(TopicPartition(self._task.source, partition, offset))
                except KafkaException as failure:
                    raise CannotGoOnError(f"cannot go back: {failure}") from None


def consumer_settings(task: Task, plant: Plant) -> dict[str, Any]:
    settings: dict[str, Any] = {
        "bootstrap.servers": task.bootstrap,
        "group.id": task.group,
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        "isolation.level": "read_uncommitted" if plant is Plant.READS_UNCOMMITTED else "read_committed",
        "fetch.wait.max.ms": 50,
        **ONE_BROKER,
    }
    if task.protocol == "consumer":
        return {**settings, "group.protocol": "consumer"}
    strategy = "cooperative-sticky" if task.protocol == "cooperative" else "range"
    return {
        **settings,
        "session.timeout.ms": task.session_ms,
        "heartbeat.interval.ms": max(task.session_ms // 6, 100),
        "partition.assignment.strategy": strategy,
    }


def _readable(message: Message) -> bool:
    error = message.error()
    if error is not None and error.fatal():
        raise CannotGoOnError(str(error))
    return error is None


def die_with_parent() -> None:
    """A process that is stopped could not notice by itself that nobody will ever wake it."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def main() -> None:
    task = read_task(sys.argv[1])
    die_with_parent()
    faulthandler.register(signal.SIGUSR1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        if task.role == "feed":
            feed(task)
        else:
            Transformer(task).run()
    except CannotGoOnError as reason:
        sys.stderr.write(f"life {task.life}: {reason}\n")
        # The clients are left as they are: closing them could finish what this process no longer may.
        sys.stderr.flush()
        os._exit(FENCED)
    os._exit(0)


if __name__ == "__main__":
    main()
