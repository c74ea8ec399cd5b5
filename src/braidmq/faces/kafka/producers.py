"""InitProducerId and DescribeProducers: the identities behind idempotent writes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from braidmq.faces.kafka.asked import Asked
from braidmq.wire.errors import ApiError, ErrorCode
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

_NONE = -1
_EPOCH_MAX = 2**15 - 2


async def init_producer_id(
    face: KafkaFace, request: InitProducerIdRequest, asked: Asked
) -> InitProducerIdResponse:
    """A new id, or the next epoch of the producer's present one (KIP-360)."""
    if request.transactional_id is not None:
        return InitProducerIdResponse(error_code=int(ErrorCode.INVALID_REQUEST))
    if request.producer_id >= 0 and 0 <= request.producer_epoch < _EPOCH_MAX:
        return InitProducerIdResponse(
            producer_id=request.producer_id, producer_epoch=request.producer_epoch + 1
        )
    try:
        producer_id = await face.broker.producer_ids.take()
    except ApiError as error:
        return InitProducerIdResponse(error_code=int(error.code))
    return InitProducerIdResponse(producer_id=producer_id, producer_epoch=0)


def describe_producers(
    face: KafkaFace, request: DescribeProducersRequest, asked: Asked
) -> DescribeProducersResponse:
    """The idempotent producers a partition remembers."""
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
        producers = face.broker.partition(name, index).log.producers()
    except ApiError as error:
        return PartitionResponse(
            partition_index=index, error_code=int(error.code), error_message=error.message
        )
    return PartitionResponse(
        partition_index=index,
        active_producers=[
            ProducerState(
                producer_id=producer.producer_id,
                producer_epoch=producer.epoch,
                last_sequence=producer.last_sequence,
                last_timestamp=producer.last_timestamp,
                coordinator_epoch=_NONE,
                current_txn_start_offset=_NONE,
            )
            for producer in producers
        ],
    )
