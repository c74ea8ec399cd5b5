"""DescribeLogDirs: what a broker says about the files of its partitions."""

from __future__ import annotations

from braidmq.client.cluster import TopicPartition
from braidmq.client.connection import Connection
from braidmq.wire.messages.cluster import (
    DescribableLogDirTopic,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
)


def describe(connection: Connection, some: list[TopicPartition]) -> DescribeLogDirsResponse:
    """The directories of a broker, each with those of the partitions that lie in it."""
    topics: dict[str, DescribableLogDirTopic] = {}
    for at in some:
        topic = topics.setdefault(at.topic, DescribableLogDirTopic(topic=at.topic, partitions=[]))
        topic.partitions.append(at.partition)
    return connection.call(DescribeLogDirsRequest(topics=list(topics.values())), DescribeLogDirsResponse)
