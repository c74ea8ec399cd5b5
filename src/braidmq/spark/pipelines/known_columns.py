"""Which columns sources and steps have, as far as the file itself says it, and names that are not among them.

A schema that is written out names its columns, and windows, joins, dedup and newest say what they make of
them. What SQL, a Python function or an inferred schema gives is known when Spark has looked at it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from braidmq.spark.pipelines import avro, ddl, graph
from braidmq.spark.pipelines.mistakes import closest, suggestion
from braidmq.spark.pipelines.model import (
    DedupStep,
    FileSource,
    JoinKind,
    JoinStep,
    LakeSink,
    NewestStep,
    Pipeline,
    Source,
    TableSource,
    TopicSink,
    UpsertSink,
    ValueFormat,
    WindowStep,
)

VALUE = "value"
_EVENT_TIME = re.compile(r"timestamp(_ntz|_ltz)?$|struct<")
Columns = dict[str, str]
"""The types by name; an empty type is not known."""


def of(pipeline: Pipeline, name: str) -> Columns | None:
    """The columns of a source or step; None where only Spark can tell."""
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
    """Every place where a column is named that is known not to be there."""
    for part in (*pipeline.sources, *pipeline.steps):
        found = of(pipeline, part.name)
        if part.watermark is not None and found is not None:
            yield from _watermark(part.place.line, f"{part.name}: watermark", part.watermark.column, found)
    doubtful: set[str] = set()
    """Steps with a mistake: what they would hand on is anybody's guess."""
    for each in graph.in_order(pipeline):
        step = pipeline.step(each)
        for name, wanted in _wanted_by(step) if doubtful.isdisjoint(graph.upstream(pipeline, each)) else ():
            for column in _not_in(of(pipeline, name), wanted):
                doubtful.add(each)
                yield step.place.line if step else 1, f"step {each}: {name} has no column {column}"
    for sink in pipeline.sinks:
        if not doubtful.isdisjoint(graph.upstream(pipeline, sink.source)):
            continue
        for column in _not_in(of(pipeline, sink.source), _wanted_by_sink(sink)):
            yield sink.place.line, f"sink {sink.name}: {sink.source} has no column {column}"
        if isinstance(sink, TopicSink):
            yield from _of_topic_sink(pipeline, sink)


def _wanted_by(step: object) -> Iterator[tuple[str, tuple[str, ...]]]:
    match step:
        case WindowStep():
            yield step.inputs[0], (step.column, *step.by)
        case JoinStep():
            yield from ((name, step.on) for name in step.inputs)
        case DedupStep():
            yield step.inputs[0], step.by
        case NewestStep():
            yield step.inputs[0], (*step.by, *step.order_by)


def _wanted_by_sink(sink: object) -> tuple[str, ...]:
    match sink:
        case UpsertSink():
            return (*sink.key, *sink.order_by)
        case LakeSink():
            return (sink.date_of,) if sink.date_of else ()
    return ()


def _of_topic_sink(pipeline: Pipeline, sink: TopicSink) -> Iterator[tuple[int, str]]:
    found = of(pipeline, sink.source)
    if found is None:
        return
    if sink.format in (ValueFormat.TEXT, ValueFormat.RAW) and VALUE not in found:
        there = f"{sink.source} has {', '.join(found)}"
        text = f"sink {sink.name} writes {sink.format}, which takes the column value; {there}"
        yield sink.place.line, text
    key = sink.key or ""
    # The key is SQL: only a plain name that is nearly one of the columns is surely a mistake.
    if key.isidentifier() and key.lower() not in {each.lower() for each in found} and closest(key, found):
        yield (
            sink.place.line,
            f"sink {sink.name}: {sink.source} has no column {key}{suggestion(key, found)}",
        )


def _not_in(found: Columns | None, wanted: tuple[str, ...]) -> Iterator[str]:
    """Those that are not there, each with what was probably meant."""
    for name in wanted:
        if found is not None and name not in found:
            yield f"{name}{suggestion(name, found)}"


def _watermark(line: int, what: str, column: str, found: Columns) -> Iterator[tuple[int, str]]:
    if column not in found:
        yield line, f"{what}: there is no column {column}{suggestion(column, found)}"
    elif found[column] and not _EVENT_TIME.match(found[column]):
        yield line, f"{what}: {column} is {found[column].upper()}, not a TIMESTAMP"
