"""ElectLeaders and ListPartitionReassignments, where one node leads and holds everything."""

from __future__ import annotations

from typing import TYPE_CHECKING

from braidmq.faces.kafka.request_context import RequestContext
from braidmq.wire.errors import ErrorCode
from braidmq.wire.messages.leaders import (
    ElectLeadersRequest,
    ElectLeadersResponse,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    PartitionResult,
    ReplicaElectionResult,
)

if TYPE_CHECKING:
    from braidmq.faces.kafka.face import KafkaFace

_ELECTION_TYPES = (0, 1)
"""Of the preferred replica, and of any that is left."""


def elect_leaders(
    face: KafkaFace, request: ElectLeadersRequest, context: RequestContext
) -> ElectLeadersResponse:
    """No election is needed: every partition has one replica, and it leads.

    Asked for all partitions, only those with a new leader are named, which are none.
    """
    known = request.election_type in _ELECTION_TYPES
    return ElectLeadersResponse(
        error_code=int(ErrorCode.NONE if known else ErrorCode.INVALID_REQUEST),
        replica_election_results=[
            ReplicaElectionResult(
                topic=each.topic,
                partition_result=[
                    _elect(face, each.topic, index, request.election_type) for index in each.partitions
                ],
            )
            for each in request.topic_partitions or ()
        ],
    )


def _elect(face: KafkaFace, topic: str, index: int, election_type: int) -> PartitionResult:
    # The codes say all there is to say; a text for each would make the answer many times the request.
    code = ErrorCode.ELECTION_NOT_NEEDED
    if election_type not in _ELECTION_TYPES:
        code = ErrorCode.INVALID_REQUEST
    else:
        found = face.broker.topics.find(topic)
        if found is None or not 0 <= index < found.partition_count:
            code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return PartitionResult(partition_id=index, error_code=int(code))


def list_partition_reassignments(
    face: KafkaFace, request: ListPartitionReassignmentsRequest, context: RequestContext
) -> ListPartitionReassignmentsResponse:
    """None is under way: there is no second node to move a replica to."""
    return ListPartitionReassignmentsResponse()
