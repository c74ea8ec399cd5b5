"""The segments of one log, oldest first; the last one takes appends.

Offsets decide everything: a segment holds those from its base offset up to the base offset of the next. That
they follow each other without a hole is for others to check.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import pairwise
from operator import attrgetter
from pathlib import Path

from braidmq.log.scan import Damage
from braidmq.log.segment import DamagedSegment, Segment

_base_offset = attrgetter("base_offset")


class SegmentList(list[Segment]):
    """A list of segments that is searched by offset and cut at both ends."""

    @property
    def size_bytes(self) -> int:
        return sum(segment.size_bytes for segment in self)

    def number_of(self, offset: int) -> int:
        """Which segment holds `offset`, the first one if it lies before all."""
        return max(bisect_right(self, offset, key=_base_offset) - 1, 0)

    def following(self, segment: Segment) -> Segment | None:
        """The next segment, None after the last."""
        number = self.number_of(segment.base_offset) + 1
        return self[number] if number < len(self) else None

    def batch_of(self, offset: int) -> tuple[Segment, int, int]:
        """Segment, position and base offset of the batch that holds `offset`, which is in the log."""
        segment = self[self.number_of(offset)]
        found = segment.find_offset(offset)
        if found is None:
            self.check_reaches(segment, offset)
        assert found is not None, f"the log ends before offset {offset}"
        return segment, found[0], found[1].base_offset

    def position_of(self, offset: int, segment: Segment) -> int:
        """The byte of `segment` at which the batch with `offset` begins; its end if that is in a later one.

        If damage hides it, the byte of the damage: everything before it is before `offset`.
        """
        following = self.following(segment)
        if following is not None and offset >= following.base_offset:
            return segment.size_bytes
        try:
            found = segment.locate(offset)
        except DamagedSegment as damaged:
            return damaged.position
        return segment.size_bytes if found is None else found[0]

    def check_reaches(self, segment: Segment, offset: int) -> None:
        """ApiError CORRUPT_MESSAGE: `segment` ends before `offset`, unless it is the last one."""
        if (following := self.following(segment)) is not None:
            what = f"the segment ends before offset {offset}, the next begins at {following.base_offset}"
            raise segment.corrupt(Damage(segment.size_bytes, what))

    def ended(self, end_offset: int) -> list[tuple[Segment, int]]:
        """Those that end by `end_offset`, each with the offset that follows it."""
        return [(one, after.base_offset) for one, after in pairwise(self) if after.base_offset <= end_offset]

    def holds(self, some: Sequence[Segment]) -> bool:
        """Whether these segments are all here, one after the other."""
        number = self.number_of(some[0].base_offset)
        return self[number : number + len(some)] == list(some)

    def replace(self, some: Sequence[Segment], size_bytes: int) -> None:
        """One compacted file of so many bytes has taken the place of these segments."""
        number = self.number_of(some[0].base_offset)
        compacted = some[0].successor(some[-1].created_ms)
        compacted.found(size_bytes, trusted_from=0)
        compacted.sealed = True
        self[number : number + len(some)] = [compacted]

    def drop_first(self, count: int, synced_offset: int) -> list[Path]:
        """Takes out up to `count` of the oldest that end by `synced_offset`; their files, renamed."""
        while count and self[count].base_offset > synced_offset:
            count -= 1
        paths = [Path(path) for segment in self[:count] for path in segment.rename_deleted()]
        del self[:count]
        return paths

    def unlink_after(self, number: int) -> None:
        """Removes the segments after `number`, the newest first, so that a crash leaves no hole."""
        while len(self) > number + 1:
            self[-1].unlink()
            del self[-1]
