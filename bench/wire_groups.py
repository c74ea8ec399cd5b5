"""The verbs of groups that the load generator speaks, in the versions below; built by hand like `wire`.

FindCoordinator 3, JoinGroup 7, SyncGroup 5, Heartbeat 4, LeaveGroup 4, OffsetCommit 9, OffsetFetch 8,
ConsumerGroupHeartbeat 1. Answers are read as far as a load needs them; an error code that a load does not
expect ends it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from .answer import Answer
from .wire import compact, frame, uvarint

FIND_COORDINATOR, JOIN_GROUP, SYNC_GROUP, HEARTBEAT, LEAVE_GROUP = 10, 11, 14, 12, 13
OFFSET_COMMIT, OFFSET_FETCH, CONSUMER_GROUP_HEARTBEAT = 8, 9, 68
GROUP, TRANSACTION = 0, 1
NULL = b"\0"
NO_TAGS = b"\0"
SESSION_MS, REBALANCE_MS = 45_000, 60_000
PROTOCOL_TYPE = b"consumer"

REBALANCE_IN_PROGRESS, MEMBER_ID_REQUIRED, STALE_EPOCH = 27, 79, 113

Partitions = frozenset[int]
"""Partitions of the one topic that a load's groups read."""


class RefusedError(Exception):
    """The server answered with an error code that the load did not expect."""


def expect(code: int, what: str) -> None:
    if code:
        raise RefusedError(f"{what} was refused with error code {code}")


def array(items: Iterable[bytes]) -> bytes:
    """Elements that carry their own tags."""
    found = list(items)
    return uvarint(len(found) + 1) + b"".join(found)


def find_coordinator_frame(key: str, key_type: int) -> bytes:
    return frame(FIND_COORDINATOR, 3, compact(key.encode()) + bytes((key_type,)) + NO_TAGS)


def coordinator_error(answer: bytes) -> int:
    read = Answer(answer)
    read.int32()
    return read.int16()


# -- the classic protocol -----------------------------------------------------------------------


def subscription(topic: str, owned: Partitions | None) -> bytes:
    """What a member of the classic protocol says about itself; `owned` for the cooperative one."""
    name = topic.encode()
    body = struct.pack(">hih", 0 if owned is None else 1, 1, len(name)) + name + struct.pack(">i", -1)
    if owned is None:
        return body
    if not owned:
        return body + struct.pack(">i", 0)
    return body + struct.pack(">ih", 1, len(name)) + name + _numbers(owned)


def owned_of(metadata: bytes) -> Partitions:
    """The partitions that a subscription of version 1 names."""
    version, _, name_bytes = struct.unpack_from(">hih", metadata)
    at = 8 + name_bytes + 4
    if version == 0 or struct.unpack_from(">i", metadata, at)[0] == 0:
        return frozenset()
    at += 4 + 2 + int(struct.unpack_from(">h", metadata, at + 4)[0])
    return _read_numbers(metadata, at)


def assignment(topic: str, partitions: Partitions) -> bytes:
    name = topic.encode()
    return struct.pack(">hih", 0, 1, len(name)) + name + _numbers(partitions) + struct.pack(">i", -1)


def assigned_of(content: bytes) -> Partitions:
    """The partitions of an assignment; none if the leader had none to give."""
    if not content:
        return frozenset()
    name_bytes = int(struct.unpack_from(">h", content, 6)[0])
    return _read_numbers(content, 8 + name_bytes)


def _numbers(partitions: Partitions) -> bytes:
    return struct.pack(f">{len(partitions) + 1}i", len(partitions), *sorted(partitions))


def _read_numbers(content: bytes, at: int) -> Partitions:
    count = int(struct.unpack_from(">i", content, at)[0])
    return frozenset(struct.unpack_from(f">{count}i", content, at + 4))


def join_frame(group: str, member_id: str, protocol: str, metadata: bytes) -> bytes:
    body = compact(group.encode()) + struct.pack(">ii", SESSION_MS, REBALANCE_MS)
    body += compact(member_id.encode()) + NULL + compact(PROTOCOL_TYPE)
    body += array([compact(protocol.encode()) + compact(metadata) + NO_TAGS])
    return frame(JOIN_GROUP, 7, body + NO_TAGS)


class Joined(NamedTuple):
    code: int
    generation: int
    leader: str
    member_id: str
    members: dict[str, bytes]
    """What each member says about itself; told to the leader alone."""


def joined(answer: bytes) -> Joined:
    read = Answer(answer)
    read.int32()
    code, generation = read.int16(), read.int32()
    read.blob()
    read.blob()
    leader, member_id = read.text(), read.text()
    members = {}
    for _ in read.items():
        name = read.text()
        read.blob()
        members[name] = read.blob()
    return Joined(code, generation, leader, member_id, members)


def sync_frame(
    group: str, generation: int, member_id: str, protocol: str, assignments: Mapping[str, bytes]
) -> bytes:
    body = compact(group.encode()) + struct.pack(">i", generation) + compact(member_id.encode()) + NULL
    body += compact(PROTOCOL_TYPE) + compact(protocol.encode())
    body += array(compact(name.encode()) + compact(part) + NO_TAGS for name, part in assignments.items())
    return frame(SYNC_GROUP, 5, body + NO_TAGS)


def synced(answer: bytes) -> tuple[int, bytes]:
    """The code and the assignment."""
    read = Answer(answer)
    read.int32()
    code = read.int16()
    read.blob()
    read.blob()
    return code, read.blob()


def heartbeat_frame(group: str, generation: int, member_id: str) -> bytes:
    body = compact(group.encode()) + struct.pack(">i", generation) + compact(member_id.encode()) + NULL
    return frame(HEARTBEAT, 4, body + NO_TAGS)


def heartbeat_error(answer: bytes) -> int:
    return int(struct.unpack_from(">h", answer, 9)[0])


def leave_frame(group: str, member_id: str) -> bytes:
    members = array([compact(member_id.encode()) + NULL + NO_TAGS])
    return frame(LEAVE_GROUP, 4, compact(group.encode()) + members + NO_TAGS)


# -- offsets ------------------------------------------------------------------------------------


def commit_frame(
    group: str, generation: int, member_id: str, topic: str, offsets: Mapping[int, int]
) -> bytes:
    parts = array(
        struct.pack(">iqi", partition, offset, -1) + compact(b"") + NO_TAGS
        for partition, offset in offsets.items()
    )
    body = compact(group.encode()) + struct.pack(">i", generation) + compact(member_id.encode()) + NULL
    body += array([compact(topic.encode()) + parts + NO_TAGS])
    return frame(OFFSET_COMMIT, 9, body + NO_TAGS)


def commit_error(answer: bytes) -> int:
    """The first error code of any partition."""
    read = Answer(answer)
    read.int32()
    found = 0
    for _ in read.items():
        read.blob()
        for _ in read.items():
            read.int32()
            code = read.int16()
            found = found or code
    return found


def offset_fetch_frame(group: str, topic: str, partitions: Sequence[int]) -> bytes:
    numbers = uvarint(len(partitions) + 1) + struct.pack(f">{len(partitions)}i", *partitions)
    wanted = array([compact(topic.encode()) + numbers + NO_TAGS])
    asked = array([compact(group.encode()) + wanted + NO_TAGS])
    return frame(OFFSET_FETCH, 8, asked + b"\0" + NO_TAGS)


def fetched_offsets(answer: bytes) -> dict[int, int]:
    """Where the group stands in each partition; -1 where it has committed nothing."""
    read = Answer(answer)
    read.int32()
    offsets = {}
    for _ in read.items():
        read.blob()
        for _ in read.items():
            read.blob()
            for _ in read.items():
                partition, offsets_at = read.int32(), read.int64()
                read.int32()
                read.blob()
                expect(read.int16(), "OffsetFetch")
                offsets[partition] = offsets_at
        expect(read.int16(), "OffsetFetch")
    return offsets


# -- the server's protocol ----------------------------------------------------------------------


def consumer_heartbeat_frame(
    group: str,
    member_id: str,
    epoch: int,
    topic: str | None = None,
    owned: tuple[bytes, Partitions] | None = None,
) -> bytes:
    """Who joins or returns names its topic; `owned` is told when it has changed: topic id, partitions."""
    body = compact(group.encode()) + compact(member_id.encode()) + struct.pack(">i", epoch) + NULL + NULL
    body += struct.pack(">i", -1 if topic is None else REBALANCE_MS)
    body += NULL if topic is None else array([compact(topic.encode())])
    body += NULL + NULL
    if owned is None:
        body += NULL
    elif not owned[1]:
        body += array([])
    else:
        numbers = sorted(owned[1])
        body += array(
            [owned[0] + uvarint(len(numbers) + 1) + struct.pack(f">{len(numbers)}i", *numbers) + NO_TAGS]
        )
    return frame(CONSUMER_GROUP_HEARTBEAT, 1, body + NO_TAGS)


class Beat(NamedTuple):
    code: int
    member_id: str
    epoch: int
    interval_s: float
    assigned: Partitions | None
    """None: as before."""


def beat(answer: bytes) -> Beat:
    """The answer to a heartbeat of a consumer group, or of a share group: they look the same."""
    read = Answer(answer)
    read.int32()
    code = read.int16()
    read.blob()
    member_id, epoch, interval_s = read.text(), read.int32(), read.int32() / 1000
    if read.int8() < 0:
        return Beat(code, member_id, epoch, interval_s, None)
    assigned: set[int] = set()
    for _ in read.items():
        read.uuid()
        assigned |= {read.int32() for _ in range(read.uvarint() - 1)}
    return Beat(code, member_id, epoch, interval_s, frozenset(assigned))
