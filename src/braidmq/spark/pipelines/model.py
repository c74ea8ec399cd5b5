"""What a pipeline is: sources, steps and sinks, as frozen values.

A YAML file and a Python program with decorators become the same values, so that planning, checking, running
and comparing with a checkpoint are written once. Names are unique over sources and steps: a step finds its
inputs, and SQL its tables, by name. Every sink becomes one streaming query with a checkpoint of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from braidmq.spark.avro import AvroSchema
from braidmq.spark.pipelines.duration import Duration
from braidmq.spark.pipelines.mistakes import Location

WEEK = Duration(7 * 86_400)
Options = tuple[tuple[str, str], ...]
"""Options that go to Spark or to the client unchanged."""


class ValueFormat(StrEnum):
    """How the value of a record is read or written."""

    JSON = "json"
    AVRO = "avro"
    CSV = "csv"
    TEXT = "text"
    RAW = "raw"


class FileFormat(StrEnum):
    PARQUET = "parquet"
    JSON = "json"
    CSV = "csv"


class TopicStart(StrEnum):
    """Where a new checkpoint begins to read a topic."""

    EARLIEST = "earliest"
    LATEST = "latest"


class BadRecords(StrEnum):
    """What to do with a value that does not fit its format and schema."""

    FAIL = "fail"
    DROP = "drop"
    SIDE_TOPIC = "topic"


class OutputMode(StrEnum):
    APPEND = "append"
    UPDATE = "update"
    COMPLETE = "complete"


class JoinKind(StrEnum):
    INNER = "inner"
    LEFT = "left"
    RIGHT = "right"
    FULL = "full"
    SEMI = "semi"
    ANTI = "anti"


class Metadata(StrEnum):
    """What a record has besides its value; as a column it has a leading underscore."""

    KEY = "key"
    TOPIC = "topic"
    PARTITION = "partition"
    OFFSET = "offset"
    TIMESTAMP = "timestamp"
    HEADERS = "headers"


@dataclass(frozen=True, slots=True)
class Watermark:
    """How late a row may be, by a column of event time."""

    column: str
    delay: Duration


@dataclass(frozen=True, slots=True)
class TopicSource:
    """Records of a topic. `schema` is a DDL string; None with `sample_records` means that it is inferred."""

    name: str
    location: Location
    topic: str
    format: ValueFormat = ValueFormat.JSON
    schema: str | None = None
    sample_records: int = 0
    avro: AvroSchema | None = None
    start: TopicStart | int = TopicStart.EARLIEST
    bad_records: BadRecords = BadRecords.FAIL
    bad_topic: str | None = None
    metadata: tuple[Metadata, ...] = ()
    watermark: Watermark | None = None
    batch_records_max: int | None = None
    stream: bool = True
    options: Options = ()


@dataclass(frozen=True, slots=True)
class FileSource:
    """A directory of files: a table, or with `stream` a stream of new files."""

    name: str
    location: Location
    path: str
    format: FileFormat
    schema: str | None = None
    watermark: Watermark | None = None
    stream: bool = False
    options: Options = ()


@dataclass(frozen=True, slots=True)
class TableSource:
    """A table of Spark's catalogue, or the directory of an upserted table."""

    name: str
    location: Location
    table: str
    is_directory: bool
    watermark: Watermark | None = None
    stream: bool = False
    options: Options = ()


Source = TopicSource | FileSource | TableSource


@dataclass(frozen=True, slots=True)
class SqlStep:
    """A query over sources and earlier steps, which are its tables."""

    name: str
    location: Location
    sql: str
    inputs: tuple[str, ...]
    watermark: Watermark | None = None


@dataclass(frozen=True, slots=True)
class PythonStep:
    """A function from DataFrames to a DataFrame."""

    name: str
    location: Location
    function: Callable[..., Any] | str
    inputs: tuple[str, ...]
    watermark: Watermark | None = None


@dataclass(frozen=True, slots=True)
class WindowStep:
    """Aggregates over windows of event time: tumbling, sliding (`slide`) or sessions (`gap`)."""

    name: str
    location: Location
    inputs: tuple[str, ...]
    column: str
    size: Duration | None
    slide: Duration | None
    gap: Duration | None
    by: tuple[str, ...]
    compute: Options
    watermark: Watermark | None = None


@dataclass(frozen=True, slots=True)
class JoinStep:
    """Two inputs by equal columns; two streams also by time, at most `within` apart."""

    name: str
    location: Location
    inputs: tuple[str, ...]
    on: tuple[str, ...]
    kind: JoinKind
    within: Duration | None
    watermark: Watermark | None = None


@dataclass(frozen=True, slots=True)
class DedupStep:
    """The first row of each key and time `within`; without one, for as long as the watermark's delay."""

    name: str
    location: Location
    inputs: tuple[str, ...]
    by: tuple[str, ...]
    within: Duration | None
    watermark: Watermark | None = None


@dataclass(frozen=True, slots=True)
class NewestStep:
    """Changes of each key in their order; one that comes after a newer one is dropped."""

    name: str
    location: Location
    inputs: tuple[str, ...]
    by: tuple[str, ...]
    order_by: tuple[str, ...]
    watermark: Watermark | None = None


Step = SqlStep | PythonStep | WindowStep | JoinStep | DedupStep | NewestStep


@dataclass(frozen=True, slots=True)
class TopicSink:
    """Rows become records: `key` and `headers` are columns or SQL, the value is written in `format`."""

    name: str
    location: Location
    source: str
    topic: str
    format: ValueFormat = ValueFormat.JSON
    key: str | None = None
    headers: Options = ()
    avro: AvroSchema | None = None
    mode: OutputMode = OutputMode.APPEND
    every: Duration | None = None
    partitions: int | None = None
    options: Options = ()


@dataclass(frozen=True, slots=True)
class LakeSink:
    """Parquet files in directories by the date (UTC) of a column, each row exactly once."""

    name: str
    location: Location
    source: str
    path: str
    date_of: str | None = None
    every: Duration | None = None


@dataclass(frozen=True, slots=True)
class UpsertSink:
    """A table with one row for each key: the one that is newest by `order_by`."""

    name: str
    location: Location
    source: str
    path: str
    key: tuple[str, ...]
    order_by: tuple[str, ...]
    delete_when: str | None = None
    forget_deletes_after: Duration = WEEK
    buckets: int = 8
    every: Duration | None = None


Sink = TopicSink | LakeSink | UpsertSink


@dataclass(frozen=True, slots=True)
class Pipeline:
    """A whole pipeline. Relative paths are relative to `directory`."""

    name: str
    location: Location
    directory: Path
    bootstrap: str
    version: int
    checkpoint: Path
    parallelism: int
    restarts_max: int
    sources: tuple[Source, ...]
    steps: tuple[Step, ...]
    sinks: tuple[Sink, ...]
    options: Options = ()
    spark: Options = ()

    @property
    def checkpoint_directory(self) -> Path:
        """A new version begins with a new checkpoint; the old one is kept."""
        return self.checkpoint / f"v{self.version}"

    def source(self, name: str) -> Source | None:
        return next((source for source in self.sources if source.name == name), None)

    def sources_named(self, names: tuple[str, ...]) -> list[Source]:
        """In the order of names."""
        return [source for name in names for source in self.sources if source.name == name]

    def step(self, name: str) -> Step | None:
        return next((step for step in self.steps if step.name == name), None)
