"""Transactions: AddPartitionsToTxn, AddOffsetsToTxn, EndTxn, and how they are described."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import TYPE_CHECKING

from braidmq.broker.catalog import compile_pattern
from braidmq.faces.kafka.peer_proof import is_peer
from braidmq.faces.kafka.request_context import RequestContext
from braidmq.txn import views
from braidmq.txn.events import AddPartitions, End, TopicPartition
from braidmq.txn.versions import code_for
from braidmq.wire.api import Api
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
        # All of them are begun before one is waited for: they are written together.
        peer = is_peer(face, context)
        begun = [_begin(face, one, context.version, peer) for one in request.transactions]
        return AddPartitionsToTxnResponse(
            results_by_transaction=[
                AddPartitionsToTxnResult(
                    transactional_id=one.transactional_id, topic_results=_results(one.topics, await codes)
                )
                for one, codes in zip(request.transactions, begun, strict=True)
            ]
        )
    transaction = AddPartitionsToTxnTransaction(
        transactional_id=request.v3_and_below_transactional_id,
        producer_id=request.v3_and_below_producer_id,
        producer_epoch=request.v3_and_below_producer_epoch,
        topics=request.v3_and_below_topics,
    )
    addition = _addition(transaction, context.version)
    codes = _refused(face, addition.partitions, False)
    if codes is None:
        try:
            coordinator = face.broker.transactions.coordinator(addition.transactional_id)
            code = (await coordinator.add_partitions(addition)).code
        except ApiError as error:
            code = code_for(error.code, Api.ADD_PARTITIONS_TO_TXN, context.version)
        codes = dict.fromkeys(addition.partitions, code)
    return AddPartitionsToTxnResponse(results_by_topic_v3_and_below=_results(transaction.topics, codes))


def _begin(
    face: KafkaFace, transaction: AddPartitionsToTxnTransaction, version: int, peer: bool
) -> asyncio.Future[Codes]:
    """Asks the coordinator for a batch that waits at another broker; what it says of each partition.

    It does not wait for the transaction before to be finished, as that would hold up what comes after it on
    the same connection: the broker asks again.
    """
    answered: asyncio.Future[Codes] = asyncio.get_running_loop().create_future()
    addition = _addition(transaction, version)
    refused = _refused(face, addition.partitions, peer)
    if refused is not None:
        answered.set_result(refused)
        return answered
    try:
        coordinator = face.broker.transactions.coordinator(addition.transactional_id)
        if transaction.verify_only:
            answered.set_result(coordinator.transactions.verify(addition))
        else:
            coordinator.ask(
                addition, lambda added: answered.set_result(dict.fromkeys(addition.partitions, added.code))
            )
    except ApiError as error:
        answered.set_result(dict.fromkeys(addition.partitions, error.code))
    return answered


def _addition(transaction: AddPartitionsToTxnTransaction, version: int) -> AddPartitions:
    return AddPartitions(
        transaction.transactional_id,
        transaction.producer_id,
        transaction.producer_epoch,
        frozenset((topic.name, index) for topic in transaction.topics for index in topic.partitions),
        version,
    )


def _refused(face: KafkaFace, partitions: Iterable[TopicPartition], peer: bool) -> Codes | None:
    """All partitions or none: if one does not exist, nothing is done about the others."""
    refused = {
        topic_partition: code
        for topic_partition in partitions
        if (code := _refusal(face, topic_partition, peer)) is not None
    }
    return dict.fromkeys(partitions, ErrorCode.OPERATION_NOT_ATTEMPTED) | refused if refused else None


def _refusal(face: KafkaFace, topic_partition: TopicPartition, peer: bool) -> ErrorCode | None:
    """Why a client may not write there; what is the brokers' own is answered as Kafka does."""
    topic = face.broker.topics.find(topic_partition[0])
    if topic is None or not 0 <= topic_partition[1] < topic.partition_count:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return ErrorCode.TOPIC_AUTHORIZATION_FAILED if topic.internal and not peer else None


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
        coordinator = face.broker.transactions.coordinator(request.transactional_id)
        code = (await coordinator.add_offsets(wanted)).code
    except ApiError as error:
        code = code_for(error.code, Api.ADD_OFFSETS_TO_TXN, context.version)
    return AddOffsetsToTxnResponse(error_code=int(code))


async def end_txn(face: KafkaFace, request: EndTxnRequest, context: RequestContext) -> EndTxnResponse:
    """Commits or aborts; answered when the decision is on disk."""
    end = End(
        request.transactional_id,
        request.producer_id,
        request.producer_epoch,
        request.committed,
        context.version,
    )
    try:
        ended = await face.broker.transactions.coordinator(request.transactional_id).end(end)
    except ApiError as error:
        return EndTxnResponse(error_code=int(code_for(error.code, Api.END_TXN, context.version)))
    return EndTxnResponse(
        error_code=int(ended.code), producer_id=ended.producer_id, producer_epoch=ended.producer_epoch
    )


def describe_transactions(
    face: KafkaFace, request: DescribeTransactionsRequest, context: RequestContext
) -> DescribeTransactionsResponse:
    return DescribeTransactionsResponse(
        transaction_states=[_describe(face, named) for named in request.transactional_ids]
    )


def _describe(face: KafkaFace, transactional_id: str) -> DescribedTransactionState:
    try:
        shards = face.broker.transactions
        shards.settings.check_id(transactional_id)
        if not shards.exists:
            raise ApiError(ErrorCode.TRANSACTIONAL_ID_NOT_FOUND, "no producer was ever initialised")
        found = views.describe(shards.of(transactional_id).transactions, transactional_id)
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
    shards = face.broker.transactions
    if shards.is_loading:
        return ListTransactionsResponse(error_code=int(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS))
    return ListTransactionsResponse(
        unknown_state_filters=views.unknown_states(wanted),
        transaction_states=[
            ListedTransactionState(
                transactional_id=one.transactional_id,
                producer_id=one.producer_id,
                transaction_state=one.state.label,
            )
            for shard in shards
            for one in views.listed(shard.transactions, wanted, shard.now())
        ],
    )
