"""Results as a table, as JSON and as CSV; and questions, with and without a terminal."""

from __future__ import annotations

import csv
import io
import os
import pty
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from braidmq.client import Admin, Producer
from unit.cli.conftest import Braid

NewTopic = Callable[..., str]


def rows(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def test_tables_are_printed_as_csv(braid: Braid, bootstrap: str, new_topic: NewTopic) -> None:
    """O1: a heading and a row each, numbers as they are, and nothing else on stdout."""
    topic = new_topic(partitions=2)
    with Producer(bootstrap) as producer:
        for number in range(1500):
            producer.send(topic, b"%d" % number, partition=1)
    listed = {row["topic"]: row for row in rows(braid("topic", "list", "--output", "csv")[0])}
    assert listed[topic] == {"topic": topic, "partitions": "2", "records": "1500"}
    described = rows(braid("topic", "describe", topic, "--output", "csv")[0])
    assert [(row["partition"], row["end"]) for row in described] == [("0", "0"), ("1", "1500")]
    group = f"of-{topic}"
    words = ("group", "reset", group, "-t", topic, "--to-latest", "--output", "csv")
    assert rows(braid(*words, "--dry-run")[0])[1] == {
        "topic": topic,
        "partition": "1",
        "from": "",
        "to": "1500",
    }
    assert rows(braid(*words, "--yes")[0])[1]["to"] == "1500"
    assert rows(braid("group", "describe", group, "--output", "csv")[0])[1]["lag"] == "0"
    states = {row["group"]: row["state"] for row in rows(braid("group", "list", "--output", "csv")[0])}
    assert states[group] == "Empty"
    assert braid("txn", "hanging", "-t", topic, "--output", "csv")[0] == (
        "topic,partition,start offset,producer id,epoch,last written\n"
    )
    options = {row["name"]: row for row in rows(braid("config", "--output", "csv")[0])}
    assert options["flush"]["default"] == "sync"
    templates = {row["template"] for row in rows(braid("pipeline", "init", "--output", "csv")[0])}
    assert "window" in templates


def test_json_is_short_for_output_json(braid: Braid, new_topic: NewTopic) -> None:
    """O1: and does not go with another form."""
    topic = new_topic()
    words = ("topic", "describe", topic)
    assert braid(*words, "--json") == braid(*words, "--output", "json")
    assert braid(*words, "--output", "table") == braid(*words)
    assert "cannot be used together" in braid(*words, "--json", "--output", "csv", code=2)[1]
    assert "xml" in braid(*words, "--output", "xml", code=2)[1]


def test_tail_shows_a_range_of_time(braid: Braid, bootstrap: str, new_topic: NewTopic) -> None:
    """C7 O1: from a time, until a time, or the last few before it."""
    topic = new_topic(partitions=2)
    with Producer(bootstrap) as producer:
        for number in range(10):
            producer.send(topic, b"%d" % number, partition=number % 2, timestamp_ms=1000 + number)
    at = "1970-01-01T00:00:01.00{}Z".format

    def shown(*words: str) -> list[str]:
        return sorted(braid("tail", topic, "--format", "value", *words)[0].split())

    assert shown("--from", at(3), "--until", at(6)) == ["3", "4", "5"]
    assert shown("--until", at(6), "-n", "2") == ["4", "5"]
    assert shown("--offset", "earliest", "--until", "1d") == [*map(str, range(10))]
    assert shown("--from", at(8), "--until", "1970-01-02T00:00Z") == ["8", "9"]
    assert "cannot be used together" in braid("tail", topic, "-f", "--until", at(6), code=2)[1]


@pytest.mark.parametrize(
    "words",
    [
        ("topic", "delete", "TOPIC"),
        ("group", "reset", "g", "--topic", "TOPIC", "--to-earliest"),
        ("group", "reset", "g", "--topic", "TOPIC", "--to-earliest", "--json"),
        ("group", "delete", "g"),
        ("txn", "abort", "billing"),
        ("txn", "abort", "-t", "TOPIC", "--partition", "0", "--start-offset", "0"),
        ("topic", "reshard", "TOPIC", "-p", "4", "--switch"),
        ("lake", "replay", "lake", "--to-topic", "TOPIC", "--from", "1d"),
        ("doctor", "DATA", "--repair"),
        ("doctor", "DATA", "--adopt", "orders", "--replace"),
    ],
)
def test_without_a_terminal_what_cannot_be_undone_needs_yes(
    braid: Braid, new_topic: NewTopic, bootstrap: str, tmp_path: Path, words: tuple[str, ...]
) -> None:
    """O1: a script that forgets it is stopped before anything is shown or changed."""
    topic = new_topic()
    (tmp_path / "topics").mkdir()
    places = {"TOPIC": topic, "DATA": str(tmp_path)}
    out, err = braid(*(places.get(word, word) for word in words), code=2)
    assert (out, "without a terminal, add --yes" in err, len(err.splitlines())) == ("", True, 1)
    with Admin(bootstrap) as admin:
        assert topic in admin.list_topics()


@pytest.mark.parametrize(("answer", "code", "left"), [("n", 1, True), ("y", 0, False)])
def test_on_a_terminal_it_asks(
    bootstrap: str, new_topic: NewTopic, answer: str, code: int, left: bool
) -> None:
    """O1: and does nothing unless the answer is yes; the question is not part of the output."""
    topic = new_topic()
    ours, theirs = pty.openpty()
    os.write(ours, f"{answer}\n".encode())
    try:
        done = subprocess.run(
            [sys.executable, "-m", "braidmq", "topic", "delete", topic, "-b", bootstrap, "--json"],
            stdin=theirs,
            capture_output=True,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            timeout=60,
            check=False,
        )
    finally:
        os.close(ours)
        os.close(theirs)
    assert done.returncode == code
    assert f"Delete {topic} with all records?" in done.stderr
    assert ("nothing was changed" in done.stderr) == left
    assert done.stdout == ("" if left else f'{{"deleted": ["{topic}"]}}\n')
    with Admin(bootstrap) as admin:
        assert (topic in admin.list_topics()) == left
