"""DescribeQuorum: who keeps the cluster's metadata.

Braid keeps metadata in a store with revisions instead of Kafka's metadata log. On a single machine this node
is its only keeper, so it is the one voter and the leader; the store's newest revision stands for the end of
the log.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from braidmq.faces.kafka.request_context import RequestContext
from braidmq.wire.errors import ErrorCode
from braidmq.wire.messages.quorum import (
    DescribeQuorumRequest,
    DescribeQuorumResponse,
    QuorumListener,
    QuorumNode,
    QuorumPartition,
    QuorumTopic,
    ReplicaState,
)

if TYPE_CHECKING:
    from braidmq.faces.kafka.face import KafkaFace

METADATA_TOPIC = "__cluster_metadata"
"""What Kafka calls its metadata log, of one partition; there is no such topic here."""
METADATA_EPOCH = 0
"""The only voter has led from the first day."""


def describe_quorum(
    face: KafkaFace, request: DescribeQuorumRequest, context: RequestContext
) -> DescribeQuorumResponse:
    return DescribeQuorumResponse(
        topics=[
            QuorumTopic(
                topic_name=topic.topic_name,
                partitions=[
                    _describe(face, topic.topic_name, partition.partition_index)
                    for partition in topic.partitions
                ],
            )
            for topic in request.topics
        ],
        nodes=[
            QuorumNode(
                node_id=face.node_id,
                listeners=[QuorumListener(name="PLAINTEXT", host=face.host, port=face.port)],
            )
        ],
    )


def _describe(face: KafkaFace, topic: str, index: int) -> QuorumPartition:
    if (topic, index) != (METADATA_TOPIC, 0):
        return QuorumPartition(partition_index=index, error_code=int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
    revision, now_ms = face.broker.metadata.image.revision, face.broker.clock.wall_ms()
    return QuorumPartition(
        partition_index=index,
        leader_id=face.node_id,
        leader_epoch=METADATA_EPOCH,
        high_watermark=revision,
        current_voters=[
            ReplicaState(
                replica_id=face.node_id,
                log_end_offset=revision,
                last_fetch_timestamp=now_ms,
                last_caught_up_timestamp=now_ms,
            )
        ],
    )
