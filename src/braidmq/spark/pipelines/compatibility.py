"""A checkpoint belongs to the pipeline that made it: what may change in the file, and what may not.

Spark continues from a checkpoint by position: the first source gets the first source's offsets, an operator
gets the state of the operator at the same position. A pipeline that changed too much would get wrong offsets
or state, and produce wrong results instead of an error. So a description of each query is stored with its
checkpoint and compared before the query starts. `fixed` must be the same; `noted` may change, and the user
gets a note about the effect.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from braidmq.spark.pipelines import graph, sql_names
from braidmq.spark.pipelines.checkpoint import Checkpoint
from braidmq.spark.pipelines.duration import Duration
from braidmq.spark.pipelines.mistakes import PipelineError
from braidmq.spark.pipelines.model import (
    BadRecords,
    FileSource,
    JoinStep,
    LakeSink,
    Pipeline,
    PythonStep,
    Sink,
    Source,
    SqlStep,
    Step,
    TopicSink,
    TopicSource,
)

FORMAT = 2
FILE = "pipeline.json"
STATE = "what keeps state"
COLUMNS = "what is kept in state"
SHOWN_LETTERS = 80
LETTERS_AROUND = 20
WORDS_END = " \n,<({["
_SPAN = re.compile(r'\{"seconds": ([\d.]+)\}')

States = Mapping[str, Mapping[str, str]]
"""What each query keeps between batches, by kind (`STATE`, `COLUMNS`)."""


@dataclass(frozen=True, slots=True)
class QueryShape:
    """A description of a query."""

    fixed: dict[str, str]
    noted: dict[str, str]


def describe(pipeline: Pipeline) -> dict[str, QueryShape]:
    """Each query of a pipeline."""
    made = {sink.name: _of_sink(pipeline, sink) for sink in pipeline.sinks}
    for source in pipeline.sources:
        if isinstance(source, TopicSource) and source.bad_records is BadRecords.SIDE_TOPIC:
            made[f"{source.name}_bad"] = QueryShape(
                {"input": _identity(source)}, {"writes to topic": source.bad_topic or ""}
            )
    return made


def check(pipeline: Pipeline, checkpoint: Checkpoint) -> list[str]:
    """PipelineError for a change that the checkpoint cannot follow; returns notes about other changes."""
    before = _load(checkpoint)
    if before is None:
        return []
    notes = []
    changes: dict[tuple[str, str, str], list[str]] = {}
    for name, made in describe(pipeline).items():
        if name not in before:
            notes.append(f"query {name} is new and begins at the start of its sources")
            continue
        if not checkpoint.has_begun(name):
            continue
        if refused := list(_differences(before[name].fixed, made.fixed)):
            what, was, now = refused[0]
            raise PipelineError(_refusal(pipeline, checkpoint, name, what, was, now))
        for each in _differences(before[name].noted, made.noted):
            changes.setdefault(each, []).append(name)
    notes += [_note(names, *each) for each, names in changes.items()]
    notes += [
        f"query {name} was removed; its checkpoint stays" for name in before if name not in describe(pipeline)
    ]
    return notes


def _refusal(pipeline: Pipeline, checkpoint: Checkpoint, query: str, what: str, was: str, now: str) -> str:
    return (
        f"{pipeline.location.file}: query {query} cannot continue from {checkpoint.directory}:"
        f" {_change(what, was, now)}. Undo that, or set version: {pipeline.version + 1} in the file to"
        " begin a new checkpoint (the old one is kept)"
    )


def check_states(pipeline: Pipeline, checkpoint: Checkpoint, states: States) -> None:
    """The same for what only Spark's analysis knows: types, and the results of Python functions."""
    before = (checkpoint.read(FILE) or {}).get("states", {})
    for name, state in states.items():
        for what, now in state.items() if checkpoint.has_begun(name) else ():
            was = before.get(name, {}).get(what, now)
            if was != now:
                raise PipelineError(_refusal(pipeline, checkpoint, name, what, was, now))


def record(pipeline: Pipeline, checkpoint: Checkpoint, states: States | None = None) -> None:
    """Stores the description of the pipeline. Removed queries stay, since they may come back."""
    queries = {name: asdict(made) for name, made in (_load(checkpoint) or {}).items()}
    queries |= {name: asdict(made) for name, made in describe(pipeline).items()}
    known = (checkpoint.read(FILE) or {}).get("states", {})
    made_by = {"format": FORMAT, "pipeline": pipeline.name, "version": pipeline.version}
    checkpoint.write(FILE, {**made_by, "queries": queries, "states": {**known, **(states or {})}})


def _load(checkpoint: Checkpoint) -> dict[str, QueryShape] | None:
    written = checkpoint.read(FILE)
    if written is None:
        return None
    if written.get("format") != FORMAT:
        raise PipelineError(
            f"{checkpoint.directory} has the format of another release, {written.get('format')}; "
            "use a new one with --checkpoint"
        )
    return {name: QueryShape(each["fixed"], each["noted"]) for name, each in written["queries"].items()}


def _differences(before: dict[str, str], now: dict[str, str]) -> Iterator[tuple[str, str, str]]:
    for what in [*before, *(key for key in now if key not in before)]:
        was, is_now = before.get(what, "not there"), now.get(what, "not there")
        if was != is_now:
            yield what, was, is_now


def _note(queries: list[str], what: str, was: str, now: str) -> str:
    text = f"{'query' if len(queries) == 1 else 'queries'} {', '.join(queries)}: {_change(what, was, now)}"
    return text + ("; the checkpoint continues from its own offsets" if what.startswith("start of") else "")


def _change(what: str, was: str, now: str) -> str:
    """Both texts around the first difference."""
    was, now = (_SPAN.sub(lambda span: str(Duration(float(span[1]))), text) for text in (was, now))
    if max(len(was), len(now)) <= SHOWN_LETTERS:
        return f"{what} was {was}, now {now}"
    begin = max(0, _alike(was, now) - LETTERS_AROUND)
    # From the beginning of a word on.
    while begin and was[begin - 1] not in WORDS_END:
        begin -= 1
    after = max(0, _alike(was[begin:][::-1], now[begin:][::-1]) - LETTERS_AROUND)
    return f"{what} was {_shown(was, begin, after)}, now {_shown(now, begin, after)}"


def _alike(one: str, other: str) -> int:
    """The length of the common prefix."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((at for at, (left, right) in pairs if left != right), min(len(one), len(other)))


def _shown(text: str, begin: int, after: int) -> str:
    """Without the first `begin` and the last `after` letters."""
    rest = text[begin : len(text) - after]
    cut = rest if len(rest) <= SHOWN_LETTERS else rest[: SHOWN_LETTERS - 1]
    return ("…" if begin else "") + cut + ("…" if len(cut) < len(text) - begin else "")


def _of_sink(pipeline: Pipeline, sink: Sink) -> QueryShape:
    fixed = {"input": _reads(pipeline, sink.source)}
    noted: dict[str, str] = {}
    behind = graph.upstream(pipeline, sink.source)
    states = {step.name: _state(pipeline, step) for step in map(pipeline.step, behind) if step is not None}
    stateful = any(states.values())
    for name in behind:
        if (step := pipeline.step(name)) is None:
            _note_source(pipeline.source(name), noted, fixed if stateful else noted)
        elif state := states[name]:
            fixed[f"step {name}"] = state
        else:
            noted[f"step {name}"] = _text(step)
    _describe_target(sink, stateful, fixed, noted)
    return QueryShape(fixed, noted)


def _reads(pipeline: Pipeline, name: str) -> str:
    """The streams that a name reads."""
    return ", ".join(_identity(source) for source in pipeline.sources_named(graph.streams_of(pipeline, name)))


def _identity(source: Source) -> str:
    if isinstance(source, TopicSource):
        return f"topic {source.topic}"
    return f"files {source.path}" if isinstance(source, FileSource) else f"table {source.table}"


def _note_source(source: Source | None, noted: dict[str, str], timed: dict[str, str]) -> None:
    """`timed` gets the column of event time, on which state depends, if there is one."""
    if source is None:
        return
    if isinstance(source, TopicSource):
        noted[f"start of {source.name}"] = str(source.start)
        noted[f"schema of {source.name}"] = source.schema or ""
    if source.watermark is not None:
        timed[f"watermark column of {source.name}"] = source.watermark.column
        noted[f"watermark delay of {source.name}"] = str(source.watermark.delay)


def _state(pipeline: Pipeline, step: Step) -> str | None:
    """What a step's state depends on; None for a step without state."""
    if isinstance(step, PythonStep):
        return None
    if isinstance(step, SqlStep):
        streams = len(graph.streams_of(pipeline, step.name))
        return sql_names.normal(step.sql) if streams and sql_names.is_stateful(step.sql, streams) else None
    if not isinstance(step, JoinStep):
        return _text(step, "inputs")
    left, right = (_reads(pipeline, name) for name in step.inputs)
    if not (left and right):
        return None
    # The state of one side must not become that of the other; filters before them may change.
    return _text(step) if left == right else f"{_text(step, 'inputs')} of {left} and {right}"


def _text(step: Step, *left_out: str) -> str:
    """A step in one line, without its name and location."""
    if isinstance(step, SqlStep):
        return sql_names.normal(step.sql)
    if isinstance(step, PythonStep):
        return step.function if isinstance(step.function, str) else step.function.__qualname__
    parts: dict[str, Any] = asdict(step)
    hidden = ("name", "location", "watermark", *left_out)
    kept = {key: value for key, value in parts.items() if key not in hidden and value}
    return f"{type(step).__name__.removesuffix('Step').lower()} {json.dumps(kept, default=str)}"


def _describe_target(sink: Sink, stateful: bool, fixed: dict[str, str], noted: dict[str, str]) -> None:
    if isinstance(sink, TopicSink):
        fixed["sink"] = "a topic"
        noted["topic"] = sink.topic
        (fixed if stateful else noted)["mode"] = sink.mode
    elif isinstance(sink, LakeSink):
        fixed["sink"] = f"lake {sink.path}"
        noted["date"] = sink.date_of or "of arrival"
    else:
        fixed["sink"] = f"upsert into {sink.path}"
        fixed["key"] = ", ".join(sink.key)
        fixed["order_by"] = ", ".join(sink.order_by)
        fixed["buckets"] = str(sink.buckets)
