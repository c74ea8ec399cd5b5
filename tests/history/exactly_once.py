"""The checker of exactly-once pipelines: what came out of a stage, held against what went into it.

A stage reads records from a source and writes, in transactions, one record for each of them, together with
its own position in the source. Every record it writes says what it was made of and in which transaction of
which process (`Stamp`). A run under faults tells the checker what the stage's processes were *told* about
their transactions, what a reader at read_committed was given while the run went on (*polled*), and, once the
faults are over, everything there is at read_committed (*read*) and the group's committed *position*. It finds

  LOST                 a record of the source of which nothing was made
  DUPLICATE            two records made of one
  REORDERED            in one partition, records of one source partition in another order than there
  PHANTOM              a record made of something the source does not hold there, such as aborted data
  ABORTED_READ         a record whose transaction was, or was meant to be, aborted
  TORN                 a transaction of which a part is there
  UNDONE               a transaction whose commit was confirmed and of which nothing is there
  POSITION_AHEAD       a committed position past a record of which nothing was made
  POSITION_BEHIND      a committed position before a record of which something was made
  NON_MONOTONIC, UNSEEN, INCONSISTENT_OFFSET
                       the reader along the way went back, was carried past a record that is there, or was
                       given one that is not

The checker knows nothing about brokers or clients and takes no time of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from enum import IntEnum
from typing import NamedTuple

from tests.history.checker import Findings, Violation


class Fate(IntEnum):
    """What the producer meant to do with a transaction when it wrote the record."""

    ABORT = 0
    COMMIT = 1


class Place(NamedTuple):
    """A record of a stage's source."""

    partition: int
    offset: int


class Work(NamedTuple):
    """A transaction: the `number`-th of one life of a process."""

    life: int
    number: int


class Stamp(NamedTuple):
    """What a record says about itself."""

    content: int
    """What it carries, the same from end to end."""
    source: Place
    work: Work
    size: int
    """Records in the transaction."""
    fate: Fate


class Stage(Findings):
    """Collects what is known of one stage and names every broken promise."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name
        self.read_count = 0
        self.polled_count = 0
        self.confirmed: dict[Work, Fate] = {}
        self._source: dict[Place, int] = {}
        """What each record of the source carries."""
        self._made: dict[Place, Place] = {}
        """Where the record made of each one is."""
        self._visible: dict[Work, tuple[int, int]] = {}
        """Records there are of each transaction, and how many there should be."""
        self._final: dict[int, dict[int, Stamp]] = {}
        self._polled: dict[int, dict[int, Stamp]] = {}
        self._poll_next: dict[int, int] = {}
        self._last_source: dict[tuple[int, int], int] = {}
        self._positions: dict[int, int] = {}

    # What happened

    def told(self, work: Work, fate: Fate) -> None:
        """The broker confirmed the end of this transaction to the process."""
        self.confirmed[work] = fate

    def polled(self, partition: int, offset: int, stamp: Stamp) -> None:
        """The reader at read_committed was given this record while the run went on."""
        self.polled_count += 1
        expected = self._poll_next.get(partition, 0)
        if offset < expected:
            self.find(Violation.NON_MONOTONIC, partition, offset, f"the reader already had {expected - 1}")
        self._poll_next[partition] = offset + 1
        self._check_fate(partition, offset, stamp)
        self._polled.setdefault(partition, {})[offset] = stamp

    def source(self, contents: Iterable[tuple[Place, int]]) -> None:
        """All there is to be worked on, once; for a stage behind another, what that one made."""
        self._source.update(contents)

    def read(self, partition: int, offset: int, stamp: Stamp) -> None:
        """The final read at read_committed came to this record; each partition from its first to its last."""
        self.read_count += 1
        self._final.setdefault(partition, {})[offset] = stamp
        self._check_fate(partition, offset, stamp)
        there, _ = self._visible.get(stamp.work, (0, 0))
        self._visible[stamp.work] = (there + 1, stamp.size)
        self._check_source(partition, offset, stamp)

    def position(self, partition: int, offset: int) -> None:
        """The group's committed position in a partition of the source, when all is over."""
        self._positions[partition] = offset

    def conclude(self) -> None:
        """After all of it: what should have happened and did not."""
        self._look_for_lost()
        self._look_for_torn()
        self._compare_polled()

    def made(self) -> Iterator[tuple[Place, int]]:
        """What this stage made, as the source of the next one."""
        for partition, held in self._final.items():
            for offset, stamp in held.items():
                yield Place(partition, offset), stamp.content

    # What follows from it

    def _check_fate(self, partition: int, offset: int, stamp: Stamp) -> None:
        if stamp.fate is Fate.ABORT:
            self.find(Violation.ABORTED_READ, partition, offset, f"{_told(stamp)} was to be aborted")
        elif self.confirmed.get(stamp.work) is Fate.ABORT:
            self.find(Violation.ABORTED_READ, partition, offset, f"{_told(stamp)} was confirmed as aborted")

    def _check_source(self, partition: int, offset: int, stamp: Stamp) -> None:
        held = self._source.get(stamp.source)
        if held != stamp.content:
            detail = f"{_told(stamp)} carries {stamp.content}, and the source has {held} there"
            self.find(Violation.PHANTOM, partition, offset, detail)
        before = self._made.get(stamp.source)
        if before is not None:
            detail = f"{_told(stamp)} is made of what {before.partition}/{before.offset} is made of"
            self.find(Violation.DUPLICATE, partition, offset, detail)
            return
        self._made[stamp.source] = Place(partition, offset)
        last = self._last_source.get((partition, stamp.source.partition), -1)
        if stamp.source.offset < last:
            self.find(Violation.REORDERED, partition, offset, f"{_told(stamp)} comes after one of {last}")
        self._last_source[partition, stamp.source.partition] = max(last, stamp.source.offset)

    def _look_for_lost(self) -> None:
        for place in sorted(self._source):
            position = self._positions.get(place.partition, 0)
            if place not in self._made:
                self.find(Violation.LOST, *place, f"nothing was made of it by {self.name}")
                if place.offset < position:
                    detail = f"nothing was made of it, and the group is at {position}"
                    self.find(Violation.POSITION_AHEAD, *place, detail)
            elif place.offset >= position:
                detail = f"something was made of it, and the group is at {position}"
                self.find(Violation.POSITION_BEHIND, *place, detail)

    def _look_for_torn(self) -> None:
        for work, (there, size) in self._visible.items():
            if there != size:
                detail = f"{there} of the {size} records of {_named(work)} are there"
                self.find(Violation.TORN, -1, -1, detail)
        for work, fate in self.confirmed.items():
            if fate is Fate.COMMIT and work not in self._visible:
                self.find(Violation.UNDONE, -1, -1, f"{_named(work)} was confirmed as committed")

    def _compare_polled(self) -> None:
        for partition, given in self._polled.items():
            final, end = self._final.get(partition, {}), self._poll_next[partition]
            for offset, stamp in given.items():
                if final.get(offset) != stamp:
                    detail = f"{_told(stamp)} was given to a reader and is not there"
                    self.find(Violation.INCONSISTENT_OFFSET, partition, offset, detail)
            for offset in sorted(final.keys() - given.keys()):
                if offset < end:
                    detail = f"the reader was carried past {_told(final[offset])} to {end - 1}"
                    self.find(Violation.UNSEEN, partition, offset, detail)


def _named(work: Work) -> str:
    return f"transaction {work.number} of life {work.life}"


def _told(stamp: Stamp) -> str:
    return f"{stamp.source.partition}/{stamp.source.offset} by {_named(stamp.work)}"
