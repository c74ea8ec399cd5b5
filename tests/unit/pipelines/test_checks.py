"""What the parts of a pipeline must agree on, told before Spark is started."""

from __future__ import annotations

from pathlib import Path

import pytest

from braidmq.spark.pipelines import PipelineMistakes, loads


def mistakes(text: str, tmp_path: Path) -> list[tuple[int, str]]:
    with pytest.raises(PipelineMistakes) as raised:
        loads(text, tmp_path)
    return [(mistake.place.line, mistake.text) for mistake in raised.value.mistakes]


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
