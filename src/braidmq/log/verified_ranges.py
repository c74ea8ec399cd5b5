"""Which parts of a file have passed their CRC since this process started.

Bytes that an earlier run wrote may have rotted on the disk, so they are checked before they are first
served. A few ranges per segment remember what was checked; sequential readers keep extending one.
"""

from __future__ import annotations

from braidmq.log.scan import Damage

RANGES_MAX = 64


class VerifiedRanges:
    """Disjoint checked ranges; each knows the offset that follows it."""

    __slots__ = ("_ranges", "damaged", "unreadable")

    def __init__(self) -> None:
        self._ranges: list[tuple[int, int, int]] = []
        self.damaged: dict[int, Damage] = {}
        """Batches that failed, by their positions."""
        self.unreadable: tuple[int, OSError] | None = None
        """Where the disk last refused, until a reader has got the error."""

    def reach(self, position: int) -> tuple[int, int] | None:
        """Where the checked range around `position` ends, and the offset of the batch there."""
        for start, end, next_offset in self._ranges:
            if start <= position <= end:
                return end, next_offset
        return None

    def add(self, start: int, end: int, next_offset: int) -> None:
        """Remembers [start, end), merged with those it touches; of too many the smallest other one goes."""
        kept = []
        for other in self._ranges:
            if other[1] < start or other[0] > end:
                kept.append(other)
                continue
            start = min(start, other[0])
            if other[1] > end:
                end, next_offset = other[1], other[2]
        if len(kept) == RANGES_MAX:
            # Not the new one: a reader is about to use it.
            kept.remove(min(kept, key=lambda one: one[1] - one[0]))
        kept.append((start, end, next_offset))
        self._ranges = kept
