"""The load of a chaos run: idempotent producers, consumers that read along, and the history they tell.

Producers are stock librdkafka with idempotence and no delivery deadline, so that every record is acked in the
end, whatever dies in between. A record's bytes follow from its sender and number alone: a reader recomputes
them, and a flipped bit anywhere is a mismatch. All calls on the history go through one lock.
"""

from __future__ import annotations

import struct
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Message, Producer, TopicPartition
from tests.history.checker import History

NAME = struct.Struct(">IQ")
FILLER = bytes(range(251)) * 3
FILLER_BYTES_MAX = 200
RECONNECT = {"reconnect.backoff.ms": 10, "reconnect.backoff.max.ms": 50, "log_level": 0}
ONE_BROKER = {**RECONNECT, "metadata.recovery.strategy": "none"}
"""When all brokers are away, librdkafka 2.16 begins anew from its bootstrap servers, and what it sends to a
coordinator it knows then waits on the broker it has dropped: offsets of a transaction for ever, an admin's
call or the end of a member until that times out. With one broker it need not."""
OUTSIDE_THE_LOG = (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE)
WAIT_S = 60.0


class ChaosFailed(AssertionError):
    """A promise was broken, or the run made no progress."""


def value_of(sender: int, number: int) -> bytes:
    start = number % 251
    return NAME.pack(sender, number) + FILLER[start : start + number * 7 % FILLER_BYTES_MAX]


def name_of(value: bytes) -> tuple[int, int]:
    """The record's sender and number; its bytes must be exactly what that sender sent."""
    sender, number = NAME.unpack_from(value)
    if value != value_of(sender, number):
        raise ChaosFailed(f"record {number} of sender {sender} came back with other bytes: {value.hex()}")
    return sender, number


class Worker(Protocol):
    def finish(self) -> None: ...


class Journal:
    """The history behind a lock, for the threads of a run; a failure in any thread is kept for the others."""

    def __init__(self) -> None:
        self.history = History()
        self.lock = threading.Lock()
        self.stop = threading.Event()
        self.failure: BaseException | None = None

    def guard(self, work: Callable[[], None]) -> threading.Thread:
        """A thread whose exception ends the run."""

        def run() -> None:
            try:
                work()
            except BaseException as error:
                self.failure = self.failure or error
                self.stop.set()

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        return thread

    def check(self) -> None:
        if self.failure is not None:
            raise self.failure

    def finish(self, workers: Sequence[Worker]) -> None:
        """Ends the load; the first failure of a worker is told before what follows from it."""
        self.stop.set()
        self.check()
        for worker in workers:
            worker.finish()
        self.check()


class Sender:
    """One idempotent producer over all partitions, as fast as its queue allows."""

    def __init__(self, journal: Journal, bootstrap: str, topic: str, partitions: int, sender: int) -> None:
        self._journal, self._topic, self._partitions, self._sender = journal, topic, partitions, sender
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "acks": "all",
                "message.timeout.ms": 0,
                "linger.ms": 2,
                "batch.num.messages": 200,
                "queue.buffering.max.messages": 5_000,
                "retry.backoff.ms": 10,
                "compression.type": ("none", "lz4", "zstd", "snappy", "gzip")[sender % 5],
                **RECONNECT,
            }
        )
        self._thread = journal.guard(self._send)

    def finish(self) -> None:
        """After the journal's stop: waits until everything sent is acked."""
        self._thread.join(WAIT_S)
        left = self._producer.flush(WAIT_S)
        if left:
            raise ChaosFailed(f"{left} records of sender {self._sender} were never acked")

    def _send(self) -> None:
        number = 0
        while not self._journal.stop.is_set():
            with self._journal.lock:
                self._journal.history.sent(self._sender, number)
            self._send_one(number)
            number += 1
            self._producer.poll(0)

    def _send_one(self, number: int) -> None:
        partition = number // 50 % self._partitions
        value = value_of(self._sender, number)
        while True:
            try:
                self._producer.produce(
                    self._topic, value, partition=partition, on_delivery=self._delivered(number)
                )
                return
            except BufferError:
                self._producer.poll(0.02)

    def _delivered(self, number: int) -> Callable[[KafkaError | None, Message], None]:
        def report(error: KafkaError | None, message: Message) -> None:
            if error is not None or message.offset() < 0:
                why = error or "acked without an offset"
                self._journal.failure = ChaosFailed(f"record {number} of sender {self._sender}: {why}")
                self._journal.stop.set()
                return
            with self._journal.lock:
                self._journal.history.acked(self._sender, number, message.partition(), message.offset())

        return report


def consumer(bootstrap: str, **settings: Any) -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "unused",
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "fetch.wait.max.ms": 100,
            **RECONNECT,
            **settings,
        }
    )


def records(batch: list[Message]) -> list[Message]:
    """The messages without the events of a broker that is away; an offset that is gone is a failure."""
    for message in batch:
        error = message.error()
        if error is not None and error.code() in OUTSIDE_THE_LOG:
            raise ChaosFailed(
                f"offset {message.offset()} of partition {message.partition()} is gone: {error}"
            )
    return [message for message in batch if message.error() is None]


class Follower:
    """A consumer that reads every partition from the start while brokers die."""

    def __init__(self, journal: Journal, bootstrap: str, topic: str, partitions: int, name: str) -> None:
        self._journal, self._name = journal, name
        self._consumer = consumer(bootstrap)
        self._consumer.assign([TopicPartition(topic, number, 0) for number in range(partitions)])
        self._thread = journal.guard(self._follow)

    def finish(self) -> None:
        self._thread.join(WAIT_S)
        self._consumer.close()

    def _follow(self) -> None:
        while not self._journal.stop.is_set():
            named = [(m, *name_of(m.value())) for m in records(self._consumer.consume(500, timeout=0.1))]
            with self._journal.lock:
                for message, sender, number in named:
                    self._journal.history.polled(
                        self._name, message.partition(), message.offset(), sender, number
                    )


def read_again(journal: Journal, bootstrap: str, home: TopicPartition, count: int, name: str) -> None:
    """A new consumer reads up to `count` records from `home` on: offsets must still hold what they held."""
    reader = consumer(bootstrap)
    try:
        reader.assign([home])
        seen, deadline = 0, time.monotonic() + 5
        while seen < count and time.monotonic() < deadline and not journal.stop.is_set():
            named = [(m, *name_of(m.value())) for m in records(reader.consume(200, timeout=0.1))]
            with journal.lock:
                for message, sender, number in named:
                    journal.history.polled(name, message.partition(), message.offset(), sender, number)
            seen += len(named)
    finally:
        reader.close()


def read_everything(journal: Journal, bootstrap: str, topic: str, partitions: int) -> None:
    """The final read: every partition from its first record to its high watermark."""
    reader = consumer(bootstrap)
    try:
        for partition in range(partitions):
            home = TopicPartition(topic, partition, OFFSET_BEGINNING)
            low, high = reader.get_watermark_offsets(home, timeout=WAIT_S)
            if low != 0:
                raise ChaosFailed(f"partition {partition} begins at {low}, though nothing was deleted")
            _read_partition(journal, reader, home, high)
    finally:
        reader.close()


def _read_partition(journal: Journal, reader: Consumer, home: TopicPartition, high: int) -> None:
    reader.assign([home])
    next_offset, deadline = 0, time.monotonic() + WAIT_S
    while next_offset < high:
        batch = records(reader.consume(min(1_000, high - next_offset), timeout=1))
        if batch:
            deadline = time.monotonic() + WAIT_S
        elif time.monotonic() > deadline:
            raise ChaosFailed(f"partition {home.partition} cannot be read past offset {next_offset}")
        for message in batch:
            journal.history.read(home.partition, message.offset(), *name_of(message.value()))
            next_offset = message.offset() + 1
