"""Functions of Python steps, found beside the pipeline's file."""

from __future__ import annotations

from pathlib import Path

import pytest

from braidmq.spark.pipelines import PipelineError
from braidmq.spark.pipelines.mistakes import Location


@pytest.mark.parametrize(
    ("program", "told"),
    [
        ("def clean(rows):\n    return (rows\n", "FILE:2: '(' was never closed"),
        ("x = 1\nclean = nothing\n", "FILE:2: NameError: name 'nothing' is not defined"),
        ("import nosuchmodule\n", "FILE:1: ModuleNotFoundError: No module named 'nosuchmodule'"),
        ("from os import nosuch\n", "FILE:1: ImportError: cannot import name 'nosuch' from 'os'"),
        ("def clear(rows): ...\n", "PROGRAM has no function clean; did you mean clear?"),
    ],
)
def test_a_module_that_cannot_be_loaded_is_told_with_its_line(
    program: str, told: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """S4: as one sentence, after the line of the step."""
    pytest.importorskip("pyspark")
    from braidmq.spark.pipelines.steps import find_function

    name = f"steps_{abs(hash(request.node.name))}"
    (tmp_path / f"{name}.py").write_text(program)
    with pytest.raises(PipelineError) as raised:
        find_function(f"{name}:clean", tmp_path, Location("p.yaml", 7))
    expected = told.replace("FILE", str(tmp_path / f"{name}.py")).replace("PROGRAM", name)
    assert str(raised.value).startswith(f"p.yaml:7: python: {expected}")
