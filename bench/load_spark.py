"""The loads of the Spark comparison: what is read or written, how much, and what counts.

The same Spark, the same broker (Braid), the same topics; what differs is how a topic becomes a DataFrame: by
`braidmq.spark.read`, by `format("braid")`, or by `format("kafka")`, Spark's own connector. Values that
are read are orders in JSON, so that codecs have to do what they have to do elsewhere; those that are written
are hexadecimal digits.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from .metric import (
    BATCH_TIME,
    LOCAL_ROWS,
    ROWS_HANDED_OVER,
    ROWS_READ,
    ROWS_SHOWN,
    ROWS_WRITTEN,
    Metric,
)


class Kind(StrEnum):
    """What a job does with a topic."""

    COUNT = "count"
    VALUES = "values"
    KEYS = "keys"
    PARQUET = "parquet"
    EXPORT = "export"
    LAKE = "lake"
    SINK = "sink"
    STREAM_IN = "stream in"
    STREAM_THROUGH = "stream through"


class By(StrEnum):
    """How a topic becomes a DataFrame."""

    READ = "read"
    FORMAT = "braid"
    CONNECTOR = "kafka"
    FLOOR = "floor"
    CHECKS = "checks"


GROWTH = "spark growth"
LARGE_BATCH = 250_000
SMALL_BATCH = 16_000
"""What Kafka's own producer fills by default (`batch.size`); librdkafka's come up to a megabyte."""


@dataclass(frozen=True, slots=True)
class SparkLoad:
    """One row of the table. `braid` and `kafka` are the options that each side gets besides."""

    name: str
    group: str
    kind: Kind
    value_bytes: int
    rows: int
    codec: str
    metric: Metric
    braid: tuple[tuple[str, str], ...] = ()
    kafka: tuple[tuple[str, str], ...] = ()
    braid_by: By = By.READ
    kafka_by: By = By.CONNECTOR
    batch_bytes: int = LARGE_BATCH
    repeats: int = 3
    """How many runs count; if more than one, others come first that do not."""

    @property
    def source(self) -> str:
        """The topic that holds the rows to be read, shared by the loads that need the same."""
        return f"bench-{self.value_bytes}-{self.codec}-{self.rows}-{self.batch_bytes}"

    @property
    def reads(self) -> bool:
        return self.kind is not Kind.SINK

    @property
    def against_itself(self) -> bool:
        """Whether both sides are Braid's."""
        return self.kafka_by is not By.CONNECTOR

    @property
    def grows(self) -> bool:
        return self.group == GROWTH

    def plain(self, side: str) -> dict[str, Any]:
        """What the job of one side needs to know."""
        described = asdict(self) | {"source": self.source, "kind": self.kind.value}
        described["options"] = dict(self.braid if side == "braid" else self.kafka)
        described["by"] = (self.braid_by if side == "braid" else self.kafka_by).value
        for name in ("metric", "braid", "kafka", "braid_by", "kafka_by"):
            del described[name]
        return described


@dataclass(frozen=True, slots=True)
class SparkSize:
    """How much of everything."""

    rounds: int
    small_rows: int
    large_rows: int
    sink_small_rows: int
    sink_large_rows: int
    growth_rows: tuple[int, ...]
    micro_batches: int

    @property
    def topics(self) -> tuple[tuple[str, int, int], ...]:
        """What is read: the size of a value in words and in bytes, and how many there are."""
        return ("100 B", 100, self.small_rows), ("1 KB", 1_000, self.large_rows)


FULL = SparkSize(2, 5_000_000, 1_000_000, 2_000_000, 1_000_000, (1_000_000, 10_000_000, 100_000_000), 40)
QUICK = SparkSize(1, 500_000, 100_000, 200_000, 50_000, (100_000, 1_000_000), 12)

MICRO_BATCH_ROWS = 1_000
CODECS = {"uncompressed": "none", "zstd": "zstd"}
AT_LEAST_ONCE = (("deliveryGuarantee", "at-least-once"),)
NETWORK = (("localLog", "never"),)
LOCAL_TIMES = 4
"""With the rows of the other loads, starting a query would be much of what is measured."""
LOCAL_EXPORT_TIMES = 2
LOCAL_REPEATS = 7


def loads(size: SparkSize) -> list[SparkLoad]:
    return [
        *_reads(size),
        *_small_batches(size),
        *_lakes(size),
        *_sinks(size),
        *_streams(size),
        *_local(size),
        *_floors(size),
        *_growth(size),
    ]


def _reads(size: SparkSize) -> list[SparkLoad]:
    return [
        SparkLoad(
            f"Spark batch read {name}, {codec_name}, {what}",
            "spark batch reads",
            kind,
            value_bytes,
            rows,
            codec,
            ROWS_READ,
            braid=NETWORK,
            braid_by=by,
        )
        for name, value_bytes, rows in size.topics
        for codec_name, codec in CODECS.items()
        for what, kind, by in (
            ("count", Kind.COUNT, By.READ),
            ("every value", Kind.VALUES, By.READ),
            ("every value and all other columns", Kind.VALUES, By.FORMAT),
            ("to Parquet", Kind.EXPORT, By.READ),
            ("to Parquet by Spark", Kind.PARQUET, By.READ),
        )
    ]


def _small_batches(size: SparkSize) -> list[SparkLoad]:
    """The same rows as most producers would have sent them."""
    return [
        SparkLoad(
            f"Spark batch read {name}, {codec_name}, batches of 16 KB, every value",
            "spark batch reads",
            Kind.VALUES,
            value_bytes,
            rows,
            codec,
            ROWS_READ,
            braid=NETWORK,
            batch_bytes=SMALL_BATCH,
        )
        for name, value_bytes, rows in size.topics
        for codec_name, codec in CODECS.items()
    ]


def _lakes(size: SparkSize) -> list[SparkLoad]:
    """All columns into Parquet by date: `archive` here, the connector and Spark's writer there."""
    return [
        SparkLoad(
            f"Spark topic to Parquet by date {name}, {codec_name}",
            "spark lake",
            Kind.LAKE,
            value_bytes,
            rows,
            codec,
            ROWS_READ,
            braid=NETWORK,
            kafka=(("includeHeaders", "true"),),
        )
        for name, value_bytes, rows in size.topics
        for codec_name, codec in CODECS.items()
    ]


def _sinks(size: SparkSize) -> list[SparkLoad]:
    return [
        SparkLoad(
            f"Spark sink {name}, {codec_name}, {guarantee}",
            "spark sink",
            Kind.SINK,
            value_bytes,
            rows,
            codec,
            ROWS_WRITTEN,
            braid=options,
        )
        for name, value_bytes, rows in (
            ("100 B", 100, size.sink_small_rows),
            ("1 KB", 1_000, size.sink_large_rows),
        )
        for codec_name, codec in CODECS.items()
        for guarantee, options in (("at least once", AT_LEAST_ONCE), ("exactly once", ()))
    ]


def _streams(size: SparkSize) -> list[SparkLoad]:
    rows = size.micro_batches * MICRO_BATCH_ROWS
    return [
        SparkLoad(
            f"Spark micro-batch of {MICRO_BATCH_ROWS:,} rows, {what}",
            "spark micro-batches",
            kind,
            100,
            rows,
            "none",
            BATCH_TIME,
            braid=options,
            repeats=1,
        )
        for what, kind, options in (
            ("topic to nowhere", Kind.STREAM_IN, ()),
            ("topic to topic, at least once", Kind.STREAM_THROUGH, AT_LEAST_ONCE),
            ("topic to topic, exactly once", Kind.STREAM_THROUGH, ()),
        )
    ]


def _local(size: SparkSize) -> list[SparkLoad]:
    """Here the other side is Braid's own network path, and the two take turns.

    After each kind of read comes what there is to win in it: a source that only checks what lies there, and
    one that reads nothing at all.
    """
    return [
        SparkLoad(
            f"Spark batch read {name}, uncompressed, {what}, {how} over network",
            group,
            kind,
            value_bytes,
            rows * times,
            "none",
            metric,
            braid=(("localLog", "always"),),
            kafka=NETWORK,
            braid_by=by,
            kafka_by=By.READ,
            repeats=LOCAL_REPEATS,
        )
        for name, value_bytes, rows in size.topics
        for what, kind, times in (
            ("count", Kind.COUNT, LOCAL_TIMES),
            ("keys and times", Kind.KEYS, LOCAL_TIMES),
            ("every value", Kind.VALUES, LOCAL_TIMES),
            ("to Parquet", Kind.EXPORT, LOCAL_EXPORT_TIMES),
        )
        for how, by, group, metric in (
            ("localLog", By.READ, "spark local log", LOCAL_ROWS),
            ("source that only checks", By.CHECKS, "spark floor", ROWS_HANDED_OVER),
            ("source that reads nothing", By.FLOOR, "spark floor", ROWS_HANDED_OVER),
        )
        if by is By.READ or kind is not Kind.COUNT
    ]


def _floors(size: SparkSize) -> list[SparkLoad]:
    """A source that reads nothing, over the connector: what there is to win."""
    return [
        SparkLoad(
            f"Spark batch read {name}, uncompressed, {what}, source that reads nothing over connector",
            "spark floor",
            kind,
            value_bytes,
            rows,
            "none",
            ROWS_HANDED_OVER,
            braid=NETWORK,
            braid_by=By.FLOOR,
        )
        for name, value_bytes, rows in size.topics
        for what, kind in (("every value", Kind.VALUES), ("to Parquet by Spark", Kind.PARQUET))
    ]


def _growth(size: SparkSize) -> list[SparkLoad]:
    return [
        SparkLoad(
            f"Spark batch read of {rows:,} rows of 100 B, uncompressed, every value",
            GROWTH,
            Kind.VALUES,
            100,
            rows,
            "none",
            ROWS_SHOWN,
            braid=NETWORK,
            repeats=1 if rows >= 10_000_000 else 3,
        )
        for rows in size.growth_rows
    ]
