"""Delivery state of share groups between brokers (KIP-932): leaders of partitions ask share coordinators."""

from __future__ import annotations

from braidmq.wire.api import Api
from braidmq.wire.schema import Message, array, int8, int16, int32, int64, string, uuid


class StateBatch(Message):
    """Consecutive offsets of one state: 0 available, 2 acked, 4 archived."""

    first_offset: int = int64()
    last_offset: int = int64()
    delivery_state: int = int8()
    delivery_count: int = int16()


class StatePartitionResult(Message):
    partition: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable=0)


class StateTopicResult(Message):
    topic_id: bytes = uuid()
    partitions: list[StatePartitionResult] = array(StatePartitionResult)


# -- Initialize ---------------------------------------------------------------------------------


class InitializeStatePartition(Message):
    partition: int = int32()
    state_epoch: int = int32()
    start_offset: int = int64()


class InitializeStateTopic(Message):
    topic_id: bytes = uuid()
    partitions: list[InitializeStatePartition] = array(InitializeStatePartition)


class InitializeShareGroupStateRequest(
    Message, api=Api.INITIALIZE_SHARE_GROUP_STATE, versions=(0, 0), flexible=0
):
    group_id: str = string()
    topics: list[InitializeStateTopic] = array(InitializeStateTopic)


class InitializeShareGroupStateResponse(
    Message, api=Api.INITIALIZE_SHARE_GROUP_STATE, versions=(0, 0), flexible=0
):
    results: list[StateTopicResult] = array(StateTopicResult)


# -- Read ---------------------------------------------------------------------------------------


class ReadStatePartition(Message):
    partition: int = int32()
    leader_epoch: int = int32()


class ReadStateTopic(Message):
    topic_id: bytes = uuid()
    partitions: list[ReadStatePartition] = array(ReadStatePartition)


class ReadShareGroupStateRequest(Message, api=Api.READ_SHARE_GROUP_STATE, versions=(0, 0), flexible=0):
    group_id: str = string()
    topics: list[ReadStateTopic] = array(ReadStateTopic)


class ReadStatePartitionResult(Message):
    """A start offset of -1: there is no state."""

    partition: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable=0)
    state_epoch: int = int32()
    start_offset: int = int64()
    state_batches: list[StateBatch] = array(StateBatch)


class ReadStateTopicResult(Message):
    topic_id: bytes = uuid()
    partitions: list[ReadStatePartitionResult] = array(ReadStatePartitionResult)


class ReadShareGroupStateResponse(Message, api=Api.READ_SHARE_GROUP_STATE, versions=(0, 0), flexible=0):
    results: list[ReadStateTopicResult] = array(ReadStateTopicResult)


# -- Write --------------------------------------------------------------------------------------


class WriteStatePartition(Message):
    """The count is -1 in what Braid sends, except where the batches are the whole state."""

    partition: int = int32()
    state_epoch: int = int32()
    leader_epoch: int = int32()
    start_offset: int = int64()
    delivery_complete_count: int = int32(since=1, default=-1)
    state_batches: list[StateBatch] = array(StateBatch)


class WriteStateTopic(Message):
    topic_id: bytes = uuid()
    partitions: list[WriteStatePartition] = array(WriteStatePartition)


class WriteShareGroupStateRequest(Message, api=Api.WRITE_SHARE_GROUP_STATE, versions=(0, 1), flexible=0):
    group_id: str = string()
    topics: list[WriteStateTopic] = array(WriteStateTopic)


class WriteShareGroupStateResponse(Message, api=Api.WRITE_SHARE_GROUP_STATE, versions=(0, 1), flexible=0):
    results: list[StateTopicResult] = array(StateTopicResult)


# -- Delete -------------------------------------------------------------------------------------


class DeleteStatePartition(Message):
    partition: int = int32()


class DeleteStateTopic(Message):
    topic_id: bytes = uuid()
    partitions: list[DeleteStatePartition] = array(DeleteStatePartition)


class DeleteShareGroupStateRequest(Message, api=Api.DELETE_SHARE_GROUP_STATE, versions=(0, 0), flexible=0):
    group_id: str = string()
    topics: list[DeleteStateTopic] = array(DeleteStateTopic)


class DeleteShareGroupStateResponse(Message, api=Api.DELETE_SHARE_GROUP_STATE, versions=(0, 0), flexible=0):
    results: list[StateTopicResult] = array(StateTopicResult)


# -- Summary ------------------------------------------------------------------------------------


class ReadShareGroupStateSummaryRequest(
    Message, api=Api.READ_SHARE_GROUP_STATE_SUMMARY, versions=(0, 1), flexible=0
):
    """Without topics it asks for everything that the broker keeps for the group, which is our own rule."""

    group_id: str = string()
    topics: list[ReadStateTopic] = array(ReadStateTopic)


class StateSummary(Message):
    partition: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable=0)
    state_epoch: int = int32()
    leader_epoch: int = int32()
    start_offset: int = int64()
    delivery_complete_count: int = int32(since=1, default=-1)


class StateSummaryTopic(Message):
    topic_id: bytes = uuid()
    partitions: list[StateSummary] = array(StateSummary)


class ReadShareGroupStateSummaryResponse(
    Message, api=Api.READ_SHARE_GROUP_STATE_SUMMARY, versions=(0, 1), flexible=0
):
    results: list[StateSummaryTopic] = array(StateSummaryTopic)
