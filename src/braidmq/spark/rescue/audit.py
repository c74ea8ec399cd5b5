"""Do two copies hold the same messages? Counted by content, then checked for order within each key.

Offsets of a copy differ from those of the original, so a message is known by its content: by default key,
value and headers (without ours, `braid.…`), each prefixed by its length and hashed together. For each hash
the messages on both sides are counted:

    missing      the left side holds more of it than the right
    extra        the right side holds it, the left side never did
    duplicated   both hold it, the right side more often

Then the n-th copy of a message on the left is paired with the n-th on the right, and within a key that came
from one partition the pairs must be in the same order on both sides:

    reordered    a message is before its predecessor
    scattered    a key of one partition on the left is in several on the right, so that its order is lost

Spark shuffles only hashes and positions, never values, and collects only the examples: the limit is the disk
space of Spark. Records without a key have no order across partitions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import reduce
from typing import Any

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as fn

OUR_HEADERS = "braid."
COMPARABLE = ("key", "value", "headers", "timestamp", "topic", "partition", "offset")
DEFAULT_COMPARED = ("key", "value", "headers")
EXAMPLES_MAX = 20
KEY_SHOWN_BYTES = 64
KINDS = ("missing", "extra", "duplicated", "reordered", "scattered")


@dataclass(frozen=True, slots=True)
class Difference:
    """One message (or, for `scattered`, one key) that differs, and its positions."""

    kind: str
    topic: str
    partition: int
    offset: int
    key: bytes | None
    count: int


@dataclass(frozen=True, slots=True)
class Audit:
    """The result of a comparison; `equal` if nothing differs."""

    compared: tuple[str, ...]
    left_rows: int
    right_rows: int
    missing: int
    extra: int
    duplicated: int
    reordered: int
    scattered: int
    examples: tuple[Difference, ...]

    @property
    def equal(self) -> bool:
        return not any(getattr(self, kind) for kind in KINDS)

    def as_json(self) -> dict[str, Any]:
        """For scripts; keys as text, with non-text bytes as \\xNN."""
        found = asdict(self)
        for example in found["examples"]:
            if example["key"] is not None:
                example["key"] = example["key"].decode("utf-8", "backslashreplace")
        return {"equal": self.equal, **found}

    def __str__(self) -> str:
        counts = ", ".join(f"{getattr(self, kind):,} {kind}" for kind in KINDS)
        return f"{self.left_rows:,} against {self.right_rows:,} messages: {counts}"


def audit(
    left: DataFrame, right: DataFrame, compare: Sequence[str] | None = None, examples: int = EXAMPLES_MAX
) -> Audit:
    """Compares the messages of `right`, the copy, with those of `left`.

    Both have the columns of `format("braid")`: topic, partition and offset, and those named in `compare` (by
    default key, value, and headers where both have them).
    """
    compared = _compared(left, right, compare)
    # Read once: a topic that grows between two passes would differ.
    rows = _rows(left, compared, 0).unionByName(_rows(right, compared, 1)).persist()
    try:
        counts = _counts(rows)
        order = _order(rows)
        totals = counts.agg(
            *(_total(kind) for kind in ("missing", "extra", "duplicated")),
            fn.coalesce(fn.sum("lefts"), fn.lit(0)).alias("left_rows"),
            fn.coalesce(fn.sum("rights"), fn.lit(0)).alias("right_rows"),
        )
        disorder = order.agg(_total("reordered"), _total("scattered"))
        found = totals.crossJoin(disorder).collect()[0].asDict()
        shown: list[Difference] = []
        if any(found[kind] for kind in KINDS):
            shown = _examples(counts, order, examples)
    finally:
        rows.unpersist()
    return Audit(compared=compared, examples=tuple(shown), **found)


def _compared(left: DataFrame, right: DataFrame, compare: Sequence[str] | None) -> tuple[str, ...]:
    if compare is None:
        optional = {"headers"} - (set(left.columns) & set(right.columns))
        return tuple(name for name in DEFAULT_COMPARED if name not in optional)
    for name in compare:
        if name not in COMPARABLE:
            raise ValueError(f"cannot compare by {name!r}; choose from {', '.join(COMPARABLE)}")
        for side, frame in (("left", left), ("right", right)):
            if name not in frame.columns:
                raise ValueError(f"the {side} side has no column {name!r}; it has {', '.join(frame.columns)}")
    if not compare:
        raise ValueError(f"nothing to compare by; choose from {', '.join(COMPARABLE)}")
    return tuple(compare)


def _rows(frame: DataFrame, compared: Sequence[str], side: int) -> DataFrame:
    """For each message: hash of its content, hash of its key, its position, and its side."""
    return frame.select(
        fn.lit(side).alias("side"),
        fn.unhex(fn.md5(reduce(fn.concat, [_framed(name) for name in compared]))).alias("message"),
        fn.unhex(fn.md5("key")).alias("key_hash"),
        fn.substring("key", 1, KEY_SHOWN_BYTES).alias("key"),
        fn.col("topic"),
        fn.col("partition"),
        fn.col("offset"),
    )


def _framed(name: str) -> Column:
    """A column as bytes with their length first, so that different rows have different bytes."""
    if name == "headers":
        return _framed_headers(fn.col("headers"))
    if name == "timestamp":
        # As microseconds, which do not depend on the session's time zone.
        return _frame(fn.unix_micros("timestamp").cast("string").cast("binary"))
    if name in ("key", "value"):
        return _frame(fn.col(name).cast("binary"))
    return _frame(fn.col(name).cast("string").cast("binary"))


def _framed_headers(headers: Column) -> Column:
    none = fn.array().cast("array<struct<key:string,value:binary>>")
    kept = fn.filter(fn.coalesce(headers, none), lambda each: ~each["key"].startswith(OUR_HEADERS))
    framed = fn.transform(
        kept, lambda each: fn.concat(_frame(each["key"].cast("binary")), _frame(each["value"]))
    )
    return _frame(fn.aggregate(framed, fn.lit(b""), lambda before, each: fn.concat(before, each)))


def _frame(content: Column) -> Column:
    length = fn.concat(fn.octet_length(content).cast("string"), fn.lit(":")).cast("binary")
    return fn.when(content.isNull(), fn.lit(b"-")).otherwise(fn.concat(length, content))


def _counts(rows: DataFrame) -> DataFrame:
    """For each message: its count on each side, what that means, and its first position on each side."""
    place = fn.struct("topic", "partition", "offset", "key")
    grouped = rows.groupBy("message").agg(
        fn.sum(1 - fn.col("side")).alias("lefts"),
        fn.sum("side").alias("rights"),
        fn.min(fn.when(fn.col("side") == 0, place)).alias("left_place"),
        # The last copy is the surplus one.
        fn.max(fn.when(fn.col("side") == 1, place)).alias("right_place"),
    )
    more = fn.col("rights") - fn.col("lefts")
    return grouped.select(
        "lefts",
        "rights",
        fn.greatest(-more, fn.lit(0)).alias("missing"),
        fn.when(fn.col("lefts") == 0, more).otherwise(0).alias("extra"),
        fn.when(fn.col("lefts") > 0, fn.greatest(more, fn.lit(0))).otherwise(0).alias("duplicated"),
        fn.when(more < 0, fn.col("left_place")).otherwise(fn.col("right_place")).alias("place"),
    )


def _order(rows: DataFrame) -> DataFrame:
    """For each message on both sides: whether it is before its predecessor, or its key is scattered."""
    alike = Window.partitionBy("side", "message").orderBy("topic", "partition", "offset")
    keyed = rows.filter(fn.col("key_hash").isNotNull()).withColumn("nth", fn.row_number().over(alike))
    lane = fn.xxhash64("topic", "partition")
    left = keyed.filter("side = 0").select(
        "message", "nth", "key_hash", lane.alias("left_lane"), fn.col("offset").alias("left_offset")
    )
    right = keyed.filter("side = 1").select(
        "message", "nth", lane.alias("right_lane"), "topic", "partition", "offset", "key"
    )
    pairs = left.join(right, ["message", "nth"])
    along = Window.partitionBy("key_hash", "left_lane", "right_lane").orderBy("left_offset")
    key = Window.partitionBy("key_hash")
    first_of_key = fn.row_number().over(key.orderBy("left_offset", "left_lane")) == 1
    one_lane = fn.min("left_lane").over(key) == fn.max("left_lane").over(key)
    many_lanes = fn.min("right_lane").over(key) != fn.max("right_lane").over(key)
    return pairs.select(
        (fn.col("offset") < fn.lag("offset").over(along)).cast("int").alias("reordered"),
        (first_of_key & one_lane & many_lanes).cast("int").alias("scattered"),
        fn.struct("topic", "partition", "offset", "key").alias("place"),
    )


def _total(name: str) -> Column:
    return fn.coalesce(fn.sum(name), fn.lit(0)).alias(name)


def _examples(counts: DataFrame, order: DataFrame, examples: int) -> list[Difference]:
    """The first differences of each kind, in the order of the topic."""
    shown = []
    for kind in KINDS:
        frame = counts if kind in counts.columns else order
        chosen = frame.filter(fn.col(kind) > 0).select("place.*", fn.col(kind).alias("count"))
        for row in chosen.orderBy("topic", "partition", "offset").limit(examples).collect():
            key = None if row["key"] is None else bytes(row["key"])
            where = (row["topic"] or "", row["partition"], row["offset"])
            shown.append(Difference(kind, *where, key, row["count"]))
    return shown
