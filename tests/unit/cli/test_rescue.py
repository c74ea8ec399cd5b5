"""Rescue jobs as a user types them, as far as that needs no session."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from braidmq.client import Admin
from braidmq.spark.rescue import summary
from unit.cli.conftest import Braid


def test_a_dry_run_of_a_reshard_is_one_of_its_switch(braid: Braid, bootstrap: str) -> None:
    """S6 O1: without --switch it would make the topic and copy everything."""
    _, err = braid("topic", "reshard", "dry-orders", "--partitions", "4", "--dry-run", code=2)
    assert "add --switch" in err
    with Admin(bootstrap) as admin:
        assert "dry-orders-p4" not in admin.list_topics()


@pytest.mark.parametrize(
    ("words", "missing"),
    [
        (("audit", "{there}", "{there}s"), "{there}s; did you mean {there}?"),
        (("audit", "{there}s", "{there}"), "{there}s; did you mean {there}?"),
        (("report", "{there}s"), "{there}s; did you mean {there}?"),
        (("reshard", "{there}s", "--partitions", "4"), "{there}s; did you mean {there}?"),
        (("redrive", "{there}", "--to-topic", "9"), "9; create it with braid topic create 9"),
    ],
)
def test_a_topic_that_is_not_there_is_told_before_spark_is_started(
    braid: Braid,
    new_topic: Callable[..., str],
    monkeypatch: pytest.MonkeyPatch,
    words: tuple[str, ...],
    missing: str,
) -> None:
    """S6 S7 O1: with the one that was probably meant."""
    there = new_topic()
    monkeypatch.setattr("braidmq.cli.rescue.spark_session", None)
    _, err = braid("topic", *(word.format(there=there) for word in words), code=2)
    assert f"there is no topic {missing.format(there=there)}" in err


def test_a_misspelt_setting_of_a_job_is_found_before_spark_starts(
    braid: Braid, new_topic: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """S6 O1: -X takes settings of the client, and options of the source and sink."""
    monkeypatch.setattr("braidmq.cli.rescue.spark_session", None)
    _, err = braid("topic", "report", new_topic(), "-X", "sasl.pasword=x", code=2)
    assert "-X has no option 'sasl.pasword'; did you mean 'sasl.password'?" in err
    _, err = braid("topic", "report", "missing", "-X", "localLog=never", code=2)
    assert "there is no topic missing" in err


def test_a_report_shows_tables_whole_and_says_where_it_cut_one(
    braid: Braid, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S7 O1: the first of 50 hot keys matter more than the last."""
    tables = {
        "throughput": [{"topic": "orders", "records": 1_000 + number} for number in range(25)],
        "hot_keys": [{"topic": "orders", "rank": number} for number in range(1, 51)],
    }
    made = summary.TopicReport(("orders",), 0, 1, tables)
    session, nothing = importlib.import_module("braidmq.spark.session"), SimpleNamespace(stop=lambda: None)
    monkeypatch.setattr(summary, "summarise", lambda *_: made)
    monkeypatch.setattr(session, "session", lambda *_, **__: nothing)
    monkeypatch.setattr("braidmq.cli.rescue.check_topics", lambda *_: None)
    out, _ = braid("topic", "report", "orders", "--hot-keys", "50")
    shown = [line.split()[1] for line in out.splitlines() if line.split()[:1] == ["orders"]]
    assert shown == [f"1,0{number:02d}" for number in range(5, 25)] + [str(rank) for rank in range(1, 51)]
    assert "the last 20 of 25 rows; --to-dir DIR writes all" in out
    lines = braid("topic", "report", "orders", "--output", "csv")[0].splitlines()
    assert (lines[0], lines[1], lines[-1]) == (
        "table,topic,records,rank",
        "throughput,orders,1000,",
        "hot_keys,orders,,50",
    )
