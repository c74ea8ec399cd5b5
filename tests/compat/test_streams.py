"""Kafka Streams in its new rebalance protocol (KIP-1071): a word count of two processes, one is killed.

Every word's counts have to come out as 1, 2, 3 and so on, each once. With exactly_once_v2 that has to hold
whenever a process dies; with at_least_once it holds if everything was committed before.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from tests.chaos.load import ONE_BROKER
from tests.compat import confluent_calls
from tests.compat.conftest import FOREIGN_SERVER

from braidmq.testing import BrokerProcess

JARS = os.environ.get("BRAID_COMPAT_JARS")
SOURCES = Path(__file__).parent / "java"
WAIT_S = 90
PARTITIONS = 3
LINES = 600
THREADS = 2
"""Of each process; see WordCount.java."""
WORDS = ("to", "be", "or", "not", "whether", "tis", "nobler", "in", "the", "mind")

pytestmark = [
    pytest.mark.skipif(
        JARS is None or shutil.which("javac") is None or not any(Path(JARS).glob("kafka-streams-*.jar")),
        reason="needs a JDK, and Kafka Streams in BRAID_COMPAT_JARS, which scripts/compat sets",
    ),
    pytest.mark.timeout(400),
]


class Instance:
    """One process of the application, and what it says."""

    def __init__(
        self, classes: Path, bootstrap: str, application: str, number: int, directory: Path, guarantee: str
    ) -> None:
        state = directory / f"state-{number}"
        command = [
            "java", "-Xmx192m", "-XX:TieredStopAtLevel=1", "-cp", f"{classes}:{JARS}/*", "WordCount",
            bootstrap, application, str(state), guarantee, str(9_000 + number),
        ]  # fmt: skip
        self._errors = state.with_suffix(".err")
        with self._errors.open("wb") as errors:
            self._child = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True
            )
        self._said: list[str] = []
        self._heard = threading.Condition()
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def _listen(self) -> None:
        assert self._child.stdout is not None
        with self._child.stdout as said:
            for line in said:
                with self._heard:
                    self._said.append(line.strip())
                    self._heard.notify_all()

    def await_said(self, what: str) -> None:
        with self._heard:
            if not self._heard.wait_for(lambda: what in self._said, WAIT_S):
                raise AssertionError(f"{what} did not come: {self._said} {self._errors.read_text()[-3000:]}")

    def tell(self, text: str) -> None:
        assert self._child.stdin is not None
        self._child.stdin.write(text)
        self._child.stdin.flush()

    def kill(self) -> None:
        self._child.kill()
        self._child.wait()
        self._listener.join()
        assert self._child.stdin is not None
        self._child.stdin.close()

    def end(self) -> None:
        """In order: it leaves the group."""
        self.tell("e")
        self.await_said("ok")
        assert self._child.wait(WAIT_S) == 0


class Application:
    """The processes of one word count, its topics, and what came out of it."""

    def __init__(self, bootstrap: str, name: str, classes: Path, directory: Path, guarantee: str) -> None:
        self.bootstrap, self.name = bootstrap, name
        self._classes, self._directory, self._guarantee = classes, directory, guarantee
        self.instances: list[Instance] = []
        self.expected: Counter[str] = Counter()
        for topic in ("lines", "counts"):
            confluent_calls.create_topic(bootstrap, f"{name}-{topic}", partitions=PARTITIONS)
        self._producer = Producer({"bootstrap.servers": bootstrap, **ONE_BROKER})
        self._found: dict[str, list[int]] = {}
        self._reader = Consumer(
            {"bootstrap.servers": bootstrap, "group.id": f"{name}-reader", "enable.auto.commit": False}
        )
        self._reader.assign([TopicPartition(f"{name}-counts", index, 0) for index in range(PARTITIONS)])

    def start(self) -> Instance:
        number, folder = len(self.instances), self._directory
        made = Instance(self._classes, self.bootstrap, self.name, number, folder, self._guarantee)
        self.instances.append(made)
        return made

    def produce(self, lines: int) -> None:
        for number in range(lines):
            words = [WORDS[number % 10], WORDS[number * 7 % 10], WORDS[number // 10 % 10]]
            self.expected.update(words)
            self._producer.produce(f"{self.name}-lines", " ".join(words), partition=number % PARTITIONS)
        self._producer.flush()

    def await_counts(self) -> None:
        """Every word was counted up to what it should be, one by one."""
        deadline = time.monotonic() + WAIT_S
        while any(max(self._found.get(word, [0])) < count for word, count in self.expected.items()):
            assert time.monotonic() < deadline, (self.expected, {w: max(c) for w, c in self._found.items()})
            for message in self._reader.consume(1000, 0.2):
                assert message.error() is None
                self._found.setdefault(message.key().decode(), []).append(int(message.value()))
        assert self._found == {word: list(range(1, n + 1)) for word, n in self.expected.items()}

    def await_committed(self) -> None:
        """Everything that was read is committed, so that nothing is read again."""
        topics = (f"{self.name}-lines", f"{self.name}-words-repartition")
        places = [TopicPartition(topic, index) for topic in topics for index in range(PARTITIONS)]
        settings = {"bootstrap.servers": self.bootstrap, "group.id": self.name}
        looking = Consumer(settings)
        deadline = time.monotonic() + WAIT_S
        try:
            ends = [looking.get_watermark_offsets(place, timeout=WAIT_S)[1] for place in places]
            while [max(one.offset, 0) for one in looking.committed(places, timeout=WAIT_S)] != ends:
                assert time.monotonic() < deadline, (ends, looking.committed(places))
                time.sleep(0.2)
        finally:
            looking.close()

    def administer(self, *arguments: str) -> None:
        command = ["java", "-cp", f"{self._classes}:{JARS}/*", "StreamsGroupAdmin", self.bootstrap, self.name]
        done = subprocess.run([*command, *arguments], capture_output=True, text=True, timeout=WAIT_S)
        assert done.returncode == 0, done.stdout + done.stderr
        assert done.stdout.splitlines()[-1] == "ok"

    def close(self) -> None:
        for instance in self.instances:
            instance.kill()
        self._reader.close()


@pytest.fixture(scope="session")
def classes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Java programs, compiled once."""
    folder = tmp_path_factory.mktemp("classes")
    sources = [str(SOURCES / f"{name}.java") for name in ("WordCount", "StreamsGroupAdmin")]
    subprocess.run(["javac", "-cp", f"{JARS}/*", "-d", str(folder), *sources], check=True)
    return folder


@pytest.fixture
def application(
    bootstrap: str,
    new_name: Callable[[], str],
    classes: Path,
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> Iterator[Application]:
    made = Application(bootstrap, new_name(), classes, tmp_path, request.param)
    yield made
    made.close()


@pytest.mark.parametrize("application", ["at_least_once"], indirect=True)
def test_a_word_count_goes_on_when_one_of_its_processes_is_killed(application: Application) -> None:
    """C4 F1: tasks of both subtopologies move with their state; standbys as the group's option says."""
    application.administer("standbys", "1")
    application.produce(LINES)
    first, second = application.start(), application.start()
    first.await_said("RUNNING")
    second.await_said("RUNNING")
    application.await_counts()
    application.administer("running", str(2 * THREADS), str(2 * PARTITIONS), str(PARTITIONS))
    application.await_committed()
    first.kill()
    application.produce(LINES)
    application.await_counts()
    application.administer("running", str(THREADS), str(2 * PARTITIONS), "0")
    second.tell("h")
    second.await_said("hosts 1")
    second.end()
    application.administer("empty")


@pytest.mark.skipif(FOREIGN_SERVER in os.environ, reason="another's server is not ours to stop")
@pytest.mark.braid(group_streams_initial_rebalance_delay_ms=500, group_streams_session_timeout_ms=10_000)
def test_a_word_count_goes_on_when_the_broker_is_killed(
    braid_broker: BrokerProcess, classes: Path, tmp_path: Path
) -> None:
    """C4 T2 F1: members, tasks and epochs are on disk, so the threads keep what they have."""
    application = Application(braid_broker.bootstrap, "words", classes, tmp_path, "exactly_once_v2")
    try:
        first, second = application.start(), application.start()
        first.await_said("RUNNING")
        second.await_said("RUNNING")
        for _ in range(3):
            application.produce(LINES)
            braid_broker.kill()
            braid_broker.start()
        application.await_counts()
        application.administer("running", str(2 * THREADS), str(2 * PARTITIONS), "0")
    finally:
        application.close()


@pytest.mark.parametrize("application", ["exactly_once_v2"], indirect=True)
def test_a_word_count_in_transactions_counts_once_whenever_a_process_is_killed(
    application: Application,
) -> None:
    """C4 T2 F1: in the middle of its work; a third process comes later and takes its share."""
    application.produce(LINES)
    first, second = application.start(), application.start()
    first.await_said("RUNNING")
    second.await_said("RUNNING")
    application.produce(LINES)
    first.kill()
    application.produce(LINES)
    application.start().await_said("RUNNING")
    application.produce(LINES)
    application.await_counts()
    application.administer("running", str(2 * THREADS), str(2 * PARTITIONS), "0")
    for instance in application.instances[1:]:
        instance.end()
    application.administer("empty")
