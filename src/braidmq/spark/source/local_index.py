"""Where in a segment to begin reading: its sparse index is a hint that saves a walk from the beginning.

Braid's entries are of twelve bytes and Kafka's of eight; both begin with an offset relative to the segment
and a position in it, in ascending order (Kafka has zeros after the last one). The offset is the first of the
batch at that position in Braid, the last in Kafka. An entry is used only if such a batch is there and valid,
so a damaged or foreign index only costs a walk from the beginning.
"""

from __future__ import annotations

import mmap
from bisect import bisect_left
from pathlib import Path
from struct import Struct

from braidmq.wire.records import check_stored

SUFFIX = ".index"
ENTRY = Struct(">II")
ENTRY_BYTES = (12, 8)
"""Braid's and Kafka's. Both are tried: the wrong one finds nothing, or an earlier batch."""


def near(segment: Path, base: int, view: memoryview, offset: int) -> int:
    """The position of a batch at or before `offset` in the segment that is mapped in `view`; 0 if unknown."""
    try:
        with open(segment.with_suffix(SUFFIX), "rb") as file:
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError):
        # None there, not ours to read, or empty.
        return 0
    with mapped:
        hints = [_floor(mapped, size, offset - base) for size in ENTRY_BYTES]
    return max(at if _is_there(view, at, base + relative, offset) else 0 for relative, at in hints)


def _floor(index: mmap.mmap, size: int, relative: int) -> tuple[int, int]:
    """The last entry at or before an offset; zeros if there is none."""

    def is_behind(number: int) -> bool:
        found, position = ENTRY.unpack_from(index, number * size)
        return found > relative or not position

    # The first entry has position 0 in Braid, as have the zeros after the last one in Kafka.
    number = bisect_left(range(1, len(index) // size), True, key=is_behind)
    return ENTRY.unpack_from(index, number * size) if len(index) >= size else (0, 0)


def _is_there(view: memoryview, position: int, entry: int, offset: int) -> bool:
    header = check_stored(view, position, len(view)) if position < len(view) else None
    return header is not None and header.base_offset <= min(entry, offset) and entry < header.next_offset
