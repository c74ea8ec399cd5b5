"""Members of share groups by confluent-kafka's ShareConsumer: workers that say what becomes of each record.

Run as a program, it is a member that crashes: it takes records, says so, and waits to be killed.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from confluent_kafka import AcknowledgeType, Message, ShareConsumer
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType
from tests.compat import confluent_calls

WAIT_S = 60
POLL_S = 0.2
ROOT = Path(__file__).parents[2]

Decide = Callable[[Message], AcknowledgeType]


def consumer(bootstrap: str, group: str, **settings: object) -> ShareConsumer:
    return ShareConsumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "share.acknowledgement.mode": "explicit",
            **{name.replace("_", "."): value for name, value in settings.items()},
        }
    )


def begin_at_the_start(bootstrap: str, group: str) -> None:
    """Without this a share group begins at the end of a partition."""
    set_options(bootstrap, group, {"share.auto.offset.reset": "earliest"})


def set_options(bootstrap: str, group: str, options: dict[str, str]) -> None:
    """Sets options of a single group."""
    entries = [
        ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
        for name, value in options.items()
    ]
    wanted = ConfigResource(ResourceType.GROUP, group, incremental_configs=entries)
    for future in confluent_calls.admin(bootstrap).incremental_alter_configs([wanted]).values():
        future.result(WAIT_S)


class Worker(threading.Thread):
    """Reads as one member until `leave`; notes the offsets whose acceptance was confirmed."""

    def __init__(self, bootstrap: str, group: str, topic: str, decide: Decide) -> None:
        super().__init__(daemon=True)
        self._consumer = consumer(bootstrap, group, max_poll_records=20)
        self._topic = topic
        self._decide = decide
        self._leaving = threading.Event()
        self.accepted: list[int] = []
        self.deliveries: list[tuple[int, int]] = []
        """Offset and delivery count of everything received."""
        self.failure: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            self._consumer.subscribe([self._topic])
            while not self._leaving.is_set():
                self._work()
            self._consumer.close()
        except BaseException as error:
            self.failure = error

    def _work(self) -> None:
        accepted = []
        messages = [message for message in self._consumer.poll(POLL_S) if message.error() is None]
        for message in messages:
            verdict = self._decide(message)
            self._consumer.acknowledge(message, verdict)
            self.deliveries.append((message.offset(), message.delivery_count()))
            if verdict is AcknowledgeType.ACCEPT:
                accepted.append(message.offset())
        if messages and all(error is None for error in self._consumer.commit_sync(WAIT_S).values()):
            self.accepted += accepted

    def leave(self) -> None:
        self._leaving.set()
        self.join(WAIT_S)
        assert not self.is_alive(), "the member does not come to an end"
        if self.failure is not None:
            raise self.failure


class Crasher:
    """A member in a process of its own, killed while it holds records."""

    def __init__(self, bootstrap: str, group: str, topic: str) -> None:
        command = [sys.executable, "-m", "tests.compat.share_members", bootstrap, group, topic]
        self._child = subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT)

    def crash(self) -> int:
        """Waits until it holds something, and kills it; how many records it held."""
        assert self._child.stdout is not None
        try:
            return int(self._child.stdout.readline() or 0)
        finally:
            self._child.kill()
            self._child.wait()
            self._child.stdout.close()


def until(condition: Callable[[], bool], what: str, *workers: Worker) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        failed = [worker.failure for worker in workers if worker.failure is not None]
        assert not failed, f"a member failed before {what}: {failed}"
        assert time.monotonic() < deadline, f"waited in vain: {what}"
        time.sleep(0.05)


def hold(bootstrap: str, group: str, topic: str) -> None:
    member = consumer(bootstrap, group, max_poll_records=20)
    member.subscribe([topic])
    messages = []
    while not messages:
        messages = list(member.poll(POLL_S))
    sys.stdout.write(f"{len(messages)}\n")
    sys.stdout.flush()
    time.sleep(WAIT_S)


if __name__ == "__main__":
    hold(*sys.argv[1:])
