"""Values of a pipeline's file reach their use as they were written."""

from __future__ import annotations

from pathlib import Path

import pytest

from braidmq.spark.pipelines import PipelineMistakes, loads
from braidmq.spark.pipelines.model import Pipeline, TopicSink, TopicSource

FILE = """\
pipeline: values
sources:
  a: {topic: a, schema: id INT}
sinks:
  out: {from: a, topic: out}
"""


def with_source(keys: str, tmp_path: Path) -> Pipeline:
    return loads(FILE.replace("topic: a, schema: id INT", keys), tmp_path)


def mistakes(text: str, tmp_path: Path) -> list[tuple[int, str]]:
    with pytest.raises(PipelineMistakes) as raised:
        loads(text, tmp_path)
    return [(mistake.location.line, mistake.text) for mistake in raised.value.mistakes]


@pytest.mark.parametrize(
    ("written", "taken"),
    [
        ('"\\t"', "\t"),
        ("0123456", "0123456"),
        ("NO", "NO"),
        ("true", "true"),
        ("1_000", "1_000"),
        ("2026.10", "2026.10"),
        ("2026-11-15", "2026-11-15"),
        ('" x "', " x "),
    ],
)
def test_an_option_is_what_was_written(written: str, taken: str, tmp_path: Path) -> None:
    """S4: not what YAML makes of it, and with its spaces: a separator may be a tab."""
    keys = f"topic: a, format: csv, schema: id INT, options: {{value.x: {written}}}"
    source = with_source(keys, tmp_path).sources[0]
    assert source.options == (("value.x", taken),)


def test_a_name_may_look_like_a_number_or_a_word_of_yaml(tmp_path: Path) -> None:
    """S4: topics by month, a column called no."""
    found = with_source("topic: 2026.10, schema: no INT", tmp_path).sources[0]
    assert isinstance(found, TopicSource)
    assert found.topic == "2026.10"
    table = FILE.replace("id INT", "no INT").replace("topic: out", "upsert: t, key: no, order_by: [no]")
    assert loads(table, tmp_path).sinks[0].key == ("no",)  # type: ignore[union-attr]


def test_numbers_may_come_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """S4: as everything else; a zero in front does not make them octal."""
    monkeypatch.setenv("VERSION", "3")
    text = FILE.replace("values\n", "values\nversion: ${VERSION}\nparallelism: ${TASKS:-010}\n")
    pipeline = loads(text.replace("topic: out", "topic: out, partitions: '${TASKS:-8}'"), tmp_path)
    assert (pipeline.version, pipeline.parallelism) == (3, 10)
    assert isinstance(pipeline.sinks[0], TopicSink)
    assert pipeline.sinks[0].partitions == 8
    monkeypatch.setenv("VERSION", "three")
    assert mistakes(text, tmp_path) == [(2, "version must be a whole number, not 'three'")]


@pytest.mark.parametrize("moment", ["2026-02-30", "2026-11-15T25:00:00"])
def test_a_moment_that_never_was_is_a_mistake_with_its_line(moment: str, tmp_path: Path) -> None:
    """S4: rather than a traceback."""
    ((line, said),) = mistakes(FILE.replace("id INT", f"id INT, start: {moment}"), tmp_path)
    assert (line, moment in said) == (3, True)


def test_characters_and_tags_that_cannot_be_are_told_with_their_line(tmp_path: Path) -> None:
    """S4: rather than a traceback."""
    control = FILE.replace("topic: out", "topic: o\x07ut")
    assert mistakes(control, tmp_path) == [(5, "not YAML: the character U+0007 is not allowed")]
    ((line, said),) = mistakes(FILE.replace("topic: out", "topic: !secret out"), tmp_path)
    assert (line, "the tag !secret is not supported" in said) == (5, True)
