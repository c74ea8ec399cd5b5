"""One member of a server-assigned group: what it says of itself, and the partitions it has.

How it comes from what it has to what it should have is in `reconciliation`.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from dataclasses import dataclass
from typing import NamedTuple

from braidmq.group.assignors import ASSIGNORS, Partition, Partitions
from braidmq.group.events import MemberProtocol
from braidmq.group.reconciliation import (
    JOINING_EPOCH,
    LEAVING_EPOCH,
    STATIC_LEAVING_EPOCH,
    AssignedMember,
    MemberState,
)
from braidmq.wire.errors import ApiError, ErrorCode

__all__ = ["JOINING_EPOCH", "LEAVING_EPOCH", "STATIC_LEAVING_EPOCH", "MemberState"]

Subscription = tuple[frozenset[str], str]
"""Names of topics, and a pattern that is empty where there is none."""


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """A ConsumerGroupHeartbeat; what the member leaves out is None, or -1 for the timeout."""

    member_id: str
    member_epoch: int
    client_id: str = ""
    client_host: str = ""
    instance_id: str | None = None
    rack_id: str | None = None
    rebalance_timeout_ms: int = -1
    topics: frozenset[str] | None = None
    pattern: str | None = None
    assignor: str | None = None
    owned: Partitions | None = None

    @property
    def is_full(self) -> bool:
        """Whether the member says everything about itself, and so wants a full answer."""
        subscribes = self.topics is not None or self.pattern is not None
        complete = self.rebalance_timeout_ms >= 0 and subscribes and self.owned is not None
        return self.member_epoch == JOINING_EPOCH or complete


class SteadyBeat(NamedTuple):
    """A heartbeat that says nothing but that the member is there, as nearly all of them do."""

    member_id: str
    member_epoch: int
    client_id: str
    client_host: str


class PartitionOwner(NamedTuple):
    """Who has a partition, or has yet to give it up, and the epoch with which it got it."""

    member_id: str
    since: int


class ClassicTraits(NamedTuple):
    """What is different about a member that still speaks the classic protocol."""

    session_timeout_ms: int
    protocols: tuple[MemberProtocol, ...]


class ConsumerMember(AssignedMember[Partition, MutableMapping[Partition, PartitionOwner]]):
    """What the group knows about one member."""

    __slots__ = (
        "assignor",
        "classic",
        "client_host",
        "client_id",
        "deadline_ms",
        "instance_id",
        "pattern",
        "rack_id",
        "rebalance_deadline_ms",
        "rebalance_timeout_ms",
        "topics",
    )

    def __init__(self, member_id: str) -> None:
        super().__init__(member_id)
        self.instance_id: str | None = None
        self.rack_id: str | None = None
        self.client_id = ""
        self.client_host = ""
        self.rebalance_timeout_ms = -1
        self.topics: frozenset[str] = frozenset()
        self.pattern = ""
        self.assignor: str | None = None
        self.classic: ClassicTraits | None = None
        self.deadline_ms: int | None = None
        self.rebalance_deadline_ms: int | None = None

    def take(self, beat: Heartbeat) -> bool:
        """Takes over what the heartbeat says; True if the member now subscribes to something else."""
        before = self.subscription
        self.client_id, self.client_host = beat.client_id, beat.client_host
        self.instance_id = beat.instance_id if beat.instance_id is not None else self.instance_id
        self.rack_id = beat.rack_id if beat.rack_id is not None else self.rack_id
        self.assignor = beat.assignor if beat.assignor is not None else self.assignor
        self.topics = beat.topics if beat.topics is not None else self.topics
        self.pattern = beat.pattern if beat.pattern is not None else self.pattern
        if beat.rebalance_timeout_ms >= 0:
            self.rebalance_timeout_ms = beat.rebalance_timeout_ms
        return self.subscription != before

    @property
    def subscription(self) -> Subscription:
        """The names and the pattern the member reads."""
        return self.topics, self.pattern

    def profile(self) -> tuple[object, ...]:
        """All that is written down about the member besides its assignment."""
        return (
            self.instance_id,
            self.rack_id,
            self.client_id,
            self.client_host,
            self.rebalance_timeout_ms,
            self.topics,
            self.pattern,
            self.assignor,
            self.classic,
        )

    def is_as_before(self, beat: SteadyBeat, group_epoch: int) -> bool:
        """Whether the member has arrived where the group is, and is who it was."""
        return (
            self.is_reconciled(group_epoch)
            and beat.member_epoch == group_epoch
            and beat.client_id == self.client_id
            and beat.client_host == self.client_host
            and self.classic is None
        )

    def claim(
        self, wanted: Partitions, since: int, owners: MutableMapping[Partition, PartitionOwner]
    ) -> Partitions:
        free = frozenset(one for one in wanted if one not in owners)
        for partition in free:
            owners[partition] = PartitionOwner(self.member_id, since)
        return free

    def release(self, partitions: Partitions, owners: MutableMapping[Partition, PartitionOwner]) -> None:
        for partition in partitions:
            if (owner := owners.get(partition)) is not None and owner.member_id == self.member_id:
                del owners[partition]


def check_request(beat: Heartbeat) -> None:
    """What cannot be right whatever the group looks like."""
    if beat.instance_id == "" or beat.rack_id == "":
        raise ApiError(ErrorCode.INVALID_REQUEST, "the instance id or rack id is empty; leave it out instead")
    if beat.member_epoch < STATIC_LEAVING_EPOCH:
        raise ApiError(ErrorCode.INVALID_REQUEST, f"{beat.member_epoch} is not a member epoch")
    if beat.member_epoch == JOINING_EPOCH:
        if beat.rebalance_timeout_ms < 0:
            raise ApiError(ErrorCode.INVALID_REQUEST, "a member that joins must give a rebalance timeout")
        if beat.owned is None or beat.owned:
            raise ApiError(ErrorCode.INVALID_REQUEST, "a member that joins must not own partitions")
        if beat.topics is None and beat.pattern is None:
            raise ApiError(
                ErrorCode.INVALID_REQUEST, "a member that joins must subscribe to topics or to a pattern"
            )
    elif not beat.member_id:
        raise ApiError(ErrorCode.INVALID_REQUEST, "the member id is empty")
    if beat.member_epoch == STATIC_LEAVING_EPOCH and beat.instance_id is None:
        raise ApiError(ErrorCode.INVALID_REQUEST, "only a static member can leave for a while")
    if beat.assignor is not None and beat.assignor not in ASSIGNORS:
        raise ApiError(
            ErrorCode.UNSUPPORTED_ASSIGNOR, f"{beat.assignor!r} is not one of {', '.join(sorted(ASSIGNORS))}"
        )
