"""From the filters that Spark passes to a table in Java to those that it passes to a Python data source."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)

KINDS: dict[str, type[Filter]] = {
    each.__name__: each for each in (EqualTo, GreaterThan, GreaterThanOrEqual, LessThan, LessThanOrEqual)
}
EPOCH = datetime.fromtimestamp(0, UTC)


def from_java(filter_: Any) -> Filter | None:
    """The same filter in Python; None if it is not a comparison with values that mean the same there."""
    name = filter_.getClass().getSimpleName()
    if name == In.__name__:
        values = tuple(_value(each) for each in filter_.values())
        return None if None in values else In((filter_.attribute(),), values)
    value = _value(filter_.value()) if name in KINDS else None
    return None if value is None else KINDS[name]((filter_.attribute(),), value)  # type: ignore[call-arg]


def _value(value: Any) -> Any:
    """None for a value without an equivalent here; the session decides between two classes of times."""
    if value is None or isinstance(value, bool | int | float | str | bytes):
        return value
    kind = value.getClass().getName()
    if kind == "java.sql.Timestamp":
        value, kind = value.toInstant(), "java.time.Instant"
    if kind != "java.time.Instant":
        return None
    try:
        return EPOCH + timedelta(seconds=value.getEpochSecond(), microseconds=value.getNano() // 1000)
    except OverflowError:
        return None
