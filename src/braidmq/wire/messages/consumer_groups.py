"""Consumer groups whose members are assigned partitions by the server (KIP-848)."""

from __future__ import annotations

from braidmq.wire.api import Api
from braidmq.wire.messages.metadata import OPERATIONS_NOT_ASKED_FOR
from braidmq.wire.schema import Message, array, boolean, int8, int16, int32, string, struct, uuid


class HeartbeatTopicPartitions(Message):
    topic_id: bytes = uuid()
    partitions: list[int] = array(int32)


class ConsumerGroupHeartbeatRequest(Message, api=Api.CONSUMER_GROUP_HEARTBEAT, versions=(0, 1), flexible=0):
    """What has not changed since the last one is null, or -1 for the timeout."""

    group_id: str = string()
    member_id: str = string()
    member_epoch: int = int32()
    instance_id: str | None = string(nullable=0)
    rack_id: str | None = string(nullable=0)
    rebalance_timeout_ms: int = int32(default=-1)
    subscribed_topic_names: list[str] | None = array(string, nullable=0)
    subscribed_topic_regex: str | None = string(since=1, nullable=1)
    server_assignor: str | None = string(nullable=0)
    topic_partitions: list[HeartbeatTopicPartitions] | None = array(HeartbeatTopicPartitions, nullable=0)


class HeartbeatAssignment(Message):
    topic_partitions: list[HeartbeatTopicPartitions] = array(HeartbeatTopicPartitions)


class ConsumerGroupHeartbeatResponse(Message, api=Api.CONSUMER_GROUP_HEARTBEAT, versions=(0, 1), flexible=0):
    """A null `assignment` means that it has not changed."""

    throttle_time_ms: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable=0)
    member_id: str | None = string(nullable=0)
    member_epoch: int = int32()
    heartbeat_interval_ms: int = int32()
    assignment: HeartbeatAssignment | None = struct(HeartbeatAssignment, nullable=0)


class ConsumerGroupDescribeRequest(Message, api=Api.CONSUMER_GROUP_DESCRIBE, versions=(0, 1), flexible=0):
    group_ids: list[str] = array(string)
    include_authorized_operations: bool = boolean()


class DescribedTopicPartitions(Message):
    topic_id: bytes = uuid()
    topic_name: str = string()
    partitions: list[int] = array(int32)


class DescribedAssignment(Message):
    topic_partitions: list[DescribedTopicPartitions] = array(DescribedTopicPartitions)


class DescribedConsumerGroupMember(Message):
    member_id: str = string()
    instance_id: str | None = string(nullable=0)
    rack_id: str | None = string(nullable=0)
    member_epoch: int = int32()
    client_id: str = string()
    client_host: str = string()
    subscribed_topic_names: list[str] = array(string)
    subscribed_topic_regex: str | None = string(nullable=0)
    assignment: DescribedAssignment = struct(DescribedAssignment)
    target_assignment: DescribedAssignment = struct(DescribedAssignment)
    member_type: int = int8(since=1, default=-1)


class DescribedConsumerGroup(Message):
    error_code: int = int16()
    error_message: str | None = string(nullable=0)
    group_id: str = string()
    group_state: str = string()
    group_epoch: int = int32()
    assignment_epoch: int = int32()
    assignor_name: str = string()
    members: list[DescribedConsumerGroupMember] = array(DescribedConsumerGroupMember)
    authorized_operations: int = int32(default=OPERATIONS_NOT_ASKED_FOR)


class ConsumerGroupDescribeResponse(Message, api=Api.CONSUMER_GROUP_DESCRIBE, versions=(0, 1), flexible=0):
    throttle_time_ms: int = int32()
    groups: list[DescribedConsumerGroup] = array(DescribedConsumerGroup)
