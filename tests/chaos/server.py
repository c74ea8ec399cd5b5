"""The server of an exactly-once run: Braid, or Apache Kafka to prove the run itself; both die and come back.

Groups and transactions have short time-outs, so that a run sees many of them.
"""

from __future__ import annotations

import random
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from bench.kafka import Kafka
from tests.chaos.kills import kill_and_restart

from braidmq.testing import BrokerProcess, ClusterProcess, cluster

SESSION_MS = 1_500
HEARTBEAT_MS = 250
GROUPS = {
    "group.min.session.timeout.ms": 500,
    "group.initial.rebalance.delay.ms": 100,
    "group.consumer.session.timeout.ms": SESSION_MS,
    "group.consumer.heartbeat.interval.ms": HEARTBEAT_MS,
}
OPTIONS: dict[str, object] = {**GROUPS, "log.checkpoint.interval.ms": 300}
KAFKA_BESIDES = {
    "group.consumer.min.session.timeout.ms": SESSION_MS,
    "group.consumer.min.heartbeat.interval.ms": HEARTBEAT_MS,
    "group.streams.min.session.timeout.ms": 6_000,
    "group.streams.session.timeout.ms": 6_000,
    "group.streams.min.heartbeat.interval.ms": HEARTBEAT_MS,
    "group.streams.heartbeat.interval.ms": 1_000,
    "group.streams.initial.rebalance.delay.ms": 500,
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": 250,
}


class Server(Protocol):
    """What a run needs of a server; its address outlives its crashes."""

    @property
    def bootstrap(self) -> str: ...

    def crash(self, chance: random.Random) -> int:
        """kill -9 and a new start on the same data; returns how often it was killed on the way."""
        ...


class BraidServer:
    def __init__(self, process: BrokerProcess) -> None:
        self._process = process

    @property
    def bootstrap(self) -> str:
        return self._process.bootstrap

    def crash(self, chance: random.Random) -> int:
        return kill_and_restart(self._process, chance)


class BraidCluster:
    """Several brokers, one of which dies at a time; its supervisor brings it back."""

    def __init__(self, process: ClusterProcess) -> None:
        self._process = process

    @property
    def bootstrap(self) -> str:
        return self._process.bootstrap

    def crash(self, chance: random.Random) -> int:
        node_id = 1 + chance.randrange(self._process.brokers)
        pid = self._process.pid_of(node_id)
        self._process.kill_broker(node_id)
        self._process.await_broker(node_id, other_than=pid)
        return 1


class KafkaServer(Kafka):
    """Kafka with short time-outs, always at the same address."""

    def crash(self, chance: random.Random) -> int:  # noqa: ARG002
        assert self.process is not None
        self.process.kill()
        self.process.wait()
        self.start()
        return 1

    def _write_properties(self) -> None:
        if self._properties.exists():
            return
        super()._write_properties()
        with self._properties.open("a") as file:
            for name, value in {**GROUPS, **KAFKA_BESIDES}.items():
                file.write(f"{name}={value}\n")


@contextmanager
def braid_cluster(brokers: int) -> Iterator[Server]:
    """Brokers of ours that form a cluster."""
    with cluster(brokers, **{name.replace(".", "_"): value for name, value in OPTIONS.items()}) as process:
        yield BraidCluster(process)


@contextmanager
def braid(sabotage: str | None = None) -> Iterator[Server]:
    """A broker of ours; with the name of a sabotage, one that has this bug."""
    with tempfile.TemporaryDirectory(prefix="chaos-") as directory:
        made = BrokerProcess(Path(directory), OPTIONS)
        if sabotage is not None:
            made = SabotagedBroker(Path(directory), OPTIONS)
            made.sabotage = sabotage
        with made as process:
            yield BraidServer(process)


@contextmanager
def sabotaged(bug: str, **options: object) -> Iterator[BrokerProcess]:
    """A broker with this bug, in the place of `braidmq.testing.broker`."""
    with tempfile.TemporaryDirectory(prefix="chaos-") as directory:
        made = SabotagedBroker(
            Path(directory), {name.replace("_", "."): one for name, one in options.items()}
        )
        made.sabotage = bug
        with made as process:
            yield process


class SabotagedBroker(BrokerProcess):
    sabotage = ""

    def _program(self) -> list[str]:
        return [sys.executable, "-m", "tests.chaos.sabotage", self.sabotage]


@contextmanager
def kafka(jars: Path) -> Iterator[Server]:
    with tempfile.TemporaryDirectory(prefix="chaos-kafka-") as directory:
        server = KafkaServer(Path(directory), jars)
        server.start()
        try:
            yield server
        finally:
            server.stop()
