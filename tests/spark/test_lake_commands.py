"""`braid lake` as a user types it, in this process and its Spark session."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from braidmq.cli import main
from braidmq.client import Producer

NewTopic = Callable[..., str]
Braid = Callable[..., tuple[int, str, str]]


@pytest.fixture
def braid(
    spark: SparkSession, bootstrap: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Braid:
    """Runs a command: exit code, stdout, stderr."""
    assert spark is not None
    monkeypatch.setenv("BRAID_BOOTSTRAP", bootstrap)
    monkeypatch.setenv("COLUMNS", "200")

    def run(*words: str | Path) -> tuple[int, str, str]:
        capsys.readouterr()
        code = main([str(word) for word in words])
        return code, *capsys.readouterr()

    return run


@pytest.fixture
def orders(new_topic: NewTopic, bootstrap: str) -> str:
    topic = new_topic(partitions=2)
    with Producer(bootstrap) as producer:
        for number in range(6):
            value = json.dumps({"id": number, "who": "ada" if number % 2 else "bob"}).encode()
            producer.send(topic, value, key=b"k%d" % (number % 2), timestamp_ms=1_794_700_800_000 + number)
    return topic


def test_a_topic_is_archived_queried_described_and_compacted(
    braid: Braid, orders: str, tmp_path: Path
) -> None:
    """S5 O1: the whole walk."""
    code, out, err = braid(
        "lake", "archive", orders, "--to-dir", tmp_path / "l", "--once", "--decode", "json"
    )
    assert (code, out) == (0, f"archived 6 rows into {tmp_path / 'l'}\n")
    assert "commit 1: 6 rows so far, 0 offsets ahead" in err
    code, out, _ = braid("lake", "archive", orders, "--to-dir", tmp_path / "l", "--once", "--json")
    assert (code, out) == (0, "")

    sql = "SELECT who, count(*) AS orders, min(value) AS first FROM lake GROUP BY who ORDER BY who"
    code, out, _ = braid("lake", "query", tmp_path / "l", sql)
    assert code == 0
    assert ["ada", "3", '{"id":', "1,", '"who":', '"ada"}'] in [line.split() for line in out.splitlines()]
    _, out, _ = braid("lake", "query", tmp_path / "l", sql, "--output", "json")
    assert json.loads(out.splitlines()[1]) == {"who": "bob", "orders": 3, "first": '{"id": 0, "who": "bob"}'}
    odd = "SELECT NULL AS nobody, named_struct('a', 1) AS nested, X'6bff' AS bytes FROM lake LIMIT 1"
    _, out, _ = braid("lake", "query", tmp_path / "l", odd, "--json")
    assert json.loads(out) == {"nobody": None, "nested": {"a": 1}, "bytes": "k\\xff"}
    late = "SELECT timestamp_millis(1000000000000000) AS late, 7 AS n, 8 AS n FROM lake LIMIT 1"
    for layout in ("table", "csv", "json"):
        code, out, _ = braid("lake", "query", tmp_path / "l", late, "--output", layout)
        assert (code, "+33658-09-2" in out, "8" in out) == (0, True, True), "no calendar goes that far"
    _, out, _ = braid("lake", "query", tmp_path / "l", "SELECT id FROM lake ORDER BY id", "--output", "csv")
    assert out.split() == ["id", *"012345"]

    code, out, _ = braid("lake", "describe", tmp_path / "l", "--json")
    described = json.loads(out)
    assert (code, described["rows"], described["days"][0]["date"]) == (0, 6, "2026-11-15")
    assert sum(offset for _, _, offset in described["positions"]) == 6
    code, out, _ = braid("lake", "compact", tmp_path / "l")
    assert (code, out) == (0, "merged 0 files into 0; deleted 0 old files\n")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("query", "{none}", "SELECT 1"), "is not a lake; braid lake archive TOPIC --to-dir"),
        (("archive", "no-such-topic", "--to-dir", "{none}", "--once"), "there is no topic no-such-topic; "),
        (("archive", "{topic}", "--to-dir", "{none}", "--schema", "id INT"), "add --decode json"),
        (
            ("archive", "{topic}", "--to-dir", "{none}", "--decode", "json", "--schema", "id WORD"),
            "is not a list like 'id BIGINT, name STRING'",
        ),
        (("archive", "{topic}", "--to-dir", "{none}", "--once", "--date-by", "when"), "no column 'when'"),
        (
            ("archive", "{topic}", "--to-dir", "{none}", "--once", "--format", "delta"),
            "this Spark session has no format 'delta'; add --conf spark.jars.packages=",
        ),
        (
            ("replay", "{none}", "--to-topic", "{topic}", "--dry-run"),
            "choose records with --from, --until, --keys",
        ),
        (
            ("replay", "{none}", "--to-topic", "x", "--dry-run", "--from", "1h", "--until", "2h"),
            "is not before --until",
        ),
    ],
)
def test_mistakes_are_one_line_that_says_what_to_do(
    braid: Braid, orders: str, tmp_path: Path, words: tuple[str, ...], said: str
) -> None:
    """S5 O1: never a traceback, of either language."""
    code, _, err = braid("lake", *(word.format(none=tmp_path / "none", topic=orders) for word in words))
    assert code in (1, 2)
    assert said in err
    assert len([line for line in err.splitlines() if line]) == 1


def test_a_mistake_in_sql_is_one_line(braid: Braid, orders: str, tmp_path: Path) -> None:
    """S5 O1: Spark's advice without its plan."""
    braid("lake", "archive", orders, "--to-dir", tmp_path / "l", "--once")
    code, _, err = braid("lake", "query", tmp_path / "l", "SELECT nope FROM lake")
    assert code == 2
    assert "`nope` cannot be resolved. Did you mean one of" in err
    code, _, err = braid("lake", "query", tmp_path / "l", "SELEC 1")
    assert (code, len(err.splitlines())) == (2, 1)
    assert "Syntax error at or near 'SELEC'" in err


def test_a_replay_counts_first(braid: Braid, orders: str, tmp_path: Path) -> None:
    """S5: by time and by key, without sending anything."""
    braid("lake", "archive", orders, "--to-dir", tmp_path / "l", "--once")
    words = ("lake", "replay", tmp_path / "l", "--to-topic", orders, "--dry-run", "--json")
    _, out, _ = braid(*words, "--keys", "k1,other")
    assert json.loads(out)["records"] == 3
    _, out, _ = braid(
        *words, "--from", "2026-11-15T00:00:00.002Z", "--until", "2026-11-15T00:00:00.004+00:00"
    )
    parts = [{"topic": orders, "date": "2026-11-15", "rows": 2, "value_bytes": 46}]
    assert json.loads(out) == {"records": 2, "sent": False, "parts": parts}
    code, out, _ = braid(*words[:-1], "--where", "CAST(value AS STRING) LIKE '%ada%'")
    assert code == 0
    assert out.endswith(f"would send 3 records to {orders}\n")


def test_a_replay_under_a_name_that_was_used_says_that_it_sent_nothing(
    braid: Braid, orders: str, tmp_path: Path
) -> None:
    """S5 O1: a name stands for one selection; another under it would be lost without a word."""
    braid("lake", "archive", orders, "--to-dir", tmp_path / "l", "--once")
    words = ("lake", "replay", tmp_path / "l", "--to-topic", orders, "--id", f"{orders}-once", "--yes")
    _, out, _ = braid(*words, "--keys", "k1", "--json")
    assert json.loads(out)["sent"] is True
    code, out, _ = braid(*words, "--keys", "k0")
    assert code == 0
    assert f"sent nothing: replay {orders}-once was already sent" in out
    _, out, _ = braid(*words, "--keys", "k0", "--json")
    assert json.loads(out)["sent"] is False
