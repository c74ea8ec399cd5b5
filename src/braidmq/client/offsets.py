"""ListOffsets: from a time, or from `earliest` and `latest`, to an offset, asked of each leader."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from braidmq.client.cluster import Cluster, TopicPartition
from braidmq.client.connection import Connection
from braidmq.client.errors import Unreachable
from braidmq.wire.errors import ApiError, ErrorCode
from braidmq.wire.messages.offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)


class Spot(NamedTuple):
    """An offset and the time of its record; both -1 where no record is that young."""

    offset: int
    timestamp_ms: int


def list_offsets(
    cluster: Cluster, wanted: Mapping[TopicPartition, int], isolation_level: int = 0
) -> dict[TopicPartition, Spot]:
    """For each partition the first record stamped `wanted` or later; -1 means the end, -2 the start.

    With isolation level 1 (read_committed) the end is where the first undecided transaction begins.
    """
    found: dict[TopicPartition, Spot] = {}
    for attempt in cluster.attempts():
        left = {at: when for at, when in wanted.items() if at not in found}
        try:
            for connection, group in cluster.by_leader(left):
                found |= _ask(connection, {at: left[at] for at in group}, isolation_level)
        except (ApiError, Unreachable) as error:
            for at in left:
                cluster.forget(at.topic)
            attempt.failed(error, retriable=isinstance(error, Unreachable) or error.code.retriable)
    return found


def _ask(
    connection: Connection, wanted: Mapping[TopicPartition, int], isolation_level: int
) -> dict[TopicPartition, Spot]:
    topics: dict[str, ListOffsetsTopic] = {}
    for at, timestamp_ms in wanted.items():
        topics.setdefault(at.topic, ListOffsetsTopic(name=at.topic, partitions=[])).partitions.append(
            ListOffsetsPartition(partition_index=at.partition, timestamp=timestamp_ms)
        )
    request = ListOffsetsRequest(isolation_level=isolation_level, topics=list(topics.values()))
    answer = connection.call(request, ListOffsetsResponse)
    found = {}
    for topic in answer.topics:
        for partition in topic.partitions:
            at = TopicPartition(topic.name, partition.partition_index)
            if partition.error_code != ErrorCode.NONE:
                raise ApiError(ErrorCode(partition.error_code), f"offsets of {at}")
            found[at] = Spot(partition.offset, partition.timestamp)
    return found
