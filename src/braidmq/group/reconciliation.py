"""The way of one member from what it has to what it should have, in groups whose members the server assigns.

A member gives things up first, and gets new ones once their former owners have let go. Who has what
is therefore known at every moment, and nothing that only one may have is had by two. What it is that members
have, and what is free, is for the kind of group to say: partitions (`consumer_member`) or tasks
(`streams_member`).

    STABLE ──► has to give some up ──► UNREVOKED ──► they are no longer among what it says it owns ──┐
       ▲                                                                                             ▼
       └────────── all of its target is its own ◄── UNRELEASED ◄── some of it still belongs to others
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable
from enum import IntEnum
from typing import Generic, TypeVar

from braidmq.wire.errors import ApiError, ErrorCode

JOINING_EPOCH = 0
LEAVING_EPOCH = -1
STATIC_LEAVING_EPOCH = -2

T = TypeVar("T", bound=Hashable)
O = TypeVar("O")  # noqa: E741


class MemberState(IntEnum):
    """Values are those Kafka writes down."""

    STABLE = 0
    UNREVOKED = 1
    UNRELEASED = 2


class AssignedMember(ABC, Generic[T, O]):
    """A member's epoch and what it has. `T` is what members have, `O` the record of who has what."""

    __slots__ = ("assigned", "epoch", "member_id", "previous_epoch", "revoking", "state")

    def __init__(self, member_id: str) -> None:
        self.member_id = member_id
        self.epoch = JOINING_EPOCH
        self.previous_epoch = JOINING_EPOCH
        self.state = MemberState.STABLE
        self.assigned: frozenset[T] = frozenset()
        self.revoking: frozenset[T] = frozenset()

    @abstractmethod
    def claim(self, wanted: frozenset[T], since: int, owners: O) -> frozenset[T]:
        """Takes what is free of what is wanted, and says what that is."""

    @abstractmethod
    def release(self, things: frozenset[T], owners: O) -> None:
        """Lets go of things, so that others can have them."""

    def position(self) -> tuple[object, ...]:
        """All that is written down about the member's assignment."""
        return (self.epoch, self.previous_epoch, self.state, self.assigned, self.revoking)

    def is_reconciled(self, target_epoch: int) -> bool:
        return self.state is MemberState.STABLE and self.epoch == target_epoch

    def check_epoch(self, epoch: int, owned: frozenset[T] | None, what: str) -> None:
        """A member one epoch late may have missed an answer; any other difference: it has lost track."""
        if epoch == self.epoch:
            return
        if epoch == self.previous_epoch and owned is not None and owned <= self.assigned:
            return
        raise ApiError(
            ErrorCode.FENCED_MEMBER_EPOCH,
            f"member epoch {epoch} is not {self.epoch}; give up all {what} and join again",
        )

    def begin_again(self, owners: O) -> None:
        """The member has lost its state and owns nothing, whatever it was given."""
        self.release(self.assigned | self.revoking, owners)
        self.assigned = self.revoking = frozenset()
        self.epoch = self.previous_epoch = JOINING_EPOCH
        self.state = MemberState.STABLE

    def reconcile(
        self, target: frozenset[T], target_epoch: int, owned: frozenset[T] | None, owners: O
    ) -> None:
        """Goes as far towards the target as others and the member itself allow."""
        if self.is_reconciled(target_epoch):
            return
        epoch = self.epoch
        if self.state is MemberState.UNREVOKED:
            if _still_owns(owned, self.revoking):
                return
            self.release(self.revoking, owners)
            self.revoking = frozenset()
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
        free = self.claim(wanted, target_epoch, owners)
        self.assigned, self.revoking = kept | free, frozenset()
        self.state = MemberState.STABLE if free == wanted else MemberState.UNRELEASED
        self._enter(target_epoch)

    def _enter(self, epoch: int) -> None:
        if epoch != self.epoch:
            self.previous_epoch, self.epoch = self.epoch, epoch


def _still_owns(owned: frozenset[T] | None, revoking: frozenset[T]) -> bool:
    """A member that does not say what it owns has not let go of anything."""
    return owned is None or not owned.isdisjoint(revoking)
