"""What classic consumers tell each other through their group: subscriptions, and the leader's assignments.

The broker need not understand it to run a classic group. It looks inside for two things: offsets of a topic
that nobody reads any more may expire or be deleted, those of one that is read may not; and members that still
speak the classic protocol in a group that has changed over are assigned partitions in their own words.
"""

from __future__ import annotations

from collections.abc import Mapping
from struct import Struct

from braidmq.wire.errors import ProtocolError
from braidmq.wire.schema import Message, array, data, decoder, encode, int32, string

CONSUMER_PROTOCOL_TYPE = "consumer"
"""The protocol type of groups whose members speak the consumer's embedded protocol."""

NEWEST = 3
_VERSION = Struct(">h")


class TopicPartition(Message):
    topic: str = string()
    partitions: list[int] = array(int32)


class ConsumerProtocolSubscription(Message, versions=(0, NEWEST)):
    topics: list[str] = array(string)
    user_data: bytes | None = data(nullable=0)
    owned_partitions: list[TopicPartition] = array(TopicPartition, since=1)
    generation_id: int = int32(since=2, default=-1)
    rack_id: str | None = string(since=3, nullable=3)


class ConsumerProtocolAssignment(Message, versions=(0, NEWEST)):
    assigned_partitions: list[TopicPartition] = array(TopicPartition)
    user_data: bytes | None = data(nullable=0)


def read_subscription(metadata: bytes) -> ConsumerProtocolSubscription | None:
    """A subscription of any version, newer ones as far as we know them; None if it is not one."""
    try:
        return decoder(ConsumerProtocolSubscription, _known(metadata))(metadata, _VERSION.size)[0]
    except ProtocolError:
        return None


def subscribed_topics(metadata: bytes) -> frozenset[str] | None:
    """The topics in a subscription, or None if it is not one."""
    subscription = read_subscription(metadata)
    return None if subscription is None else frozenset(subscription.topics)


def read_assignment(assignment: bytes) -> dict[str, list[int]] | None:
    """The partitions in an assignment by topic, or None if it is not one."""
    try:
        read = decoder(ConsumerProtocolAssignment, _known(assignment))(assignment, _VERSION.size)[0]
    except ProtocolError:
        return None
    return {one.topic: one.partitions for one in read.assigned_partitions}


def write_assignment(partitions: Mapping[str, list[int]], metadata: bytes) -> bytes:
    """An assignment in the version of the subscription that it answers."""
    version = _known(metadata)
    topics = [TopicPartition(topic=topic, partitions=numbers) for topic, numbers in partitions.items()]
    return _VERSION.pack(version) + encode(ConsumerProtocolAssignment(assigned_partitions=topics), version)


def _known(stored: bytes) -> int:
    if len(stored) < _VERSION.size:
        raise ProtocolError("the version is missing")
    version: int = _VERSION.unpack_from(stored)[0]
    if version < 0:
        raise ProtocolError(f"version {version} is not known")
    return min(version, NEWEST)
