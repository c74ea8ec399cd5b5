"""Reading in a share group (KIP-932): records are acquired with ShareFetch, acknowledged with either verb."""

from __future__ import annotations

from braidmq.wire.api import Api
from braidmq.wire.schema import (
    Message,
    array,
    boolean,
    int8,
    int16,
    int32,
    int64,
    records,
    string,
    struct,
    uuid,
)


class AcknowledgementBatch(Message):
    """One type for the whole range of offsets, or one for each offset in it."""

    first_offset: int = int64()
    last_offset: int = int64()
    acknowledge_types: list[int] = array(int8)


class AcknowledgePartition(Message):
    partition_index: int = int32()
    acknowledgement_batches: list[AcknowledgementBatch] = array(AcknowledgementBatch)


class AcknowledgeTopic(Message):
    topic_id: bytes = uuid()
    partitions: list[AcknowledgePartition] = array(AcknowledgePartition)


class ForgottenTopic(Message):
    topic_id: bytes = uuid()
    partitions: list[int] = array(int32)


class ShareFetchRequest(Message, api=Api.SHARE_FETCH, versions=(1, 2), flexible=1):
    group_id: str | None = string(nullable=1)
    member_id: str | None = string(nullable=1)
    share_session_epoch: int = int32()
    max_wait_ms: int = int32()
    min_bytes: int = int32()
    max_bytes: int = int32(default=2**31 - 1)
    max_records: int = int32()
    batch_size: int = int32()
    share_acquire_mode: int = int8(since=2)
    is_renew_ack: bool = boolean(since=2)
    topics: list[AcknowledgeTopic] = array(AcknowledgeTopic)
    forgotten_topics_data: list[ForgottenTopic] = array(ForgottenTopic)


class LeaderIdAndEpoch(Message):
    leader_id: int = int32()
    leader_epoch: int = int32()


class AcquiredRecords(Message):
    first_offset: int = int64()
    last_offset: int = int64()
    delivery_count: int = int16()


class ShareFetchPartitionData(Message):
    partition_index: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable=1)
    acknowledge_error_code: int = int16()
    acknowledge_error_message: str | None = string(nullable=1)
    current_leader: LeaderIdAndEpoch = struct(LeaderIdAndEpoch)
    records: bytes | memoryview = records()
    acquired_records: list[AcquiredRecords] = array(AcquiredRecords)


class ShareFetchableTopicResponse(Message):
    topic_id: bytes = uuid()
    partitions: list[ShareFetchPartitionData] = array(ShareFetchPartitionData)


class ShareNodeEndpoint(Message):
    node_id: int = int32()
    host: str = string()
    port: int = int32()
    rack: str | None = string(nullable=1)


class ShareFetchResponse(Message, api=Api.SHARE_FETCH, versions=(1, 2), flexible=1):
    throttle_time_ms: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable=1)
    acquisition_lock_timeout_ms: int = int32()
    responses: list[ShareFetchableTopicResponse] = array(ShareFetchableTopicResponse)
    node_endpoints: list[ShareNodeEndpoint] = array(ShareNodeEndpoint)


class ShareAcknowledgeRequest(Message, api=Api.SHARE_ACKNOWLEDGE, versions=(1, 2), flexible=1):
    group_id: str | None = string(nullable=1)
    member_id: str | None = string(nullable=1)
    share_session_epoch: int = int32()
    is_renew_ack: bool = boolean(since=2)
    topics: list[AcknowledgeTopic] = array(AcknowledgeTopic)


class ShareAcknowledgePartitionData(Message):
    partition_index: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable=1)
    current_leader: LeaderIdAndEpoch = struct(LeaderIdAndEpoch)


class ShareAcknowledgeTopicResponse(Message):
    topic_id: bytes = uuid()
    partitions: list[ShareAcknowledgePartitionData] = array(ShareAcknowledgePartitionData)


class ShareAcknowledgeResponse(Message, api=Api.SHARE_ACKNOWLEDGE, versions=(1, 2), flexible=1):
    throttle_time_ms: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable=1)
    acquisition_lock_timeout_ms: int = int32(since=2)
    responses: list[ShareAcknowledgeTopicResponse] = array(ShareAcknowledgeTopicResponse)
    node_endpoints: list[ShareNodeEndpoint] = array(ShareNodeEndpoint)
