"""WriteTxnMarkers: a coordinator on another broker has its transactions ended in partitions of this one."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING

from braidmq.faces.kafka.peer_proof import require_peer
from braidmq.faces.kafka.request_context import RequestContext
from braidmq.txn.events import Marker, TopicPartition
from braidmq.wire.errors import ApiError, ErrorCode
from braidmq.wire.messages.transactions import (
    WritableTxnMarker,
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)

if TYPE_CHECKING:
    from braidmq.faces.kafka.face import KafkaFace

Codes = dict[tuple[int, TopicPartition], ErrorCode]


async def write_txn_markers(
    face: KafkaFace, request: WriteTxnMarkersRequest, context: RequestContext
) -> WriteTxnMarkersResponse:
    """Answered when every marker is as safe as its topic's records, or refused.

    Only brokers of the cluster may ask: with a marker anybody could end any producer's transaction, and fence
    it. Kafka asks for a permission on the cluster, and clients have none here.
    """
    try:
        require_peer(face, context)
    except ApiError as error:
        return _response(request, {}, error.code)
    return _response(request, await _Writing(face, request).done, ErrorCode.UNKNOWN_SERVER_ERROR)


class _Writing:
    """The markers of a request, until the last one has its outcome."""

    def __init__(self, face: KafkaFace, request: WriteTxnMarkersRequest) -> None:
        self.done: asyncio.Future[Codes] = asyncio.get_running_loop().create_future()
        self._codes: Codes = {}
        wanted = [
            (at, one, (topic.name, index))
            for at, one in enumerate(request.markers)
            for topic in one.topics
            for index in topic.partition_indexes
        ]
        self._left = len(wanted)
        if not wanted:
            self.done.set_result(self._codes)
        for at, one, topic_partition in wanted:
            report = partial(self._report, at, topic_partition)
            face.broker.markers.write_here(topic_partition, _marker(one), report)

    def _report(self, at: int, topic_partition: TopicPartition, code: ErrorCode) -> None:
        self._codes[at, topic_partition] = code
        self._left -= 1
        if not self._left and not self.done.done():
            self.done.set_result(self._codes)


def _marker(wanted: WritableTxnMarker) -> Marker:
    return Marker(
        wanted.producer_id,
        wanted.producer_epoch,
        wanted.transaction_result,
        wanted.coordinator_epoch,
        wanted.transaction_version,
    )


def _response(request: WriteTxnMarkersRequest, codes: Codes, otherwise: ErrorCode) -> WriteTxnMarkersResponse:
    return WriteTxnMarkersResponse(
        markers=[
            WritableTxnMarkerResult(
                producer_id=wanted.producer_id,
                topics=[
                    WritableTxnMarkerTopicResult(
                        name=topic.name,
                        partitions=[
                            WritableTxnMarkerPartitionResult(
                                partition_index=index,
                                error_code=int(codes.get((at, (topic.name, index)), otherwise)),
                            )
                            for index in topic.partition_indexes
                        ],
                    )
                    for topic in wanted.topics
                ],
            )
            for at, wanted in enumerate(request.markers)
        ]
    )
