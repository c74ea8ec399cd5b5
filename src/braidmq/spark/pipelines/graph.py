"""Which part of a pipeline reads which: order, streams, event time, and what `braid pipeline plan` shows."""

from __future__ import annotations

from collections.abc import Iterator

from braidmq.spark.pipelines import sql_names
from braidmq.spark.pipelines.model import (
    BadRecords,
    DedupStep,
    FileSource,
    JoinStep,
    LakeSink,
    NewestStep,
    Pipeline,
    PythonStep,
    Sink,
    Source,
    SqlStep,
    Step,
    TableSource,
    TopicSink,
    TopicSource,
    UpsertSink,
    Watermark,
    WindowStep,
)


def inputs_of(pipeline: Pipeline, name: str) -> tuple[str, ...]:
    """The sources and steps that a step reads, without tables of Spark's catalogue."""
    step = pipeline.step(name)
    if step is None:
        return ()
    return tuple(each for each in step.inputs if pipeline.source(each) or pipeline.step(each))


def upstream(pipeline: Pipeline, name: str) -> list[str]:
    """A source or step and everything that it reads, inputs first."""
    done: dict[str, None] = {}

    def visit(each: str, path: tuple[str, ...]) -> None:
        if each in done or each in path:
            return
        for needed in inputs_of(pipeline, each):
            visit(needed, (*path, each))
        done[each] = None

    visit(name, ())
    return list(done)


def in_order(pipeline: Pipeline) -> list[str]:
    """All steps, each after what it reads."""
    order: dict[str, None] = {}
    for step in pipeline.steps:
        order |= dict.fromkeys(upstream(pipeline, step.name))
    return [name for name in order if pipeline.step(name)]


def cycle(pipeline: Pipeline) -> list[str] | None:
    """Names that read each other in a cycle."""

    def follow(name: str, path: list[str]) -> list[str] | None:
        if name in path:
            return [*path[path.index(name) :], name]
        for each in inputs_of(pipeline, name):
            if found := follow(each, [*path, name]):
                return found
        return None

    return next(filter(None, (follow(step.name, []) for step in pipeline.steps)), None)


def streams_of(pipeline: Pipeline, name: str) -> tuple[str, ...]:
    """The streaming sources that a name reads, in the order in which Spark numbers them."""
    source = pipeline.source(name)
    if source is not None:
        return (source.name,) if source.stream else ()
    found: dict[str, None] = {}
    for each in inputs_of(pipeline, name):
        found |= dict.fromkeys(streams_of(pipeline, each))
    return tuple(found)


def watermark_of(pipeline: Pipeline, name: str) -> Watermark | None:
    """The watermark of a name: its own, or that of the stream that it reads."""
    part = pipeline.source(name) or pipeline.step(name)
    if part is None or part.watermark is not None:
        return part.watermark if part else None
    behind = [each for each in inputs_of(pipeline, name) if streams_of(pipeline, each)]
    # A join of two streams keeps the columns of the left one, including its time.
    known = len(behind) == 1 or (behind and isinstance(part, JoinStep))
    return watermark_of(pipeline, behind[0]) if known else None


def keeps_state(pipeline: Pipeline, step: Step) -> bool:
    """Whether a step over streams keeps state; for a Python function that is not known here."""
    streams = len(streams_of(pipeline, step.name))
    match step:
        case SqlStep():
            return streams > 0 and sql_names.is_stateful(step.sql, streams)
        case JoinStep():
            return streams > 1
        case PythonStep():
            return False
    return streams > 0


def unread(pipeline: Pipeline) -> list[str]:
    """Sources and steps that no sink needs."""
    needed: set[str] = set()
    for sink in pipeline.sinks:
        needed.update(upstream(pipeline, sink.source))
    return [part.name for part in (*pipeline.sources, *pipeline.steps) if part.name not in needed]


def render(pipeline: Pipeline) -> Iterator[str]:
    """A tree for each sink, from the sink down to its sources."""
    for sink in pipeline.sinks:
        yield f"{sink.name}: {describe_sink(sink)}"
        yield from _branches(pipeline, [sink.source], "")
    for source in pipeline.sources:
        if isinstance(source, TopicSource) and source.bad_records is BadRecords.SIDE_TOPIC:
            yield f"{source.name}_bad: to topic {source.bad_topic}, bad records of {source.topic}"


def _branches(pipeline: Pipeline, names: list[str], indent: str) -> Iterator[str]:
    for index, name in enumerate(names):
        last = index == len(names) - 1
        yield f"{indent}{'└─' if last else '├─'} {name}: {describe(pipeline, name)}"
        yield from _branches(pipeline, list(inputs_of(pipeline, name)), indent + ("   " if last else "│  "))


def describe(pipeline: Pipeline, name: str) -> str:
    part = pipeline.source(name) or pipeline.step(name)
    if part is None:
        return "a table of Spark's catalogue"
    if isinstance(part, TopicSource | FileSource | TableSource):
        text = _describe_source(part)
    else:
        text = _describe_step(part)
    if part.watermark is not None:
        text += f", watermark {part.watermark.column} {part.watermark.delay}"
    return text


def _describe_source(source: Source) -> str:
    read = "stream of" if source.stream else "table of"
    if isinstance(source, TopicSource):
        return f"{read} topic {source.topic} ({source.format})"
    if isinstance(source, FileSource):
        return f"{read} {source.format} files in {source.path}"
    return f"{read} {'upserted rows in ' if source.is_directory else ''}{source.table}"


def _describe_step(step: Step) -> str:
    match step:
        case SqlStep():
            return "SQL " + " ".join(step.sql.split())[:60]
        case PythonStep():
            function = step.function
            return f"Python {function if isinstance(function, str) else function.__name__}"
        case WindowStep():
            kind = f"sessions ended by {step.gap}" if step.gap else f"windows of {step.size}"
            return f"{kind} on {step.column}" + (f" by {', '.join(step.by)}" if step.by else "")
        case JoinStep():
            within = f" within {step.within}" if step.within else ""
            return f"{step.kind} join on {', '.join(step.on)}{within}"
        case DedupStep():
            return f"first of each {', '.join(step.by)}" + (f" within {step.within}" if step.within else "")
        case NewestStep():
            return f"changes of each {', '.join(step.by)} in the order of {', '.join(step.order_by)}"


def describe_sink(sink: Sink) -> str:
    every = f", every {sink.every}" if sink.every else ""
    match sink:
        case TopicSink():
            key = f", key {sink.key}" if sink.key else ""
            return f"to topic {sink.topic} ({sink.format}, {sink.mode}{key}{every})"
        case LakeSink():
            return f"to Parquet in {sink.path}{every}"
        case UpsertSink():
            return f"upserts by {', '.join(sink.key)} into {sink.path}{every}"
