"""DescribeQuorum: which nodes keep the cluster's metadata, and how far each of them has come."""

from __future__ import annotations

from braidmq.wire.api import Api
from braidmq.wire.schema import Message, array, int16, int32, int64, string, uint16, uuid


class QuorumRequestPartition(Message):
    partition_index: int = int32()


class QuorumRequestTopic(Message):
    topic_name: str = string()
    partitions: list[QuorumRequestPartition] = array(QuorumRequestPartition)


class DescribeQuorumRequest(Message, api=Api.DESCRIBE_QUORUM, versions=(0, 2), flexible=0):
    topics: list[QuorumRequestTopic] = array(QuorumRequestTopic)


class ReplicaState(Message):
    replica_id: int = int32()
    replica_directory_id: bytes = uuid(since=2)
    log_end_offset: int = int64()
    last_fetch_timestamp: int = int64(since=1, default=-1)
    last_caught_up_timestamp: int = int64(since=1, default=-1)


class QuorumPartition(Message):
    partition_index: int = int32()
    error_code: int = int16()
    error_message: str | None = string(since=2, nullable=2)
    leader_id: int = int32()
    leader_epoch: int = int32()
    high_watermark: int = int64()
    current_voters: list[ReplicaState] = array(ReplicaState)
    observers: list[ReplicaState] = array(ReplicaState)


class QuorumTopic(Message):
    topic_name: str = string()
    partitions: list[QuorumPartition] = array(QuorumPartition)


class QuorumListener(Message):
    name: str = string()
    host: str = string()
    port: int = uint16()


class QuorumNode(Message):
    node_id: int = int32()
    listeners: list[QuorumListener] = array(QuorumListener)


class DescribeQuorumResponse(Message, api=Api.DESCRIBE_QUORUM, versions=(0, 2), flexible=0):
    error_code: int = int16()
    error_message: str | None = string(since=2, nullable=2)
    topics: list[QuorumTopic] = array(QuorumTopic)
    nodes: list[QuorumNode] = array(QuorumNode, since=2)
