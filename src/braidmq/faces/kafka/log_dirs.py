"""DescribeLogDirs: how large each partition is on disk, and how full the disk."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from braidmq.broker.partition import Partition
from braidmq.broker.topic import Topic
from braidmq.faces.kafka.asked import Asked
from braidmq.wire.messages.cluster import (
    DescribeLogDirsPartition,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
)

if TYPE_CHECKING:
    from braidmq.faces.kafka.face import KafkaFace

UNKNOWN = -1


async def describe_log_dirs(
    face: KafkaFace, request: DescribeLogDirsRequest, asked: Asked
) -> DescribeLogDirsResponse:
    broker = face.broker
    if request.topics is None:
        wanted = [(topic, list(range(len(topic.partitions)))) for topic in broker.topics]
    else:
        wanted = [
            (topic, [index for index in each.partitions if 0 <= index < len(topic.partitions)])
            for each in request.topics
            if (topic := broker.topics.find(each.topic)) is not None
        ]
    closed = [topic.partitions[index] for topic, indexes in wanted for index in indexes]
    sizes = await broker.closed_sizes(one for one in closed if not one.is_open)
    usage = broker.disk.usage(broker.data)
    return DescribeLogDirsResponse(
        results=[
            DescribeLogDirsResult(
                log_dir=str(broker.data),
                topics=[
                    DescribeLogDirsTopic(
                        name=topic.name, partitions=[_describe(topic, index, sizes) for index in indexes]
                    )
                    for topic, indexes in wanted
                ],
                total_bytes=usage.total_bytes,
                usable_bytes=usage.free_bytes,
            )
        ]
    )


def _describe(topic: Topic, index: int, sizes: Mapping[Partition, int]) -> DescribeLogDirsPartition:
    partition = topic.partitions[index]
    size_bytes = partition.log.size_bytes if partition.is_open else sizes.get(partition, UNKNOWN)
    return DescribeLogDirsPartition(partition_index=index, partition_size=size_bytes)
