"""Metadata: which brokers there are, which topics, and who leads each partition."""

from __future__ import annotations

from braidmq.wire.api import Api
from braidmq.wire.schema import Message, array, boolean, int16, int32, string, uuid

OPERATIONS_NOT_ASKED_FOR = -(2**31)
"""What a field of authorized operations holds when the request did not ask for it."""


class MetadataRequestTopic(Message):
    topic_id: bytes = uuid(since=10)
    name: str | None = string(nullable=10)


class MetadataRequest(Message, api=Api.METADATA, versions=(0, 13), flexible=9):
    """Null `topics` asks for all of them; version 0 has no null, there an empty list does."""

    topics: list[MetadataRequestTopic] | None = array(MetadataRequestTopic, nullable=1)
    allow_auto_topic_creation: bool = boolean(since=4, default=True)
    include_cluster_authorized_operations: bool = boolean(since=8, until=10)
    include_topic_authorized_operations: bool = boolean(since=8)


class MetadataResponseBroker(Message):
    node_id: int = int32()
    host: str = string()
    port: int = int32()
    rack: str | None = string(since=1, nullable=1)


class MetadataResponsePartition(Message):
    error_code: int = int16()
    partition_index: int = int32()
    leader_id: int = int32()
    leader_epoch: int = int32(since=7, default=-1)
    replica_nodes: list[int] = array(int32)
    isr_nodes: list[int] = array(int32)
    offline_replicas: list[int] = array(int32, since=5)


class MetadataResponseTopic(Message):
    error_code: int = int16()
    name: str | None = string(nullable=12)
    topic_id: bytes = uuid(since=10)
    is_internal: bool = boolean(since=1)
    partitions: list[MetadataResponsePartition] = array(MetadataResponsePartition)
    topic_authorized_operations: int = int32(since=8, default=OPERATIONS_NOT_ASKED_FOR)


class MetadataResponse(Message, api=Api.METADATA, versions=(0, 13), flexible=9):
    throttle_time_ms: int = int32(since=3)
    brokers: list[MetadataResponseBroker] = array(MetadataResponseBroker)
    cluster_id: str | None = string(since=2, nullable=2)
    controller_id: int = int32(since=1, default=-1)
    topics: list[MetadataResponseTopic] = array(MetadataResponseTopic)
    cluster_authorized_operations: int = int32(since=8, until=10, default=OPERATIONS_NOT_ASKED_FOR)
    error_code: int = int16(since=13)
