"""Which columns sources and steps have, as far as the file itself shows, and wrong names of columns.

A schema in the file has the columns, and windows, joins, dedup and newest determine theirs. The columns of
SQL, a Python function or an inferred schema are known only after Spark's analysis.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from braidmq.spark import avro
from braidmq.spark.pipelines import ddl, graph
from braidmq.spark.pipelines.mistakes import closest, suggestion
from braidmq.spark.pipelines.model import (
    DedupStep,
    FileSource,
    JoinKind,
    JoinStep,
    LakeSink,
    NewestStep,
    Pipeline,
    Sink,
    Source,
    Step,
    TableSource,
    TopicSink,
    UpsertSink,
    ValueFormat,
    WindowStep,
)

VALUE = "value"
_EVENT_TIME = re.compile(r"timestamp(_ntz|_ltz)?$|struct<")
Columns = dict[str, str]
"""The types by name; an empty type is unknown."""


def of(pipeline: Pipeline, name: str) -> Columns | None:
    """The columns of a source or step; None if only Spark knows them."""
    source = pipeline.source(name)
    if source is not None:
        return _of_source(source)
    step = pipeline.step(name)
    match step:
        case WindowStep():
            edges = {"window_start": "timestamp", "window_end": "timestamp"}
            return edges | dict.fromkeys((*step.by, *(name for name, _ in step.compute)), "")
        case JoinStep():
            return _of_join(pipeline, step)
        case DedupStep() | NewestStep():
            return of(pipeline, step.inputs[0])
    return None


def _of_source(source: Source) -> Columns | None:
    if isinstance(source, TableSource) or (isinstance(source, FileSource) and source.schema is None):
        return None
    if isinstance(source, FileSource):
        return ddl.columns(source.schema or "")
    beside = {f"_{each.value}": "timestamp" if each == "timestamp" else "" for each in source.metadata}
    if source.format in (ValueFormat.TEXT, ValueFormat.RAW):
        return {VALUE: "", **beside}
    if source.avro is not None:
        return ddl.columns(avro.ddl(source.avro)) | beside
    return None if source.schema is None else ddl.columns(source.schema) | beside


def _of_join(pipeline: Pipeline, step: JoinStep) -> Columns | None:
    left, right = (of(pipeline, name) for name in step.inputs)
    if left is None or step.kind in (JoinKind.SEMI, JoinKind.ANTI):
        return left
    if right is None:
        return None
    added = {name: kind for name, kind in right.items() if name not in step.on}
    return left | {f"{name}_{step.inputs[1]}" if name in left else name: kind for name, kind in added.items()}


def missing(pipeline: Pipeline) -> Iterator[tuple[int, str]]:
    """Every use of a column that does not exist."""
    for part in (*pipeline.sources, *pipeline.steps):
        found = of(pipeline, part.name)
        if part.watermark is not None and found is not None:
            line = part.location.of("watermark").line
            yield from _watermark(line, f"{part.name}: watermark", part.watermark.column, found)
    doubtful: set[str] = set()
    """Steps with a mistake, whose own columns are unknown."""
    for each in graph.in_order(pipeline):
        step = pipeline.step(each)
        if step is None or not doubtful.isdisjoint(graph.upstream(pipeline, each)):
            continue
        for key, name, wanted in _wanted_by(step):
            for column in _not_in(of(pipeline, name), wanted):
                doubtful.add(each)
                yield step.location.of(key).line, f"step {each}: {name} has no column {column}"
    for sink in pipeline.sinks:
        if not doubtful.isdisjoint(graph.upstream(pipeline, sink.source)):
            continue
        for key, wanted in _wanted_by_sink(sink):
            for column in _not_in(of(pipeline, sink.source), wanted):
                yield sink.location.of(key).line, f"sink {sink.name}: {sink.source} has no column {column}"
        if isinstance(sink, TopicSink):
            yield from _of_topic_sink(pipeline, sink)


def _wanted_by(step: Step) -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """The keys by which a step uses columns of its inputs."""
    match step:
        case WindowStep():
            yield "on", step.inputs[0], (step.column,)
            yield "by", step.inputs[0], step.by
        case JoinStep():
            yield from (("on", name, step.on) for name in step.inputs)
        case DedupStep():
            yield "by", step.inputs[0], step.by
        case NewestStep():
            yield "by", step.inputs[0], step.by
            yield "order_by", step.inputs[0], step.order_by


def _wanted_by_sink(sink: Sink) -> Iterator[tuple[str, tuple[str, ...]]]:
    match sink:
        case UpsertSink():
            yield "key", sink.key
            yield "order_by", sink.order_by
        case LakeSink(date_of=str(column)):
            yield "date_of", (column,)


def _of_topic_sink(pipeline: Pipeline, sink: TopicSink) -> Iterator[tuple[int, str]]:
    found = of(pipeline, sink.source)
    if found is None:
        return
    if sink.format in (ValueFormat.TEXT, ValueFormat.RAW) and VALUE not in found:
        there = f"{sink.source} has {', '.join(found)}"
        text = f"sink {sink.name} writes {sink.format}, which takes the column value; {there}"
        yield sink.location.of("format").line, text
    key = sink.key or ""
    # The key is SQL: only a plain name that is close to a column is surely a mistake.
    if key.isidentifier() and key.lower() not in {each.lower() for each in found} and closest(key, found):
        yield (
            sink.location.of("key").line,
            f"sink {sink.name}: {sink.source} has no column {key}{suggestion(key, found)}",
        )


def _not_in(found: Columns | None, wanted: tuple[str, ...]) -> Iterator[str]:
    """The missing ones, each with the name that was probably meant."""
    for name in wanted:
        if found is not None and name not in found:
            yield f"{name}{suggestion(name, found)}"


def _watermark(line: int, what: str, column: str, found: Columns) -> Iterator[tuple[int, str]]:
    if column not in found:
        yield line, f"{what}: there is no column {column}{suggestion(column, found)}"
    elif found[column] and not _EVENT_TIME.match(found[column]):
        yield line, f"{what}: {column} is {found[column].upper()}, not a TIMESTAMP"
