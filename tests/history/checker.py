"""The history checker: what clients saw, held against what Braid promises.

A run under faults tells the checker four kinds of things as they happen: a record was *sent*, the broker
*acked* it at an offset, a consumer *polled* it from an offset, and, once the faults are over, the whole
partition was *read* from its first to its last offset. From these alone it finds

  LOST                 acked, but missing from the final read
  DUPLICATE            one record at two offsets (all senders are idempotent)
  REORDERED            two records of one sender, in the log in the other order than sent
  INCONSISTENT_OFFSET  one offset that held two values at different times
  NON_MONOTONIC        a consumer was given an offset at or below one it already had
  UNSEEN               a consumer was carried past an acked record without being given it
  PHANTOM              a value that nobody sent
  GAP                  the final read skips an offset nothing explains

What transactions promise beyond this is checked by `exactly_once`, what consumer groups promise by
`group_reading`, and share groups by `share_reading`, all beside this file.

A record is named by (sender, number): each sender counts up from 0 over everything it sends. State per
partition is a few machine words per offset in flat arrays, so that ten million records fit into memory.
The checker knows nothing about brokers or clients and takes no time of its own.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from enum import StrEnum

NUMBER_BITS = 44
NUMBERS_MAX = 1 << NUMBER_BITS
UNKNOWN = -1
DETAILS_MAX = 50

ACKED = 1
READ = 2


class Violation(StrEnum):
    LOST = "lost"
    DUPLICATE = "duplicate"
    REORDERED = "reordered"
    INCONSISTENT_OFFSET = "inconsistent offset"
    NON_MONOTONIC = "non-monotonic poll"
    UNSEEN = "unseen"
    PHANTOM = "phantom"
    GAP = "gap"
    ABORTED_READ = "aborted read"
    TORN = "torn transaction"
    UNDONE = "undone commit"
    POSITION_AHEAD = "position ahead"
    POSITION_BEHIND = "position behind"
    UNOWNED = "unowned read"
    NEEDLESS = "needless revocation"
    OVERDONE = "delivered too often"


@dataclass(frozen=True, slots=True)
class Finding:
    violation: Violation
    partition: int
    offset: int
    detail: str

    def __str__(self) -> str:
        return f"{self.violation} at partition {self.partition} offset {self.offset}: {self.detail}"


class Findings:
    """Every broken promise, counted; the first of them with details, for a broken broker breaks many."""

    def __init__(self) -> None:
        self.counts: dict[Violation, int] = {}
        self.findings: list[Finding] = []

    def find(self, violation: Violation, partition: int, offset: int, detail: str) -> None:
        self.counts[violation] = self.counts.get(violation, 0) + 1
        if len(self.findings) < DETAILS_MAX:
            self.findings.append(Finding(violation, partition, offset, detail))


@dataclass(slots=True)
class _Partition:
    """What is known of one partition: the value and the marks of every offset."""

    values: array[int] = field(default_factory=lambda: array("q"))
    marks: bytearray = field(default_factory=bytearray)
    start_offset: int = 0
    read_next_offset: int | None = None

    def reach(self, offset: int) -> None:
        missing = offset + 1 - len(self.values)
        if missing > 0:
            self.values.extend([UNKNOWN] * missing)
            self.marks.extend(bytes(missing))


class History(Findings):
    """Collects one run's events and names every broken promise."""

    def __init__(self) -> None:
        super().__init__()
        self.acked_count = 0
        self.polled_count = 0
        self.read_count = 0
        self._partitions: dict[int, _Partition] = {}
        self._sent_next: dict[int, int] = {}
        self._positions: dict[tuple[str, int], int] = {}
        self._last_read: dict[tuple[int, int], int] = {}
        self._seen: dict[int, bytearray] = {}

    def sent(self, sender: int, number: int) -> None:
        """The sender is about to hand this record to the broker; numbers of one sender only go up."""
        assert self._sent_next.get(sender, 0) <= number < NUMBERS_MAX, "a sender's numbers go up"
        self._sent_next[sender] = number + 1

    def acked(self, sender: int, number: int, partition: int, offset: int) -> None:
        """The broker told the sender that the record is safe at this offset."""
        self.acked_count += 1
        state = self._learn(partition, offset, sender, number, "an ack")
        state.marks[offset] |= ACKED

    def polled(self, consumer: str, partition: int, offset: int, sender: int, number: int) -> None:
        """A consumer was given this record while the run went on."""
        self.polled_count += 1
        state = self._learn(partition, offset, sender, number, f"a poll of {consumer}")
        position = self._positions.get((consumer, partition))
        if position is not None and offset < position:
            self.find(Violation.NON_MONOTONIC, partition, offset, f"{consumer} already had {position - 1}")
        if position is not None and offset > position:
            self._look_for_unseen(consumer, state, partition, position, offset)
        self._positions[consumer, partition] = offset + 1

    def sought(self, consumer: str, partition: int, offset: int) -> None:
        """The consumer moved itself; its next poll is expected to begin at this offset."""
        self._positions[consumer, partition] = offset

    def trimmed(self, partition: int, start_offset: int) -> None:
        """Records below this offset were deleted on purpose and are no longer owed to anyone."""
        self._partitions.setdefault(partition, _Partition()).start_offset = start_offset

    def read(self, partition: int, offset: int, sender: int, number: int) -> None:
        """The final read came to this record; it goes from the first offset to the last, once."""
        self.read_count += 1
        state = self._learn(partition, offset, sender, number, "the final read")
        state.marks[offset] |= READ
        expected = state.start_offset if state.read_next_offset is None else state.read_next_offset
        if offset > expected:
            self.find(Violation.GAP, partition, expected, f"the next offset that exists is {offset}")
        state.read_next_offset = offset + 1
        self._check_order(partition, offset, sender, number)

    def next_offset(self, partition: int) -> int:
        """One past the highest offset anybody has told of."""
        state = self._partitions.get(partition)
        return len(state.values) if state is not None else 0

    def conclude(self) -> list[Finding]:
        """After the final read: whatever was acked and did not turn up is lost."""
        for partition, state in self._partitions.items():
            for offset in range(state.start_offset, len(state.marks)):
                if state.marks[offset] & (ACKED | READ) == ACKED:
                    name = _name(state.values[offset])
                    self.find(Violation.LOST, partition, offset, f"{name} was acked and is not in the log")
        return self.findings

    def _learn(self, partition: int, offset: int, sender: int, number: int, source: str) -> _Partition:
        """Every observation passes here: an offset keeps the first value anybody saw in it."""
        state = self._partitions.setdefault(partition, _Partition())
        state.reach(offset)
        value = sender << NUMBER_BITS | number
        known = state.values[offset]
        if known == UNKNOWN:
            state.values[offset] = value
        elif known != value:
            self.find(
                Violation.INCONSISTENT_OFFSET,
                partition,
                offset,
                f"held {_name(known)}, then {source} showed {_name(value)}",
            )
        if number >= self._sent_next.get(sender, 0):
            detail = f"{source} showed {_name(value)}, which nobody sent"
            self.find(Violation.PHANTOM, partition, offset, detail)
        return state

    def _look_for_unseen(self, consumer: str, state: _Partition, partition: int, low: int, high: int) -> None:
        for offset in range(max(low, state.start_offset), high):
            if state.marks[offset] & ACKED:
                detail = f"{consumer} went from {low} to {high} past acked {_name(state.values[offset])}"
                self.find(Violation.UNSEEN, partition, offset, detail)

    def _check_order(self, partition: int, offset: int, sender: int, number: int) -> None:
        seen = self._seen.setdefault(sender, bytearray())
        byte, bit = number >> 3, 1 << (number & 7)
        if byte >= len(seen):
            seen.extend(bytes(byte + 1 - len(seen)))
        last = self._last_read.get((sender, partition), -1)
        if seen[byte] & bit:
            self.find(Violation.DUPLICATE, partition, offset, f"{number} of sender {sender} came before")
        elif number < last:
            self.find(Violation.REORDERED, partition, offset, f"{number} of sender {sender} is after {last}")
        seen[byte] |= bit
        self._last_read[sender, partition] = max(last, number)


def _name(value: int) -> str:
    return f"record {value & (NUMBERS_MAX - 1)} of sender {value >> NUMBER_BITS}"
