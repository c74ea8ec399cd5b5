"""Applies a function with state to the rows of each key.

Rows are passed as one struct column, so that pandas changes no type: a 64-bit integer that may be null would
lose its last digits. NaN, which pandas treats as null, has a mark (`nan.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import pandas as pd
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import StructField, StructType

from braidmq.spark.pipelines import nan

KEY, ROW = "_braid_key", "_braid_row"
Keep = Callable[..., Iterator[pd.DataFrame]]
"""From a key, its rows in `ROW` and the state to the rows to keep."""


def per_key(
    frame: DataFrame,
    by: tuple[str, ...],
    beside: Mapping[str, Column],
    keep: Keep,
    state: StructType,
    timeout: str,
) -> DataFrame:
    """The rows of a stream that `keep` returns; it also gets the columns `beside`."""
    fields = frame.schema.fields
    whole = [nan.marked(F.col(f"`{each.name}`"), each.dataType).alias(each.name) for each in fields]
    packed = frame.select(
        *[F.col(name).alias(f"{KEY}_{name}") for name in by],
        *[column.alias(name) for name, column in beside.items()],
        F.struct(*whole).alias(ROW),
    )
    rows = StructType([StructField(ROW, packed.schema[ROW].dataType)])
    kept = packed.groupBy(*[f"{KEY}_{name}" for name in by]).applyInPandasWithState(
        keep, rows, state, "append", timeout
    )
    row = F.col(ROW)
    return kept.select(
        *[nan.restored(row.getField(each.name), each.dataType).alias(each.name) for each in fields]
    )
