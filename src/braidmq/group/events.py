"""What goes into a group and what comes out of it.

Requests carry what the group has to know and nothing about connections: who waits for an answer is an
opaque token, handed in with the request and handed back in a `Reply`. `WriteSnapshot` and `WriteRecords` ask
for something to be written; the replies that follow in the same list rest on it, so they are sent once it is
durable.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from braidmq.wire.errors import ErrorCode

NO_GENERATION = -1
NO_MEMBER = ""
Token = object
"""Whatever the caller uses to find the waiting client again; the group only keeps it and gives it back."""


class MemberProtocol(NamedTuple):
    """A way of assigning that a member offers, and what it says about itself in it."""

    name: str
    metadata: bytes


@dataclass(frozen=True, slots=True)
class Join:
    """A JoinGroup. `version` is that of the request: clients learned to keep an id in 4, to skip in 9."""

    member_id: str
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocol_type: str
    protocols: tuple[MemberProtocol, ...]
    instance_id: str | None = None
    version: int = 9


@dataclass(frozen=True, slots=True)
class Sync:
    """A SyncGroup; `assignments` is empty unless the leader sends it."""

    member_id: str
    generation: int
    assignments: tuple[tuple[str, bytes], ...] = ()
    instance_id: str | None = None
    protocol_type: str | None = None
    protocol_name: str | None = None


class Leaver(NamedTuple):
    """Who leaves: by member id, or a static member by its instance id alone."""

    member_id: str = NO_MEMBER
    instance_id: str | None = None


class JoinedMember(NamedTuple):
    member_id: str
    instance_id: str | None
    metadata: bytes


@dataclass(frozen=True, slots=True)
class Joined:
    """The answer to a JoinGroup. Only the leader gets the members."""

    code: ErrorCode
    member_id: str
    generation: int = NO_GENERATION
    protocol_type: str | None = None
    protocol_name: str | None = None
    leader: str = NO_MEMBER
    skip_assignment: bool = False
    members: tuple[JoinedMember, ...] = ()


@dataclass(frozen=True, slots=True)
class Synced:
    """The answer to a SyncGroup."""

    code: ErrorCode
    assignment: bytes = b""
    protocol_type: str | None = None
    protocol_name: str | None = None


class MemberSnapshot(NamedTuple):
    """A member as it is written down."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    subscription: bytes
    assignment: bytes


@dataclass(frozen=True, slots=True)
class GroupSnapshot:
    """A group as it is written down: whole or empty, never in the middle of a rebalance."""

    group_id: str
    protocol_type: str
    generation: int
    protocol_name: str | None
    leader: str | None
    members: tuple[MemberSnapshot, ...]


class Reply(NamedTuple):
    """Answer the client that waits as `token`."""

    token: Token
    answer: Joined | Synced


class WriteSnapshot(NamedTuple):
    """Write the group down before the replies that follow are sent."""

    snapshot: GroupSnapshot


KeyValue = tuple[bytes, bytes | None]
"""A record of the internal topic; without a value it is a tombstone."""


class WriteRecords(NamedTuple):
    """Write these records before the replies that follow are sent."""

    records: tuple[KeyValue, ...]


Effect = Reply | WriteSnapshot | WriteRecords


class GroupEffects(NamedTuple):
    """What one group wants done. Effects of several groups are independent of each other."""

    group_id: str
    effects: list[Effect]


class DescribedMember(NamedTuple):
    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    metadata: bytes
    assignment: bytes


@dataclass(frozen=True, slots=True)
class DescribedGroup:
    """A group as DescribeGroups and ListGroups show it."""

    group_id: str
    state: str
    protocol_type: str
    protocol_name: str
    members: tuple[DescribedMember, ...]
