"""The first row of each key within a time, as a stream.

For each key the times of emitted rows are kept, and a row is dropped if one of them is at most `within` away.
They are removed when the watermark says that no such row can come any more. Spark's own
`dropDuplicatesWithinWatermark` drops every row until it removes the key, which is later by the delay of the
watermark: it would drop an event that is further away than `within`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from typing import Any

import pandas as pd
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout
from pyspark.sql.types import StringType, StructField, StructType

from braidmq.spark.pipelines.duration import Duration
from braidmq.spark.pipelines.keyed import ROW, Keep, per_key

TIME, AT = "_braid_time", "_braid_at"
STATE = StructType([StructField("kept", StringType())])
"""Microseconds since 1970, separated by spaces: Spark does not return arrays to Python."""


def first_within(frame: DataFrame, by: tuple[str, ...], time: str, within: Duration) -> DataFrame:
    """The first rows of a stream; `time` is its column with the watermark."""
    micros = F.unix_micros(F.col(time).cast("timestamp"))
    # Spark finds the watermark by the column that has it; the struct keeps numbers whole beside nulls.
    beside = {TIME: F.col(time), AT: F.struct(micros.alias(AT))}
    keep = _first_of_its_time(round(within.seconds * 1_000_000))
    return per_key(frame, by, beside, keep, STATE, GroupStateTimeout.EventTimeTimeout)


def _first_of_its_time(within_us: int) -> Keep:
    def keep(_: Any, frames: Iterator[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:
        if state.hasTimedOut:
            state.remove()
            return
        times_us = [int(each) for each in state.get[0].split()] if state.exists else []
        rows = [(at[AT], row) for frame in frames for at, row in zip(frame[AT], frame[ROW], strict=True)]
        rows.sort(key=lambda pair: pair[0] or 0)
        # A row without a time is a duplicate of none.
        kept = [row for at_us, row in rows if at_us is None or _take(times_us, at_us, within_us)]
        watermark_ms = state.getCurrentWatermarkMs()
        times_us = [each for each in times_us if each + within_us >= watermark_ms * 1000]
        if times_us:
            state.update((" ".join(map(str, times_us)),))
            state.setTimeoutTimestamp(max((times_us[-1] + within_us) // 1000, watermark_ms, 1))
        elif state.exists:
            state.remove()
        if kept:
            yield pd.DataFrame({ROW: kept})

    return keep


def _take(times_us: list[int], at_us: int, within_us: int) -> bool:
    """Whether no time is near; if so, inserts it in order."""
    index = bisect_left(times_us, at_us)
    if any(abs(each - at_us) <= within_us for each in times_us[max(0, index - 1) : index + 1]):
        return False
    times_us.insert(index, at_us)
    return True
