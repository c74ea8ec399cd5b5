"""DescribeQuorum: who keeps the cluster's metadata.

Braid keeps metadata in a store with revisions instead of Kafka's metadata log. The controller stands for the
leader and only voter: alone, that is this node. The other brokers of a cluster follow the store, so they are
observers. The newest revision that this broker has seen stands for the end of the log; how far the others
are, it does not know.
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
"""There are no elections among voters."""
UNKNOWN = -1


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
                node_id=one.node_id,
                listeners=[QuorumListener(name="PLAINTEXT", host=one.host, port=one.port)],
            )
            for one in face.nodes()
        ],
    )


def _describe(face: KafkaFace, topic: str, index: int) -> QuorumPartition:
    if (topic, index) != (METADATA_TOPIC, 0):
        return QuorumPartition(partition_index=index, error_code=int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
    controller_id, revision = face.broker.view.controller_id, face.broker.image.revision
    return QuorumPartition(
        partition_index=index,
        leader_id=controller_id,
        leader_epoch=METADATA_EPOCH,
        high_watermark=revision,
        current_voters=[_state(face, controller_id)],
        observers=[_state(face, one.node_id) for one in face.nodes() if one.node_id != controller_id],
    )


def _state(face: KafkaFace, node_id: int) -> ReplicaState:
    if node_id not in (face.node_id, face.broker.view.controller_id):
        return ReplicaState(replica_id=node_id, log_end_offset=UNKNOWN)
    now_ms = face.broker.clock.wall_ms()
    return ReplicaState(
        replica_id=node_id,
        log_end_offset=face.broker.image.revision,
        last_fetch_timestamp=now_ms,
        last_caught_up_timestamp=now_ms,
    )
