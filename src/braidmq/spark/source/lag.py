"""The lag of a streaming query, from the progress that Spark reports of it.

For each source, a progress has the offsets at which its batch ended and the latest offsets when the batch was
planned; the difference is the lag. Rates (`inputRowsPerSecond`, `processedRowsPerSecond`) are in it already.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Protocol

from braidmq.client.cluster import TopicPartition


class QueryProgress(Protocol):
    """A `StreamingQueryProgress`, from `query.lastProgress` or a listener."""

    @property
    def json(self) -> str: ...


def lag(progress: QueryProgress | Mapping[str, Any] | None) -> dict[TopicPartition, int]:
    """Records left to read by partition, for all topics of a query; empty before its first batch."""
    if progress is None:
        return {}
    written = progress if isinstance(progress, Mapping) else json.loads(progress.json)
    found: dict[TopicPartition, int] = {}
    for source in written.get("sources", []):
        ends, latest = _offsets(source.get("endOffset")), _offsets(source.get("latestOffset"))
        for at, offset in latest.items():
            found[at] = found.get(at, 0) + max(0, offset - ends.get(at, 0))
    return found


def _offsets(written: Any) -> dict[TopicPartition, int]:
    """Offsets in the form of Spark's Kafka source and ours; other sources have no lag in records."""
    if isinstance(written, str):
        try:
            written = json.loads(written)
        except ValueError:
            return {}
    if not isinstance(written, Mapping):
        return {}
    return {
        TopicPartition(topic, int(partition)): offset
        for topic, partitions in written.items()
        if isinstance(partitions, Mapping)
        for partition, offset in partitions.items()
        if partition.isdigit() and isinstance(offset, int)
    }
