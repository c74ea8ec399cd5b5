"""How streams groups are written down in `__consumer_offsets`, beside offsets and the other kinds of groups.

There is a record for the group's epoch, one for its topology, one for the target's epoch, and three for each
member: its profile, its target, and its position on the way there. They are Kafka's, key versions 17 and 19
to 23. `changed_records` writes what changed; `StreamsLoader` collects what is read, record by record, and
makes the groups of it in the end.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from braidmq.group.events import KeyValue
from braidmq.group.reconciliation import MemberState
from braidmq.group.records import split, versioned
from braidmq.group.streams_group import StoredStreamsGroup, StreamsChanges, StreamsGroup
from braidmq.group.streams_member import Endpoint, StreamsMember
from braidmq.group.streams_tasks import Role, Task, Tasks, in_role
from braidmq.group.streams_topology import ApplicationTopic, Subtopology, Topology
from braidmq.wire.errors import ProtocolError
from braidmq.wire.messages import streams_groups as wire
from braidmq.wire.schema import Message, array, decode, int8, int32, int64, string, struct

GROUP_KEY = 17
PROFILE_KEY = 19
TARGET_EPOCH_KEY = 20
TARGET_KEY = 21
POSITION_KEY = 22
TOPOLOGY_KEY = 23
_GROUP_KEYS = (GROUP_KEY, TARGET_EPOCH_KEY, TOPOLOGY_KEY)
_MEMBER_KEYS = (PROFILE_KEY, TARGET_KEY, POSITION_KEY)
_STANDBYS = "num.standby.replicas"


class StreamsGroupKey(Message, versions=(17, 23)):
    group_id: str = string()


class StreamsGroupMemberKey(Message, versions=(19, 22)):
    group_id: str = string()
    member_id: str = string()


class StreamsGroupMetadataValue(Message, versions=(0, 0), flexible=0):
    epoch: int = int32()
    metadata_hash: int = int64()
    validated_topology_epoch: int = int32(default=-1, tag=0)
    last_assignment_configs: list[wire.KeyValue] | None = array(wire.KeyValue, nullable=0, tag=1)


class StreamsGroupTopologyValue(Message, versions=(0, 0), flexible=0):
    epoch: int = int32()
    subtopologies: list[wire.HeartbeatSubtopology] = array(wire.HeartbeatSubtopology)


class StreamsGroupMemberMetadataValue(Message, versions=(0, 0), flexible=0):
    instance_id: str | None = string(nullable=0)
    rack_id: str | None = string(nullable=0)
    client_id: str = string()
    client_host: str = string()
    rebalance_timeout_ms: int = int32(default=-1)
    topology_epoch: int = int32()
    process_id: str = string()
    user_endpoint: wire.Endpoint | None = struct(wire.Endpoint, nullable=0)
    client_tags: list[wire.KeyValue] = array(wire.KeyValue)


class StreamsGroupTargetAssignmentMetadataValue(Message, versions=(0, 0), flexible=0):
    assignment_epoch: int = int32()
    assignment_timestamp: int = int64(tag=0)


class StreamsGroupTargetAssignmentMemberValue(Message, versions=(0, 0), flexible=0):
    active_tasks: list[wire.TaskIds] = array(wire.TaskIds)
    standby_tasks: list[wire.TaskIds] = array(wire.TaskIds)
    warmup_tasks: list[wire.TaskIds] = array(wire.TaskIds)


class OwnedTasks(Message):
    subtopology_id: str = string()
    partitions: list[int] = array(int32)
    assignment_epochs: list[int] | None = array(int32, nullable=0, tag=0)
    """With which epoch the member got each of them; only of active tasks."""


class StreamsGroupCurrentMemberAssignmentValue(Message, versions=(0, 0), flexible=0):
    member_epoch: int = int32()
    previous_member_epoch: int = int32()
    state: int = int8()
    active_tasks: list[OwnedTasks] = array(OwnedTasks)
    standby_tasks: list[OwnedTasks] = array(OwnedTasks)
    warmup_tasks: list[OwnedTasks] = array(OwnedTasks)
    active_tasks_pending_revocation: list[OwnedTasks] = array(OwnedTasks)
    standby_tasks_pending_revocation: list[OwnedTasks] = array(OwnedTasks)
    warmup_tasks_pending_revocation: list[OwnedTasks] = array(OwnedTasks)


def changed_records(group: StreamsGroup, changes: StreamsChanges) -> Iterator[KeyValue]:
    """The records that have to be written, tombstones of members that have gone first."""
    for member_id in sorted(changes.gone):
        yield from ((_member_key(group.group_id, member_id, kind), None) for kind in _MEMBER_KEYS)
    for member_id in sorted(changes.profiles & group.members.keys()):
        yield _member_key(group.group_id, member_id, PROFILE_KEY), _profile(group.members[member_id])
    if changes.topology:
        parts = [subtopology_message(part) for part in group.topology.subtopologies]
        value = StreamsGroupTopologyValue(epoch=group.topology.epoch, subtopologies=parts)
        yield _group_key(group.group_id, TOPOLOGY_KEY), versioned(value, 0)
    if changes.group_epoch:
        yield _group_key(group.group_id, GROUP_KEY), _group_value(group)
    for member_id in sorted(changes.targets & group.targets.keys()):
        yield _member_key(group.group_id, member_id, TARGET_KEY), _target(group.targets[member_id])
    if changes.target_epoch:
        reached = StreamsGroupTargetAssignmentMetadataValue(assignment_epoch=group.target_epoch)
        yield _group_key(group.group_id, TARGET_EPOCH_KEY), versioned(reached, 0)
    for member_id in sorted(changes.positions & group.members.keys()):
        yield _member_key(group.group_id, member_id, POSITION_KEY), _position(group, group.members[member_id])


def ending(group: StreamsGroup) -> list[KeyValue]:
    """The end of a group and of the members whose end is not written yet."""
    gone = group.take_changes().gone | group.members.keys()
    return [*changed_records(group, StreamsChanges(gone=gone)), *tombstones(group.group_id)]


def tombstones(group_id: str) -> list[KeyValue]:
    """The end of a group that has no members."""
    return [(_group_key(group_id, kind), None) for kind in (TARGET_EPOCH_KEY, GROUP_KEY, TOPOLOGY_KEY)]


def task_ids(tasks: Tasks, role: Role) -> list[wire.TaskIds]:
    """The tasks had in a role, as messages and records have them."""
    return [
        wire.TaskIds(subtopology_id=name, partitions=numbers)
        for name, numbers in in_role(tasks, role).items()
    ]


def flat(role: Role, listed: Iterable[wire.TaskIds | OwnedTasks]) -> Iterator[Task]:
    """The tasks of a message or record."""
    return (Task(role, one.subtopology_id, number) for one in listed for number in one.partitions)


def subtopology_message(part: Subtopology) -> wire.HeartbeatSubtopology:
    """A subtopology as messages and records have it."""
    sources = _places(part.sources)
    repartition = _places(topic.name for topic in part.repartition_sources)
    return wire.HeartbeatSubtopology(
        subtopology_id=part.subtopology_id,
        source_topics=list(part.sources),
        state_changelog_topics=[topic_message(topic) for topic in part.changelogs],
        repartition_sink_topics=list(part.repartition_sinks),
        repartition_source_topics=[topic_message(topic) for topic in part.repartition_sources],
        copartition_groups=[
            wire.CopartitionGroup(
                source_topics=sorted(sources[name] for name in names if name in sources),
                repartition_source_topics=sorted(repartition[name] for name in names if name in repartition),
            )
            for names in part.copartitioned
        ],
    )


def _places(names: Iterable[str]) -> dict[str, int]:
    """Where each name first appears."""
    found: dict[str, int] = {}
    for place, name in enumerate(names):
        found.setdefault(name, place)
    return found


def subtopology(message: wire.HeartbeatSubtopology) -> Subtopology:
    """What a message or record says; ProtocolError if it names topics that it does not have."""
    sources, repartition = message.source_topics, [one.name for one in message.repartition_source_topics]
    try:
        copartitioned = tuple(
            frozenset(
                [sources[_place(place)] for place in group.source_topics]
                + [repartition[_place(place)] for place in group.repartition_source_topics]
            )
            for group in message.copartition_groups
        )
    except IndexError:
        raise ProtocolError(
            f"a copartition group of subtopology {message.subtopology_id!r} names topics that are not there"
        ) from None
    return Subtopology(
        message.subtopology_id,
        tuple(sources),
        tuple(_topic(one) for one in message.repartition_source_topics),
        tuple(message.repartition_sink_topics),
        tuple(_topic(one) for one in message.state_changelog_topics),
        copartitioned,
    )


def topology(epoch: int, parts: Iterable[wire.HeartbeatSubtopology]) -> Topology:
    """What a message or record says; ProtocolError as above."""
    return Topology(epoch, tuple(sorted((subtopology(part) for part in parts), key=lambda part: part[0])))


def _place(index: int) -> int:
    if index < 0:
        raise IndexError
    return index


def topic_message(topic: ApplicationTopic) -> wire.TopicInfo:
    return wire.TopicInfo(
        name=topic.name,
        partitions=topic.partitions,
        replication_factor=topic.replication_factor,
        topic_configs=[wire.KeyValue(key=key, value=text) for key, text in topic.options],
    )


def _topic(message: wire.TopicInfo) -> ApplicationTopic:
    options = tuple(sorted((one.key, one.value) for one in message.topic_configs))
    return ApplicationTopic(message.name, message.partitions, message.replication_factor, options)


class StreamsLoader:
    """What the records read so far say about streams groups."""

    def __init__(self) -> None:
        self._groups: dict[str, dict[int, bytes]] = {}
        self._members: dict[tuple[str, str], dict[int, bytes]] = {}
        self.unreadable = 0
        """Groups and members whose records could not be read; these will have to join again."""

    def take(self, key: bytes, value: bytes | None) -> bool:
        """Takes one record in; False if it is of another kind. ProtocolError if its key cannot be read."""
        kind, body = split(key)
        if kind in _MEMBER_KEYS:
            member = decode(StreamsGroupMemberKey, kind, body)
            _enter(self._members.setdefault((member.group_id, member.member_id), {}), kind, value)
        elif kind in _GROUP_KEYS:
            group_id = decode(StreamsGroupKey, kind, body).group_id
            _enter(self._groups.setdefault(group_id, {}), kind, value)
        else:
            return False
        return True

    def forget(self, group_id: str) -> None:
        """A later record says that the group is of another protocol."""
        if self._groups.pop(group_id, None):
            self._members = {key: of for key, of in self._members.items() if key[0] != group_id}

    def groups(self) -> dict[str, StoredStreamsGroup]:
        """The groups that are left when everything has been read."""
        found: dict[str, StoredStreamsGroup] = {}
        for group_id, values in self._groups.items():
            if GROUP_KEY in values and TOPOLOGY_KEY in values:
                try:
                    found[group_id] = _stored_group(values)
                except ProtocolError:
                    self.unreadable += 1
        for (group_id, member_id), values in self._members.items():
            group = found.get(group_id)
            if group is None or PROFILE_KEY not in values:
                continue
            try:
                member = _member(member_id, values, group.since)
                if TARGET_KEY in values:
                    group.targets[member_id] = _stored_target(values[TARGET_KEY])
                group.members.append(member)
            except ProtocolError:
                self.unreadable += 1
        return found


def _enter(values: dict[int, bytes], kind: int, value: bytes | None) -> None:
    if value is None:
        values.pop(kind, None)
    else:
        values[kind] = value


def _stored_group(values: dict[int, bytes]) -> StoredStreamsGroup:
    group = decode(StreamsGroupMetadataValue, *split(values[GROUP_KEY]))
    stored = decode(StreamsGroupTopologyValue, *split(values[TOPOLOGY_KEY]))
    target_epoch = 0
    if TARGET_EPOCH_KEY in values:
        reached = decode(StreamsGroupTargetAssignmentMetadataValue, *split(values[TARGET_EPOCH_KEY]))
        target_epoch = reached.assignment_epoch
    options = {one.key: one.value for one in group.last_assignment_configs or ()}
    replicas = options.get(_STANDBYS, "0")
    return StoredStreamsGroup(
        group.epoch,
        target_epoch,
        group.metadata_hash,
        group.validated_topology_epoch,
        int(replicas) if replicas.isdecimal() else 0,
        topology(stored.epoch, stored.subtopologies),
        [],
        {},
        {},
    )


def _stored_target(value: bytes) -> Tasks:
    target = decode(StreamsGroupTargetAssignmentMemberValue, *split(value))
    return frozenset(
        (
            *flat(Role.ACTIVE, target.active_tasks),
            *flat(Role.STANDBY, target.standby_tasks),
            *flat(Role.WARMUP, target.warmup_tasks),
        )
    )


def _member(member_id: str, values: dict[int, bytes], since: dict[tuple[str, int], int]) -> StreamsMember:
    profile = decode(StreamsGroupMemberMetadataValue, *split(values[PROFILE_KEY]))
    member = StreamsMember(member_id)
    member.rack_id = profile.rack_id
    member.client_id, member.client_host = profile.client_id, profile.client_host
    member.rebalance_timeout_ms = profile.rebalance_timeout_ms
    member.topology_epoch, member.process_id = profile.topology_epoch, profile.process_id
    if (endpoint := profile.user_endpoint) is not None:
        member.endpoint = Endpoint(endpoint.host, endpoint.port)
    member.tags = tuple((one.key, one.value) for one in profile.client_tags)
    if POSITION_KEY in values:
        position = decode(StreamsGroupCurrentMemberAssignmentValue, *split(values[POSITION_KEY]))
        member.epoch, member.previous_epoch = position.member_epoch, position.previous_member_epoch
        try:
            member.state = MemberState(position.state)
        except ValueError:
            raise ProtocolError(f"{position.state} is not a member state") from None
        member.assigned = frozenset(
            (
                *flat(Role.ACTIVE, position.active_tasks),
                *flat(Role.STANDBY, position.standby_tasks),
                *flat(Role.WARMUP, position.warmup_tasks),
            )
        )
        member.revoking = frozenset(
            (
                *flat(Role.ACTIVE, position.active_tasks_pending_revocation),
                *flat(Role.STANDBY, position.standby_tasks_pending_revocation),
                *flat(Role.WARMUP, position.warmup_tasks_pending_revocation),
            )
        )
        for one in (*position.active_tasks, *position.active_tasks_pending_revocation):
            for number, epoch in zip(one.partitions, one.assignment_epochs or (), strict=False):
                since[one.subtopology_id, number] = epoch
    return member


def _group_value(group: StreamsGroup) -> bytes:
    value = StreamsGroupMetadataValue(
        epoch=group.epoch,
        metadata_hash=group.digest,
        validated_topology_epoch=group.validated_epoch,
        last_assignment_configs=[wire.KeyValue(key=_STANDBYS, value=str(group.standby_replicas))],
    )
    return versioned(value, 0)


def _profile(member: StreamsMember) -> bytes:
    endpoint = member.endpoint
    value = StreamsGroupMemberMetadataValue(
        rack_id=member.rack_id,
        client_id=member.client_id,
        client_host=member.client_host,
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        topology_epoch=member.topology_epoch,
        process_id=member.process_id,
        user_endpoint=None if endpoint is None else wire.Endpoint(host=endpoint.host, port=endpoint.port),
        client_tags=[wire.KeyValue(key=key, value=text) for key, text in member.tags],
    )
    return versioned(value, 0)


def _target(tasks: Tasks) -> bytes:
    value = StreamsGroupTargetAssignmentMemberValue(
        active_tasks=task_ids(tasks, Role.ACTIVE),
        standby_tasks=task_ids(tasks, Role.STANDBY),
        warmup_tasks=task_ids(tasks, Role.WARMUP),
    )
    return versioned(value, 0)


def _position(group: StreamsGroup, member: StreamsMember) -> bytes:
    value = StreamsGroupCurrentMemberAssignmentValue(
        member_epoch=member.epoch,
        previous_member_epoch=member.previous_epoch,
        state=int(member.state),
        active_tasks=_owned(group, member.assigned, Role.ACTIVE),
        standby_tasks=_owned(group, member.assigned, Role.STANDBY),
        warmup_tasks=_owned(group, member.assigned, Role.WARMUP),
        active_tasks_pending_revocation=_owned(group, member.revoking, Role.ACTIVE),
        standby_tasks_pending_revocation=_owned(group, member.revoking, Role.STANDBY),
        warmup_tasks_pending_revocation=_owned(group, member.revoking, Role.WARMUP),
    )
    return versioned(value, 0)


def _owned(group: StreamsGroup, tasks: Tasks, role: Role) -> list[OwnedTasks]:
    return [
        OwnedTasks(
            subtopology_id=name,
            partitions=numbers,
            assignment_epochs=[_since(group, name, number) for number in numbers]
            if role is Role.ACTIVE
            else None,
        )
        for name, numbers in in_role(tasks, role).items()
    ]


def _since(group: StreamsGroup, name: str, number: int) -> int:
    active = group.owners.active((name, number))
    assert active is not None, "who has a task is its owner"
    return active.since


def _group_key(group_id: str, kind: int) -> bytes:
    return versioned(StreamsGroupKey(group_id=group_id), kind)


def _member_key(group_id: str, member_id: str, kind: int) -> bytes:
    return versioned(StreamsGroupMemberKey(group_id=group_id, member_id=member_id), kind)
