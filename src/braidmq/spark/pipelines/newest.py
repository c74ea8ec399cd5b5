"""Changes of each key in order, as a stream: a change that comes after a newer one of its key is dropped.

The state has one value for each key, the order of the newest change.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pandas as pd
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout

from braidmq.spark.pipelines.keyed import ROW, Keep, per_key

ORDER = "_braid_order"


def in_order(frame: DataFrame, by: tuple[str, ...], order_by: tuple[str, ...]) -> DataFrame:
    """The rows of a stream that are newer than all before them of the same key; of a table, the newest."""
    if not frame.isStreaming:
        rank = F.row_number().over(Window.partitionBy(*by).orderBy(*[F.desc_nulls_last(c) for c in order_by]))
        return frame.withColumn(ROW, rank).where(f"{ROW} = 1").drop(ROW)
    beside = {ORDER: F.struct(*order_by)}
    state = frame.select(beside[ORDER].alias(ORDER)).schema
    return per_key(frame, by, beside, _newer_than_state(order_by), state, GroupStateTimeout.NoTimeout)


def _newer_than_state(order_by: tuple[str, ...]) -> Keep:
    def keep(_: Any, frames: Iterator[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:
        newest = _order(state.get[0], order_by) if state.exists else None
        rows = [pair for frame in frames for pair in zip(frame[ORDER], frame[ROW], strict=True)]
        rows.sort(key=lambda pair: _order(pair[0], order_by))
        kept, last = [], None
        for order, row in rows:
            rank = _order(order, order_by)
            if newest is None or rank > newest:
                newest, last = rank, order
                kept.append(row)
        if last is not None:
            state.update((tuple(_plain(last[name]) for name in order_by),))
        if kept:
            yield pd.DataFrame({ROW: kept})

    return keep


def _order(value: Any, order_by: tuple[str, ...]) -> tuple[tuple[int, Any], ...]:
    """Sorts like Spark: null before everything else, NaN after it."""
    return tuple(_rank(_plain(value[name])) for name in order_by)


def _rank(part: Any) -> tuple[int, Any]:
    if part is None:
        return 0, None
    return (2, None) if isinstance(part, float) and math.isnan(part) else (1, part)


def _plain(value: Any) -> Any:
    """Times of pandas as those of Python, for the state."""
    return value.to_pydatetime() if isinstance(value, pd.Timestamp) else value
