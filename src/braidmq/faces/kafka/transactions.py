"""Transactions: AddPartitionsToTxn, AddOffsetsToTxn, EndTxn, WriteTxnMarkers, and how they are described."""

from __future__ import annotations

from typing import TYPE_CHECKING

from braidmq.broker.catalog import compile_pattern
from braidmq.faces.kafka.request_context import RequestContext
from braidmq.txn import views
from braidmq.txn.events import AddPartitions, End, TopicPartition
from braidmq.wire.errors import ApiError, ErrorCode
from braidmq.wire.messages.transactions import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTopicResult,
    AddPartitionsToTxnTransaction,
    DescribedTransactionState,
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    EndTxnRequest,
    EndTxnResponse,
    ListedTransactionState,
    ListTransactionsRequest,
    ListTransactionsResponse,
    TransactionTopicData,
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)

if TYPE_CHECKING:
    from braidmq.faces.kafka.face import KafkaFace

_BATCHED_FROM = 4
Codes = dict[TopicPartition, ErrorCode]


async def add_partitions_to_txn(
    face: KafkaFace, request: AddPartitionsToTxnRequest, context: RequestContext
) -> AddPartitionsToTxnResponse:
    """Partitions take part in a transaction; from a broker, several transactions at once."""
    if context.version >= _BATCHED_FROM:
        return AddPartitionsToTxnResponse(
            results_by_transaction=[
                AddPartitionsToTxnResult(
                    transactional_id=one.transactional_id,
                    topic_results=_results(one.topics, await _add(face, one, context.version)),
                )
                for one in request.transactions
            ]
        )
    transaction = AddPartitionsToTxnTransaction(
        transactional_id=request.v3_and_below_transactional_id,
        producer_id=request.v3_and_below_producer_id,
        producer_epoch=request.v3_and_below_producer_epoch,
        topics=request.v3_and_below_topics,
    )
    codes = await _add(face, transaction, context.version)
    return AddPartitionsToTxnResponse(results_by_topic_v3_and_below=_results(transaction.topics, codes))


async def _add(face: KafkaFace, transaction: AddPartitionsToTxnTransaction, version: int) -> Codes:
    """All partitions or none: if one does not exist, nothing is done about the others."""
    partitions = {(topic.name, index) for topic in transaction.topics for index in topic.partitions}
    refused = {
        topic_partition: code
        for topic_partition in partitions
        if (code := _refusal(face, topic_partition)) is not None
    }
    if refused:
        return dict.fromkeys(partitions, ErrorCode.OPERATION_NOT_ATTEMPTED) | refused
    addition = AddPartitions(
        transaction.transactional_id,
        transaction.producer_id,
        transaction.producer_epoch,
        frozenset(partitions),
        version,
    )
    if transaction.verify_only:
        return face.broker.transactions.transactions.verify(addition)
    added = await face.broker.transactions.add_partitions(addition)
    return dict.fromkeys(partitions, added.code)


def _refusal(face: KafkaFace, topic_partition: TopicPartition) -> ErrorCode | None:
    """Why a client may not write there; what is the broker's own is answered as Kafka does."""
    topic = face.broker.topics.find(topic_partition[0])
    if topic is None or not 0 <= topic_partition[1] < topic.partition_count:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return ErrorCode.TOPIC_AUTHORIZATION_FAILED if topic.internal else None


def _results(topics: list[AddPartitionsToTxnTopic], codes: Codes) -> list[AddPartitionsToTxnTopicResult]:
    return [
        AddPartitionsToTxnTopicResult(
            name=topic.name,
            results_by_partition=[
                AddPartitionsToTxnPartitionResult(
                    partition_index=index, partition_error_code=int(codes[topic.name, index])
                )
                for index in topic.partitions
            ],
        )
        for topic in topics
    ]


async def add_offsets_to_txn(
    face: KafkaFace, request: AddOffsetsToTxnRequest, context: RequestContext
) -> AddOffsetsToTxnResponse:
    """A group's offsets take part in a transaction."""
    groups = face.broker.groups
    try:
        await groups.ensure()
        wanted = AddPartitions(
            request.transactional_id,
            request.producer_id,
            request.producer_epoch,
            frozenset({(groups.topic_name, groups.index_of(request.group_id))}),
            context.version,
        )
        added = await face.broker.transactions.add_offsets(wanted)
    except ApiError as error:
        return AddOffsetsToTxnResponse(error_code=int(error.code))
    return AddOffsetsToTxnResponse(error_code=int(added.code))


async def end_txn(face: KafkaFace, request: EndTxnRequest, context: RequestContext) -> EndTxnResponse:
    """Commits or aborts; answered when the decision is on disk."""
    ended = await face.broker.transactions.end(
        End(
            request.transactional_id,
            request.producer_id,
            request.producer_epoch,
            request.committed,
            context.version,
        )
    )
    return EndTxnResponse(
        error_code=int(ended.code), producer_id=ended.producer_id, producer_epoch=ended.producer_epoch
    )


def write_txn_markers(
    face: KafkaFace, request: WriteTxnMarkersRequest, context: RequestContext
) -> WriteTxnMarkersResponse:
    """Refused: with a marker anybody could end any producer's transaction, and fence it.

    Kafka asks for a permission on the cluster, and clients have none here. The broker writes its own markers
    without this request.
    """
    return WriteTxnMarkersResponse(
        markers=[
            WritableTxnMarkerResult(
                producer_id=wanted.producer_id,
                topics=[
                    WritableTxnMarkerTopicResult(
                        name=topic.name,
                        partitions=[
                            WritableTxnMarkerPartitionResult(
                                partition_index=index, error_code=int(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
                            )
                            for index in topic.partition_indexes
                        ],
                    )
                    for topic in wanted.topics
                ],
            )
            for wanted in request.markers
        ]
    )


def describe_transactions(
    face: KafkaFace, request: DescribeTransactionsRequest, context: RequestContext
) -> DescribeTransactionsResponse:
    return DescribeTransactionsResponse(
        transaction_states=[_describe(face, named) for named in request.transactional_ids]
    )


def _describe(face: KafkaFace, transactional_id: str) -> DescribedTransactionState:
    try:
        found = views.describe(face.broker.transactions.transactions, transactional_id)
    except ApiError as error:
        return DescribedTransactionState(error_code=int(error.code), transactional_id=transactional_id)
    return DescribedTransactionState(
        transactional_id=transactional_id,
        transaction_state=found.state,
        transaction_timeout_ms=found.timeout_ms,
        transaction_start_time_ms=found.started_ms,
        producer_id=found.producer_id,
        producer_epoch=found.producer_epoch,
        topics=[
            TransactionTopicData(topic=topic, partitions=partitions)
            for topic, partitions in found.topics.items()
        ],
    )


def list_transactions(
    face: KafkaFace, request: ListTransactionsRequest, context: RequestContext
) -> ListTransactionsResponse:
    named = None
    if request.transactional_id_pattern:
        try:
            named = compile_pattern(request.transactional_id_pattern)
        except ApiError as error:
            return ListTransactionsResponse(error_code=int(error.code))
    wanted = views.TransactionFilter(
        frozenset(request.state_filters),
        frozenset(request.producer_id_filters),
        request.duration_filter,
        named,
    )
    coordinator = face.broker.transactions
    found = views.listed(coordinator.transactions, wanted, coordinator.now())
    return ListTransactionsResponse(
        unknown_state_filters=found.unknown_states,
        transaction_states=[
            ListedTransactionState(
                transactional_id=one.transactional_id,
                producer_id=one.producer_id,
                transaction_state=one.state.label,
            )
            for one in found.transactions
        ],
    )
