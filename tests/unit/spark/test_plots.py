"""The plots of a report, from tables as a report has them."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from braidmq.spark.rescue import plots, summary

START = datetime(2026, 11, 15, 21, tzinfo=UTC)


def test_a_bucket_without_records_is_drawn_as_none() -> None:
    """S7: an outage is a gap and no straight line across it."""
    rows = [{"time": START + timedelta(seconds=5 * n), "records_per_s": 2.0} for n in (0, 1, 4)]
    times, rates = plots.rates_of(rows, bucket_s=5)
    assert times == [START + timedelta(seconds=5 * n) for n in range(5)]
    assert rates == [2.0, 2.0, 0.0, 0.0, 2.0]


def test_names_are_drawn_as_they_are(tmp_path: Path) -> None:
    """S7: a dollar is no formula, and odd bytes are no failure."""
    keys = [b"a$b_$c", b"\xff", None]
    tables = {
        "hot_keys": [{"topic": "orders", "key": key, "records": 1, "share": 0.25} for key in keys],
        "lag": [{"group": "g$_$h", "topic": "orders", "lag": 3}],
    }
    assert [path.stem for path in plots.draw(tables, 1, tmp_path)] == ["hot_keys", "lag"]


def test_the_figures_are_written_though_drawing_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S7: they took longer to find than to draw."""
    tables: dict[str, list[dict[str, Any]]] = {"lag": [{"group": "g", "topic": "orders", "lag": 3}]}

    def fails(*_: object) -> None:
        raise plots.PlotsMissing("plots need matplotlib")

    monkeypatch.setattr(plots, "draw", fails)
    with pytest.raises(plots.PlotsMissing):
        summary.write(summary.TopicReport(("orders",), 0, 1, tables), tmp_path)
    assert json.loads((tmp_path / "report.json").read_text())["tables"]["lag"][0]["lag"] == 3
    assert "![lag](lag.png)" in (tmp_path / "report.md").read_text()
