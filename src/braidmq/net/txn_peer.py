"""What brokers say to each other about transactions, in Kafka's own requests.

WriteTxnMarkers      the coordinator has a transaction's end written where its partitions are
AddPartitionsToTxn   a partition's broker asks the coordinator before the first batch (KIP-890)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, cast

from braidmq.net.peer import Peers
from braidmq.txn.events import AddPartitions, TopicPartition
from braidmq.txn.marker_queue import MarkerKey, by_marker
from braidmq.wire.errors import ErrorCode
from braidmq.wire.messages.transactions import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)


class Question(NamedTuple):
    """Whether partitions take part in a transaction; unless `verify_only`, they do from then on."""

    asked: AddPartitions
    verify_only: bool


class TxnPeers:
    """The other brokers, as coordinators and as leaders of partitions. Calls raise `PeerUnavailable`."""

    def __init__(self, peers: Peers) -> None:
        self._peers = peers

    async def write_markers(self, node_id: int, due: Sequence[MarkerKey]) -> dict[MarkerKey, ErrorCode]:
        """What the broker says of each marker; none of those that it says nothing of."""
        grouped = by_marker(due)
        request = WriteTxnMarkersRequest(
            markers=[
                WritableTxnMarker(
                    producer_id=marker.producer_id,
                    producer_epoch=marker.producer_epoch,
                    transaction_result=marker.committed,
                    coordinator_epoch=marker.coordinator_epoch,
                    transaction_version=marker.transaction_version,
                    topics=[
                        WritableTxnMarkerTopic(name=topic, partition_indexes=indexes)
                        for topic, indexes in topics.items()
                    ],
                )
                for marker, topics in grouped.items()
            ]
        )
        answer = cast("WriteTxnMarkersResponse", await self._peers.call(node_id, request))
        return {
            ((topic.name, partition.partition_index), marker): _code(partition.error_code)
            for marker, result in zip(grouped, answer.markers, strict=False)
            if result.producer_id == marker.producer_id
            for topic in result.topics
            for partition in topic.partitions
        }

    async def ask(
        self, node_id: int, questions: Sequence[Question]
    ) -> list[Mapping[TopicPartition, ErrorCode]]:
        """The answers to questions, in their order; an empty one if there was none."""
        request = AddPartitionsToTxnRequest(
            transactions=[
                AddPartitionsToTxnTransaction(
                    transactional_id=asked.transactional_id,
                    producer_id=asked.producer_id,
                    producer_epoch=asked.producer_epoch,
                    verify_only=verify_only,
                    topics=_topics(asked),
                )
                for asked, verify_only in questions
            ]
        )
        answer = cast("AddPartitionsToTxnResponse", await self._peers.call(node_id, request))
        answers: list[Mapping[TopicPartition, ErrorCode]] = [{} for _ in questions]
        for at, (question, result) in enumerate(zip(questions, answer.results_by_transaction, strict=False)):
            if result.transactional_id == question.asked.transactional_id:
                answers[at] = {
                    (topic.name, partition.partition_index): _code(partition.partition_error_code)
                    for topic in result.topic_results
                    for partition in topic.results_by_partition
                }
        return answers


def _topics(asked: AddPartitions) -> list[AddPartitionsToTxnTopic]:
    topics: dict[str, list[int]] = {}
    for topic, index in sorted(asked.partitions):
        topics.setdefault(topic, []).append(index)
    return [AddPartitionsToTxnTopic(name=topic, partitions=indexes) for topic, indexes in topics.items()]


def _code(number: int) -> ErrorCode:
    try:
        return ErrorCode(number)
    except ValueError:
        return ErrorCode.UNKNOWN_SERVER_ERROR
