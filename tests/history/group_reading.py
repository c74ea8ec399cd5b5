"""The checker of consumer groups: who read what, when, and what the group committed.

Members tell, each with the time, which partitions they were *assigned* and had *revoked*, which offsets they
*read*, and which positions they *sent* and had confirmed as *committed*. Times are of one clock that all
members share. The time in which a member has a partition is its stint. From these alone the checker finds

  LOST             a record that no member read
  DUPLICATE        a record read twice that no rebalance explains: twice in one stint, or again although the
                   group's position past it had been confirmed before the stint began
  UNSEEN           a record a member was carried past within a stint, or a stint that begins where nobody was
  UNOWNED          a record read by a member that did not have the partition
  POSITION_BEHIND  a confirmed position that another one took back later, or a last one before the end
  POSITION_AHEAD   a last position past the end
  NEEDLESS         a partition revoked from a member that had it again at once, without another in between;
                   only asked of groups whose rebalances are incremental

A record that is read again after a rebalance, from the last confirmed position on, is nobody's fault.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from tests.history.checker import Findings, Violation


class Commit(NamedTuple):
    member: str
    sent: int
    confirmed: int
    offset: int


@dataclass(slots=True)
class Stint:
    """A member's time with a partition."""

    member: str
    began: int
    ended: int | None = None
    reads: list[tuple[int, int]] = field(default_factory=list)
    """First and last offset of each read."""


class GroupReading(Findings):
    """Collects what the members of one group tell of one topic."""

    def __init__(self) -> None:
        super().__init__()
        self.read_count = 0
        self._stints: dict[int, list[Stint]] = {}
        self._open: dict[tuple[str, int], Stint] = {}
        self._commits: dict[int, list[Commit]] = {}
        self._sent: dict[tuple[str, int], tuple[int, int]] = {}
        """Time and offset of the newest commit each member has sent for a partition."""
        self._reached: dict[int, int] = {}
        """The furthest position anybody has sent, whatever became of it."""

    def assigned(self, member: str, time: int, partition: int) -> None:
        stint = self._open[member, partition] = Stint(member, time)
        self._stints.setdefault(partition, []).append(stint)

    def revoked(self, member: str, time: int, partition: int) -> None:
        stint = self._open.pop((member, partition), None)
        if stint is not None:
            stint.ended = time

    def read(self, member: str, partition: int, first: int, last: int) -> None:
        """The member was given these offsets, in one piece."""
        self.read_count += last - first + 1
        stint = self._open.get((member, partition))
        if stint is None:
            self.find(Violation.UNOWNED, partition, first, f"{member} read up to {last}")
            self.assigned(member, 0, partition)
            stint = self._open[member, partition]
        stint.reads.append((first, last))

    def sent(self, member: str, time: int, partition: int, offset: int) -> None:
        """The member is about to commit a position."""
        self._sent[member, partition] = (time, offset)
        self._reached[partition] = max(self._reached.get(partition, 0), offset)

    def committed(self, member: str, time: int, partition: int) -> None:
        """The broker confirmed the position that the member sent last."""
        sent, offset = self._sent[member, partition]
        self._commits.setdefault(partition, []).append(Commit(member, sent, time, offset))

    def conclude(
        self, ends: Mapping[int, int], positions: Mapping[int, int], incremental: bool = False
    ) -> None:
        """All records are read and the members are gone: the ends of the log, and the group's positions."""
        for partition in sorted(ends.keys() | self._stints.keys()):
            self._check_stints(partition)
            self._check_commits(partition)
            self._check_end(partition, ends.get(partition, 0), positions.get(partition, 0))
            if incremental:
                self._look_for_needless(partition)

    def _check_stints(self, partition: int) -> None:
        reached = self._reached.get(partition, 0)
        for stint in self._stints.get(partition, []):
            if not stint.reads:
                continue
            first = stint.reads[0][0]
            position = self._position_at(partition, stint.began)
            if first < position:
                detail = f"{stint.member} began at {first} though {position} was committed before"
                self.find(Violation.DUPLICATE, partition, first, detail)
            if first > reached:
                detail = f"{stint.member} began at {first}, and nobody got further than {reached}"
                self.find(Violation.UNSEEN, partition, first, detail)
            self._check_within(partition, stint)

    def _check_within(self, partition: int, stint: Stint) -> None:
        for (_, before), (first, _) in pairwise(stint.reads):
            if first <= before:
                detail = f"{stint.member} had already read {before}"
                self.find(Violation.DUPLICATE, partition, first, detail)
            elif first > before + 1:
                detail = f"{stint.member} went on at {first} after {before}"
                self.find(Violation.UNSEEN, partition, before + 1, detail)

    def _position_at(self, partition: int, time: int) -> int:
        known = [each.offset for each in self._commits.get(partition, []) if each.confirmed < time]
        return max(known, default=0)

    def _check_commits(self, partition: int) -> None:
        furthest: Commit | None = None
        commits = sorted(self._commits.get(partition, []), key=lambda each: each.confirmed)
        for commit in commits:
            if furthest is not None and commit.sent > furthest.confirmed and commit.offset < furthest.offset:
                detail = (
                    f"{commit.member} committed {commit.offset} after {furthest.member} {furthest.offset}"
                )
                self.find(Violation.POSITION_BEHIND, partition, commit.offset, detail)
            if furthest is None or commit.offset > furthest.offset:
                furthest = commit

    def _check_end(self, partition: int, end: int, position: int) -> None:
        for first, last in self._missing(partition, end):
            self.find(Violation.LOST, partition, first, f"nobody read the records up to {last}")
        if position < end:
            detail = f"the group is at {position}, the end is {end}"
            self.find(Violation.POSITION_BEHIND, partition, position, detail)
        elif position > end:
            detail = f"the group is at {position}, the end is {end}"
            self.find(Violation.POSITION_AHEAD, partition, position, detail)

    def _missing(self, partition: int, end: int) -> Iterator[tuple[int, int]]:
        reads = sorted(read for stint in self._stints.get(partition, []) for read in stint.reads)
        reached = 0
        for first, last in reads:
            if first > reached:
                yield reached, first - 1
            reached = max(reached, last + 1)
        if reached < end:
            yield reached, end - 1

    def _look_for_needless(self, partition: int) -> None:
        stints = sorted(self._stints.get(partition, []), key=lambda stint: stint.began)
        for before, after in pairwise(stints):
            if before.ended is not None and before.member == after.member:
                detail = f"{after.member} gave it up and had it again"
                self.find(Violation.NEEDLESS, partition, -1, detail)
