"""What the parts of a pipeline must agree on, told before Spark is started."""

from __future__ import annotations

from pathlib import Path

import pytest

from braidmq.spark.pipelines import PipelineMistakes, loads


def mistakes(text: str, tmp_path: Path) -> list[tuple[int, str]]:
    with pytest.raises(PipelineMistakes) as raised:
        loads(text, tmp_path)
    return [(mistake.location.line, mistake.text) for mistake in raised.value.mistakes]


JOIN = """\
pipeline: joined
sources:
  a: {topic: a, schema: 'id BIGINT, at TIMESTAMP', watermark: 'at, 1 minute'}
  b: {topic: b, schema: 'id BIGINT, at TIMESTAMP', watermark: 'at, 1 minute'}
  t: {topic: t, schema: 'id BIGINT', read: table}
steps:
  both: {from: [LEFT, RIGHT], join: {on: id, kind: KIND}}
sinks: {out: {from: both, topic: out}}
"""


@pytest.mark.parametrize(
    ("left", "right", "allowed"),
    [
        ("a", "b", "inner, left, right, full, semi"),
        ("a", "t", "inner, left, semi, anti"),
        ("t", "a", "inner, right"),
    ],
)
def test_a_kind_of_join_that_a_stream_cannot_have_is_told(
    left: str, right: str, allowed: str, tmp_path: Path
) -> None:
    """S4: with its line and those that it can have, before Spark refuses it at the start of its query."""
    text = JOIN.replace("LEFT", left).replace("RIGHT", right)
    if right == "b":
        text = text.replace("on: id,", "on: id, within: 1 hour,")
    for kind in ("inner", "left", "right", "full", "semi", "anti"):
        if kind in allowed.split(", "):
            assert loads(text.replace("KIND", kind), tmp_path).steps
        else:
            ((line, said),) = mistakes(text.replace("KIND", kind), tmp_path)
            assert line == 7
            assert said.startswith(f"step both: kind cannot be {kind} with ")
            assert said.endswith(f"; it can be {allowed}")


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("topic: a, format: text", "any value is text, so no record is bad; remove bad_records"),
        ("topic: a, format: raw", "any value is raw, so no record is bad; remove bad_records"),
        ("topic: a, schema: id INT, read: table", "a table is read again for every batch"),
    ],
)
def test_a_topic_for_bad_records_that_there_cannot_be_is_told(source: str, said: str, tmp_path: Path) -> None:
    """S4: rather than an AssertionError when Spark has been started."""
    text = f"""\
pipeline: aside
sources:
  a: {{{source}, bad_records: {{topic: bad}}}}
  b: {{topic: b, format: text}}
steps: {{both: {{sql: SELECT b.value FROM a CROSS JOIN b}}}}
sinks: {{out: {{from: both, topic: out, format: text}}}}
"""
    ((line, told),) = mistakes(text, tmp_path)
    assert line == 3
    assert told.startswith(f"source a: {said}")


def test_a_query_may_call_its_own_part_by_the_name_of_a_source(tmp_path: Path) -> None:
    """S4: WITH orders AS (SELECT … FROM orders) still reads the source."""
    text = """\
pipeline: with
sources: {orders: {topic: orders, schema: id INT}}
steps: {large: {sql: WITH orders AS (SELECT * FROM orders WHERE id > 5) SELECT * FROM orders}}
sinks: {out: {from: large, topic: out}}
"""
    assert loads(text, tmp_path).steps[0].inputs == ("orders",)


def test_a_checkpoint_behind_a_url_is_refused(tmp_path: Path) -> None:
    """S4: it would silently become a directory called s3a:."""
    text = "pipeline: x\ncheckpoint: s3a://b/x\nsources: {a: {topic: a, format: text}}\n"
    text += "sinks: {out: {from: a, topic: out, format: text}}\n"
    said = "the checkpoint s3a://b/x must be a directory, not a URL"
    assert mistakes(text, tmp_path) == [(2, said)]
    here = loads(text.replace("s3a://b/x", "c/x"), tmp_path)
    assert here.checkpoint_directory == tmp_path / "c" / "x" / "v1"


@pytest.mark.parametrize(
    "step",
    [
        "{from: ordered, window: {on: at, size: 1 minute, compute: {n: count(*)}}}",
        "{from: ordered, dedup: {by: id}}",
        "{from: ordered, dedup: {by: id, within: 1 minute}}",
        "{from: [ordered, b], join: {on: id, within: 1 minute}}",
    ],
)
def test_nothing_that_goes_by_event_time_follows_newest(step: str, tmp_path: Path) -> None:
    """S4: Spark would run it, and no row would ever come out."""
    text = JOIN.replace(
        "both: {from: [LEFT, RIGHT], join: {on: id, kind: KIND}}",
        f"ordered: {{from: a, newest: {{by: id, order_by: at}}}}\n  both: {step}",
    )

    ((line, said),) = mistakes(text, tmp_path)

    assert (line, said.partition(",")[0]) == (8, "step both: rows after ordered have no event time")


def test_a_table_may_be_joined_behind_newest(tmp_path: Path) -> None:
    """S4: that goes by no time."""
    text = JOIN.replace(
        "both: {from: [LEFT, RIGHT], join: {on: id, kind: KIND}}",
        "ordered: {from: a, newest: {by: id, order_by: at}}\n  both: {from: [ordered, t], join: {on: id}}",
    )

    assert loads(text, tmp_path).steps
