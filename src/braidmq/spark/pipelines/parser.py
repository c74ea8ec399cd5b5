"""From the tree of a file to the model, with every key checked.

Each kind of source, step and sink has one function here, with all its keys. What concerns several parts
together (names, order, watermarks) is in `checks`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

from braidmq.address import AddressError, parse_addresses
from braidmq.spark import avro
from braidmq.spark.avro import AvroError, AvroSchema, Framing
from braidmq.spark.options import READ_OPTIONS
from braidmq.spark.pipelines import ddl, sql_names
from braidmq.spark.pipelines.checkpoint import local_directory
from braidmq.spark.pipelines.clusters import mistake_in
from braidmq.spark.pipelines.document import Node
from braidmq.spark.pipelines.mistakes import Location, Notebook, PipelineError, suggestion
from braidmq.spark.pipelines.model import (
    WEEK,
    BadRecords,
    DedupStep,
    FileFormat,
    FileSource,
    JoinKind,
    JoinStep,
    LakeSink,
    Metadata,
    NewestStep,
    Options,
    OutputMode,
    Pipeline,
    PythonStep,
    Sink,
    Source,
    SqlStep,
    Step,
    TableSource,
    TopicSink,
    TopicSource,
    TopicStart,
    UpsertSink,
    ValueFormat,
    Watermark,
    WindowStep,
)
from braidmq.spark.pipelines.section import Section
from braidmq.spark.sink.options import SINK_OPTIONS

BOOTSTRAP = "127.0.0.1:9092"
INFER = "infer"
SAMPLE_RECORDS = 1000
SAMPLE_RECORDS_MAX = 100_000
BUCKETS_MAX = 4096
PARALLELISM_MAX = 10_000
NAME = re.compile(r"[A-Za-z_]\w{0,127}")
TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")
FUNCTION = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
_SCHEME = re.compile(r"[a-z][a-z0-9+.-]+://")


def read(node: Node, directory: Path, notebook: Notebook) -> Pipeline:
    """The pipeline of a tree. Mistakes go to the notebook; do not use the result if there are any."""
    top = Section(node, "the pipeline", notebook)
    name = top.text("pipeline", required=True) or "unnamed"
    if not re.fullmatch(r"[A-Za-z0-9._-]{1,100}", name):
        top.note(f"{name!r} cannot be a name; use letters, digits, dots and dashes", top.line_of("pipeline"))
    top.text("description")
    reader = _Parser(directory, notebook)
    pipeline = Pipeline(
        name=name,
        location=Location(notebook.file, top.line),
        directory=directory,
        bootstrap=_bootstrap(top),
        version=top.number("version", 1),
        checkpoint=_checkpoint(top, directory, name),
        parallelism=top.number("parallelism", 4, 1, PARALLELISM_MAX),
        restarts_max=top.number("restarts", 20, 0, 1_000_000),
        options=_options(top, (*READ_OPTIONS, *SINK_OPTIONS)),
        spark=top.options("spark"),
        sources=tuple(filter(None, reader.all(top, "sources", "source", reader.source))),
        steps=tuple(filter(None, reader.all(top, "steps", "step", reader.step))),
        sinks=tuple(filter(None, reader.all(top, "sinks", "sink", reader.sink))),
    )
    for part in ("sources", "sinks"):
        if part not in top:
            top.note(f"the pipeline needs {part}")
    top.finish()
    return pipeline


def _bootstrap(top: Section) -> str:
    text = top.text("bootstrap") or os.environ.get("BRAID_BOOTSTRAP", BOOTSTRAP)
    try:
        parse_addresses(text)
    except AddressError as error:
        top.note(f"bootstrap: {error}", top.line_of("bootstrap"))
    return text


def _checkpoint(top: Section, directory: Path, name: str) -> Path:
    try:
        return local_directory(top.text("checkpoint") or f"checkpoints/{name}", directory)
    except PipelineError as error:
        top.note(str(error), top.line_of("checkpoint"))
        return directory


class _Parser:
    """Parses the parts of one file."""

    def __init__(self, directory: Path, notebook: Notebook) -> None:
        self._directory = directory
        self._notebook = notebook

    def all(self, top: Section, key: str, what: str, read_one: Callable[[str, Section], Any]) -> list[Any]:
        found = []
        for name, section in top.sections(key, what):
            if not NAME.fullmatch(name):
                section.note(f"{name!r} cannot be a name; it is used in SQL: letters, digits and _")
            found.append(read_one(name, section))
            section.finish()
        return found

    def source(self, name: str, section: Section) -> Source | None:
        kinds: dict[str, Callable[[str, Section], Source]] = {
            "topic": self._topic_source,
            "files": self._file_source,
            "table": self._table_source,
        }
        kind = section.one_of(kinds)
        return kinds[kind](name, section) if kind else None

    def step(self, name: str, section: Section) -> Step | None:
        kinds: dict[str, Callable[[str, Section], Step]] = {
            "sql": self._sql_step,
            "python": self._python_step,
            "window": self._window_step,
            "join": self._join_step,
            "dedup": self._dedup_step,
            "newest": self._newest_step,
        }
        kind = section.one_of(kinds)
        return kinds[kind](name, section) if kind else None

    def sink(self, name: str, section: Section) -> Sink | None:
        kinds: dict[str, Callable[[str, Section], Sink]] = {
            "topic": self._topic_sink,
            "lake": self._lake_sink,
            "upsert": self._upsert_sink,
        }
        kind = section.one_of(kinds)
        return kinds[kind](name, section) if kind else None

    def _location(self, section: Section, inner: Section | None = None) -> Location:
        """`inner` has more keys: those of a window, a join and the like."""
        lines = section.lines | (inner.lines if inner is not None else {})
        return Location(self._notebook.file, section.line, lines)

    def _path(self, section: Section, key: str) -> str:
        text = section.text(key, required=True) or ""
        return text if _SCHEME.match(text) else str(self._directory / text)

    # Sources

    def _topic_source(self, name: str, section: Section) -> TopicSource:
        bad_records, bad_topic = _bad_records(section)
        format_ = section.choice("format", ValueFormat, ValueFormat.JSON)
        source = TopicSource(
            name=name,
            location=self._location(section),
            topic=_topic(section),
            format=format_,
            start=_start(section),
            bad_records=bad_records,
            bad_topic=bad_topic,
            metadata=_metadata(section),
            watermark=_watermark(section),
            batch_records_max=section.number("batch_records_max", 0, 1) or None,
            stream=_stream(section, True),
            options=_options(section, READ_OPTIONS),
        )
        if format_ is ValueFormat.AVRO:
            return replace(source, avro=self._avro(section, avro.ddl))
        schema, sample = _schema(section, format_)
        return replace(source, schema=schema, sample_records=sample)

    def _avro(self, section: Section, use: Callable[[AvroSchema], object]) -> AvroSchema | None:
        """The schema itself, or a file with it; `use` raises AvroError if it is wrong."""
        framing = section.choice("framing", Framing, Framing.PLAIN)
        registry_id = section.number("registry_id", 0) if framing is Framing.REGISTRY else 0
        text = section.text("schema")
        if text is None:
            section.note(f"{section.what} needs schema: an Avro schema, or a file with one (.avsc)")
            return None
        if not text.startswith(("{", "[", '"')):
            file = self._directory / text
            if not file.is_file():
                section.note(
                    f"schema: there is no file {file}; an Avro source takes an .avsc file or the JSON itself",
                    section.line_of("schema"),
                )
                return None
            text = file.read_text(encoding="utf-8")
        schema = AvroSchema(text, framing, registry_id or None)
        try:
            use(schema)
        except AvroError as error:
            section.note(f"schema: {error}", section.line_of("schema"))
        return schema

    def _file_source(self, name: str, section: Section) -> FileSource:
        schema = section.text("schema")
        source = FileSource(
            name=name,
            location=self._location(section),
            path=self._path(section, "files"),
            format=section.choice("format", FileFormat, FileFormat.PARQUET),
            schema=schema,
            watermark=_watermark(section),
            stream=_stream(section, False),
            options=section.options("options"),
        )
        if source.stream and (schema is None or schema == INFER):
            section.note(f"{section.what}: files read as a stream need a schema: id BIGINT, name STRING")
        if schema is None or schema == INFER:
            return replace(source, schema=None)
        _check_schema(schema, section)
        return source

    def _table_source(self, name: str, section: Section) -> TableSource:
        table = section.text("table", required=True) or ""
        is_directory = "/" in table or table.startswith(".")
        stream = _stream(section, False)
        if stream and is_directory:
            section.note(
                f"{section.what}: an upserted table cannot be read as a stream; use read: table",
                section.line_of("read"),
            )
        return TableSource(
            name=name,
            location=self._location(section),
            table=self._path(section, "table") if is_directory else table,
            is_directory=is_directory,
            watermark=_watermark(section),
            stream=stream,
            options=section.options("options"),
        )

    # Steps

    def _sql_step(self, name: str, section: Section) -> SqlStep:
        sql = section.text("sql", required=True) or ""
        return SqlStep(name, self._location(section), sql, sql_names.tables(sql), _watermark(section))

    def _python_step(self, name: str, section: Section) -> PythonStep:
        node = section.node("python")
        function: Any = node.value if node else ""
        if not callable(function):
            function = section.text("python", required=True) or ""
            if function and not FUNCTION.fullmatch(function):
                section.note(f"python: {function!r} is not module:function", section.line_of("python"))
        inputs = section.names("from", required=True)
        return PythonStep(name, self._location(section), function, inputs, _watermark(section))

    def _window_step(self, name: str, section: Section) -> WindowStep:
        inner = section.section("window", f"window of {name}") or section
        size, slide, gap = (inner.duration(key) for key in ("size", "slide", "gap"))
        if ("size" in inner) == ("gap" in inner):
            inner.note(f"{inner.what} needs either size (a window) or gap (a session)")
        if "slide" in inner and "size" not in inner:
            inner.note("slide needs size", inner.line_of("slide"))
        compute = inner.options("compute")
        if not compute:
            inner.note(f"{inner.what} needs compute: a mapping of columns to aggregates, such as n: count(*)")
        step = WindowStep(
            name=name,
            location=self._location(section, inner),
            inputs=_one_input(section),
            column=inner.text("on", required=True) or "",
            size=size,
            slide=slide,
            gap=gap,
            by=inner.names("by"),
            compute=compute,
            watermark=_watermark(section),
        )
        inner.finish()
        return step

    def _join_step(self, name: str, section: Section) -> JoinStep:
        inner = section.section("join", f"join of {name}") or section
        inputs = section.names("from", required=True)
        if len(inputs) != 2 and inputs:
            section.note(
                f"{section.what} joins two inputs; from names {len(inputs)}", section.line_of("from")
            )
        step = JoinStep(
            name=name,
            location=self._location(section, inner),
            inputs=inputs,
            on=inner.names("on", required=True),
            kind=inner.choice("kind", JoinKind, JoinKind.INNER),
            within=inner.duration("within"),
            watermark=_watermark(section),
        )
        inner.finish()
        return step

    def _dedup_step(self, name: str, section: Section) -> DedupStep:
        inner = section.section("dedup", f"dedup of {name}") or section
        by, within = inner.names("by", required=True), inner.duration("within")
        inner.finish()
        location = self._location(section, inner)
        return DedupStep(name, location, _one_input(section), by, within, _watermark(section))

    def _newest_step(self, name: str, section: Section) -> NewestStep:
        inner = section.section("newest", f"newest of {name}") or section
        by, order_by = inner.names("by", required=True), inner.names("order_by", required=True)
        inner.finish()
        location = self._location(section, inner)
        return NewestStep(name, location, _one_input(section), by, order_by, _watermark(section))

    # Sinks

    def _topic_sink(self, name: str, section: Section) -> TopicSink:
        format_ = section.choice("format", ValueFormat, ValueFormat.JSON)
        schema = self._avro(section, avro.parse) if format_ is ValueFormat.AVRO else None
        if schema is not None and schema.framing is Framing.REGISTRY:
            section.note(
                f"{section.what}: framing: values are written plain, without the id of a registry; remove it",
                section.line_of("framing"),
            )
        return TopicSink(
            name=name,
            location=self._location(section),
            source=section.text("from", required=True) or "",
            topic=_topic(section),
            format=format_,
            key=section.text("key"),
            headers=section.options("headers"),
            avro=schema,
            mode=section.choice("mode", OutputMode, OutputMode.APPEND),
            every=section.duration("every"),
            partitions=section.number("partitions", 0, 1, 100_000) or None,
            options=_options(section, SINK_OPTIONS),
        )

    def _lake_sink(self, name: str, section: Section) -> LakeSink:
        return LakeSink(
            name=name,
            location=self._location(section),
            source=section.text("from", required=True) or "",
            path=self._path(section, "lake"),
            date_of=section.text("date_of"),
            every=section.duration("every"),
        )

    def _upsert_sink(self, name: str, section: Section) -> UpsertSink:
        path = section.text("upsert", required=True) or ""
        if _SCHEME.match(path):
            section.note(
                "upsert: the table must be in a directory that driver and workers share, not a URL",
                section.line_of("upsert"),
            )
        return UpsertSink(
            name=name,
            location=self._location(section),
            source=section.text("from", required=True) or "",
            path=str(self._directory / path),
            key=section.names("key", required=True),
            order_by=section.names("order_by", required=True),
            delete_when=section.text("delete_when"),
            forget_deletes_after=section.duration("forget_deletes_after") or WEEK,
            buckets=section.number("buckets", 8, 1, BUCKETS_MAX),
            every=section.duration("every"),
        )


def _options(section: Section, known: Collection[str]) -> Options:
    found = section.options("options")
    if wrong := mistake_in(found, known):
        section.note(f"options: {wrong}", section.line_of("options"))
    return found


def _one_input(section: Section) -> tuple[str, ...]:
    inputs = section.names("from", required=True)
    if len(inputs) > 1:
        section.note(f"{section.what} takes one input; from names {len(inputs)}", section.line_of("from"))
    return inputs[:1]


def _topic(section: Section) -> str:
    topic = section.text("topic", required=True) or "unnamed"
    if not TOPIC.fullmatch(topic):
        section.note(f"{topic!r} cannot be the name of a topic", section.line_of("topic"))
    return topic


def _stream(section: Section, default: bool) -> bool:
    text = section.text("read")
    if text is None:
        return default
    if text not in ("stream", "table"):
        section.note(f"read must be stream or table, not {text}", section.line_of("read"))
    return text == "stream"


def _watermark(section: Section) -> Watermark | None:
    """`watermark: column, 10 minutes`, or a mapping with both."""
    node = section.node("watermark")
    if node is None:
        return None
    if isinstance(node.value, dict):
        inner = Section(node, "watermark", section.notebook)
        column, delay = inner.text("column", required=True), inner.duration("delay")
        if delay is None and "delay" not in inner:
            inner.note("watermark needs delay, such as 10 minutes")
        inner.finish()
    else:
        column, _, late = (section.text("watermark") or "").partition(",")
        brief = Section(Node.of({"delay": late.strip() or None}, node.line), "watermark", section.notebook)
        delay = brief.duration("delay")
        if not late.strip():
            section.note("watermark must be written as: column, 10 minutes", node.line)
    return Watermark(column.strip(), delay) if column and delay else None


def _bad_records(section: Section) -> tuple[BadRecords, str | None]:
    """`fail`, `drop`, or `topic: name`."""
    node = section.node("bad_records")
    if node is None:
        return BadRecords.FAIL, None
    if isinstance(node.value, dict):
        inner = Section(node, "bad_records", section.notebook)
        topic = _topic(inner)
        inner.finish()
        return BadRecords.SIDE_TOPIC, topic
    if node.value in ("fail", "drop"):
        return BadRecords(str(node.value)), None
    section.note("bad_records must be fail, drop, or a mapping: {topic: orders.bad}", node.line)
    return BadRecords.FAIL, None


def _metadata(section: Section) -> tuple[Metadata, ...]:
    known = [each.value for each in Metadata]
    found = []
    for name in section.names("metadata"):
        if name in known:
            found.append(Metadata(name))
        else:
            section.note(f"metadata has no {name}{suggestion(name, known)}", section.line_of("metadata"))
    return tuple(found)


def _start(section: Section) -> TopicStart | int:
    """earliest, latest, or a moment in ISO 8601 as milliseconds since 1970."""
    text = section.text("start")
    if text is None:
        return TopicStart.EARLIEST
    if text in ("earliest", "latest"):
        return TopicStart(text)
    try:
        return round(datetime.fromisoformat(text).timestamp() * 1000)
    except ValueError:
        section.note(
            f"start: {text!r} must be earliest, latest or a time like 2026-11-15T21:00",
            section.line_of("start"),
        )
        return TopicStart.EARLIEST


def _schema(section: Section, format_: ValueFormat) -> tuple[str | None, int]:
    """A DDL string, or how many records to infer one from."""
    schema = section.text("schema")
    sample = section.number("sample", SAMPLE_RECORDS, 1, SAMPLE_RECORDS_MAX)
    if format_ in (ValueFormat.TEXT, ValueFormat.RAW):
        if schema is not None:
            section.note(f"a {format_} source has the column value; remove schema", section.line_of("schema"))
        return None, 0
    if schema == INFER:
        return None, sample
    if schema is None:
        section.note(f"{section.what} needs schema: id BIGINT, name STRING, …, or the word infer")
    else:
        _check_schema(schema, section)
    return schema, 0


def _check_schema(schema: str, section: Section) -> None:
    for wrong in ddl.mistakes(schema):
        section.note(f"schema: {wrong}", section.line_of("schema"))
