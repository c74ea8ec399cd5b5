"""Share groups (KIP-932): membership, description, and administration of where a group starts to read."""

from __future__ import annotations

from braidmq.wire.api import Api
from braidmq.wire.messages.consumer_groups import DescribedAssignment, HeartbeatAssignment
from braidmq.wire.messages.metadata import OPERATIONS_NOT_ASKED_FOR
from braidmq.wire.schema import Message, array, boolean, int16, int32, int64, string, struct, uuid


class ShareGroupHeartbeatRequest(Message, api=Api.SHARE_GROUP_HEARTBEAT, versions=(1, 1), flexible=1):
    group_id: str = string()
    member_id: str = string()
    member_epoch: int = int32()
    rack_id: str | None = string(nullable=1)
    subscribed_topic_names: list[str] | None = array(string, nullable=1)


class ShareGroupHeartbeatResponse(Message, api=Api.SHARE_GROUP_HEARTBEAT, versions=(1, 1), flexible=1):
    throttle_time_ms: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable=1)
    member_id: str | None = string(nullable=1)
    member_epoch: int = int32()
    heartbeat_interval_ms: int = int32()
    assignment: HeartbeatAssignment | None = struct(HeartbeatAssignment, nullable=1)


class ShareGroupDescribeRequest(Message, api=Api.SHARE_GROUP_DESCRIBE, versions=(1, 1), flexible=1):
    group_ids: list[str] = array(string)
    include_authorized_operations: bool = boolean()


class DescribedShareGroupMember(Message):
    member_id: str = string()
    rack_id: str | None = string(nullable=1)
    member_epoch: int = int32()
    client_id: str = string()
    client_host: str = string()
    subscribed_topic_names: list[str] = array(string)
    assignment: DescribedAssignment = struct(DescribedAssignment)


class DescribedShareGroup(Message):
    error_code: int = int16()
    error_message: str | None = string(nullable=1)
    group_id: str = string()
    group_state: str = string()
    group_epoch: int = int32()
    assignment_epoch: int = int32()
    assignor_name: str = string()
    members: list[DescribedShareGroupMember] = array(DescribedShareGroupMember)
    authorized_operations: int = int32(default=OPERATIONS_NOT_ASKED_FOR)


class ShareGroupDescribeResponse(Message, api=Api.SHARE_GROUP_DESCRIBE, versions=(1, 1), flexible=1):
    throttle_time_ms: int = int32()
    groups: list[DescribedShareGroup] = array(DescribedShareGroup)


class DescribeShareGroupOffsetsRequestTopic(Message):
    topic_name: str = string()
    partitions: list[int] = array(int32)


class DescribeShareGroupOffsetsRequestGroup(Message):
    """Null `topics` asks for every partition the group has read."""

    group_id: str = string()
    topics: list[DescribeShareGroupOffsetsRequestTopic] | None = array(
        DescribeShareGroupOffsetsRequestTopic, nullable=0
    )


class DescribeShareGroupOffsetsRequest(
    Message, api=Api.DESCRIBE_SHARE_GROUP_OFFSETS, versions=(0, 1), flexible=0
):
    groups: list[DescribeShareGroupOffsetsRequestGroup] = array(DescribeShareGroupOffsetsRequestGroup)


class DescribeShareGroupOffsetsResponsePartition(Message):
    partition_index: int = int32()
    start_offset: int = int64()
    leader_epoch: int = int32()
    lag: int = int64(since=1, default=-1)
    error_code: int = int16()
    error_message: str | None = string(nullable=0)


class DescribeShareGroupOffsetsResponseTopic(Message):
    topic_name: str = string()
    topic_id: bytes = uuid()
    partitions: list[DescribeShareGroupOffsetsResponsePartition] = array(
        DescribeShareGroupOffsetsResponsePartition
    )


class DescribeShareGroupOffsetsResponseGroup(Message):
    group_id: str = string()
    topics: list[DescribeShareGroupOffsetsResponseTopic] = array(DescribeShareGroupOffsetsResponseTopic)
    error_code: int = int16()
    error_message: str | None = string(nullable=0)


class DescribeShareGroupOffsetsResponse(
    Message, api=Api.DESCRIBE_SHARE_GROUP_OFFSETS, versions=(0, 1), flexible=0
):
    throttle_time_ms: int = int32()
    groups: list[DescribeShareGroupOffsetsResponseGroup] = array(DescribeShareGroupOffsetsResponseGroup)


class AlterShareGroupOffsetsRequestPartition(Message):
    partition_index: int = int32()
    start_offset: int = int64()


class AlterShareGroupOffsetsRequestTopic(Message):
    topic_name: str = string()
    partitions: list[AlterShareGroupOffsetsRequestPartition] = array(AlterShareGroupOffsetsRequestPartition)


class AlterShareGroupOffsetsRequest(Message, api=Api.ALTER_SHARE_GROUP_OFFSETS, versions=(0, 0), flexible=0):
    group_id: str = string()
    topics: list[AlterShareGroupOffsetsRequestTopic] = array(AlterShareGroupOffsetsRequestTopic)


class AlterShareGroupOffsetsResponsePartition(Message):
    partition_index: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable=0)


class AlterShareGroupOffsetsResponseTopic(Message):
    topic_name: str = string()
    topic_id: bytes = uuid()
    partitions: list[AlterShareGroupOffsetsResponsePartition] = array(AlterShareGroupOffsetsResponsePartition)


class AlterShareGroupOffsetsResponse(Message, api=Api.ALTER_SHARE_GROUP_OFFSETS, versions=(0, 0), flexible=0):
    throttle_time_ms: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable=0)
    responses: list[AlterShareGroupOffsetsResponseTopic] = array(AlterShareGroupOffsetsResponseTopic)


class DeleteShareGroupOffsetsRequestTopic(Message):
    topic_name: str = string()


class DeleteShareGroupOffsetsRequest(
    Message, api=Api.DELETE_SHARE_GROUP_OFFSETS, versions=(0, 0), flexible=0
):
    group_id: str = string()
    topics: list[DeleteShareGroupOffsetsRequestTopic] = array(DeleteShareGroupOffsetsRequestTopic)


class DeleteShareGroupOffsetsResponseTopic(Message):
    topic_name: str = string()
    topic_id: bytes = uuid()
    error_code: int = int16()
    error_message: str | None = string(nullable=0)


class DeleteShareGroupOffsetsResponse(
    Message, api=Api.DELETE_SHARE_GROUP_OFFSETS, versions=(0, 0), flexible=0
):
    throttle_time_ms: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable=0)
    responses: list[DeleteShareGroupOffsetsResponseTopic] = array(DeleteShareGroupOffsetsResponseTopic)
