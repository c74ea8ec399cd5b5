"""Pipelines written in Python: the same model as from YAML."""

from __future__ import annotations

from pathlib import Path

import pytest

from braidmq.spark.pipelines import PipelineError, PipelineMistakes, load, loads
from braidmq.spark.pipelines.model import PythonStep

PROGRAM = '''\
"""A pipeline."""
from braidmq.spark.pipelines import pipeline

pipe = pipeline("orders", bootstrap="127.0.0.1:9092")
pipe.source("orders", topic="orders", schema="id STRING, at TIMESTAMP", watermark="at, 10 minutes")
pipe.step("per_minute", source="orders", window={"on": "at", "size": "1 minute", "compute": {"n": "count(*)"}}
)

@pipe.step
def large(per_minute):
    return per_minute.where("n > 100")

pipe.sink("out", source="large", topic="large")
'''
YAML = """\
pipeline: orders
bootstrap: 127.0.0.1:9092
sources:
  orders: {topic: orders, schema: "id STRING, at TIMESTAMP", watermark: "at, 10 minutes"}
steps:
  per_minute: {from: orders, window: {on: at, size: 1 minute, compute: {n: count(*)}}}
  large: {from: per_minute, python: "steps:large"}
sinks:
  out: {from: large, topic: large}
"""


def write(tmp_path: Path, program: str) -> Path:
    file = tmp_path / "orders_pipeline.py"
    file.write_text(program)
    return file


def test_python_and_yaml_make_the_same_pipeline(tmp_path: Path) -> None:
    """S4: but for places and the function itself."""
    from_python, from_yaml = load(write(tmp_path, PROGRAM)), loads(YAML, tmp_path)
    assert [type(step) for step in from_python.steps] == [type(step) for step in from_yaml.steps]
    assert from_python.steps[0].inputs == from_yaml.steps[0].inputs == ("orders",)
    assert from_python.sources[0].watermark == from_yaml.sources[0].watermark
    function = from_python.steps[1]
    assert isinstance(function, PythonStep)
    assert function.inputs == ("per_minute",)
    assert callable(function.function)
    assert from_python.checkpoint_directory == from_yaml.checkpoint_directory


def test_a_mistake_in_a_program_names_the_line_of_the_call(tmp_path: Path) -> None:
    """S4: as in YAML."""
    with pytest.raises(PipelineMistakes) as raised:
        load(write(tmp_path, PROGRAM.replace("def large(per_minute)", "def large(per_minut)")))
    (mistake,) = raised.value.mistakes
    assert mistake.location.line == 9
    assert mistake.location.file.endswith("orders_pipeline.py")
    assert "did you mean per_minute?" in mistake.text


def test_a_misspelt_keyword_is_told_like_a_misspelt_key(tmp_path: Path) -> None:
    """S4: by the same code."""
    with pytest.raises(PipelineMistakes, match="did you mean watermark"):
        load(write(tmp_path, PROGRAM.replace("watermark=", "watermarks=")))


def test_a_name_used_twice_is_refused(tmp_path: Path) -> None:
    """S4: the second would silently replace the first."""
    twice = PROGRAM + 'pipe.sink("out", source="large", topic="other")\n'
    with pytest.raises(PipelineMistakes, match="defined twice"):
        load(write(tmp_path, twice))


def test_a_program_without_a_pipeline_is_refused(tmp_path: Path) -> None:
    """S4: with how to write one."""
    with pytest.raises(PipelineError, match="has no pipelines"):
        load(write(tmp_path, "x = 1\n"))
    with pytest.raises(PipelineError, match=r"orders_pipeline\.py:1"):
        load(write(tmp_path, "x = = 1\n"))
    with pytest.raises(PipelineError, match=r"orders_pipeline\.py:2: NameError: name 'y' is not defined"):
        load(write(tmp_path, "\nx = y\n"))


def test_a_program_that_runs_itself_while_it_is_read_is_refused(tmp_path: Path) -> None:
    """S4: a plan must not start anything."""
    with pytest.raises(PipelineError, match='under if __name__ == "__main__"'):
        load(write(tmp_path, PROGRAM + "pipe.run(once=True)\n"))
