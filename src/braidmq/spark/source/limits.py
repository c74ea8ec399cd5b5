"""How much one micro-batch reads: limits by records and bytes, and a minimum to wait for."""

from __future__ import annotations

import math

from braidmq.client.cluster import Cluster, TopicPartition
from braidmq.client.consumer import Start
from braidmq.client.errors import ClientError
from braidmq.platform.clock import SystemClock
from braidmq.spark.source import positions
from braidmq.spark.source.log_dirs import describe
from braidmq.spark.source.positions import Offsets
from braidmq.spark.source.query import ReadQuery
from braidmq.wire.errors import ApiError, ErrorCode


class BatchPace:
    """Whether a micro-batch waits for more records (`minOffsetsPerTrigger`), and for how long at most."""

    def __init__(self, query: ReadQuery) -> None:
        self._least = query.trigger_offsets_min
        self._delay_max_s = query.trigger_delay_max_ms / 1000
        self._last_s: float | None = None

    def waits(self, begins: Offsets, ends: Offsets) -> bool:
        """The first batch of a run does not wait, as in Spark's Kafka source."""
        now_s = SystemClock().monotonic()
        new = sum(ends[at] - begins[at] for at in ends)
        is_early = self._last_s is not None and now_s - self._last_s < self._delay_max_s
        if self._least is not None and new < self._least and is_early:
            return True
        self._last_s = now_s
        return False


def limited(cluster: Cluster, query: ReadQuery, begins: Offsets, ends: Offsets) -> Offsets:
    """Where a batch ends within the query's limits; partitions share them in proportion to their lag."""
    shares = [1.0]
    lags = {at: ends[at] - begins[at] for at in ends}
    total = sum(lags.values())
    if query.trigger_offsets_max is not None and total > query.trigger_offsets_max:
        shares.append(query.trigger_offsets_max / total)
    if query.trigger_bytes_max is not None and total:
        sizes = record_bytes(cluster, query, list(ends))
        total_bytes = sum(lag * sizes.get(at, 0.0) for at, lag in lags.items())
        if total_bytes > query.trigger_bytes_max:
            shares.append(query.trigger_bytes_max / total_bytes)
    share = min(shares)
    if share == 1.0:
        return ends
    return {at: begins[at] + _part(lag, share) for at, lag in lags.items()}


def _part(lag: int, share: float) -> int:
    """At least one record for a partition that has any, however small its share is."""
    part = lag * share
    return math.ceil(part) if part < 1 else math.floor(part)


def record_bytes(
    cluster: Cluster, query: ReadQuery, some: list[TopicPartition]
) -> dict[TopicPartition, float]:
    """The average stored size of a record by partition, from the sizes of the brokers' log directories."""
    firsts = positions.edges(cluster, some, Start.EARLIEST, query.isolation)
    lasts = positions.edges(cluster, some, Start.LATEST, query.isolation)
    found = {}
    for at, size_bytes in _stored_bytes(cluster, some).items():
        found[at] = size_bytes / max(1, lasts[at] - firsts[at])
    return found


def _stored_bytes(cluster: Cluster, some: list[TopicPartition]) -> dict[TopicPartition, int]:
    found: dict[TopicPartition, int] = {}
    for connection, group in cluster.by_leader(some):
        try:
            answer = describe(connection, group)
        except (ApiError, ClientError) as error:
            raise ClientError(f"option maxBytesPerTrigger needs partition sizes: {error}") from None
        found |= {
            TopicPartition(topic.name, part.partition_index): part.partition_size
            for result in answer.results
            for topic in result.topics
            for part in topic.partitions
            if part.partition_size >= 0
        }
        if missing := [at for at in group if at not in found]:
            code = ErrorCode(answer.error_code or next((each.error_code for each in answer.results), 0))
            raise ClientError(
                f"option maxBytesPerTrigger needs partition sizes, and {connection.address} does not"
                f" return that of {missing[0]} ({code.name.lower().replace('_', ' ')}); grant the"
                " permission DESCRIBE on the cluster, or use maxOffsetsPerTrigger"
            )
    return found
