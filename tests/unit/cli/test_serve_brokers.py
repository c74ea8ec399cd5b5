"""`braid serve --brokers N` as its users have it: processes, clients, kills."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

import braidmq
from braidmq.address import Address
from braidmq.client.connection import Connection
from braidmq.platform.lock import holder_of
from braidmq.testing import broker
from braidmq.wire.messages.metadata import MetadataRequest, MetadataResponse
from patience import wait_until

ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(braidmq.__file__).parents[1])}


def free_port(count: int = 1) -> int:
    """The first of so many ports in a row that are free now."""
    while True:
        with socket.socket() as first:
            first.bind(("127.0.0.1", 0))
            port: int = first.getsockname()[1]
        try:
            for other in range(port, port + count):
                with socket.socket() as one:
                    one.bind(("127.0.0.1", other))
        except OSError:
            continue
        return port


class Cluster:
    """Brokers under a supervisor."""

    def __init__(self, data: Path, brokers: int, *words: str, port: int | None = None) -> None:
        self.data, self.brokers, self.words = data, brokers, words
        self.port = port or free_port(brokers)
        self.stderr = data.parent / "stderr.txt"
        self.process: subprocess.Popen[bytes] | None = None
        self.start()

    def start(self) -> None:
        command = [sys.executable, "-m", "braidmq", "serve", "--brokers", str(self.brokers)]
        command += ["--listen", f"127.0.0.1:{self.port}", "--data", str(self.data), *self.words]
        with self.stderr.open("ab") as stderr:
            self.process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=stderr, env=ENVIRONMENT, stdin=subprocess.DEVNULL
            )
        assert self.process.stdout is not None
        line = self.process.stdout.readline().decode()
        assert line == f"ready {self.bootstrap} brokers={self.brokers} data={self.data}\n", self.said()

    def said(self) -> str:
        return self.stderr.read_text()

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.port}"

    def end(self, number: signal.Signals) -> int:
        process, self.process = self.process, None
        assert process is not None
        assert process.stdout is not None
        process.send_signal(number)
        with process.stdout:
            return process.wait(60)


@contextmanager
def cluster(data: Path, brokers: int = 3, *words: str, port: int | None = None) -> Iterator[Cluster]:
    running = Cluster(data, brokers, *words, port=port)
    try:
        yield running
    finally:
        if running.process is not None:
            running.end(signal.SIGTERM)
        # A test that failed in between may have left brokers without their supervisor.
        for home in (one for one in data.iterdir() if one.is_dir()):
            if (pid := holder_of(home)) and pid != os.getpid():
                os.kill(pid, signal.SIGKILL)


def serve(*words: str) -> subprocess.CompletedProcess[str]:
    """A start that is refused."""
    return subprocess.run(
        [sys.executable, "-m", "braidmq", "serve", *words],
        env=ENVIRONMENT, capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip


def create(bootstrap: str, name: str, partitions: int) -> dict[int, int]:
    """Creates a topic; the leader of each partition."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(name, partitions)])[name].result(30)
    return leaders(bootstrap, name)


def leaders(bootstrap: str, name: str) -> dict[int, int]:
    found = AdminClient({"bootstrap.servers": bootstrap}).list_topics(name, timeout=30).topics[name]
    return {index: partition.leader for index, partition in found.partitions.items()}


def send(bootstrap: str, topic: str, partitions: int, texts: list[str], idempotent: bool = True) -> None:
    failed = []
    producer = Producer({"bootstrap.servers": bootstrap, "acks": "all", "enable.idempotence": idempotent})
    for at, text in enumerate(texts):
        producer.produce(
            topic, text.encode(), partition=at % partitions, on_delivery=lambda error, _: failed.append(error)
        )
    assert producer.flush(60) == 0
    assert set(failed) == {None}


def read(bootstrap: str, topic: str, partitions: int, count: int, group: str = "") -> list[str]:
    """All records by assignment, or in a group what it has not read yet."""
    options = {"bootstrap.servers": bootstrap, "group.id": group or "g", "auto.offset.reset": "earliest"}
    consumer = Consumer({**options, "enable.auto.commit": bool(group)})
    if group:
        consumer.subscribe([topic])
    else:
        consumer.assign([TopicPartition(topic, index, 0) for index in range(partitions)])
    found: list[str] = []
    deadline = time.monotonic() + 60
    while len(found) < count and time.monotonic() < deadline:
        message = consumer.poll(1.0)
        if message is not None and message.error() is None:
            found.append((message.value() or b"").decode())
    consumer.close()
    return sorted(found)


def test_clients_see_as_many_brokers_and_kills_lose_nothing(tmp_path: Path) -> None:
    """W2 R5: topics over all brokers; a broker that is killed comes back, with what it had."""
    with cluster(tmp_path / "data") as running:
        led = create(running.bootstrap, "t", 6)
        assert sorted(led.values()) == [1, 1, 2, 2, 3, 3]
        texts = sorted(f"{number:03}" for number in range(60))
        send(running.bootstrap, "t", 6, texts)
        assert read(running.bootstrap, "t", 6, 60, group="g1") == texts
        pid = holder_of(tmp_path / "data" / "2")
        assert pid
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: holder_of(tmp_path / "data" / "2") not in (None, pid))
        wait_until(lambda: leaders(running.bootstrap, "t") == led)
        send(running.bootstrap, "t", 6, texts)
        assert read(running.bootstrap, "t", 6, 120) == sorted(texts * 2)
        assert read(running.bootstrap, "t", 6, 60, group="g1") == texts
        assert running.end(signal.SIGTERM) == 0
        assert "[broker 2]" in running.said()
        assert not (tmp_path / "data" / "1" / "active").exists(), "it was not stopped cleanly"


def test_a_killed_supervisor_stops_nobody_and_finds_them_again(tmp_path: Path) -> None:
    """W2 N4: data flows without it; a new one keeps the processes, and changes work again."""
    with cluster(tmp_path / "data", 2) as running:
        create(running.bootstrap, "t", 4)
        running.end(signal.SIGKILL)
        pids = [holder_of(tmp_path / "data" / name) for name in "12"]
        assert all(pids)
        texts = sorted(f"{number:03}" for number in range(20))
        # A new producer's id would come from the store.
        send(running.bootstrap, "t", 4, texts, idempotent=False)
        running.start()
        assert [holder_of(tmp_path / "data" / name) for name in "12"] == pids
        create(running.bootstrap, "u", 2)
        assert read(running.bootstrap, "t", 4, 20) == texts
        assert running.end(signal.SIGINT) == 0
        assert [holder_of(tmp_path / "data" / name) for name in "12"] == [None, None]


def test_the_brokers_of_a_killed_supervisor_stop_if_they_should(tmp_path: Path) -> None:
    """W2: with --stop-on-eof nothing is left behind."""
    with cluster(tmp_path / "data", 2, "-o", "log.sync.threads=1") as running:
        running.end(signal.SIGTERM)
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "braidmq", "serve", "--brokers", "2", "--stop-on-eof"),
            *("--listen", "127.0.0.1:0", "--data", str(tmp_path / "data")),
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=ENVIRONMENT,
    )
    assert process.stdout is not None
    assert process.stdin is not None
    with process.stdout, process.stdin:
        assert process.stdout.readline().startswith(b"ready ")
        process.kill()
        process.wait()
    wait_until(lambda: not any(holder_of(tmp_path / "data" / name) for name in "12"))


def test_a_single_broker_becomes_the_first_of_several_and_can_go_back(tmp_path: Path) -> None:
    """W2 N4: topics, records, groups and ids survive both ways; back only while the others hold nothing."""
    texts = sorted(f"{number:03}" for number in range(10))
    with broker(data=tmp_path) as single:
        create(single.bootstrap, "old", 2)
        send(single.bootstrap, "old", 2, texts)
        assert read(single.bootstrap, "old", 2, 10, group="g1") == texts
        cluster_id = AdminClient({"bootstrap.servers": single.bootstrap}).list_topics(timeout=30).cluster_id
    with cluster(tmp_path / "data", 2) as running:
        assert set(leaders(running.bootstrap, "old").values()) == {1}
        send(running.bootstrap, "old", 2, ["more"])
        assert read(running.bootstrap, "old", 2, 1, group="g1") == ["more"]
        found = AdminClient({"bootstrap.servers": running.bootstrap}).list_topics(timeout=30)
        assert found.cluster_id == cluster_id
        assert len(found.brokers) == 2
        running.end(signal.SIGTERM)
    with broker(data=tmp_path) as single:
        assert read(single.bootstrap, "old", 2, 11) == [*texts, "more"]
    with cluster(tmp_path / "data", 2) as running:
        create(running.bootstrap, "new", 2)
        running.end(signal.SIGTERM)
    refused = serve("--data", str(tmp_path / "data"), "--listen", "127.0.0.1:0")
    assert refused.returncode == 2
    assert "(broker 2: 2); start with --brokers 2" in refused.stderr


def test_every_broker_has_a_forwarding_listener_of_its_own(tmp_path: Path) -> None:
    """N5: on the next port, like the ordinary one; a path with spaces, and one of a socket's length, work."""
    port = free_port(4)
    data = tmp_path / "data of Ms. O'Hara" / ("x" * 60)
    (tmp_path / "braid.toml").write_text(f'"forward.listen" = "127.0.0.1:{port + 2}"\n')
    data.parent.mkdir()
    with cluster(data, 2, "--config", str(tmp_path / "braid.toml"), port=port) as running:
        assert sorted(create(running.bootstrap, "t", 2).values()) == [1, 2]
        for number, shown in ((1, port + 2), (2, port + 3)):
            with Connection(Address("127.0.0.1", shown)) as client:
                answer = client.call(MetadataRequest(topics=[]), MetadataResponse)
            assert [(one.node_id, one.port) for one in answer.brokers] == [(number, shown)]


def test_a_damaged_store_is_one_line_for_one_broker_and_for_several(tmp_path: Path) -> None:
    """W2: and exit code 1, as for any damage."""
    (tmp_path / "cluster").mkdir()
    (tmp_path / "cluster" / "metadata.store").write_bytes(b"nonsense" * 40)
    for words in ([], ["--brokers", "2"]):
        refused = serve("--data", str(tmp_path), "--listen", "127.0.0.1:0", *words)
        assert refused.returncode == 1
        assert "metadata.store: the entry at byte 0 is damaged" in refused.stderr
        assert "Traceback" not in refused.stderr


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--brokers", "0"], "a number from 1 to 256, or auto"),
        (["--brokers", "-1"], "a number from 1 to 256, or auto"),
        (["--brokers", "9" * 5000], "a number from 1 to 256, or auto"),
        (["--brokers", "many"], "a number from 1 to 256, or auto"),
        (["--brokers", "2", "--advertise", "queue:65535"], "--advertise queue:65535 with 2 brokers"),
        (["--brokers", "2", "-o", "forward.listen=[::1]:65535"], "there is no port 65536"),
        (["--brokers", "2", "-o", "forward.listen=0.0.0.0:9093"], "leave 2 between them"),
        (["--brokers", "3", "--listen", "127.0.0.1:65534"], "there is no port 65536"),
        (["--join", "127.0.0.1:1", "--store", "file"], "use one of them"),
        (["--join", "127.0.0.1:1"], "cannot reach 127.0.0.1:1"),
        (["--store", "nonsense", "--brokers", "2"], "is no metadata store"),
    ],
)
def test_mistakes_are_one_line_that_says_what_to_do(tmp_path: Path, words: list[str], why: str) -> None:
    """W2: and nothing is started."""
    refused = serve("--data", str(tmp_path / "d"), *words)
    assert refused.returncode == 2, refused.stderr
    assert why in refused.stderr
    assert "Traceback" not in refused.stderr


def test_a_broker_joins_by_asking_another_one(tmp_path: Path) -> None:
    """N4: it takes the store from a broker's options, and remembers it."""
    with cluster(tmp_path / "data", 1) as running:
        words = ["--join", running.bootstrap, "--node-id", "7", "--data", str(tmp_path / "seventh")]
        joined = subprocess.Popen(
            [sys.executable, "-m", "braidmq", "serve", *words, "--listen", "127.0.0.1:0"],
            stdout=subprocess.PIPE,
            env=ENVIRONMENT,
        )
        assert joined.stdout is not None
        with joined.stdout:
            assert b"node=7" in joined.stdout.readline()
            found = AdminClient({"bootstrap.servers": running.bootstrap}).list_topics(timeout=30)
            assert sorted(found.brokers) == [1, 7]
            assert set(create(running.bootstrap, "t", 4).values()) == {1, 7}
            joined.terminate()
            assert joined.wait(60) == 0
        (tmp_path / "file").touch()
        refused = serve("--join", running.bootstrap, "--data", str(tmp_path / "file"))
        assert (
            refused.stderr == f"braid serve: cannot use the data directory {tmp_path / 'file'}: File exists\n"
        )
    assert "store" in (tmp_path / "seventh" / "join").read_text()
    with broker() as single:
        refused = serve("--join", single.bootstrap, "--data", str(tmp_path / "x"))
        assert refused.returncode == 2
        assert "keeps its metadata for itself" in refused.stderr
