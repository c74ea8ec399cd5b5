"""Administration of share groups (KIP-932): the same questions as of other groups, by other verbs.

`connection` is one to the coordinator of the group.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from braidmq.client.cluster import TopicPartition
from braidmq.client.connection import Connection
from braidmq.wire.errors import ApiError, ErrorCode
from braidmq.wire.messages.share_groups import (
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsRequestPartition,
    AlterShareGroupOffsetsRequestTopic,
    AlterShareGroupOffsetsResponse,
    DescribedShareGroupMember,
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsRequestGroup,
    DescribeShareGroupOffsetsResponse,
    ShareGroupDescribeRequest,
    ShareGroupDescribeResponse,
)


class ShareGroupStart(NamedTuple):
    """Where a share group is in a partition: everything before is settled, and some of what follows."""

    offset: int
    lag: int


def members(connection: Connection, group_id: str) -> list[DescribedShareGroupMember]:
    request = ShareGroupDescribeRequest(group_ids=[group_id])
    group = connection.call(request, ShareGroupDescribeResponse).groups[0]
    _raise_for(group.error_code, group.error_message)
    return group.members


def starts(connection: Connection, group_id: str) -> dict[TopicPartition, ShareGroupStart]:
    """Every partition that the group has read."""
    wanted = DescribeShareGroupOffsetsRequestGroup(group_id=group_id, topics=None)
    request = DescribeShareGroupOffsetsRequest(groups=[wanted])
    group = connection.call(request, DescribeShareGroupOffsetsResponse).groups[0]
    _raise_for(group.error_code, group.error_message)
    return {
        TopicPartition(topic.topic_name, part.partition_index): ShareGroupStart(part.start_offset, part.lag)
        for topic in group.topics
        for part in topic.partitions
        if part.start_offset >= 0
    }


def move(connection: Connection, group_id: str, offsets: Mapping[TopicPartition, int]) -> None:
    """Moves a group without members to other offsets."""
    topics: dict[str, AlterShareGroupOffsetsRequestTopic] = {}
    for at, offset in offsets.items():
        topic = topics.setdefault(
            at.topic, AlterShareGroupOffsetsRequestTopic(topic_name=at.topic, partitions=[])
        )
        topic.partitions.append(
            AlterShareGroupOffsetsRequestPartition(partition_index=at.partition, start_offset=offset)
        )
    request = AlterShareGroupOffsetsRequest(group_id=group_id, topics=list(topics.values()))
    answer = connection.call(request, AlterShareGroupOffsetsResponse)
    _raise_for(answer.error_code, answer.error_message)
    for topic_answer in answer.responses:
        for part in topic_answer.partitions:
            _raise_for(part.error_code, part.error_message)


def _raise_for(code_number: int, message: str | None) -> None:
    code = ErrorCode(code_number)
    if code is not ErrorCode.NONE:
        raise ApiError(code, message or "")
