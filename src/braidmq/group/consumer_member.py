"""One member of a server-assigned group, and its way from what it has to what it should have.

A member is told to give partitions up first, and gets new ones once their former owners have let go. Who may
read a partition is therefore known at every moment, and is never two.

    STABLE ──► has to give some up ──► UNREVOKED ──► they are no longer among what it says it owns ──┐
       ▲                                                                                             ▼
       └────────── all of its target is its own ◄── UNRELEASED ◄── some of it still belongs to others
"""

from __future__ import annotations

from collections.abc import MutableMapping
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

from braidmq.group.assignors import ASSIGNORS, NOTHING, Partition, Partitions
from braidmq.group.events import Protocol
from braidmq.wire.errors import ApiError, ErrorCode

JOINING_EPOCH = 0
LEAVING_EPOCH = -1
STATIC_LEAVING_EPOCH = -2


Subscription = tuple[frozenset[str], str]
"""Names of topics, and a pattern that is empty where there is none."""


class MemberState(IntEnum):
    """Values are those Kafka writes down."""

    STABLE = 0
    UNREVOKED = 1
    UNRELEASED = 2


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
        """Whether the member says everything about itself, and so wants to be told everything."""
        subscribes = self.topics is not None or self.pattern is not None
        complete = self.rebalance_timeout_ms >= 0 and subscribes and self.owned is not None
        return self.member_epoch == JOINING_EPOCH or complete


class SteadyBeat(NamedTuple):
    """A heartbeat that says nothing but that the member is there, as nearly all of them do."""

    member_id: str
    member_epoch: int
    client_id: str
    client_host: str


class Owner(NamedTuple):
    """Who has a partition, or has yet to give it up, and the epoch with which it got it."""

    member_id: str
    since: int


class ClassicTraits(NamedTuple):
    """What is different about a member that still speaks the classic protocol."""

    session_timeout_ms: int
    protocols: tuple[Protocol, ...]


class ConsumerMember:
    """What the group knows about one member."""

    __slots__ = (
        "assigned",
        "assignor",
        "classic",
        "client_host",
        "client_id",
        "deadline_ms",
        "epoch",
        "instance_id",
        "member_id",
        "pattern",
        "previous_epoch",
        "rack_id",
        "rebalance_deadline_ms",
        "rebalance_timeout_ms",
        "revoking",
        "state",
        "topics",
    )

    def __init__(self, member_id: str) -> None:
        self.member_id = member_id
        self.epoch = JOINING_EPOCH
        self.previous_epoch = JOINING_EPOCH
        self.state = MemberState.STABLE
        self.instance_id: str | None = None
        self.rack_id: str | None = None
        self.client_id = ""
        self.client_host = ""
        self.rebalance_timeout_ms = -1
        self.topics: frozenset[str] = frozenset()
        self.pattern = ""
        self.assignor: str | None = None
        self.classic: ClassicTraits | None = None
        self.assigned: Partitions = NOTHING
        self.revoking: Partitions = NOTHING
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

    def position(self) -> tuple[object, ...]:
        """All that is written down about the member's assignment."""
        return (self.epoch, self.previous_epoch, self.state, self.assigned, self.revoking)

    def is_reconciled(self, target_epoch: int) -> bool:
        return self.state is MemberState.STABLE and self.epoch == target_epoch

    def is_as_before(self, beat: SteadyBeat, group_epoch: int) -> bool:
        """Whether the member has arrived where the group is, and is who it was."""
        return (
            self.is_reconciled(group_epoch)
            and beat.member_epoch == group_epoch
            and beat.client_id == self.client_id
            and beat.client_host == self.client_host
            and self.classic is None
        )

    def reconcile(
        self,
        target: Partitions,
        target_epoch: int,
        owned: Partitions | None,
        owners: MutableMapping[Partition, Owner],
    ) -> None:
        """Goes as far towards the target as others and the member itself allow."""
        if self.is_reconciled(target_epoch):
            return
        epoch = self.epoch
        if self.state is MemberState.UNREVOKED:
            if _still_owns(owned, self.revoking):
                return
            self.release(self.revoking, owners)
            self.revoking = NOTHING
            epoch += 1
        kept = self.assigned & target
        revoking = self.assigned - target
        if revoking and _still_owns(owned, revoking):
            self.state = MemberState.UNREVOKED
            self.assigned, self.revoking = kept, revoking
            self._enter(epoch)
            return
        self.release(revoking, owners)
        wanted = target - kept
        free = frozenset(one for one in wanted if one not in owners)
        for partition in free:
            owners[partition] = Owner(self.member_id, target_epoch)
        self.assigned, self.revoking = kept | free, NOTHING
        self.state = MemberState.STABLE if free == wanted else MemberState.UNRELEASED
        self._enter(target_epoch)

    def release(self, partitions: Partitions, owners: MutableMapping[Partition, Owner]) -> None:
        """Lets go of partitions, so that others can have them."""
        for partition in partitions:
            if (owner := owners.get(partition)) is not None and owner.member_id == self.member_id:
                del owners[partition]

    def _enter(self, epoch: int) -> None:
        if epoch != self.epoch:
            self.previous_epoch, self.epoch = self.epoch, epoch


def _still_owns(owned: Partitions | None, revoking: Partitions) -> bool:
    """A member that does not say what it owns has not let go of anything."""
    return owned is None or not owned.isdisjoint(revoking)


def check_request(beat: Heartbeat) -> None:
    """What cannot be right whatever the group looks like."""
    if beat.instance_id == "" or beat.rack_id == "":
        raise ApiError(ErrorCode.INVALID_REQUEST, "an instance id or rack id is not empty where it is given")
    if beat.member_epoch < STATIC_LEAVING_EPOCH:
        raise ApiError(ErrorCode.INVALID_REQUEST, f"{beat.member_epoch} is no member epoch")
    if beat.member_epoch == JOINING_EPOCH:
        if beat.rebalance_timeout_ms < 0:
            raise ApiError(ErrorCode.INVALID_REQUEST, "who joins has to give a rebalance timeout")
        if beat.owned is None or beat.owned:
            raise ApiError(ErrorCode.INVALID_REQUEST, "who joins must not own partitions")
        if beat.topics is None and beat.pattern is None:
            raise ApiError(ErrorCode.INVALID_REQUEST, "who joins has to subscribe to topics or to a pattern")
    elif not beat.member_id:
        raise ApiError(ErrorCode.INVALID_REQUEST, "a member has an id")
    if beat.member_epoch == STATIC_LEAVING_EPOCH and beat.instance_id is None:
        raise ApiError(ErrorCode.INVALID_REQUEST, "only a static member can leave for a while")
    if beat.assignor is not None and beat.assignor not in ASSIGNORS:
        raise ApiError(
            ErrorCode.UNSUPPORTED_ASSIGNOR, f"{beat.assignor!r} is none of {', '.join(sorted(ASSIGNORS))}"
        )


def check_epoch(member: ConsumerMember, beat: Heartbeat) -> None:
    """A member one epoch behind may have missed an answer; any other difference means it has lost track."""
    if beat.member_epoch == member.epoch:
        return
    missed = beat.member_epoch == member.previous_epoch
    if missed and beat.owned is not None and beat.owned <= member.assigned:
        return
    raise ApiError(
        ErrorCode.FENCED_MEMBER_EPOCH,
        f"member epoch {beat.member_epoch} is not {member.epoch}; give up all partitions and join again",
    )
