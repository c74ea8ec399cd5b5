"""Groups of Kafka Streams applications, whose members the server assigns tasks (KIP-1071)."""

from __future__ import annotations

from braidmq.wire.api import Api
from braidmq.wire.messages.metadata import OPERATIONS_NOT_ASKED_FOR
from braidmq.wire.schema import (
    Message,
    array,
    boolean,
    int8,
    int16,
    int32,
    int64,
    string,
    struct,
    uint16,
)


class KeyValue(Message):
    key: str = string()
    value: str = string()


class TopicInfo(Message):
    """An internal topic; no partitions or no replication factor means that the server decides."""

    name: str = string()
    partitions: int = int32()
    replication_factor: int = int16()
    topic_configs: list[KeyValue] = array(KeyValue)


class Endpoint(Message):
    host: str = string()
    port: int = uint16()


class TaskOffset(Message):
    subtopology_id: str = string()
    partition: int = int32()
    offset: int = int64()


class TaskIds(Message):
    subtopology_id: str = string()
    partitions: list[int] = array(int32)


class CopartitionGroup(Message):
    """Topics that need equally many partitions, by their places in the lists of the subtopology."""

    source_topics: list[int] = array(int16)
    source_topic_regex: list[int] = array(int16)
    repartition_source_topics: list[int] = array(int16)


class HeartbeatSubtopology(Message):
    subtopology_id: str = string()
    source_topics: list[str] = array(string)
    source_topic_regex: list[str] = array(string)
    state_changelog_topics: list[TopicInfo] = array(TopicInfo)
    repartition_sink_topics: list[str] = array(string)
    repartition_source_topics: list[TopicInfo] = array(TopicInfo)
    copartition_groups: list[CopartitionGroup] = array(CopartitionGroup)


class HeartbeatTopology(Message):
    epoch: int = int32()
    subtopologies: list[HeartbeatSubtopology] = array(HeartbeatSubtopology)


class StreamsGroupHeartbeatRequest(Message, api=Api.STREAMS_GROUP_HEARTBEAT, versions=(0, 0), flexible=0):
    """What has not changed since the last one is null, or -1 for the timeout."""

    group_id: str = string()
    member_id: str = string()
    member_epoch: int = int32()
    endpoint_information_epoch: int = int32()
    instance_id: str | None = string(nullable=0)
    rack_id: str | None = string(nullable=0)
    rebalance_timeout_ms: int = int32(default=-1)
    topology: HeartbeatTopology | None = struct(HeartbeatTopology, nullable=0)
    active_tasks: list[TaskIds] | None = array(TaskIds, nullable=0)
    standby_tasks: list[TaskIds] | None = array(TaskIds, nullable=0)
    warmup_tasks: list[TaskIds] | None = array(TaskIds, nullable=0)
    process_id: str | None = string(nullable=0)
    user_endpoint: Endpoint | None = struct(Endpoint, nullable=0)
    client_tags: list[KeyValue] | None = array(KeyValue, nullable=0)
    task_offsets: list[TaskOffset] | None = array(TaskOffset, nullable=0)
    task_end_offsets: list[TaskOffset] | None = array(TaskOffset, nullable=0)
    shutdown_application: bool = boolean()


class Status(Message):
    status_code: int = int8()
    status_detail: str = string()


class TopicPartition(Message):
    topic: str = string()
    partitions: list[int] = array(int32)


class EndpointToPartitions(Message):
    user_endpoint: Endpoint = struct(Endpoint)
    active_partitions: list[TopicPartition] = array(TopicPartition)
    standby_partitions: list[TopicPartition] = array(TopicPartition)


class StreamsGroupHeartbeatResponse(Message, api=Api.STREAMS_GROUP_HEARTBEAT, versions=(0, 0), flexible=0):
    """Null tasks are those that the member already knows."""

    throttle_time_ms: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable=0)
    member_id: str = string()
    member_epoch: int = int32()
    heartbeat_interval_ms: int = int32()
    acceptable_recovery_lag: int = int32()
    task_offset_interval_ms: int = int32()
    status: list[Status] | None = array(Status, nullable=0)
    active_tasks: list[TaskIds] | None = array(TaskIds, nullable=0)
    standby_tasks: list[TaskIds] | None = array(TaskIds, nullable=0)
    warmup_tasks: list[TaskIds] | None = array(TaskIds, nullable=0)
    endpoint_information_epoch: int = int32()
    partitions_by_user_endpoint: list[EndpointToPartitions] | None = array(EndpointToPartitions, nullable=0)


class StreamsGroupDescribeRequest(Message, api=Api.STREAMS_GROUP_DESCRIBE, versions=(0, 0), flexible=0):
    group_ids: list[str] = array(string)
    include_authorized_operations: bool = boolean()


class DescribedSubtopology(Message):
    subtopology_id: str = string()
    source_topics: list[str] = array(string)
    repartition_sink_topics: list[str] = array(string)
    state_changelog_topics: list[TopicInfo] = array(TopicInfo)
    repartition_source_topics: list[TopicInfo] = array(TopicInfo)


class DescribedTopology(Message):
    epoch: int = int32()
    subtopologies: list[DescribedSubtopology] | None = array(DescribedSubtopology, nullable=0)


class DescribedTasks(Message):
    active_tasks: list[TaskIds] = array(TaskIds)
    standby_tasks: list[TaskIds] = array(TaskIds)
    warmup_tasks: list[TaskIds] = array(TaskIds)


class DescribedStreamsGroupMember(Message):
    member_id: str = string()
    member_epoch: int = int32()
    instance_id: str | None = string(nullable=0)
    rack_id: str | None = string(nullable=0)
    client_id: str = string()
    client_host: str = string()
    topology_epoch: int = int32()
    process_id: str = string()
    user_endpoint: Endpoint | None = struct(Endpoint, nullable=0)
    client_tags: list[KeyValue] = array(KeyValue)
    task_offsets: list[TaskOffset] = array(TaskOffset)
    task_end_offsets: list[TaskOffset] = array(TaskOffset)
    assignment: DescribedTasks = struct(DescribedTasks)
    target_assignment: DescribedTasks = struct(DescribedTasks)
    is_classic: bool = boolean()


class DescribedStreamsGroup(Message):
    error_code: int = int16()
    error_message: str | None = string(nullable=0)
    group_id: str = string()
    group_state: str = string()
    group_epoch: int = int32()
    assignment_epoch: int = int32()
    topology: DescribedTopology | None = struct(DescribedTopology, nullable=0)
    members: list[DescribedStreamsGroupMember] = array(DescribedStreamsGroupMember)
    authorized_operations: int = int32(default=OPERATIONS_NOT_ASKED_FOR)


class StreamsGroupDescribeResponse(Message, api=Api.STREAMS_GROUP_DESCRIBE, versions=(0, 0), flexible=0):
    throttle_time_ms: int = int32()
    groups: list[DescribedStreamsGroup] = array(DescribedStreamsGroup)
