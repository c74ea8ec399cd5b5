"""ListOffsets, OffsetForLeaderEpoch, DeleteRecords: where records are, and where they begin."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from braidmq.broker.opening import opened
from braidmq.broker.partition import LEADER_EPOCH, Partition
from braidmq.faces.kafka.fetch import check_epoch
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


async def list_offsets(
    face: KafkaFace, request: ListOffsetsRequest, context: RequestContext
) -> ListOffsetsResponse:
    """Offsets by time or by name, per partition."""
    await opened(
        face.broker.known_partitions(
            (topic.name, part.partition_index) for topic in request.topics for part in topic.partitions
        )
    )
    return ListOffsetsResponse(
        topics=[
            ListOffsetsTopicResponse(
                name=topic.name,
                partitions=[
                    await _list_one(face, topic.name, part, request.isolation_level == _READ_COMMITTED)
                    for part in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


async def _list_one(
    face: KafkaFace, name: str, part: ListOffsetsPartition, committed: bool
) -> ListOffsetsPartitionResponse:
    try:
        partition = face.broker.partition(name, part.partition_index)
        check_epoch(part.current_leader_epoch)
        timestamp, offset = await _resolve(partition, part.timestamp, committed)
    except ApiError as error:
        return ListOffsetsPartitionResponse(partition_index=part.partition_index, error_code=int(error.code))
    return ListOffsetsPartitionResponse(
        partition_index=part.partition_index,
        timestamp=timestamp,
        offset=offset,
        leader_epoch=UNKNOWN if offset == UNKNOWN else LEADER_EPOCH,
    )


async def _resolve(partition: Partition, timestamp: int, committed: bool) -> tuple[int, int]:
    """(timestamp, offset) for a time in ms or one of the named places; unknown is (-1, -1).

    With `committed`, nothing past the last stable offset is shown.
    """
    if timestamp in (EARLIEST, EARLIEST_LOCAL):
        return UNKNOWN, partition.log.start_offset
    if timestamp in (LATEST_TIERED, EARLIEST_PENDING_UPLOAD):
        return UNKNOWN, UNKNOWN
    await _settled(partition)
    limit = partition.last_stable_offset if committed else partition.high_watermark
    if timestamp == LATEST:
        return UNKNOWN, limit
    if timestamp == MAX_TIMESTAMP:
        found = partition.log.max_timestamp()
    elif timestamp >= 0:
        found = partition.log.offset_for_time(timestamp)
    else:
        raise ApiError(
            ErrorCode.UNSUPPORTED_VERSION,
            f"timestamp {timestamp} is neither a time nor one of the special values",
        )
    if found is None or (committed and found[1] >= limit):
        return UNKNOWN, UNKNOWN
    return found


async def _settled(partition: Partition) -> None:
    """Waits for a group commit under way: what a client wrote before it asks for the end must be counted."""
    end = partition.log.end_offset
    if partition.high_watermark < end and partition.log.failed is None:
        settled: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def on_durable(_: ErrorCode) -> None:
            if not settled.done():
                settled.set_result(None)

        partition.when_durable(end, on_durable)
        await settled


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
        check_epoch(part.current_leader_epoch)
        epoch, end_offset = partition.log.end_offset_for_epoch(part.leader_epoch)
    except ApiError as error:
        return EpochEndOffset(partition=part.partition, error_code=int(error.code))
    return EpochEndOffset(
        partition=part.partition, leader_epoch=epoch, end_offset=min(end_offset, partition.high_watermark)
    )


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
        await _settled(partition)
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
