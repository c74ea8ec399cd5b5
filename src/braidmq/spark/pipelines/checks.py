"""What several parts of a pipeline must agree on: names, order, event time.

Everything here is checked without Spark; errors show the line of the part that has to change.
"""

from __future__ import annotations

from collections.abc import Iterator

from braidmq.spark.options import OptionError
from braidmq.spark.pipelines import graph, known_columns, sql_names
from braidmq.spark.pipelines.clusters import topic_options
from braidmq.spark.pipelines.mistakes import Notebook, closest, suggestion
from braidmq.spark.pipelines.model import (
    BadRecords,
    DedupStep,
    JoinKind,
    JoinStep,
    LakeSink,
    NewestStep,
    Pipeline,
    SqlStep,
    Step,
    TopicSink,
    TopicSource,
    UpsertSink,
    ValueFormat,
    WindowStep,
)
from braidmq.spark.sink.options import parse_sink
from braidmq.spark.source.query import parse_query


def check(pipeline: Pipeline, notebook: Notebook) -> None:
    """Notes what is wrong between the parts. Later checks rely on earlier ones, so a mistake ends it."""
    for find in (_names, _ring, _streams, known_columns.missing, _event_time, _targets, _options):
        for line, text in find(pipeline):
            notebook.note(line, text)
        if notebook.mistakes:
            return


def _names(pipeline: Pipeline) -> Iterator[tuple[int, str]]:
    seen: dict[str, int] = {}
    known = [part.name for part in (*pipeline.sources, *pipeline.steps)]
    for part in (*pipeline.sources, *pipeline.steps):
        if part.name.lower() in seen:
            yield (
                part.location.line,
                f"{part.name} is also the name on line {seen[part.name.lower()]}",
            )
        seen[part.name.lower()] = part.location.line
    yield from _unknown_names(pipeline, known)


def check_names(pipeline: Pipeline, known: list[str], notebook: Notebook) -> None:
    """Notes unknown inputs; `known` includes parts that have other mistakes."""
    for line, text in _unknown_names(pipeline, known):
        notebook.note(line, text)


def _unknown_names(pipeline: Pipeline, known: list[str]) -> Iterator[tuple[int, str]]:
    for step in pipeline.steps:
        others = [name for name in known if name != step.name]
        for name in step.inputs:
            if name in known:
                continue
            # Any other name in SQL may be a table of Spark's catalogue, which is not known here.
            if not isinstance(step, SqlStep) or ("." not in name and closest(name, others)):
                yield (
                    step.location.of("sql" if isinstance(step, SqlStep) else "from").line,
                    f"step {step.name} reads {name}, which does not exist{suggestion(name, others)}",
                )
    for sink in pipeline.sinks:
        if sink.source and sink.source not in known:
            yield (
                sink.location.of("from").line,
                f"sink {sink.name} reads {sink.source}, which does not exist{suggestion(sink.source, known)}",
            )


def _ring(pipeline: Pipeline) -> Iterator[tuple[int, str]]:
    ring = graph.cycle(pipeline)
    if ring is not None:
        step = pipeline.step(ring[0])
        yield step.location.line if step else 1, f"steps read each other in a cycle: {' -> '.join(ring)}"


def _streams(pipeline: Pipeline) -> Iterator[tuple[int, str]]:
    for sink in pipeline.sinks:
        if not graph.streams_of(pipeline, sink.source):
            yield (
                sink.location.line,
                f"sink {sink.name} reads tables only; one of its sources must be a stream (read: stream)",
            )
    for source in pipeline.sources:
        if source.watermark is not None and not source.stream:
            line = source.location.of("watermark").line
            yield line, f"source {source.name} is a table; a watermark belongs to a stream"


def _event_time(pipeline: Pipeline) -> Iterator[tuple[int, str]]:
    for step in pipeline.steps:
        if timeless := _timeless(pipeline, step):
            text = f"rows after {timeless} have no event time, so no step after it can use one"
            yield step.location.line, f"step {step.name}: {text}; put {timeless} last"
        elif isinstance(step, WindowStep):
            yield from _window(pipeline, step)
        elif isinstance(step, DedupStep):
            yield from _dedup(pipeline, step)
        elif isinstance(step, JoinStep):
            yield from _join(pipeline, step)


def _timeless(pipeline: Pipeline, step: Step) -> str | None:
    """A `newest` before a step that uses event time. Spark has no watermark after it, and accepts none:
    windows would never be complete, and rows that wait for others would be kept for ever."""
    joins = isinstance(step, JoinStep) and all(graph.streams_of(pipeline, name) for name in step.inputs)
    if not joins and not isinstance(step, WindowStep | DedupStep):
        return None
    behind = (name for each in step.inputs for name in graph.upstream(pipeline, each))
    found = (each for each in map(pipeline.step, behind) if isinstance(each, NewestStep))
    return next((each.name for each in found if graph.streams_of(pipeline, each.name)), None)


def _window(pipeline: Pipeline, step: WindowStep) -> Iterator[tuple[int, str]]:
    if not graph.streams_of(pipeline, step.name):
        return
    found = graph.watermark_of(pipeline, step.inputs[0])
    if found is None:
        text = f"windows over a stream need a watermark; give {step.inputs[0]} one: {step.column}, 10 minutes"
        yield step.location.line, f"step {step.name}: {text}"
    elif found.column != step.column:
        yield (
            step.location.of("on").line,
            f"step {step.name}: windows on {step.column}, but a watermark on {found.column}; use one column",
        )


def _dedup(pipeline: Pipeline, step: DedupStep) -> Iterator[tuple[int, str]]:
    if not graph.streams_of(pipeline, step.name):
        if step.within is not None:
            line = step.location.of("within").line
            yield line, f"step {step.name}: within is for streams; {step.inputs[0]} is a table"
        return
    if graph.watermark_of(pipeline, step.inputs[0]) is None:
        yield (
            step.location.line,
            f"step {step.name}: dedup forgets keys by event time; give {step.inputs[0]} a watermark",
        )
    for name in _not_with_within(pipeline, step) if step.within is not None else ():
        text = f"within cannot be used with {name}, which keeps state too; remove within"
        yield step.location.of("within").line, f"step {step.name}: {text}"


def _not_with_within(pipeline: Pipeline, step: DedupStep) -> Iterator[str]:
    """Spark has no watermark after a function that keeps state, and none may come after an aggregation."""
    for other in pipeline.steps:
        if other is step or not graph.keeps_state(pipeline, other):
            continue
        is_before = other.name in graph.upstream(pipeline, step.name)
        joins = isinstance(other, JoinStep | DedupStep) or (
            isinstance(other, SqlStep) and not sql_names.is_stateful(other.sql, 1)
        )
        if (is_before and not joins) or step.name in graph.upstream(pipeline, other.name):
            yield other.name


def _join(pipeline: Pipeline, step: JoinStep) -> Iterator[tuple[int, str]]:
    streams = [name for name in step.inputs if graph.streams_of(pipeline, name)]
    if streams:
        yield from _kind(step, (step.inputs[0] in streams, step.inputs[1] in streams))
    if len(streams) < 2:
        if step.within is not None:
            line = step.location.of("within").line
            yield line, f"step {step.name}: within is for two streams; one side here is a table"
        return
    if step.within is None:
        yield (
            step.location.line,
            f"step {step.name} joins two streams; add the time in which rows match: within: 1 hour",
        )
    for name in streams:
        if graph.watermark_of(pipeline, name) is None:
            yield step.location.line, f"step {step.name} joins two streams; {name} needs a watermark"


def _kind(step: JoinStep, is_stream: tuple[bool, bool]) -> Iterator[tuple[int, str]]:
    """A row without a match is known only if all of the other side is."""
    refused = {
        (True, True): (JoinKind.ANTI,),
        (True, False): (JoinKind.RIGHT, JoinKind.FULL),
        (False, True): (JoinKind.LEFT, JoinKind.FULL, JoinKind.SEMI, JoinKind.ANTI),
    }[is_stream]
    if step.kind in refused:
        left, right = ("a stream" if each else "a table" for each in is_stream)
        allowed = ", ".join(kind for kind in JoinKind if kind not in refused)
        sides = f"with {left} on the left and {right} on the right"
        line = step.location.of("kind").line
        yield line, f"step {step.name}: kind cannot be {step.kind} {sides}; it can be {allowed}"


def _targets(pipeline: Pipeline) -> Iterator[tuple[int, str]]:
    names: dict[str, int] = {}
    paths: dict[str, str] = {}
    for sink in pipeline.sinks:
        if sink.name in names:
            yield sink.location.line, f"sink {sink.name} is defined twice"
        names[sink.name] = sink.location.line
        if isinstance(sink, LakeSink | UpsertSink):
            if sink.path in paths:
                yield (
                    sink.location.line,
                    f"sinks {paths[sink.path]} and {sink.name} write to the same directory",
                )
            paths[sink.path] = sink.name
        elif isinstance(sink, TopicSink):
            yield from _loop(pipeline, sink)
    for source in pipeline.sources:
        if isinstance(source, TopicSource) and source.bad_records is BadRecords.SIDE_TOPIC:
            if source.bad_topic == source.topic:
                line = source.location.of("bad_records").line
                yield line, f"bad records of topic {source.topic} cannot be written to it; use another topic"
            if f"{source.name}_bad" in names:
                yield (
                    source.location.line,
                    f"{source.name}_bad is the query for bad records; rename that sink",
                )
            yield from _aside(source)


def _aside(source: TopicSource) -> Iterator[tuple[int, str]]:
    if source.format in (ValueFormat.TEXT, ValueFormat.RAW):
        text = f"any value is {source.format}, so no record is bad; remove bad_records"
        yield source.location.of("bad_records").line, f"source {source.name}: {text}"
    if not source.stream:
        text = "a table is read again for every batch, with its bad records; use bad_records: drop"
        yield source.location.of("bad_records").line, f"source {source.name}: {text}"


def _options(pipeline: Pipeline) -> Iterator[tuple[int, str]]:
    """Mistakes in options, including those of security, that queries would find."""
    for part in (*pipeline.sources, *pipeline.sinks):
        try:
            if isinstance(part, TopicSource):
                given = {**topic_options(pipeline, part.options), "subscribe": part.topic}
                parse_query(given, streaming=part.stream)
            elif isinstance(part, TopicSink):
                given = {**topic_options(pipeline, part.options), "topic": part.topic}
                parse_sink(given, streaming=True, overwrite=False)
        except OptionError as error:
            kind = "source" if isinstance(part, TopicSource) else "sink"
            yield part.location.of("options").line, f"{kind} {part.name}: options: {error}"


def _loop(pipeline: Pipeline, sink: TopicSink) -> Iterator[tuple[int, str]]:
    for name in graph.streams_of(pipeline, sink.source):
        source = pipeline.source(name)
        if isinstance(source, TopicSource) and source.topic == sink.topic:
            yield (
                sink.location.of("topic").line,
                f"sink {sink.name} writes to topic {sink.topic}, which it reads: a loop",
            )
