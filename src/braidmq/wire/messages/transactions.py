"""Transactions: what takes part in one, how it ends, the markers that say so, and how they are looked at."""

from __future__ import annotations

from braidmq.wire.api import Api
from braidmq.wire.schema import Message, array, boolean, int8, int16, int32, int64, string


class AddPartitionsToTxnTopic(Message):
    name: str = string()
    partitions: list[int] = array(int32)


class AddPartitionsToTxnTransaction(Message):
    transactional_id: str = string()
    producer_id: int = int64()
    producer_epoch: int = int16()
    verify_only: bool = boolean()
    topics: list[AddPartitionsToTxnTopic] = array(AddPartitionsToTxnTopic)


class AddPartitionsToTxnRequest(Message, api=Api.ADD_PARTITIONS_TO_TXN, versions=(0, 5), flexible=3):
    """From clients one transaction, up to version 3; between brokers several, from version 4."""

    transactions: list[AddPartitionsToTxnTransaction] = array(AddPartitionsToTxnTransaction, since=4)
    v3_and_below_transactional_id: str = string(until=3)
    v3_and_below_producer_id: int = int64(until=3)
    v3_and_below_producer_epoch: int = int16(until=3)
    v3_and_below_topics: list[AddPartitionsToTxnTopic] = array(AddPartitionsToTxnTopic, until=3)


class AddPartitionsToTxnPartitionResult(Message):
    partition_index: int = int32()
    partition_error_code: int = int16()


class AddPartitionsToTxnTopicResult(Message):
    name: str = string()
    results_by_partition: list[AddPartitionsToTxnPartitionResult] = array(AddPartitionsToTxnPartitionResult)


class AddPartitionsToTxnResult(Message):
    transactional_id: str = string()
    topic_results: list[AddPartitionsToTxnTopicResult] = array(AddPartitionsToTxnTopicResult)


class AddPartitionsToTxnResponse(Message, api=Api.ADD_PARTITIONS_TO_TXN, versions=(0, 5), flexible=3):
    throttle_time_ms: int = int32()
    error_code: int = int16(since=4)
    results_by_transaction: list[AddPartitionsToTxnResult] = array(AddPartitionsToTxnResult, since=4)
    results_by_topic_v3_and_below: list[AddPartitionsToTxnTopicResult] = array(
        AddPartitionsToTxnTopicResult, until=3
    )


class AddOffsetsToTxnRequest(Message, api=Api.ADD_OFFSETS_TO_TXN, versions=(0, 4), flexible=3):
    transactional_id: str = string()
    producer_id: int = int64()
    producer_epoch: int = int16()
    group_id: str = string()


class AddOffsetsToTxnResponse(Message, api=Api.ADD_OFFSETS_TO_TXN, versions=(0, 4), flexible=3):
    throttle_time_ms: int = int32()
    error_code: int = int16()


class EndTxnRequest(Message, api=Api.END_TXN, versions=(0, 5), flexible=3):
    transactional_id: str = string()
    producer_id: int = int64()
    producer_epoch: int = int16()
    committed: bool = boolean()


class EndTxnResponse(Message, api=Api.END_TXN, versions=(0, 5), flexible=3):
    """From version 5 on every end bumps the epoch, and this tells the producer its next one (KIP-890)."""

    throttle_time_ms: int = int32()
    error_code: int = int16()
    producer_id: int = int64(since=5, default=-1)
    producer_epoch: int = int16(since=5, default=-1)


class WritableTxnMarkerTopic(Message):
    name: str = string()
    partition_indexes: list[int] = array(int32)


class WritableTxnMarker(Message):
    producer_id: int = int64()
    producer_epoch: int = int16()
    transaction_result: bool = boolean()
    topics: list[WritableTxnMarkerTopic] = array(WritableTxnMarkerTopic)
    coordinator_epoch: int = int32()
    transaction_version: int = int8(since=2)


class WriteTxnMarkersRequest(Message, api=Api.WRITE_TXN_MARKERS, versions=(1, 2), flexible=1):
    markers: list[WritableTxnMarker] = array(WritableTxnMarker)


class WritableTxnMarkerPartitionResult(Message):
    partition_index: int = int32()
    error_code: int = int16()


class WritableTxnMarkerTopicResult(Message):
    name: str = string()
    partitions: list[WritableTxnMarkerPartitionResult] = array(WritableTxnMarkerPartitionResult)


class WritableTxnMarkerResult(Message):
    producer_id: int = int64()
    topics: list[WritableTxnMarkerTopicResult] = array(WritableTxnMarkerTopicResult)


class WriteTxnMarkersResponse(Message, api=Api.WRITE_TXN_MARKERS, versions=(1, 2), flexible=1):
    markers: list[WritableTxnMarkerResult] = array(WritableTxnMarkerResult)


class TxnOffsetCommitRequestPartition(Message):
    partition_index: int = int32()
    committed_offset: int = int64()
    committed_leader_epoch: int = int32(since=2, default=-1)
    committed_metadata: str | None = string(nullable=0)


class TxnOffsetCommitRequestTopic(Message):
    name: str = string()
    partitions: list[TxnOffsetCommitRequestPartition] = array(TxnOffsetCommitRequestPartition)


class TxnOffsetCommitRequest(Message, api=Api.TXN_OFFSET_COMMIT, versions=(0, 5), flexible=3):
    transactional_id: str = string()
    group_id: str = string()
    producer_id: int = int64()
    producer_epoch: int = int16()
    generation_id: int = int32(since=3, default=-1)
    member_id: str = string(since=3)
    group_instance_id: str | None = string(since=3, nullable=3)
    topics: list[TxnOffsetCommitRequestTopic] = array(TxnOffsetCommitRequestTopic)


class TxnOffsetCommitResponsePartition(Message):
    partition_index: int = int32()
    error_code: int = int16()


class TxnOffsetCommitResponseTopic(Message):
    name: str = string()
    partitions: list[TxnOffsetCommitResponsePartition] = array(TxnOffsetCommitResponsePartition)


class TxnOffsetCommitResponse(Message, api=Api.TXN_OFFSET_COMMIT, versions=(0, 5), flexible=3):
    throttle_time_ms: int = int32()
    topics: list[TxnOffsetCommitResponseTopic] = array(TxnOffsetCommitResponseTopic)


class DescribeTransactionsRequest(Message, api=Api.DESCRIBE_TRANSACTIONS, versions=(0, 0), flexible=0):
    transactional_ids: list[str] = array(string)


class TransactionTopicData(Message):
    topic: str = string()
    partitions: list[int] = array(int32)


class DescribedTransactionState(Message):
    error_code: int = int16()
    transactional_id: str = string()
    transaction_state: str = string()
    transaction_timeout_ms: int = int32()
    transaction_start_time_ms: int = int64()
    producer_id: int = int64()
    producer_epoch: int = int16()
    topics: list[TransactionTopicData] = array(TransactionTopicData)


class DescribeTransactionsResponse(Message, api=Api.DESCRIBE_TRANSACTIONS, versions=(0, 0), flexible=0):
    throttle_time_ms: int = int32()
    transaction_states: list[DescribedTransactionState] = array(DescribedTransactionState)


class ListTransactionsRequest(Message, api=Api.LIST_TRANSACTIONS, versions=(0, 2), flexible=0):
    state_filters: list[str] = array(string)
    producer_id_filters: list[int] = array(int64)
    duration_filter: int = int64(since=1, default=-1)
    transactional_id_pattern: str | None = string(since=2, nullable=2)


class ListedTransactionState(Message):
    transactional_id: str = string()
    producer_id: int = int64()
    transaction_state: str = string()


class CoordinatedPartition(Message):
    """A partition of the coordinators' own topic, and the epoch under which the answer speaks for it."""

    partition_index: int = int32()
    leader_epoch: int = int32()


class ListTransactionsResponse(Message, api=Api.LIST_TRANSACTIONS, versions=(0, 2), flexible=0):
    throttle_time_ms: int = int32()
    error_code: int = int16()
    unknown_state_filters: list[str] = array(string)
    transaction_states: list[ListedTransactionState] = array(ListedTransactionState)
    coordinated_partitions: list[CoordinatedPartition] = array(CoordinatedPartition, tag=10_000)
    """Braid's own, between brokers: for which partitions the list is complete."""
