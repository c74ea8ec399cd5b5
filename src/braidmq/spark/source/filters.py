"""Filters that Spark pushes down: rows that a query drops are not sent to the JVM, and often not read at all.

Filters on topic, partition and offset narrow the ranges to read. A lower bound on the timestamp does too,
since the broker can look up the first record at or after a time; an upper bound does not, because clients'
clocks may go back. Every accepted filter is also applied to each Arrow batch, so Spark need not filter again.

Spark up to 4.3 keeps the plan that came out of a push-down with the DataFrame, not with the query: after
`frame.where("offset = 7").count()` a `frame.count()` on the same frame reads that one record and returns 1.
On those versions Spark does the filtering, unless the user says that each frame has one filter only
(`pushdown=always`). Versions that can push down a limit do not have this problem.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from operator import ge, gt, le, lt
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import (
    DataSourceReader,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
)

from braidmq.client.cluster import Cluster, TopicPartition
from braidmq.client.offsets import list_offsets
from braidmq.spark.source.columns import ARROW_TYPES

PUSHABLE = ("topic", "partition", "offset", "timestamp", "tag", "messageId")
BY_PARTITION = ("topic", "partition")
NEVER_NULL = ("topic", "partition", "offset", "timestamp", "timestampType")
COMPARISONS: dict[type[Filter], Callable[[Any, Any], Any]] = {
    GreaterThan: pc.greater,
    GreaterThanOrEqual: pc.greater_equal,
    LessThan: pc.less,
    LessThanOrEqual: pc.less_equal,
}
ORDERS: dict[type[Filter], Callable[[Any, Any], bool]] = {
    GreaterThan: gt,
    GreaterThanOrEqual: ge,
    LessThan: lt,
    LessThanOrEqual: le,
}


@dataclass(frozen=True)
class Condition:
    """One filter on one column, as Spark gave it."""

    column: str
    kind: type[Filter]
    value: Any

    def holds(self, value: Any) -> bool:
        """For a value that is not null."""
        if self.kind is EqualTo:
            return bool(value == self.value)
        if self.kind is In:
            return value in self.value
        return ORDERS[self.kind](value, self.value)

    def mask(self, column: pa.Array) -> pa.Array:
        kind = ARROW_TYPES[self.column]
        if self.kind is In:
            return pc.is_in(
                column, value_set=pa.array([each for each in self.value if each is not None], kind)
            )
        compare = pc.equal if self.kind is EqualTo else COMPARISONS[self.kind]
        return compare(column, pa.scalar(self.value, kind))


@dataclass(frozen=True)
class Pushed:
    """The accepted filters; a row must meet all of them."""

    conditions: tuple[Condition, ...] = ()

    def about(self, column: str) -> list[Condition]:
        return [each for each in self.conditions if each.column == column]

    def keep(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """The rows that meet all conditions, if there are any; partitions were chosen before."""
        mask = None
        for condition in self.conditions:
            if condition.column in BY_PARTITION:
                continue
            one = condition.mask(batch.column(condition.column))
            mask = one if mask is None else pc.and_(mask, one)
        kept = batch if mask is None else batch.filter(mask)
        if kept.num_rows:
            yield kept


EVERYTHING = Pushed()


def is_safe() -> bool:
    """Whether this version of Spark applies a pushed filter only to the query that it was pushed for."""
    return hasattr(DataSourceReader, "pushLimit")


def push(filters: Sequence[Filter]) -> tuple[Pushed, list[Filter]]:
    """Spark's filters, divided into those we accept and those left to Spark."""
    taken, left = [], []
    for each in filters:
        found = condition(each)
        if found is not None:
            taken.append(found)
        elif not (isinstance(each, IsNotNull) and each.attribute[0] in NEVER_NULL):
            left.append(each)
    return Pushed(tuple(taken)), left


def condition(filter_: Filter) -> Condition | None:
    """The condition of a filter on one column; None if we cannot evaluate it."""
    path: tuple[str, ...] = getattr(filter_, "attribute", ())
    if len(path) != 1 or path[0] not in PUSHABLE:
        return None
    kind = type(filter_)
    if kind is not EqualTo and kind is not In and kind not in COMPARISONS:
        return None
    value = filter_.value  # type: ignore[attr-defined]
    return None if value is None else Condition(path[0], kind, value)


def narrow(
    cluster: Cluster,
    pushed: Pushed,
    starts: Mapping[TopicPartition, int],
    ends: Mapping[TopicPartition, int],
) -> tuple[dict[TopicPartition, int], dict[TopicPartition, int]]:
    """The ranges that hold every row that can meet the conditions."""
    first, end = _offset_range(pushed)
    kept = [
        at
        for at in starts
        if all(each.holds(at.topic) for each in pushed.about("topic"))
        and all(each.holds(at.partition) for each in pushed.about("partition"))
    ]
    narrowed = {at: max(starts[at], first) for at in kept}
    ending = {at: ends[at] if end is None else min(ends[at], end) for at in kept}
    from_ms = _earliest_ms(pushed)
    if from_ms > 0 and (unread := {at: from_ms for at in kept if narrowed[at] < ending[at]}):
        for at, spot in list_offsets(cluster, unread).items():
            narrowed[at] = max(narrowed[at], spot.offset) if spot.offset >= 0 else ending[at]
    return narrowed, ending


def _offset_range(pushed: Pushed) -> tuple[int, int | None]:
    first, end = 0, None
    for each in pushed.about("offset"):
        if each.kind is EqualTo:
            low, high = each.value, each.value + 1
        elif each.kind is In:
            some = [one for one in each.value if one is not None]
            low, high = min(some, default=0), max(some, default=-1) + 1
        elif each.kind in (GreaterThan, GreaterThanOrEqual):
            low, high = each.value + (each.kind is GreaterThan), None
        else:
            low, high = 0, each.value + (each.kind is LessThanOrEqual)
        first = max(first, low)
        end = high if end is None or (high is not None and high < end) else end
    return first, end


def _earliest_ms(pushed: Pushed) -> int:
    """The earliest time that the conditions allow, in milliseconds as brokers store them.

    Zero if they allow any: brokers know no times before 1970, and negative ones have other meanings.
    """
    lows = [0]
    for each in pushed.about("timestamp"):
        values = [one for one in each.value if one is not None] if each.kind is In else [each.value]
        if each.kind not in (LessThan, LessThanOrEqual) and all(isinstance(one, datetime) for one in values):
            lows.append(min((int(one.timestamp() * 1000) for one in values), default=0))
    return max(lows)
