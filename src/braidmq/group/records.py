"""How offsets and groups are written down in the internal, compacted topic `__consumer_offsets`.

Keys and values are those of Kafka, a two-byte version before each, so that tools made to look into that topic
understand it. Compaction keeps the latest value of a key; a null value deletes what it names. Loading is
reading the records in order: `parse` says what one of them means.
"""

from __future__ import annotations

from functools import lru_cache
from struct import Struct
from typing import NamedTuple

from braidmq.group.events import GroupSnapshot, KeyValue, MemberSnapshot
from braidmq.group.offsets import Committed
from braidmq.wire.errors import ProtocolError
from braidmq.wire.schema import Message, array, data, decode, encode, int32, int64, string

OFFSETS_TOPIC = "__consumer_offsets"
NO_TIME = -1
OFFSET_KEYS_KEPT = 2048
"""Groups and topics whose keys are kept made: the same ones are committed again and again."""

_VERSION = Struct(">h")
_pack_int32 = Struct(">i").pack
_pack_int64 = Struct(">q").pack
_pack_offset = Struct(">hqih").pack
_OFFSET_KEYS = (0, 1)
_OFFSET_KEY = 1
_GROUP_KEY = 2
_OFFSET_VALUE = 3
_OFFSET_VALUE_WITH_END = 1
_GROUP_VALUE = 3


class OffsetCommitKey(Message, versions=(0, 1)):
    group: str = string()
    topic: str = string()
    partition: int = int32()


class OffsetCommitValue(Message, versions=(0, 4), flexible=4):
    offset: int = int64()
    leader_epoch: int = int32(since=3, default=-1)
    metadata: str = string()
    commit_timestamp: int = int64()
    expire_timestamp: int = int64(since=1, until=1, default=NO_TIME)


class GroupMetadataKey(Message, versions=(2, 2)):
    group: str = string()


class MemberMetadata(Message):
    member_id: str = string()
    group_instance_id: str | None = string(since=3, nullable=3)
    client_id: str = string()
    client_host: str = string()
    rebalance_timeout: int = int32(since=1, default=-1)
    session_timeout: int = int32()
    subscription: bytes = data()
    assignment: bytes = data()


class GroupMetadataValue(Message, versions=(0, 4), flexible=4):
    protocol_type: str = string()
    generation: int = int32()
    protocol: str | None = string(nullable=0)
    leader: str | None = string(nullable=0)
    current_state_timestamp: int = int64(since=2, default=NO_TIME)
    members: list[MemberMetadata] = array(MemberMetadata)


class StoredOffset(NamedTuple):
    """A commit, or with None the end of one."""

    group_id: str
    topic: str
    partition: int
    committed: Committed | None


class StoredGroup(NamedTuple):
    """A group, or with None the end of one. `stored_ms` is when its state was entered, if that is known."""

    group_id: str
    snapshot: GroupSnapshot | None
    stored_ms: int | None


def offset_record(group_id: str, topic: str, partition: int, committed: Committed | None) -> KeyValue:
    """The record of a commit; without one, the tombstone."""
    key = _offset_key(group_id, topic) + _pack_int32(partition)
    if committed is None:
        return key, None
    offset, leader_epoch, metadata, commit_ms, expire_ms = committed
    if expire_ms is not None:
        value = OffsetCommitValue(
            offset=offset, metadata=metadata, commit_timestamp=commit_ms, expire_timestamp=expire_ms
        )
        return key, versioned(value, _OFFSET_VALUE_WITH_END)
    # By hand, as this is done for every partition of every commit: OffsetCommitValue in its version 3.
    text = metadata.encode()
    return key, _pack_offset(_OFFSET_VALUE, offset, leader_epoch, len(text)) + text + _pack_int64(commit_ms)


@lru_cache(maxsize=OFFSET_KEYS_KEPT)
def _offset_key(group_id: str, topic: str) -> bytes:
    """An OffsetCommitKey up to its last field, the partition."""
    return versioned(OffsetCommitKey(group=group_id, topic=topic, partition=0), _OFFSET_KEY)[:-4]


def group_record(snapshot: GroupSnapshot, wall_ms: int) -> KeyValue:
    """The record of a group as it is now."""
    members = [
        MemberMetadata(
            member_id=one.member_id,
            group_instance_id=one.instance_id,
            client_id=one.client_id,
            client_host=one.client_host,
            rebalance_timeout=one.rebalance_timeout_ms,
            session_timeout=one.session_timeout_ms,
            subscription=one.subscription,
            assignment=one.assignment,
        )
        for one in snapshot.members
    ]
    value = GroupMetadataValue(
        protocol_type=snapshot.protocol_type,
        generation=snapshot.generation,
        protocol=snapshot.protocol_name,
        leader=snapshot.leader,
        current_state_timestamp=wall_ms,
        members=members,
    )
    return group_key(snapshot.group_id), versioned(value, _GROUP_VALUE)


def group_key(group_id: str) -> bytes:
    """The key of a group's record; with a null value it is the group's tombstone."""
    return versioned(GroupMetadataKey(group=group_id), _GROUP_KEY)


def parse(key: bytes, value: bytes | None) -> StoredOffset | StoredGroup | None:
    """What a record says; None for kinds that are none of ours. ProtocolError if it cannot be read."""
    kind, body = split(key)
    if kind in _OFFSET_KEYS:
        found = decode(OffsetCommitKey, kind, body)
        committed = None if value is None else _committed(value)
        return StoredOffset(found.group, found.topic, found.partition, committed)
    if kind == _GROUP_KEY:
        group_id = decode(GroupMetadataKey, kind, body).group
        if value is None:
            return StoredGroup(group_id, None, None)
        stored = decode(GroupMetadataValue, *split(value))
        stored_ms = stored.current_state_timestamp
        return StoredGroup(group_id, _snapshot(group_id, stored), None if stored_ms == NO_TIME else stored_ms)
    return None


def _committed(value: bytes) -> Committed:
    stored = decode(OffsetCommitValue, *split(value))
    expire_ms = stored.expire_timestamp
    return Committed(
        stored.offset,
        stored.leader_epoch,
        stored.metadata,
        stored.commit_timestamp,
        None if expire_ms == NO_TIME else expire_ms,
    )


def _snapshot(group_id: str, stored: GroupMetadataValue) -> GroupSnapshot:
    members = tuple(
        MemberSnapshot(
            one.member_id,
            one.group_instance_id,
            one.client_id,
            one.client_host,
            one.session_timeout if one.rebalance_timeout < 0 else one.rebalance_timeout,
            one.session_timeout,
            one.subscription,
            one.assignment,
        )
        for one in stored.members
    )
    return GroupSnapshot(
        group_id, stored.protocol_type, stored.generation, stored.protocol, stored.leader, members
    )


def versioned(message: Message, version: int) -> bytes:
    """A key or a value as it is stored: its version, then its fields."""
    return _VERSION.pack(version) + encode(message, version)


def split(stored: bytes) -> tuple[int, memoryview]:
    """The version of a stored key or value, and the rest."""
    if len(stored) < _VERSION.size:
        raise ProtocolError(f"a record of {OFFSETS_TOPIC} has {len(stored)} bytes where a version should be")
    return _VERSION.unpack_from(stored)[0], memoryview(stored)[_VERSION.size :]
