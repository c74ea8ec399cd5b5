"""Who leads which partition, and where brokers are: the image, as clients are answered from it.

The broker that is asked runs, whatever its registration says at the moment: it counts as alive here.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from braidmq.broker.topic import Topic
from braidmq.cluster.image import BrokerImage, Image, PartitionImage
from braidmq.cluster.records import NO_EPOCH, NO_LEADER, PartitionMeta

CLIENTS = "kafka"
"""The listener that clients use."""


class Leader(NamedTuple):
    """Who leads a partition; the node id is -1 while it does not run."""

    node_id: int
    epoch: int


class LiveNode(NamedTuple):
    """A running broker, as clients reach it."""

    node_id: int
    host: str
    port: int
    rack: str | None


class PartitionView(NamedTuple):
    """A partition, as clients are shown it. Many partitions may share one, so its lists are not changed."""

    leader: Leader
    replicas: list[int]
    in_sync: list[int]
    offline: list[int]
    eligible: list[int]
    last_leader: int


NOBODY = Leader(NO_LEADER, NO_EPOCH)


class ClusterView:
    """The cluster as one of its brokers sees it."""

    def __init__(self, image: Image, node_id: int) -> None:
        self._image = image
        self._node_id = node_id

    def is_alive(self, node_id: int) -> bool:
        if node_id == self._node_id:
            return True
        broker = self._image.brokers.get(node_id)
        return broker is not None and broker.alive is not None

    def leader(self, topic_id: bytes, index: int) -> Leader:
        """Who leads a partition; `NOBODY` if there is no such partition."""
        shown = self._image.partition(topic_id, index)
        return NOBODY if shown is None else self._leader(shown)

    def _leader(self, shown: PartitionImage) -> Leader:
        record = shown.record
        return Leader(record.leader if self.is_alive(record.leader) else NO_LEADER, record.epoch)

    def endpoint(self, node_id: int) -> tuple[str, int] | None:
        """Where a running broker accepts clients; None while it does not run."""
        found = _address(self._image.brokers.get(node_id))
        return None if found is None else (found.host, found.port)

    def live_nodes(self) -> Iterator[LiveNode]:
        """The brokers that run, by node id."""
        for _, broker in sorted(self._image.brokers.items()):
            if (found := _address(broker)) is not None:
                yield found

    @property
    def controller_id(self) -> int:
        """The controller while it runs; else the running broker with the lowest id."""
        held = self._image.controller
        if held is not None and self.is_alive(held.record.node_id):
            return held.record.node_id
        return min((node.node_id for node in self.live_nodes()), default=self._node_id)

    def partitions(
        self, topic: Topic, start: int = 0, stop: int | None = None
    ) -> Iterator[tuple[int, PartitionView]]:
        """A topic's partitions by index, as far as the image shows them."""
        shown = self._image.topics.get(topic.id)
        # The image has one record for all partitions that have the same brokers: so has the answer.
        seen: dict[int, PartitionView] = {}
        for index, each in enumerate([] if shown is None else shown.partitions[start:stop], start):
            if each is None:
                yield index, self._unreadable(topic, index)
                continue
            view = seen.get(id(each.record))
            if view is None:
                view = seen[id(each.record)] = self._shown(each.record)
            yield index, view

    def _shown(self, record: PartitionMeta) -> PartitionView:
        return PartitionView(
            Leader(record.leader if self.is_alive(record.leader) else NO_LEADER, record.epoch),
            list(record.replicas),
            list(record.isr),
            [node_id for node_id in record.replicas if not self.is_alive(node_id)],
            list(record.elr),
            record.last,
        )

    def _unreadable(self, topic: Topic, index: int) -> PartitionView:
        """The image cannot read its record. A broker that held it before serves it on."""
        here = topic.held.get(index)
        leader = NOBODY if here is None else Leader(self._node_id, here.leader_epoch)
        nodes = [] if here is None else [self._node_id]
        return PartitionView(leader, nodes, nodes, [], [], NO_LEADER)


def _address(broker: BrokerImage | None) -> LiveNode | None:
    if broker is None or broker.alive is None:
        return None
    rack = None if broker.node is None else broker.node.record.rack
    for listener in broker.alive.record.listeners:
        if listener.name == CLIENTS:
            return LiveNode(broker.node_id, listener.host, listener.port, rack)
    return None
