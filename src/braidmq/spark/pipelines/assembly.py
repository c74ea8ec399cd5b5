"""From the tree of a file, or of a program's calls, to a pipeline that is checked as a whole."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from braidmq.spark.options import merged
from braidmq.spark.pipelines.checks import check, check_names
from braidmq.spark.pipelines.document import Node
from braidmq.spark.pipelines.mistakes import Notebook
from braidmq.spark.pipelines.model import Pipeline
from braidmq.spark.pipelines.parser import read


def assemble(
    tree: Node, directory: Path, notebook: Notebook, options: Mapping[str, str] | None = None
) -> Pipeline:
    pipeline = read(tree, directory.resolve(), notebook)
    if notebook.mistakes:
        check_names(pipeline, _declared(tree), notebook)
    notebook.raise_if_any()
    pipeline = replace(pipeline, options=tuple(merged(dict(pipeline.options), options or {}).items()))
    check(pipeline, notebook)
    notebook.raise_if_any()
    return pipeline


def _declared(tree: Node) -> list[str]:
    """The names of all sources and steps, including those that could not be parsed."""
    found: list[str] = []
    for part in ("sources", "steps"):
        section = tree.value.get(part) if isinstance(tree.value, dict) else None
        found += section.value if section and isinstance(section.value, dict) else ()
    return found
