"""Pipelines in Python: the same model, written with calls and decorators.

    from braidmq.spark.pipelines import pipeline

    pipe = pipeline("orders-per-minute", bootstrap="127.0.0.1:9092")
    pipe.source("orders", topic="orders", schema="id STRING, amount DOUBLE, at TIMESTAMP",
                watermark="at, 10 minutes")

    @pipe.step
    def large(orders):
        return orders.where("amount > 100")

    pipe.sink("out", source="large", topic="large-orders", key="id")

Keywords are the keys of the YAML file, and the same code checks them; an error shows the line of the
call. The arguments of a decorated function are the names of its inputs.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from pathlib import Path
from typing import Any, TypeVar, overload

from braidmq.spark.pipelines.assembly import assemble
from braidmq.spark.pipelines.document import Node
from braidmq.spark.pipelines.mistakes import Notebook, PipelineError
from braidmq.spark.pipelines.model import Pipeline

F = TypeVar("F", bound=Callable[..., Any])
is_loading = ContextVar("is_loading", default=False)
"""True while a program is loaded for the pipeline it describes: `run` is refused then."""


class PipelineBuilder:
    """A pipeline under construction. `build` returns the model, or raises with every mistake."""

    def __init__(self, name: str, **settings: Any) -> None:
        frame = sys._getframe(2)
        self._file = frame.f_code.co_filename
        self._line = frame.f_lineno
        self._settings = {"pipeline": name, **settings}
        self._parts: dict[str, dict[str, Node]] = {"sources": {}, "steps": {}, "sinks": {}}
        self._notebook = Notebook(self._file)

    def source(self, name: str, **keys: Any) -> None:
        """A topic, files or a table."""
        self._add("sources", name, keys, self._here())

    @overload
    def step(self, name: F, /) -> F: ...
    @overload
    def step(self, name: str | None = None, /, **keys: Any) -> Callable[[F], F]: ...
    def step(self, name: Any = None, /, **keys: Any) -> Any:
        """A decorator for a function of DataFrames; with a name and `sql`, `window`, …, a step by itself."""
        line = self._here()
        if callable(name):
            return self._function(name, None, {}, line)
        if name is not None and keys.keys() & {"sql", "window", "join", "dedup", "newest", "python"}:
            self._add("steps", name, _renamed(keys), line)
        return lambda function: self._function(function, name, keys, line)

    def sink(self, name: str, **keys: Any) -> None:
        """Where a source or step goes: a topic, a lake or an upserted table."""
        self._add("sinks", name, _renamed(keys), self._here())

    def build(self, options: Mapping[str, str] | None = None) -> Pipeline:
        """The finished pipeline; `options` are for every topic, and win over those of the pipeline."""
        entries: dict[str, Any] = {key: Node.of(value, self._line) for key, value in self._settings.items()}
        for part, named in self._parts.items():
            if named:
                entries[part] = Node(min(node.line for node in named.values()), dict(named))
        self._notebook.raise_if_any()
        tree = Node(self._line, entries)
        return assemble(tree, Path(self._file).parent, Notebook(self._file), options)

    def run(self, *, once: bool = False, **options: Any) -> None:
        """Runs it until it is stopped; with `once`, until everything has been read."""
        from braidmq.spark.pipelines.runner import run

        if is_loading.get():
            raise PipelineError(
                f"{self._file}:{self._here()}: run() is called while the file is loaded; put it under"
                ' if __name__ == "__main__":'
            )
        run(self.build(), once=once, **options)

    def _function(self, function: F, name: str | None, keys: dict[str, Any], line: int) -> F:
        inputs = [
            parameter.name
            for parameter in inspect.signature(function).parameters.values()
            if parameter.default is parameter.empty
        ]
        self._add("steps", name or function.__name__, {"python": function, "from": inputs, **keys}, line)
        return function

    def _add(self, part: str, name: str, keys: dict[str, Any], line: int) -> None:
        if name in self._parts[part]:
            self._notebook.note(line, f"{name} is defined twice")
        self._parts[part][name] = Node.of(keys, line)

    def _here(self) -> int:
        return sys._getframe(2).f_lineno


def _renamed(keys: dict[str, Any]) -> dict[str, Any]:
    """`from` is a keyword of Python, so programs write `source`."""
    return {"from" if key == "source" else key: value for key, value in keys.items()}


def pipeline(name: str, **settings: Any) -> PipelineBuilder:
    """A new pipeline, to be filled by `source`, `step` and `sink`."""
    return PipelineBuilder(name, **settings)
