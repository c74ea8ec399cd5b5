"""Which broker to ask instead, for requests that came to one that does not lead the partition (KIP-951)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from braidmq.wire.errors import ErrorCode
from braidmq.wire.moved import Moved, Node

if TYPE_CHECKING:
    from braidmq.broker.broker import Broker

ELSEWHERE = frozenset((int(ErrorCode.NOT_LEADER_OR_FOLLOWER), int(ErrorCode.FENCED_LEADER_EPOCH)))
"""Codes after which a client looks for another leader."""


def moved(broker: Broker, refused: Iterable[tuple[str | None, bytes | None, int]]) -> Moved | None:
    """Who leads these partitions, by name or id of their topics; None if nobody runs that does."""
    leaders: dict[tuple[str | bytes | None, int], tuple[int, int]] = {}
    for name, topic_id, index in refused:
        topic = broker.topics.find_by_id(topic_id or b"") if name is None else broker.topics.find(name)
        leader = None if topic is None else broker.leader(topic.id, index)
        if leader is not None and leader.node_id >= 0:
            leaders[topic_id if name is None else name, index] = leader
    if not leaders:
        return None
    wanted = {node_id for node_id, _ in leaders.values()}
    return Moved(leaders, [Node(*one) for one in broker.view.live_nodes() if one.node_id in wanted])
