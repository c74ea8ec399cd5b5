"""The bench's bookkeeping: ratios, verdicts, merging of runs and notes."""

from __future__ import annotations

from pathlib import Path

import pytest
from bench import metric, report
from bench.results import Results


def results(load: str, braid: list[float], kafka: list[float], kind: metric.Metric) -> Results:
    found = Results()
    for value in braid:
        found.add(load, "produce", "braid", {kind: value})
    for value in kafka:
        found.add(load, "produce", "kafka", {kind: value})
    found.stamp({"date": "2026-01-02", "commit": load, "CPU": "2 x something, shared"})
    return found


def test_a_ratio_is_between_the_medians_of_the_rounds() -> None:
    row = results("x", [10, 900, 20], [5, 10, 0.1], metric.BYTES_RATE).rows[0]
    assert row.ratio == 20 / 5


@pytest.mark.parametrize(
    ("kind", "braid", "hit"),
    [
        (metric.BYTES_RATE, 10.0, True),
        (metric.BYTES_RATE, 9.9, False),
        (metric.P99, 5.0, True),
        (metric.P99, 5.1, False),
        (metric.RSS_IDLE, 1.0, True),
        (metric.RSS_IDLE, 1.1, False),
        (metric.P50, 99.0, None),
    ],
)
def test_a_row_hits_or_misses_its_aim_in_the_direction_that_is_better(
    kind: metric.Metric, braid: float, hit: bool | None
) -> None:
    assert results("x", [braid], [10.0], kind).rows[0].hit is hit


def test_a_load_measured_again_replaces_its_rows_and_keeps_the_others(tmp_path: Path) -> None:
    results("kept", [1], [2], metric.P99).save(tmp_path / "results.json")
    old = Results.read(tmp_path / "results.json")
    old = old.replaced_by(results("again", [1], [2], metric.P99))
    new = old.replaced_by(results("again", [7], [8], metric.P99))
    assert [(row.load, row.values) for row in new.rows] == [
        ("kept", {"braid": [1], "kafka": [2]}),
        ("again", {"braid": [7], "kafka": [8]}),
    ]
    assert [row.run for row in new.rows] == list(new.runs) == ["2026-01-02 kept", "2026-01-02 again"]


def test_a_run_whose_rows_were_all_measured_again_is_forgotten() -> None:
    old, new = (results("x", [1], [2], metric.P99) for _ in range(2))
    new.stamp({"date": "2026-02-03", "commit": "later"})
    assert list(old.replaced_by(new).runs) == ["2026-02-03 later"]


def test_ranges_are_of_rounds_and_need_two_of_them() -> None:
    row = results("x", [4, 2, 9], [2, 2, 3], metric.P99).rows[0]
    assert (row.span("braid"), row.ratio_span) == ((2, 9), (1.0, 3.0))
    single = results("x", [4], [2], metric.P99).rows[0]
    assert (single.span("braid"), single.ratio_span) == (None, None)
    assert results("x", [4, 2, 9], [2, 2], metric.P99).rows[0].ratio_span is None


def test_a_note_stands_beside_the_misses_it_explains_and_only_there(tmp_path: Path) -> None:
    (tmp_path / "NOTES.md").write_text(
        "# Explanations\n\n## consume * cold: throughput\nThe disk is the limit.\n\n"
        "## hit*: throughput\nNot shown.\n"
    )
    found = results("consume 1 KB, cold", [1], [2], metric.BYTES_RATE)
    found = found.replaced_by(results("hit", [2], [1], metric.BYTES_RATE))
    found = found.replaced_by(results("riddle", [1], [2], metric.BYTES_RATE))
    text = report.page(found, "broker", "A title", "", report.read_notes(tmp_path / "NOTES.md"))
    misses = text.partition("## Misses")[2]
    assert "consume 1 KB, cold: throughput 0.50x (aim ≥ 1x)\n\nThe disk is the limit." in misses
    assert "Not shown." not in text
    assert misses.partition("Not explained yet:")[2].strip() == "- riddle: throughput 0.50x (aim ≥ 1x)"
    assert "1 of 3 targets hit" in text


def test_quantiles_are_milliseconds_of_the_ordered_samples() -> None:
    found = metric.latencies([number / 1000 for number in reversed(range(1000))])
    assert (found[metric.P50], found[metric.P99], found[metric.P999]) == (500, 990, 999)
