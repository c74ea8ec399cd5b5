"""The lag of a streaming query, from the progress that Spark reports of it.

Each source of a progress has the offsets its batch ended at and the latest there were when it was planned;
the difference is what the query has yet to read. Rates (`inputRowsPerSecond`, `processedRowsPerSecond`) stand
there already.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Protocol

from braidmq.client.cluster import TopicPartition


class QueryProgress(Protocol):
    """A `StreamingQueryProgress`, as `query.lastProgress` or a listener has it."""

    @property
    def json(self) -> str: ...


def lag(progress: QueryProgress | Mapping[str, Any] | None) -> dict[TopicPartition, int]:
    """Records behind by partition, over all topics a query reads; empty before its first batch."""
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
    """Offsets in the form of Kafka's source and ours; what has another form has no lag in records."""
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
