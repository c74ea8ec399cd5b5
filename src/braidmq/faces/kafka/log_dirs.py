"""DescribeLogDirs and AlterReplicaLogDirs: what the data directory holds, and how full its disk is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from braidmq.faces.kafka.request_context import RequestContext
from braidmq.wire.errors import ErrorCode
from braidmq.wire.messages.cluster import (
    AlterReplicaLogDirPartitionResult,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    AlterReplicaLogDirTopicResult,
    DescribeLogDirsPartition,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
)

if TYPE_CHECKING:
    from braidmq.faces.kafka.face import KafkaFace


async def describe_log_dirs(
    face: KafkaFace, request: DescribeLogDirsRequest, context: RequestContext
) -> DescribeLogDirsResponse:
    broker = face.broker
    if request.topics is None:
        wanted = [(topic, list(topic.held)) for topic in broker.topics if topic.held]
    else:
        wanted = [
            (topic, [index for index in each.partitions if index in topic.held])
            for each in request.topics
            if (topic := broker.topics.find(each.topic)) is not None
        ]
    every = [topic.held[index] for topic, indexes in wanted for index in indexes]
    sizes = await broker.sizes_on_disk(every)
    usage = broker.disk.usage(broker.data)
    return DescribeLogDirsResponse(
        results=[
            DescribeLogDirsResult(
                log_dir=str(broker.data),
                topics=[
                    DescribeLogDirsTopic(
                        name=topic.name,
                        partitions=[
                            DescribeLogDirsPartition(
                                partition_index=index, partition_size=sizes[topic.held[index]]
                            )
                            for index in indexes
                        ],
                    )
                    for topic, indexes in wanted
                ],
                total_bytes=usage.total_bytes,
                usable_bytes=usage.free_bytes,
            )
        ]
    )


def alter_replica_log_dirs(
    face: KafkaFace, request: AlterReplicaLogDirsRequest, context: RequestContext
) -> AlterReplicaLogDirsResponse:
    """There is one data directory: what is asked to be there is there, and nothing can go elsewhere."""
    return AlterReplicaLogDirsResponse(
        results=[
            AlterReplicaLogDirTopicResult(
                topic_name=topic.name,
                partitions=[
                    AlterReplicaLogDirPartitionResult(
                        partition_index=index, error_code=int(_move(face, each.path, topic.name, index))
                    )
                    for index in topic.partitions
                ],
            )
            for each in request.dirs
            for topic in each.topics
        ]
    )


def _move(face: KafkaFace, path: str, topic: str, index: int) -> ErrorCode:
    if path != str(face.broker.data):
        return ErrorCode.LOG_DIR_NOT_FOUND
    found = face.broker.topics.find(topic)
    if found is None or not 0 <= index < found.partition_count:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return ErrorCode.NONE if index in found.held else ErrorCode.REPLICA_NOT_AVAILABLE
