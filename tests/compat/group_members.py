"""A member of a consumer group, by each stock client, as a thread or as a process to be killed and paused.

All of them do the same: subscribe, read, commit what they have read after each poll, and close when told. A
commit that is refused is tried again after the next poll, for what is still theirs.
What happens to them goes into a `Diary`, in memory or in a file that survives the process: partitions
assigned and revoked, offsets read, positions sent and committed, each with the time.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
import subprocess
import sys
import syslog
import threading
import time
import warnings
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from aiokafka import AIOKafkaConsumer
from aiokafka import ConsumerRebalanceListener as AioRebalanceListener
from aiokafka.errors import KafkaConnectionError as AioKafkaConnectionError
from aiokafka.errors import KafkaError as AioKafkaError
from aiokafka.structs import TopicPartition as AioTopicPartition
from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka import KafkaError as ConfluentError
from kafka import ConsumerRebalanceListener, KafkaConsumer
from kafka.errors import KafkaConnectionError, KafkaError
from kafka.structs import OffsetAndMetadata
from kafka.structs import TopicPartition as KafkaTopicPartition
from tests.chaos.load import ONE_BROKER
from tests.history.group_reading import GroupReading

ROOT = Path(__file__).parents[2]
SESSION_MS = 3_000
HEARTBEAT_MS = 300
"""The servers under test are set to these for groups of the new protocol; classic members ask for them."""
POLL_S = 0.1
WAIT_S = 60
RECONNECT_MS = 50
NO_MEMBER = (ConfluentError.UNKNOWN_MEMBER_ID, ConfluentError.FENCED_MEMBER_EPOCH)


class Diary:
    """What happens to one member, a line each; with a path it outlives the process."""

    def __init__(self, path: Path | None = None) -> None:
        self._lines: list[str] = []
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND) if path is not None else None

    def note(self, what: str, partition: int, *offsets: int) -> None:
        line = " ".join(map(str, (time.monotonic_ns(), what, partition, *offsets)))
        if self._file is None:
            self._lines.append(line)
        else:
            os.write(self._file, f"{line}\n".encode())

    def lines(self) -> list[str]:
        return list(self._lines)


def owned(lines: Iterable[str]) -> set[int]:
    """The partitions a member has after all that."""
    mine: set[int] = set()
    for _, what, partition, *_ in map(str.split, lines):
        if what == "assigned":
            mine.add(int(partition))
        elif what == "revoked":
            mine.discard(int(partition))
    return mine


def tell(group: GroupReading, member: str, lines: Iterable[str]) -> None:
    """Hands a member's diary to the checker."""
    for line in lines:
        when, what, *rest = line.split()
        partition, *offsets = map(int, rest)
        if what == "assigned":
            group.assigned(member, int(when), partition)
        elif what == "revoked":
            group.revoked(member, int(when), partition)
        elif what == "read":
            group.read(member, partition, *offsets)
        elif what == "sent":
            group.sent(member, int(when), partition, *offsets)
        else:
            group.committed(member, int(when), partition)


class Member(threading.Thread):
    """Reads as one member until `leave`."""

    def __init__(self, bootstrap: str, group: str, topic: str, diary: Diary | None = None) -> None:
        super().__init__(daemon=True)
        self.bootstrap = bootstrap
        self.group = group
        self.topic = topic
        self.diary = diary or Diary()
        self.failure: BaseException | None = None
        self.warnings: list[str] = []
        """What the client itself logged, to be read when something is wrong."""
        self.uncommitted: dict[int, int] = {}
        """By partition: what was read, is still this member's, and is not known to be committed."""
        self._leaving = threading.Event()
        self.start()

    @property
    def leaving(self) -> bool:
        return self._leaving.is_set()

    @property
    def lines(self) -> list[str]:
        return self.diary.lines()

    @property
    def owned(self) -> set[int]:
        return owned(self.lines)

    def leave(self) -> None:
        self._leaving.set()
        self.join(WAIT_S)
        assert not self.is_alive(), "the member does not come to an end"
        if self.failure is not None:
            raise self.failure

    def run(self) -> None:
        try:
            with warnings.catch_warnings():
                # What a client warns itself about is not ours to fail on.
                warnings.simplefilter("ignore")
                self.read()
        except BaseException as error:
            self.failure = error

    def read(self) -> None:
        raise AssertionError("each client reads in its own way")

    def take(self, partitions: Iterable[int]) -> None:
        for partition in partitions:
            self.diary.note("assigned", partition)

    def give_up(self, partitions: Iterable[int]) -> None:
        for partition in partitions:
            self.uncommitted.pop(partition, None)
            self.diary.note("revoked", partition)

    def got(self, found: Iterable[tuple[int, int]]) -> dict[int, int]:
        """Notes partitions and offsets as they came; returns what is to be committed of this and before."""
        pieces: list[tuple[int, int, int]] = []
        for partition, offset in found:
            if pieces and pieces[-1][0] == partition and pieces[-1][2] + 1 == offset:
                pieces[-1] = (partition, pieces[-1][1], offset)
            else:
                pieces.append((partition, offset, offset))
        for piece in pieces:
            self.diary.note("read", *piece)
        self.uncommitted |= {partition: last + 1 for partition, _, last in pieces}
        return dict(self.uncommitted)

    def sending(self, positions: dict[int, int]) -> None:
        for partition, offset in positions.items():
            self.diary.note("sent", partition, offset)

    def confirmed(self, positions: dict[int, int]) -> None:
        for partition in positions:
            self.uncommitted.pop(partition, None)
            self.diary.note("committed", partition)


class ConfluentMember(Member):
    """confluent-kafka with the classic protocol and eager rebalances."""

    settings: dict[str, Any] = {"session.timeout.ms": SESSION_MS, "heartbeat.interval.ms": HEARTBEAT_MS}

    def read(self) -> None:
        consumer = Consumer(
            {
                "bootstrap.servers": self.bootstrap,
                "group.id": self.group,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                **ONE_BROKER,
                "log_level": syslog.LOG_WARNING,
                **self.settings,
            },
            logger=self._logger(),
        )
        consumer.subscribe(
            [self.topic],
            on_assign=lambda _, parts: self.take(p.partition for p in parts),
            on_revoke=lambda _, parts: self.give_up(p.partition for p in parts),
        )
        while not self.leaving:
            messages = [m for m in consumer.consume(200, POLL_S) if m.error() is None]
            positions = self.got((m.partition(), m.offset()) for m in messages)
            if positions:
                self.sending(positions)
                try:
                    done = consumer.commit(offsets=self._places(positions), asynchronous=False)
                    self.confirmed({p.partition: p.offset for p in done or [] if p.error is None})
                except KafkaException as error:
                    # Refused since a rebalance overtook it; or the member has lost everything, and will hear.
                    if error.args[0].code() in NO_MEMBER:
                        self.uncommitted.clear()
        consumer.close()

    def _places(self, positions: dict[int, int]) -> list[TopicPartition]:
        return [TopicPartition(self.topic, *position) for position in positions.items()]

    def _logger(self) -> logging.Logger:
        logger, handler = logging.Logger(self.group), logging.Handler()
        handler.emit = lambda record: self.warnings.append(f"{time.monotonic_ns()} {record.getMessage()}")  # type: ignore[method-assign]
        logger.addHandler(handler)
        return logger


class CooperativeMember(ConfluentMember):
    """confluent-kafka with incremental cooperative rebalances."""

    settings = {**ConfluentMember.settings, "partition.assignment.strategy": "cooperative-sticky"}


class ServerAssignedMember(ConfluentMember):
    """confluent-kafka with the new protocol, where the server assigns (KIP-848)."""

    settings = {"group.protocol": "consumer"}


class KafkaPythonMember(Member):
    def read(self) -> None:
        consumer = KafkaConsumer(
            bootstrap_servers=self.bootstrap,
            group_id=self.group,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            session_timeout_ms=SESSION_MS,
            heartbeat_interval_ms=HEARTBEAT_MS,
            reconnect_backoff_max_ms=RECONNECT_MS,
        )
        consumer.subscribe([self.topic], listener=_KafkaPythonListener(self))
        while not self.leaving:
            found: dict[Any, list[Any]] = {}
            # This client tells its user when a broker is away, and goes on at the next poll.
            with contextlib.suppress(KafkaConnectionError):
                found = consumer.poll(timeout_ms=int(POLL_S * 1000))
            positions = self.got((r.partition, r.offset) for records in found.values() for r in records)
            if positions:
                self.sending(positions)
                with contextlib.suppress(KafkaError):
                    consumer.commit(
                        {
                            KafkaTopicPartition(self.topic, partition): OffsetAndMetadata(offset, "", -1)
                            for partition, offset in positions.items()
                        }
                    )
                    self.confirmed(positions)
        consumer.close()


class _KafkaPythonListener(ConsumerRebalanceListener):
    def __init__(self, member: Member) -> None:
        self._member = member

    def on_partitions_assigned(self, assigned: Any) -> None:
        self._member.take(at.partition for at in assigned)

    def on_partitions_revoked(self, revoked: Any) -> None:
        self._member.give_up(at.partition for at in revoked)


class AioKafkaMember(Member):
    def read(self) -> None:
        asyncio.run(self._read())

    async def _read(self) -> None:
        consumer = await self._connect()
        try:
            while not self.leaving:
                found = await consumer.getmany(timeout_ms=int(POLL_S * 1000))
                positions = self.got((r.partition, r.offset) for records in found.values() for r in records)
                if positions:
                    self.sending(positions)
                    with contextlib.suppress(AioKafkaError):
                        await consumer.commit(
                            {
                                AioTopicPartition(self.topic, partition): offset
                                for partition, offset in positions.items()
                            }
                        )
                        self.confirmed(positions)
        finally:
            # aiokafka 0.14 trips over its own cancelled fetch when it is stopped while a broker is away.
            with contextlib.suppress(asyncio.CancelledError):
                await consumer.stop()

    async def _connect(self) -> AIOKafkaConsumer:
        """This client does not wait for a broker that is away when it starts: its user tries again."""
        until = time.monotonic() + WAIT_S
        while True:
            consumer = AIOKafkaConsumer(
                bootstrap_servers=self.bootstrap,
                group_id=self.group,
                auto_offset_reset="earliest",
                enable_auto_commit=False,
                session_timeout_ms=SESSION_MS,
                heartbeat_interval_ms=HEARTBEAT_MS,
                retry_backoff_ms=RECONNECT_MS,
            )
            consumer.subscribe([self.topic], listener=_AioKafkaListener(self))
            try:
                await consumer.start()
                return consumer
            except AioKafkaConnectionError:
                await consumer.stop()
                if time.monotonic() > until:
                    raise
                await asyncio.sleep(RECONNECT_MS / 1000)


class _AioKafkaListener(AioRebalanceListener):
    def __init__(self, member: Member) -> None:
        self._member = member

    def on_partitions_assigned(self, assigned: Any) -> None:
        self._member.take(at.partition for at in assigned)

    def on_partitions_revoked(self, revoked: Any) -> None:
        self._member.give_up(at.partition for at in revoked)


MEMBERS: dict[str, Callable[..., Member]] = {
    "confluent": ConfluentMember,
    "cooperative": CooperativeMember,
    "server-assigned": ServerAssignedMember,
    "kafka-python": KafkaPythonMember,
    "aiokafka": AioKafkaMember,
}
INCREMENTAL = {"cooperative", "server-assigned"}
"""Whose rebalances leave a member what it keeps."""


@dataclass(frozen=True, slots=True)
class Post:
    """Where a member process works."""

    client: str
    bootstrap: str
    group: str
    topic: str
    diary: str


class MemberProcess:
    """A member in a process of its own."""

    def __init__(self, client: str, bootstrap: str, group: str, topic: str, diary: Path) -> None:
        self.name = diary.name
        self._diary = diary
        post = Post(client, bootstrap, group, topic, str(diary))
        command = [sys.executable, "-m", "tests.compat.group_members", json.dumps(asdict(post))]
        self._child = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE)

    @property
    def lines(self) -> list[str]:
        return self._diary.read_text().splitlines() if self._diary.exists() else []

    @property
    def owned(self) -> set[int]:
        return owned(self.lines)

    @property
    def failure(self) -> str | None:
        code = self._child.poll()
        return None if code in (None, 0, -signal.SIGKILL) else f"it ended with {code}"

    def leave(self) -> None:
        """Leaves the group properly."""
        self._child.terminate()
        assert self._child.wait(WAIT_S) == 0
        self._close()

    def kill(self) -> None:
        self._child.kill()
        self._child.wait()
        self._close()

    def pause(self) -> None:
        self._child.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        self._child.send_signal(signal.SIGCONT)

    def _close(self) -> None:
        assert self._child.stdin is not None
        self._child.stdin.close()


def main() -> None:
    post = Post(**json.loads(sys.argv[1]))
    member = MEMBERS[post.client](post.bootstrap, post.group, post.topic, Diary(Path(post.diary)))
    told = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: told.set())
    threading.Thread(target=lambda: (sys.stdin.read(), os._exit(1)), daemon=True).start()
    while member.is_alive() and not told.wait(0.1):
        pass
    member.leave()


if __name__ == "__main__":
    main()
