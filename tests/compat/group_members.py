"""A member of a consumer group, by each stock client: a thread that reads, commits and notes what it has.

All of them do the same: subscribe, read, note every value, commit after each poll, and close when told.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import warnings
from collections.abc import Callable
from typing import Any

from aiokafka import AIOKafkaConsumer
from aiokafka.errors import KafkaError as AioKafkaError
from confluent_kafka import Consumer, KafkaException
from kafka import KafkaConsumer
from kafka.errors import KafkaError

SESSION_MS = 30_000
POLL_S = 0.1


class Member(threading.Thread):
    """Reads as one member until `leave`."""

    def __init__(self, bootstrap: str, group: str, topic: str) -> None:
        super().__init__(daemon=True)
        self.bootstrap = bootstrap
        self.group = group
        self.topic = topic
        self.values: list[bytes] = []
        self.revoked: list[set[int]] = []
        self.assigned: list[set[int]] = []
        self.owned: set[int] = set()
        self.failure: BaseException | None = None
        self._leaving = threading.Event()
        self.start()

    @property
    def leaving(self) -> bool:
        return self._leaving.is_set()

    def leave(self) -> None:
        self._leaving.set()
        self.join(30)
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

    def take(self, partitions: set[int]) -> None:
        self.assigned.append(partitions)
        self.owned |= partitions

    def give_up(self, partitions: set[int]) -> None:
        self.revoked.append(partitions)
        self.owned -= partitions


class ConfluentMember(Member):
    """confluent-kafka with the classic protocol and eager rebalances."""

    settings: dict[str, Any] = {"session.timeout.ms": SESSION_MS}

    def read(self) -> None:
        consumer = Consumer(
            {
                "bootstrap.servers": self.bootstrap,
                "group.id": self.group,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                **self.settings,
            }
        )
        consumer.subscribe(
            [self.topic],
            on_assign=lambda _, parts: self.take({p.partition for p in parts}),
            on_revoke=lambda _, parts: self.give_up({p.partition for p in parts}),
        )
        while not self.leaving:
            messages = [m for m in consumer.consume(200, POLL_S) if m.error() is None]
            self.values += [message.value() for message in messages]
            if messages:
                # A commit that a rebalance overtakes is refused; whoever has the partition reads it again.
                with contextlib.suppress(KafkaException):
                    consumer.commit(asynchronous=False)
        consumer.close()


class CooperativeMember(ConfluentMember):
    """confluent-kafka with incremental cooperative rebalances."""

    settings = {"session.timeout.ms": SESSION_MS, "partition.assignment.strategy": "cooperative-sticky"}


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
            heartbeat_interval_ms=1000,
        )
        consumer.subscribe([self.topic])
        while not self.leaving:
            found = consumer.poll(timeout_ms=int(POLL_S * 1000))
            self.owned = {at.partition for at in consumer.assignment()}
            self.values += [record.value for records in found.values() for record in records]
            if found:
                with contextlib.suppress(KafkaError):
                    consumer.commit()
        consumer.close()


class AioKafkaMember(Member):
    def read(self) -> None:
        asyncio.run(self._read())

    async def _read(self) -> None:
        consumer = AIOKafkaConsumer(
            self.topic,
            bootstrap_servers=self.bootstrap,
            group_id=self.group,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            session_timeout_ms=SESSION_MS,
            heartbeat_interval_ms=1000,
        )
        await consumer.start()
        try:
            while not self.leaving:
                found = await consumer.getmany(timeout_ms=int(POLL_S * 1000))
                self.owned = {at.partition for at in consumer.assignment()}
                self.values += [record.value for records in found.values() for record in records]
                if found:
                    with contextlib.suppress(AioKafkaError):
                        await consumer.commit()
        finally:
            await consumer.stop()


MEMBERS: dict[str, Callable[[str, str, str], Member]] = {
    "confluent": ConfluentMember,
    "cooperative": CooperativeMember,
    "server-assigned": ServerAssignedMember,
    "kafka-python": KafkaPythonMember,
    "aiokafka": AioKafkaMember,
}
