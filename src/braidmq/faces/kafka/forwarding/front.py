"""What clients of a forwarding listener are shown: this broker alone, which leads all and coordinates all."""

from __future__ import annotations

from dataclasses import dataclass

from braidmq.broker.broker import Broker
from braidmq.broker.shards import partition_of
from braidmq.faces.kafka.forwarding.routes import By
from braidmq.group.records import OFFSETS_TOPIC
from braidmq.txn.records import TRANSACTIONS_TOPIC
from braidmq.wire.errors import ErrorCode
from braidmq.wire.messages.cluster import DescribeClusterBroker, DescribeClusterResponse
from braidmq.wire.messages.groups import Coordinator, FindCoordinatorResponse
from braidmq.wire.messages.metadata import MetadataResponse, MetadataResponseBroker, MetadataResponsePartition
from braidmq.wire.messages.topics import (
    DescribeTopicPartitionsResponse,
    DescribeTopicPartitionsResponsePartition,
)
from braidmq.wire.schema import Message

NOBODY = -1


@dataclass(frozen=True, slots=True)
class Front:
    """The address that clients of the listener use, and the node id it stands for."""

    node_id: int
    host: str
    port: int

    def show(self, answer: Message) -> None:
        """Puts this broker in the place of all that `answer` names."""
        if isinstance(answer, MetadataResponse):
            answer.brokers = [MetadataResponseBroker(node_id=self.node_id, host=self.host, port=self.port)]
            answer.controller_id = self.node_id
            for topic in answer.topics:
                for partition in topic.partitions:
                    self._lead(partition)
        elif isinstance(answer, DescribeTopicPartitionsResponse):
            for described in answer.topics:
                for page in described.partitions:
                    self._lead(page)
                    page.eligible_leader_replicas = []
                    page.last_known_elr = []
        elif isinstance(answer, FindCoordinatorResponse):
            self._coordinate(answer)
            for found in answer.coordinators:
                self._coordinate(found)
        elif isinstance(answer, DescribeClusterResponse) and answer.error_code == ErrorCode.NONE:
            answer.brokers = [DescribeClusterBroker(broker_id=self.node_id, host=self.host, port=self.port)]
            answer.controller_id = self.node_id

    def _lead(self, partition: MetadataResponsePartition | DescribeTopicPartitionsResponsePartition) -> None:
        nodes = [self.node_id]
        partition.offline_replicas = []
        if partition.leader_id == NOBODY:
            partition.offline_replicas = nodes
        else:
            partition.leader_id = self.node_id
        partition.replica_nodes = partition.isr_nodes = nodes

    def _coordinate(self, found: FindCoordinatorResponse | Coordinator) -> None:
        if found.error_code == ErrorCode.NONE:
            found.node_id, found.host, found.port = self.node_id, self.host, self.port


class ImagePlaces:
    """Who answers for what, as the image shows it (`parts.Places`)."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.node_id = broker.node_id

    def leader(self, topic: str | bytes, index: int) -> int:
        image = self._broker.image
        found = image.find(topic) if isinstance(topic, str) else image.topics.get(topic)
        if found is None:
            return self.node_id
        return self._alive(self._broker.view.leader(found.id, index).node_id)

    def coordinator(self, by: By, key: str) -> int:
        name = OFFSETS_TOPIC if by is By.GROUP else TRANSACTIONS_TOPIC
        found = self._broker.image.find(name)
        if found is None:
            return self.node_id
        index = partition_of(key, len(found.partitions))
        return self._alive(self._broker.view.leader(found.id, index).node_id)

    def every(self) -> list[int]:
        return [node.node_id for node in self._broker.view.live_nodes()] or [self.node_id]

    def _alive(self, node_id: int) -> int:
        return self.node_id if node_id == NOBODY else node_id
