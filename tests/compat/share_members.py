"""Members of share groups by confluent-kafka's ShareConsumer: workers that say what becomes of each record.

Run as a program, it is a crew of several members in one process, to be killed in the middle of its work. What
its members are given and what they accept goes into a file that survives them.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from confluent_kafka import AcknowledgeType, Message, ShareConsumer
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType
from tests.compat import confluent_calls
from tests.history.share_reading import ShareReading

WAIT_S = 60
POLL_S = 0.2
ROOT = Path(__file__).parents[2]

Decide = Callable[[Message], AcknowledgeType]
Note = Callable[..., None]


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

    def __init__(
        self, bootstrap: str, group: str, topic: str, decide: Decide, note: Note = lambda *_: None
    ) -> None:
        super().__init__(daemon=True)
        self._note = note
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
            self._note("delivered", *self.deliveries[-1])
            if verdict is AcknowledgeType.ACCEPT:
                accepted.append(message.offset())
                self._note("accepting", message.offset())
        if messages and all(error is None for error in self._consumer.commit_sync(WAIT_S).values()):
            self.accepted += accepted
            for offset in accepted:
                self._note("accepted", offset)

    def leave(self) -> None:
        self._leaving.set()
        self.join(WAIT_S)
        assert not self.is_alive(), "the member does not come to an end"
        if self.failure is not None:
            raise self.failure


class CrewProcess:
    """Several members in a process of their own."""

    def __init__(self, bootstrap: str, group: str, topic: str, members: int, diary: Path) -> None:
        arguments = [bootstrap, group, topic, str(members), str(diary)]
        command = [sys.executable, "-m", "tests.compat.share_members", *arguments]
        self._diary = diary
        self._child = subprocess.Popen(command, stdin=subprocess.PIPE, cwd=ROOT)

    @property
    def lines(self) -> list[str]:
        return self._diary.read_text().splitlines() if self._diary.exists() else []

    @property
    def failure(self) -> str | None:
        code = self._child.poll()
        return None if code in (None, 0, -signal.SIGKILL) else f"it ended with {code}"

    def kill(self) -> None:
        self._child.kill()
        self._close()

    def leave(self) -> None:
        until(self._diary.exists, "the crew can be told to leave", self)
        self._child.terminate()
        code = self._child.wait(WAIT_S)
        assert code == 0, f"it ended with {code}"
        self._close()

    def _close(self) -> None:
        self._child.wait()
        assert self._child.stdin is not None
        self._child.stdin.close()


def tell(group: ShareReading, lines: Iterable[str]) -> None:
    """Hands a crew's diary to the checker."""
    for line in lines:
        when, what, *offsets = line.split()
        if what == "delivered":
            group.delivered(int(when), *map(int, offsets))
        elif what == "accepting":
            group.accepting(int(offsets[0]))
        else:
            group.accepted(int(when), int(offsets[0]))


def until(condition: Callable[[], bool], what: str, *workers: Worker | CrewProcess) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        failed = [worker.failure for worker in workers if worker.failure is not None]
        assert not failed, f"a member failed before {what}: {failed}"
        assert time.monotonic() < deadline, f"waited in vain: {what}"
        time.sleep(0.05)


POISONED_EVERY = 100
POISON = 7
RELEASED = 0.2


def is_poison(offset: int) -> bool:
    """Whether nobody in a crew ever accepts it."""
    return offset % POISONED_EVERY == POISON


def whim(message: Message) -> AcknowledgeType:
    """Releases some on their first delivery, and poison always; so crashes cannot use up all deliveries."""
    release = is_poison(message.offset()) or (message.delivery_count() == 1 and random.random() < RELEASED)
    return AcknowledgeType.RELEASE if release else AcknowledgeType.ACCEPT


def main(bootstrap: str, group: str, topic: str, members: str, diary: str) -> None:
    told = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: told.set())
    file = os.open(diary, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def note(what: str, *offsets: int) -> None:
        os.write(file, (" ".join(map(str, (time.monotonic_ns(), what, *offsets))) + "\n").encode())

    crew = [Worker(bootstrap, group, topic, whim, note) for _ in range(int(members))]
    threading.Thread(target=lambda: (sys.stdin.read(), os._exit(1)), daemon=True).start()
    while not told.wait(0.1) and all(worker.failure is None for worker in crew):
        pass
    for worker in crew:
        worker.leave()


if __name__ == "__main__":
    main(*sys.argv[1:])
