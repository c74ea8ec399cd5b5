"""ListOffsets, OffsetForLeaderEpoch, DeleteRecords: where records are, and where they begin."""

from __future__ import annotations

from typing import TYPE_CHECKING

from braidmq.broker.opening import opened
from braidmq.broker.outcomes import Isolation, ListedOffset, Place
from braidmq.broker.replica import NOWHERE, Replica
from braidmq.faces.kafka.request_context import RequestContext
from braidmq.wire.errors import ApiError, ErrorCode
from braidmq.wire.messages.offsets import (
    DeleteRecordsPartition,
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
    EpochEndOffset,
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopicResult,
)

if TYPE_CHECKING:
    from braidmq.faces.kafka.face import KafkaFace

LATEST = -1
EARLIEST = -2
MAX_TIMESTAMP = -3
EARLIEST_LOCAL = -4
LATEST_TIERED = -5
EARLIEST_PENDING_UPLOAD = -6
UNKNOWN = -1
_READ_COMMITTED = 1
_PLACES = {
    LATEST: Place.LATEST,
    EARLIEST: Place.EARLIEST,
    EARLIEST_LOCAL: Place.EARLIEST,
    MAX_TIMESTAMP: Place.NEWEST,
}


async def list_offsets(
    face: KafkaFace, request: ListOffsetsRequest, context: RequestContext
) -> ListOffsetsResponse:
    """Offsets by time or by name, per partition."""
    await opened(
        face.broker.known_partitions(
            (topic.name, part.partition_index) for topic in request.topics for part in topic.partitions
        )
    )
    committed = request.isolation_level == _READ_COMMITTED
    isolation = Isolation.COMMITTED if committed else Isolation.UNCOMMITTED
    return ListOffsetsResponse(
        topics=[
            ListOffsetsTopicResponse(
                name=topic.name,
                partitions=[await _list_one(face, topic.name, part, isolation) for part in topic.partitions],
            )
            for topic in request.topics
        ]
    )


async def _list_one(
    face: KafkaFace, name: str, part: ListOffsetsPartition, isolation: Isolation
) -> ListOffsetsPartitionResponse:
    try:
        found = await _find(face.broker.partition(name, part.partition_index), part, isolation)
    except ApiError as error:
        return ListOffsetsPartitionResponse(partition_index=part.partition_index, error_code=int(error.code))
    return ListOffsetsPartitionResponse(
        partition_index=part.partition_index,
        timestamp=found.timestamp_ms,
        offset=found.offset,
        leader_epoch=found.leader_epoch,
    )


async def _find(partition: Replica, part: ListOffsetsPartition, isolation: Isolation) -> ListedOffset:
    """A time in ms, or one of the places that Kafka writes as a negative one."""
    timestamp = part.timestamp
    if timestamp in (LATEST_TIERED, EARLIEST_PENDING_UPLOAD):
        partition.check_leader(part.current_leader_epoch)
        return NOWHERE
    wanted = _PLACES.get(timestamp, timestamp)
    if isinstance(wanted, int) and wanted < 0:
        raise ApiError(
            ErrorCode.UNSUPPORTED_VERSION,
            f"timestamp {timestamp} is neither a time nor one of the special values",
        )
    return await partition.list_offset(wanted, isolation, part.current_leader_epoch)


async def offset_for_leader_epoch(
    face: KafkaFace, request: OffsetForLeaderEpochRequest, context: RequestContext
) -> OffsetForLeaderEpochResponse:
    """Where an epoch's records end, for clients that check whether the log was truncated under them."""
    await opened(
        face.broker.known_partitions(
            (topic.topic, part.partition) for topic in request.topics for part in topic.partitions
        )
    )
    return OffsetForLeaderEpochResponse(
        topics=[
            OffsetForLeaderTopicResult(
                topic=topic.topic,
                partitions=[_epoch_end(face, topic.topic, part) for part in topic.partitions],
            )
            for topic in request.topics
        ]
    )


def _epoch_end(face: KafkaFace, name: str, part: OffsetForLeaderPartition) -> EpochEndOffset:
    try:
        partition = face.broker.partition(name, part.partition)
        epoch, end_offset = partition.epoch_end(part.leader_epoch, part.current_leader_epoch)
    except ApiError as error:
        return EpochEndOffset(partition=part.partition, error_code=int(error.code))
    return EpochEndOffset(partition=part.partition, leader_epoch=epoch, end_offset=end_offset)


async def delete_records(
    face: KafkaFace, request: DeleteRecordsRequest, context: RequestContext
) -> DeleteRecordsResponse:
    """Moves the start of partitions; on disk before it is answered."""
    await opened(
        face.broker.known_partitions(
            (topic.name, part.partition_index) for topic in request.topics for part in topic.partitions
        )
    )
    return DeleteRecordsResponse(
        topics=[
            DeleteRecordsTopicResult(
                name=topic.name,
                partitions=[await _delete_before(face, topic.name, part) for part in topic.partitions],
            )
            for topic in request.topics
        ]
    )


async def _delete_before(
    face: KafkaFace, name: str, part: DeleteRecordsPartition
) -> DeleteRecordsPartitionResult:
    try:
        partition = face.broker.partition(name, part.partition_index)
        low = await face.broker.delete_records(partition, part.offset)
    except ApiError as error:
        return DeleteRecordsPartitionResult(
            partition_index=part.partition_index, low_watermark=UNKNOWN, error_code=int(error.code)
        )
    except OSError:
        return DeleteRecordsPartitionResult(
            partition_index=part.partition_index,
            low_watermark=UNKNOWN,
            error_code=int(ErrorCode.KAFKA_STORAGE_ERROR),
        )
    return DeleteRecordsPartitionResult(partition_index=part.partition_index, low_watermark=low)
