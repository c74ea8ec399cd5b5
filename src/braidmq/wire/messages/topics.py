"""Topics: creating and deleting them, adding partitions, and describing partitions page by page."""

from __future__ import annotations

from braidmq.wire.api import Api
from braidmq.wire.messages.metadata import OPERATIONS_NOT_ASKED_FOR
from braidmq.wire.schema import Message, array, boolean, int8, int16, int32, string, struct, uuid


class CreatableReplicaAssignment(Message):
    partition_index: int = int32()
    broker_ids: list[int] = array(int32)


class CreatableTopicConfig(Message):
    name: str = string()
    value: str | None = string(nullable=0)


class CreatableTopic(Message):
    name: str = string()
    num_partitions: int = int32(default=-1)
    replication_factor: int = int16(default=-1)
    assignments: list[CreatableReplicaAssignment] = array(CreatableReplicaAssignment)
    configs: list[CreatableTopicConfig] = array(CreatableTopicConfig)


class CreateTopicsRequest(Message, api=Api.CREATE_TOPICS, versions=(2, 7), flexible=5):
    topics: list[CreatableTopic] = array(CreatableTopic)
    timeout_ms: int = int32(default=60_000)
    validate_only: bool = boolean()


class CreatableTopicConfigs(Message):
    name: str = string()
    value: str | None = string(nullable=0)
    read_only: bool = boolean()
    config_source: int = int8(default=-1)
    is_sensitive: bool = boolean()


class CreatableTopicResult(Message):
    name: str = string()
    topic_id: bytes = uuid(since=7)
    error_code: int = int16()
    error_message: str | None = string(nullable=0)
    topic_config_error_code: int = int16(since=5, tag=0)
    num_partitions: int = int32(since=5, default=-1)
    replication_factor: int = int16(since=5, default=-1)
    configs: list[CreatableTopicConfigs] | None = array(CreatableTopicConfigs, since=5, nullable=5)


class CreateTopicsResponse(Message, api=Api.CREATE_TOPICS, versions=(2, 7), flexible=5):
    throttle_time_ms: int = int32()
    topics: list[CreatableTopicResult] = array(CreatableTopicResult)


class DeleteTopicState(Message):
    name: str | None = string(nullable=6)
    topic_id: bytes = uuid()


class DeleteTopicsRequest(Message, api=Api.DELETE_TOPICS, versions=(1, 6), flexible=4):
    """Up to version 5 topics are named in `topic_names`, from version 6 named or numbered in `topics`."""

    topics: list[DeleteTopicState] = array(DeleteTopicState, since=6)
    topic_names: list[str] = array(string, until=5)
    timeout_ms: int = int32()


class DeletableTopicResult(Message):
    name: str | None = string(nullable=6)
    topic_id: bytes = uuid(since=6)
    error_code: int = int16()
    error_message: str | None = string(since=5, nullable=5)


class DeleteTopicsResponse(Message, api=Api.DELETE_TOPICS, versions=(1, 6), flexible=4):
    throttle_time_ms: int = int32()
    responses: list[DeletableTopicResult] = array(DeletableTopicResult)


class CreatePartitionsAssignment(Message):
    broker_ids: list[int] = array(int32)


class CreatePartitionsTopic(Message):
    name: str = string()
    count: int = int32()
    assignments: list[CreatePartitionsAssignment] | None = array(CreatePartitionsAssignment, nullable=0)


class CreatePartitionsRequest(Message, api=Api.CREATE_PARTITIONS, versions=(0, 3), flexible=2):
    topics: list[CreatePartitionsTopic] = array(CreatePartitionsTopic)
    timeout_ms: int = int32()
    validate_only: bool = boolean()


class CreatePartitionsTopicResult(Message):
    name: str = string()
    error_code: int = int16()
    error_message: str | None = string(nullable=0)


class CreatePartitionsResponse(Message, api=Api.CREATE_PARTITIONS, versions=(0, 3), flexible=2):
    throttle_time_ms: int = int32()
    results: list[CreatePartitionsTopicResult] = array(CreatePartitionsTopicResult)


class TopicRequest(Message):
    name: str = string()


class Cursor(Message):
    """Where the next page begins."""

    topic_name: str = string()
    partition_index: int = int32()


class DescribeTopicPartitionsRequest(Message, api=Api.DESCRIBE_TOPIC_PARTITIONS, versions=(0, 0), flexible=0):
    topics: list[TopicRequest] = array(TopicRequest)
    response_partition_limit: int = int32(default=2000)
    cursor: Cursor | None = struct(Cursor, nullable=0)


class DescribeTopicPartitionsResponsePartition(Message):
    error_code: int = int16()
    partition_index: int = int32()
    leader_id: int = int32()
    leader_epoch: int = int32(default=-1)
    replica_nodes: list[int] = array(int32)
    isr_nodes: list[int] = array(int32)
    eligible_leader_replicas: list[int] | None = array(int32, nullable=0)
    last_known_elr: list[int] | None = array(int32, nullable=0)
    offline_replicas: list[int] = array(int32)


class DescribeTopicPartitionsResponseTopic(Message):
    error_code: int = int16()
    name: str | None = string(nullable=0)
    topic_id: bytes = uuid()
    is_internal: bool = boolean()
    partitions: list[DescribeTopicPartitionsResponsePartition] = array(
        DescribeTopicPartitionsResponsePartition
    )
    topic_authorized_operations: int = int32(default=OPERATIONS_NOT_ASKED_FOR)


class DescribeTopicPartitionsResponse(
    Message, api=Api.DESCRIBE_TOPIC_PARTITIONS, versions=(0, 0), flexible=0
):
    throttle_time_ms: int = int32()
    topics: list[DescribeTopicPartitionsResponseTopic] = array(DescribeTopicPartitionsResponseTopic)
    next_cursor: Cursor | None = struct(Cursor, nullable=0)
