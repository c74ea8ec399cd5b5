"""The aborted transactions of a partition, as readers at read_committed and compaction need them.

A list in the order of the markers, kept packed: 32 bytes an entry, the same in memory and in a snapshot, so
that a checkpoint copies bytes and encodes nothing, however many there are. It only shrinks from its old end:
below the start of the log, and below what compaction has cleaned, since it removes the records of aborted
transactions. An entry must go no later than its marker does. A client skips the producer's batches from the
first offset of an abort up to its marker; without the marker it would skip what was committed after.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from struct import Struct
from typing import NamedTuple

from braidmq.config import INT64_MAX

_ENTRY = Struct(">qqqq")
ENTRY_BYTES = _ENTRY.size


class Aborted(NamedTuple):
    """A transaction that was aborted, as readers at read_committed need it."""

    producer_id: int
    first_offset: int
    last_offset: int
    """That of its marker."""
    last_stable_offset: int
    """What was stable when it ended; later aborts that began before this have ended later."""


class AbortedList:
    """Aborted transactions, in the order in which they ended."""

    __slots__ = ("_ends", "_packed")

    def __init__(self, packed: bytes = b"") -> None:
        self._packed = bytearray(packed)
        self._ends = array("q", [row[2] for row in _ENTRY.iter_unpack(packed)])
        """The offsets of their markers, ascending, for bisection."""

    def __len__(self) -> int:
        return len(self._ends)

    def add(self, one: Aborted) -> None:
        self._packed += _ENTRY.pack(*one)
        self._ends.append(one.last_offset)

    def between(self, fetch_offset: int, upper_offset: int) -> list[Aborted]:
        """Those with records in [fetch_offset, upper_offset)."""
        found = []
        for number in range(bisect_left(self._ends, fetch_offset), len(self._ends)):
            one = Aborted(*_ENTRY.unpack_from(self._packed, number * ENTRY_BYTES))
            if one.first_offset < upper_offset:
                found.append(one)
            if one.last_stable_offset >= upper_offset:
                break  # what ended later began at or after this
        return found

    def packed(self, end_offset: int = INT64_MAX) -> bytes:
        """Those whose marker is before `end_offset`, in bytes that make the same list again."""
        return bytes(memoryview(self._packed)[: bisect_left(self._ends, end_offset) * ENTRY_BYTES])

    def drop_below(self, offset: int) -> bool:
        """Forgets those whose marker is before `offset`; whether there were any."""
        count = bisect_left(self._ends, offset)
        del self._packed[: count * ENTRY_BYTES], self._ends[:count]
        return count > 0

    def cut_to(self, end_offset: int) -> None:
        """Forgets those whose marker is at or past `end_offset`."""
        count = bisect_left(self._ends, end_offset)
        del self._packed[count * ENTRY_BYTES :], self._ends[count:]


class AbortedRanges:
    """Which batches were aborted, looked up by producer."""

    __slots__ = ("_ranges",)

    def __init__(self, packed: bytes) -> None:
        self._ranges: dict[int, tuple[list[int], list[int]]] = {}
        for producer_id, first, last, _ in _ENTRY.iter_unpack(packed):
            firsts, lasts = self._ranges.setdefault(producer_id, ([], []))
            firsts.append(first)
            lasts.append(last)

    def hold(self, producer_id: int, offset: int) -> bool:
        """Whether the producer's transactional batch at `offset` was aborted."""
        firsts, lasts = self._ranges.get(producer_id, ((), ()))
        # A producer has one transaction at a time, so its ranges follow each other.
        number = bisect_right(firsts, offset) - 1
        return number >= 0 and offset <= lasts[number]
