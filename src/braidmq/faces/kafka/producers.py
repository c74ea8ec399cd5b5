"""InitProducerId and DescribeProducers: the identities behind idempotent and transactional writes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from braidmq.broker.opening import opened
from braidmq.broker.outcomes import ProducerSummary
from braidmq.faces.kafka.request_context import RequestContext
from braidmq.txn.events import Init
from braidmq.wire.errors import ApiError
from braidmq.wire.messages.producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
    PartitionResponse,
    ProducerState,
    TopicResponse,
)

if TYPE_CHECKING:
    from braidmq.faces.kafka.face import KafkaFace

_EPOCH_MAX = 2**15 - 2


async def init_producer_id(
    face: KafkaFace, request: InitProducerIdRequest, context: RequestContext
) -> InitProducerIdResponse:
    """A new id, or the next epoch of the producer's present one (KIP-360)."""
    if request.transactional_id is not None:
        return await _init_transactional(face, request, request.transactional_id, context.version)
    if request.producer_id >= 0 and 0 <= request.producer_epoch < _EPOCH_MAX:
        return InitProducerIdResponse(
            producer_id=request.producer_id, producer_epoch=request.producer_epoch + 1
        )
    try:
        producer_id = await face.broker.producer_ids.take()
    except ApiError as error:
        return InitProducerIdResponse(error_code=int(error.code))
    return InitProducerIdResponse(producer_id=producer_id, producer_epoch=0)


async def _init_transactional(
    face: KafkaFace, request: InitProducerIdRequest, transactional_id: str, version: int
) -> InitProducerIdResponse:
    try:
        face.broker.transactions.settings.check_id(transactional_id)
        coordinator = await face.broker.transactions.reach(transactional_id)
        answer = await coordinator.init(
            Init(
                transactional_id,
                request.transaction_timeout_ms,
                request.producer_id,
                request.producer_epoch,
                version,
            )
        )
    except ApiError as error:
        return InitProducerIdResponse(error_code=int(error.code))
    return InitProducerIdResponse(
        error_code=int(answer.code), producer_id=answer.producer_id, producer_epoch=answer.producer_epoch
    )


async def describe_producers(
    face: KafkaFace, request: DescribeProducersRequest, context: RequestContext
) -> DescribeProducersResponse:
    """The producers a partition remembers, and where their open transactions begin."""
    await opened(
        face.broker.known_partitions(
            (topic.name, index) for topic in request.topics for index in topic.partition_indexes
        )
    )
    return DescribeProducersResponse(
        topics=[
            TopicResponse(
                name=topic.name,
                partitions=[_describe(face, topic.name, index) for index in topic.partition_indexes],
            )
            for topic in request.topics
        ]
    )


def _describe(face: KafkaFace, name: str, index: int) -> PartitionResponse:
    try:
        producers = face.broker.partition(name, index).producers()
    except ApiError as error:
        return PartitionResponse(
            partition_index=index, error_code=int(error.code), error_message=error.message
        )
    return PartitionResponse(
        partition_index=index,
        active_producers=[_producer(one) for one in producers],
    )


def _producer(one: ProducerSummary) -> ProducerState:
    return ProducerState(
        producer_id=one.producer_id,
        producer_epoch=one.epoch,
        last_sequence=one.last_sequence,
        last_timestamp=one.last_timestamp_ms,
        coordinator_epoch=one.coordinator_epoch,
        current_txn_start_offset=one.open_since,
    )
