"""How server-assigned groups are written down in `__consumer_offsets`, beside offsets and classic groups.

There is a record for the group's epoch, one for the target's, and three for each member: its profile, its
target, and its position on the way there. They are Kafka's, key versions 3 and 5 to 8. `changed_records`
writes what changed; `ConsumerLoader` collects the records that are read and builds the groups at the end.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from braidmq.group.assignors import Partition, Partitions
from braidmq.group.consumer_group import Changes, ConsumerGroup, StoredConsumerGroup
from braidmq.group.consumer_member import ClassicTraits, ConsumerMember, MemberState
from braidmq.group.events import KeyValue, MemberProtocol
from braidmq.group.records import split, versioned
from braidmq.wire.errors import ProtocolError
from braidmq.wire.schema import Message, array, data, decode, int8, int32, string, struct, uuid

GROUP_KEY = 3
PROFILE_KEY = 5
TARGET_EPOCH_KEY = 6
TARGET_KEY = 7
POSITION_KEY = 8
KEYS = frozenset({GROUP_KEY, PROFILE_KEY, TARGET_EPOCH_KEY, TARGET_KEY, POSITION_KEY})
_MEMBER_KEYS = (PROFILE_KEY, TARGET_KEY, POSITION_KEY)


class ConsumerGroupKey(Message, versions=(3, 6)):
    group_id: str = string()


class ConsumerGroupMemberKey(Message, versions=(5, 8)):
    group_id: str = string()
    member_id: str = string()


class ConsumerGroupMetadataValue(Message, versions=(0, 0), flexible=0):
    epoch: int = int32()


class ConsumerGroupTargetAssignmentMetadataValue(Message, versions=(0, 0), flexible=0):
    assignment_epoch: int = int32()


class ClassicProtocol(Message):
    name: str = string()
    metadata: bytes = data()


class ClassicMemberMetadata(Message):
    session_timeout_ms: int = int32()
    supported_protocols: list[ClassicProtocol] = array(ClassicProtocol)


class ConsumerGroupMemberMetadataValue(Message, versions=(0, 0), flexible=0):
    instance_id: str | None = string(nullable=0)
    rack_id: str | None = string(nullable=0)
    client_id: str = string()
    client_host: str = string()
    subscribed_topic_names: list[str] = array(string)
    subscribed_topic_regex: str | None = string(nullable=0)
    rebalance_timeout_ms: int = int32(default=-1)
    server_assignor: str | None = string(nullable=0)
    classic_member_metadata: ClassicMemberMetadata | None = struct(ClassicMemberMetadata, nullable=0, tag=0)


class TopicPartitions(Message):
    topic_id: bytes = uuid()
    partitions: list[int] = array(int32)


class OwnedPartitions(Message):
    topic_id: bytes = uuid()
    partitions: list[int] = array(int32)
    assignment_epochs: list[int] = array(int32, tag=0)
    """With which epoch the member got each of them; older records do not say."""


class ConsumerGroupTargetAssignmentMemberValue(Message, versions=(0, 0), flexible=0):
    topic_partitions: list[TopicPartitions] = array(TopicPartitions)


class ConsumerGroupCurrentMemberAssignmentValue(Message, versions=(0, 0), flexible=0):
    member_epoch: int = int32()
    previous_member_epoch: int = int32()
    state: int = int8()
    assigned_partitions: list[OwnedPartitions] = array(OwnedPartitions)
    partitions_pending_revocation: list[OwnedPartitions] = array(OwnedPartitions)


def changed_records(group: ConsumerGroup, changes: Changes) -> Iterator[KeyValue]:
    """The records that have to be written, tombstones of members that have gone first."""
    for member_id in sorted(changes.gone):
        yield from ((_member_key(group.group_id, member_id, kind), None) for kind in _MEMBER_KEYS)
    for member_id in sorted(changes.profiles & group.members.keys()):
        yield _member_key(group.group_id, member_id, PROFILE_KEY), _profile(group.members[member_id])
    if changes.group_epoch:
        value = versioned(ConsumerGroupMetadataValue(epoch=group.epoch), 0)
        yield _group_key(group.group_id, GROUP_KEY), value
    for member_id in sorted(changes.targets & group.targets.keys()):
        target = ConsumerGroupTargetAssignmentMemberValue(topic_partitions=grouped(group.targets[member_id]))
        yield _member_key(group.group_id, member_id, TARGET_KEY), versioned(target, 0)
    if changes.target_epoch:
        reached = ConsumerGroupTargetAssignmentMetadataValue(assignment_epoch=group.target_epoch)
        yield _group_key(group.group_id, TARGET_EPOCH_KEY), versioned(reached, 0)
    for member_id in sorted(changes.positions & group.members.keys()):
        yield _member_key(group.group_id, member_id, POSITION_KEY), _position(group, group.members[member_id])


def ending(group: ConsumerGroup) -> list[KeyValue]:
    """The end of a group and of the members it still has."""
    gone = group.take_changes().gone | group.members.keys()
    return [*changed_records(group, Changes(gone=gone)), *tombstones(group.group_id)]


def tombstones(group_id: str) -> list[KeyValue]:
    """The end of a group that has no members."""
    return [(_group_key(group_id, kind), None) for kind in (TARGET_EPOCH_KEY, GROUP_KEY)]


def grouped(partitions: Partitions) -> list[TopicPartitions]:
    """Partitions by topic, as messages and records have them."""
    topics: dict[bytes, list[int]] = {}
    for topic_id, partition in sorted(partitions):
        topics.setdefault(topic_id, []).append(partition)
    return [TopicPartitions(topic_id=one, partitions=numbers) for one, numbers in topics.items()]


class ConsumerLoader:
    """What the records read so far say about server-assigned groups."""

    def __init__(self) -> None:
        self._epochs: dict[str, int] = {}
        self._target_epochs: dict[str, int] = {}
        self._values: dict[tuple[str, str], dict[int, bytes]] = {}
        self.unreadable = 0
        """Members whose records could not be read; they will have to join again."""

    def take(self, key: bytes, value: bytes | None) -> bool:
        """Takes one record in; False if it is of another kind. ProtocolError if it cannot be read."""
        kind, body = split(key)
        if kind not in KEYS:
            return False
        if kind in _MEMBER_KEYS:
            member = decode(ConsumerGroupMemberKey, kind, body)
            of_member = self._values.setdefault((member.group_id, member.member_id), {})
            if value is None:
                of_member.pop(kind, None)
            else:
                of_member[kind] = value
            return True
        group_id = decode(ConsumerGroupKey, kind, body).group_id
        epochs = self._epochs if kind == GROUP_KEY else self._target_epochs
        if value is None:
            epochs.pop(group_id, None)
        elif kind == GROUP_KEY:
            epochs[group_id] = decode(ConsumerGroupMetadataValue, *split(value)).epoch
        else:
            stored = decode(ConsumerGroupTargetAssignmentMetadataValue, *split(value))
            epochs[group_id] = stored.assignment_epoch
        return True

    def forget(self, group_id: str) -> None:
        """A later record says that the group is of another protocol."""
        if self._epochs.pop(group_id, None) is not None:
            self._values = {key: of for key, of in self._values.items() if key[0] != group_id}

    def groups(self) -> dict[str, StoredConsumerGroup]:
        """The groups that are left when everything has been read."""
        found = {
            group_id: StoredConsumerGroup(epoch, self._target_epochs.get(group_id, 0), [], {}, {})
            for group_id, epoch in self._epochs.items()
        }
        for (group_id, member_id), values in self._values.items():
            group = found.get(group_id)
            if group is None or PROFILE_KEY not in values:
                continue
            try:
                group.members.append(_member(member_id, values, group.since))
                if TARGET_KEY in values:
                    target = decode(ConsumerGroupTargetAssignmentMemberValue, *split(values[TARGET_KEY]))
                    group.targets[member_id] = _flat(target.topic_partitions)
            except ProtocolError:
                self.unreadable += 1
        return found


def _member(member_id: str, values: dict[int, bytes], since: dict[Partition, int]) -> ConsumerMember:
    profile = decode(ConsumerGroupMemberMetadataValue, *split(values[PROFILE_KEY]))
    member = ConsumerMember(member_id)
    member.instance_id, member.rack_id = profile.instance_id, profile.rack_id
    member.client_id, member.client_host = profile.client_id, profile.client_host
    member.topics = frozenset(profile.subscribed_topic_names)
    member.pattern = profile.subscribed_topic_regex or ""
    member.rebalance_timeout_ms = profile.rebalance_timeout_ms
    member.assignor = profile.server_assignor
    if (classic := profile.classic_member_metadata) is not None:
        protocols = tuple(MemberProtocol(one.name, one.metadata) for one in classic.supported_protocols)
        member.classic = ClassicTraits(classic.session_timeout_ms, protocols)
    if POSITION_KEY in values:
        position = decode(ConsumerGroupCurrentMemberAssignmentValue, *split(values[POSITION_KEY]))
        member.epoch, member.previous_epoch = position.member_epoch, position.previous_member_epoch
        member.state = _state(position.state)
        member.assigned = _flat(position.assigned_partitions)
        member.revoking = _flat(position.partitions_pending_revocation)
        for topic in (*position.assigned_partitions, *position.partitions_pending_revocation):
            for number, epoch in zip(topic.partitions, topic.assignment_epochs, strict=False):
                since[topic.topic_id, number] = epoch
    return member


def _state(value: int) -> MemberState:
    try:
        return MemberState(value)
    except ValueError:
        raise ProtocolError(f"{value} is not a member state") from None


def _profile(member: ConsumerMember) -> bytes:
    value = ConsumerGroupMemberMetadataValue(
        instance_id=member.instance_id,
        rack_id=member.rack_id,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=sorted(member.topics),
        subscribed_topic_regex=member.pattern or None,
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        server_assignor=member.assignor,
        classic_member_metadata=None if member.classic is None else _classic(member.classic),
    )
    return versioned(value, 0)


def _classic(traits: ClassicTraits) -> ClassicMemberMetadata:
    return ClassicMemberMetadata(
        session_timeout_ms=traits.session_timeout_ms,
        supported_protocols=[
            ClassicProtocol(name=one.name, metadata=one.metadata) for one in traits.protocols
        ],
    )


def _position(group: ConsumerGroup, member: ConsumerMember) -> bytes:
    value = ConsumerGroupCurrentMemberAssignmentValue(
        member_epoch=member.epoch,
        previous_member_epoch=member.previous_epoch,
        state=int(member.state),
        assigned_partitions=_owned(group, member.assigned),
        partitions_pending_revocation=_owned(group, member.revoking),
    )
    return versioned(value, 0)


def _owned(group: ConsumerGroup, partitions: Partitions) -> list[OwnedPartitions]:
    return [
        OwnedPartitions(
            topic_id=topic.topic_id,
            partitions=topic.partitions,
            assignment_epochs=[group.owners[topic.topic_id, number].since for number in topic.partitions],
        )
        for topic in grouped(partitions)
    ]


def _flat(topics: Iterable[TopicPartitions | OwnedPartitions]) -> Partitions:
    return frozenset((topic.topic_id, number) for topic in topics for number in topic.partitions)


def _group_key(group_id: str, kind: int) -> bytes:
    return versioned(ConsumerGroupKey(group_id=group_id), kind)


def _member_key(group_id: str, member_id: str, kind: int) -> bytes:
    return versioned(ConsumerGroupMemberKey(group_id=group_id, member_id=member_id), kind)
