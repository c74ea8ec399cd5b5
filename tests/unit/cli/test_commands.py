"""The commands that talk to a broker, run as `braid` runs them, against a real one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest

from braidmq.cli import main
from braidmq.client import Consumer, Producer

NewTopic = Callable[..., str]


class Braid:
    """Runs commands in this process and keeps what they print."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys
        self.err = ""

    def __call__(self, *arguments: str, code: int = 0) -> str:
        self._capsys.readouterr()
        found = main(arguments)
        shown = self._capsys.readouterr()
        self.err = shown.err
        assert found == code, shown.err
        return shown.out

    def json(self, *arguments: str) -> Any:
        return json.loads(self(*arguments, "--json"))


@pytest.fixture
def braid(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, bootstrap: str) -> Braid:
    monkeypatch.setenv("BRAID_BOOTSTRAP", bootstrap)
    return Braid(capsys)


def fill(bootstrap: str, topic: str, count: int, partition: int = 0) -> None:
    with Producer(bootstrap) as producer:
        for number in range(count):
            producer.send(
                topic, b"v%d" % number, key=b"k%d" % number, partition=partition, timestamp_ms=number
            )


def test_a_topic_is_created_listed_described_altered_and_deleted(braid: Braid) -> None:
    """O1: the life of a topic from the command line."""
    assert braid("topic", "create", "life", "-p", "2", "-o", "retention.ms=5000") == "created life\n"
    assert braid.json("topic", "create", "life", "--if-not-exists") == {"topic": "life", "created": False}
    assert {"topic": "life", "partitions": 2, "records": 0} in braid.json("topic", "list")
    assert "life" in braid("topic", "list")
    braid("topic", "alter", "life", "-o", "segment.bytes=4096", "--reset", "retention.ms", "-p", "3")
    described = braid.json("topic", "describe", "life")
    assert len(described["partitions"]) == 3
    assert described["overridden"] == ["segment.bytes"]
    assert described["options"]["segment.bytes"] == "4096"
    assert "segment.bytes" in braid("topic", "describe", "life")
    assert braid.json("topic", "delete", "life", "--yes") == {"deleted": ["life"]}
    assert "life" not in braid("topic", "list", "--json")


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["topic", "describe", "missing"], 1, "there is no topic 'missing' (UNKNOWN_TOPIC_OR_PARTITION)"),
        (["topic", "create", "bad/name"], 1, "INVALID_TOPIC_EXCEPTION"),
        (["topic", "create", "x", "-o", "retention.m=1"], 2, "did you mean retention.ms"),
        (["topic", "create", "x", "-o", "retention.ms"], 2, "not of the form NAME=VALUE"),
        (["topic", "create", "x", "-p", "0"], 2, "--partitions"),
        (["topic", "alter", "x"], 2, "nothing to change"),
        (["topic", "lst"], 2, "list"),
        (["topc"], 2, "topic"),
        (["tail", "missing"], 1, "there is no topic 'missing' (UNKNOWN_TOPIC_OR_PARTITION)"),
        (["tail", "x", "--offset", "first"], 2, "earliest or latest"),
        (["tail", "x", "--format", "{nothing}"], 2, "it can use topic, partition"),
        (["tail", "x", "--offset", "1", "--from", "1h"], 2, "cannot be used together"),
        (["send", "x", "--key", "a", "-K", ":"], 2, "cannot be used together"),
        (["send", "x", "/nowhere"], 2, "cannot read /nowhere"),
        (["send", "x", "--whole"], 2, "name at least one"),
        (["send", "x", "-v", "a", "-H", "novalue"], 2, "NAME=VALUE"),
        (["perf", "consume", "missing"], 1, "there is no topic 'missing' (UNKNOWN_TOPIC_OR_PARTITION)"),
        (["config", "retention.m"], 2, "did you mean retention.ms"),
        (["doctor", "/nowhere"], 2, "is not a directory"),
        (["topic", "list", "-b", "host:port"], 2, "the port must be a number"),
    ],
)
def test_a_mistake_is_one_line_without_a_traceback(
    braid: Braid, arguments: list[str], code: int, message: str
) -> None:
    """O1: 2 where the user has to change something, 1 where the broker refused."""
    braid("topic", "create", "x", "--if-not-exists")
    assert braid(*arguments, code=code) == ""
    assert message in braid.err
    assert braid.err.count("\n") == 1


def test_no_broker_is_said_in_one_line(braid: Braid) -> None:
    """O1: with what to check."""
    braid("topic", "list", "--bootstrap", "127.0.0.1:1", code=1)
    assert "is a broker running there?" in braid.err


def test_send_and_tail_carry_keys_headers_and_partitions(braid: Braid, new_topic: NewTopic) -> None:
    """O1 P5: what is sent is what is shown."""
    topic = new_topic(partitions=2)
    sent = braid.json(
        "send", topic, "-k", "table 7", "-H", "till=2", "--partition", "1", "-v", "one", "-v", "two"
    )
    assert sent == {"topic": topic, "sent": 2, "partitions": {"1": 2}}
    rows = [json.loads(line) for line in braid("tail", topic, "--json").splitlines()]
    assert [(row["partition"], row["offset"], row["key"], row["value"], row["headers"]) for row in rows] == [
        (1, 0, "table 7", "one", [["till", "2"]]),
        (1, 1, "table 7", "two", [["till", "2"]]),
    ]
    assert (
        braid("tail", topic, "--format", "{key}: {value} @{offset}") == "table 7: one @0\ntable 7: two @1\n"
    )
    assert braid("tail", topic, "--format", "value") == "one\ntwo\n"
    line = braid("tail", topic, "-n", "1").split(" ", 1)[1]
    assert line == f"{topic}-1@1 key=table 7 till=2 two\n"


def test_tail_counts_records_and_not_the_ends_of_transactions(
    braid: Braid, new_topic: NewTopic, bootstrap: str
) -> None:
    """O1: the last records, however many offsets lie behind them that hold none."""
    topic = new_topic(partitions=1)
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "transactional.id": topic})
    producer.init_transactions()
    for number in range(20):
        producer.begin_transaction()
        producer.produce(topic, str(number).encode())
        producer.commit_transaction()
    assert braid("tail", topic, "-n", "1", "--format", "value") == "19\n"
    assert braid("tail", topic, "-n", "15", "--format", "value").split() == [*map(str, range(5, 20))]
    assert braid("tail", topic, "-n", "99", "--format", "value").split() == [*map(str, range(20))]


def test_send_reads_lines_of_files_and_whole_files(braid: Braid, new_topic: NewTopic, tmp_path: Path) -> None:
    """O1: files."""
    topic = new_topic()
    file = tmp_path / "orders.txt"
    file.write_bytes(b"a:1\nb:2\nc:3:4")
    braid("send", topic, str(file), "-K", ":", "-z", "zstd")
    assert braid("tail", topic, "--format", "{key}={value}") == "a=1\nb=2\nc=3:4\n"
    braid("send", topic, str(file), "--whole", "--acks", "1")
    assert braid("tail", topic, "-n", "1", "--format", "value") == "a:1\nb:2\nc:3:4\n"


def test_send_reads_stdin_and_sends_what_has_arrived_so_far(bootstrap: str, new_topic: NewTopic) -> None:
    """O1: a pipe that stays open does not hold records back."""
    topic = new_topic()
    process = subprocess.Popen(
        [sys.executable, "-m", "braidmq", "send", topic, "-b", bootstrap],
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert process.stdin is not None
    process.stdin.write(b"first\nsecond\nthi")
    process.stdin.flush()
    with Consumer(bootstrap) as consumer:
        consumer.assign(topic)
        values: list[bytes | None] = []
        while len(values) < 2:
            values += [message.value for message in consumer.poll()]
        assert values == [b"first", b"second"]
        _, said = process.communicate(b"rd")
        assert [message.value for message in consumer.poll(10)] == [b"third"]
    assert said == f"sent 3 records to {topic}\n".encode()


def test_tail_starts_at_an_offset_a_time_or_the_last_few(
    braid: Braid, bootstrap: str, new_topic: NewTopic
) -> None:
    """C7: replay from the command line."""
    topic = new_topic(partitions=2)
    fill(bootstrap, topic, 30, partition=0)
    fill(bootstrap, topic, 5, partition=1)
    offsets = ("--format", "{partition}:{offset}")
    assert braid("tail", topic, "-n", "3", *offsets).split() == ["0:27", "0:28", "0:29"]
    assert len(braid("tail", topic).splitlines()) == 10
    assert braid("tail", topic, "--partition", "0", "--offset", "27", *offsets).split() == [
        "0:27",
        "0:28",
        "0:29",
    ]
    assert braid("tail", topic, "--partition", "0", "--offset", "3", "-n", "2", *offsets).split() == [
        "0:3",
        "0:4",
    ]
    assert len(braid("tail", topic, "--offset", "earliest").splitlines()) == 35
    assert braid("tail", topic, "--offset", "latest") == ""
    since = ("--from", "1970-01-01T00:00:00.028Z")
    assert braid("tail", topic, *since, *offsets).split() == ["0:28", "0:29"]
    braid("tail", topic, "--partition", "2", code=2)
    assert "has partitions 0 to 1, not 2" in braid.err


def test_tail_follows_and_ends_quietly_when_its_reader_has_enough(
    bootstrap: str, new_topic: NewTopic
) -> None:
    """C1: what arrives is shown at once; `braid tail -f | head` ends."""
    topic = new_topic()
    process = subprocess.Popen(
        [sys.executable, "-m", "braidmq", "tail", topic, "-f", "-b", bootstrap, "--format", "value"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert process.stdout is not None
    assert process.stderr is not None
    with Producer(bootstrap) as producer:
        producer.send(topic, b"one").result()
        assert process.stdout.readline() == b"one\n"
        producer.send(topic, b"two").result()
        assert process.stdout.readline() == b"two\n"
        process.stdout.close()
        while process.poll() is None:
            producer.send(topic, b"more").result()
    assert process.returncode == 141
    assert process.stderr.read() == b""
    process.stderr.close()


def test_bytes_that_are_not_text_are_shown_escaped(braid: Braid, bootstrap: str, new_topic: NewTopic) -> None:
    """O1: nothing in a topic can break the terminal or the JSON."""
    topic = new_topic()
    with Producer(bootstrap) as producer:
        producer.send(topic, b"\xff\x00ok", key=None)
        producer.send(topic, None, key=b"\xfe")
    rows = [json.loads(line) for line in braid("tail", topic, "--json").splitlines()]
    assert [(row["key"], row["value"]) for row in rows] == [(None, "\\xff\x00ok"), ("\\xfe", None)]


def test_perf_measures_what_it_moves(braid: Braid, new_topic: NewTopic) -> None:
    """O1: counts are exact, whatever the rates."""
    topic = new_topic(partitions=3)
    produced = braid.json(
        "perf", "produce", topic, "-n", "6000", "--batch", "500", "--size", "50", "-z", "lz4"
    )
    assert (produced["records"], produced["bytes"]) == (6000, 300_000)
    assert produced["latency_ms"]["acknowledged"]["max"] > 0
    assert braid.json("perf", "consume", topic)["records"] == 6000
    shown = braid("perf", "produce", topic, "--seconds", "0.2", "--acks", "0")
    assert "records/s" in shown


def test_perf_latency_times_every_record_to_the_consumer(braid: Braid, new_topic: NewTopic) -> None:
    """O1: acknowledged, and end to end, with a histogram for people."""
    topic = new_topic()
    measured = braid.json("perf", "latency", topic, "-n", "50", "--rate", "500")
    assert measured["records"] == 50
    assert set(measured["latency_ms"]) == {"acknowledged", "end to end"}
    shown = braid("perf", "latency", topic, "-n", "50", "--rate", "500")
    assert "end to end, ms: min" in shown
    assert "##" in shown


def test_config_explains_all_options_and_one(braid: Braid) -> None:
    """O1: the table and the sentence."""
    everything = braid.json("config")
    assert {row["name"] for row in everything} >= {"retention.ms", "flush", "num.partitions"}
    one = braid.json("config", "flush")
    assert (one["default"], one["permitted"], one["environment"]) == ("sync", "sync | async", "BRAID_FLUSH")
    assert "BRAID_RETENTION_MS" in braid("config", "retention.ms")
    assert "retention.ms" in braid("config")


def test_version_and_help_are_there(braid: Braid) -> None:
    """O1: the first things people type."""
    from braidmq import __version__

    assert braid("--version") == f"braid {__version__}\n"
    helped = braid("--help")
    for noun in ("serve", "topic", "send", "tail", "perf", "doctor", "config"):
        assert noun in helped
    for command in (["topic", "create"], ["send"], ["tail"], ["perf", "produce"], ["doctor"], ["config"]):
        assert "Example" in braid(*command, "--help")
    assert "examples:" in _help_of_serve(braid)


def _help_of_serve(braid: Braid) -> str:
    with pytest.raises(SystemExit):
        braid("serve", "--help")
    return braid._capsys.readouterr().out
