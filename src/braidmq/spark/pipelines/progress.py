"""A query's status from the progress that Spark reports after each batch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from braidmq.spark.pipelines.status import QueryStatus


def update(status: QueryStatus, progress: Mapping[str, Any]) -> bool:
    """Updates the status from a report; returns whether the report was new."""
    batch = int(progress["batchId"])
    duration_ms = int(
        progress.get("batchDuration") or progress.get("durationMs", {}).get("triggerExecution", 0)
    )
    rows = int(progress.get("numInputRows") or 0)
    seen = (batch, rows, duration_ms) == (status.batch, status.batch_rows, status.batch_ms)
    if seen:
        return False
    if batch == status.batch and not rows:
        # Spark found no new records: the last batch is still the last one.
        before = status.rows_per_s, status.lag
        told = lag(progress.get("sources") or [])
        status.rows_per_s, status.lag = 0.0, status.lag if told is None else told
        return before != (status.rows_per_s, status.lag)
    if batch != status.batch or rows != status.batch_rows:
        status.rows += rows
    status.batch, status.batch_rows, status.batch_ms = batch, rows, duration_ms
    status.rows_per_s = round(float(progress.get("processedRowsPerSecond") or 0.0), 1)
    operators = progress.get("stateOperators") or []
    status.state_rows = sum(int(each.get("numRowsTotal") or 0) for each in operators)
    status.state_bytes = sum(int(each.get("memoryUsedBytes") or 0) for each in operators)
    status.watermark = (progress.get("eventTime") or {}).get("watermark", status.watermark)
    status.lag = lag(progress.get("sources") or [])
    return True


def lag(sources: list[Mapping[str, Any]]) -> int | None:
    """Unread records of the topics; None if no source has offsets of topics."""
    total, told = 0, False
    for source in sources:
        reached, newest = _offsets(source.get("endOffset")), _offsets(source.get("latestOffset"))
        if reached is None or newest is None:
            continue
        told = True
        for topic, partitions in newest.items():
            for index, end in partitions.items():
                total += max(0, end - reached.get(topic, {}).get(index, 0))
    return total if told else None


def _offsets(written: Any) -> dict[str, dict[str, int]] | None:
    if isinstance(written, str):
        try:
            written = json.loads(written)
        except ValueError:
            return None
    if not isinstance(written, dict) or not all(isinstance(each, dict) for each in written.values()):
        return None
    return written
