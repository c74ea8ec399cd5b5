"""The pages of the bench: generated from the figures, and only from them."""

from __future__ import annotations

from pathlib import Path

import pytest
from bench import headline, load_spark, metric, plan, publish, report
from bench.publish import Subject
from bench.results import Results

ROW = headline.BROKER[0]
WEAK = headline.WEAKNESSES[0]


def measured(day: str, load: str, kind: metric.Metric, braid: list[float], kafka: list[float]) -> Results:
    found = Results()
    for server, values in (("braid", braid), ("kafka", kafka)):
        for value in values:
            found.add(load, "produce", server, {kind: value})
    found.stamp({"date": day, "commit": "abc1234", "CPU": "2 x something, shared", "disk": "ext4"})
    return found


def kept(subject: Subject) -> Results:
    return Results.read(publish.RESULTS / f"{subject}.json")


@pytest.mark.parametrize("subject", list(Subject))
def test_the_full_tables_are_those_of_the_figures(subject: Subject) -> None:
    """After editing a text, run python -m bench.publish."""
    written = (publish.RESULTS / f"{subject}.md").read_text(encoding="utf-8")
    notes = report.read_notes(publish.NOTES)
    assert written == report.page(kept(subject), subject, subject.title, subject.method, notes)


def test_the_headline_tables_are_those_of_the_figures() -> None:
    page = publish.PAGE.read_text(encoding="utf-8")
    assert page == headline.update(page, kept(Subject.BROKER), kept(Subject.SPARK))


def test_every_headline_is_a_load_that_is_run_and_was_measured() -> None:
    run = {load.name for load in plan.loads(plan.FULL)}
    run |= {load.name for load in load_spark.loads(load_spark.FULL)}
    headlines = headline.BROKER + headline.SPARK + headline.WEAKNESSES
    assert {each.load for each in headlines} <= run
    both = [kept(subject) for subject in Subject]
    assert [each for each in headlines if not any(one.find(each.load, each.metric) for one in both)] == []


def test_a_headline_has_median_range_ratio_command_and_run() -> None:
    found = measured("2026-01-02", ROW.load, ROW.metric, [30, 10, 20], [10, 10, 5])
    page = "a\n<!-- broker -->\nold\n<!-- end -->\nb\n<!-- runs -->\n<!-- end -->\n"
    text = headline.update(page, found, Results())
    assert (
        f'| 20 (10 to 30) | 10 (5 to 10) | 2.00x (1.00 to 4.00) | `scripts/bench --only "{ROW.load}"` |'
        in text
    )
    assert "| 2026-01-02 | abc1234 | Kafka none | 2 x something | ext4 |" in text
    assert text.startswith("a\n<!-- broker -->\n| |")
    assert "old" not in text
    assert "<!-- end -->\nb\n" in text


def test_a_weakness_shows_its_figures_and_its_reason() -> None:
    found = measured("2026-01-02", WEAK.load, WEAK.metric, [1], [2])
    text = headline.update("<!-- weaknesses -->\n<!-- end -->", found, Results())
    assert f"1. **{WEAK.what}**: 1 req/s against 2, 0.50x.\n   {WEAK.why}" in text


def test_a_run_written_elsewhere_joins_the_figures_there_and_leaves_the_page_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = publish.PAGE.read_bytes()
    publish.publish(measured("2026-01-02", "kept", metric.P99, [1], [2]), Subject.BROKER, tmp_path / "new")
    publish.publish(measured("2026-01-03", "added", metric.P99, [3], [4]), Subject.BROKER, tmp_path / "new")
    text = (tmp_path / "new" / "broker.md").read_text(encoding="utf-8")
    assert "2026-01-02, commit abc1234, 2 x something\n\n| load" in text
    assert "2026-01-03, commit abc1234, 2 x something\n\n| load" in text
    assert "| kept | p99, ms | 1 | 2 | 0.50x |" in text
    assert "| added | p99, ms | 3 | 4 | 0.75x |" in text
    assert (tmp_path / "new" / "broker.svg").stat().st_size > 1000
    assert publish.PAGE.read_bytes() == before
    assert "RESULTS.md is unchanged" in capsys.readouterr().out
