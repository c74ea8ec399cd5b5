"""Reading a damaged segment to its end: what is sound, and where what is not begins and ends.

Behind a damaged batch the next sound one is looked for: first where the damaged one says it ends, then at
every byte that could be the magic of a header. Offsets only grow, and the CRC of a candidate must hold, so
that record contents that look like a batch are not taken for one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from braidmq.log.scan import Damage, check
from braidmq.platform.disk import DiskFile
from braidmq.wire.records import HEADER_BYTES, LENGTH_END, MAGIC, MAGIC_AT, BatchHeader, fault, parse_header

SEARCH_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Gap:
    """Bytes [position, end) that hold no sound batch, where one with `next_offset` first was expected."""

    position: int
    end: int
    next_offset: int
    what: str


def survey(file: DiskFile, size_bytes: int, base_offset: int) -> Iterator[tuple[int, BatchHeader] | Gap]:
    """Everything in a segment, in order: sound batches with their positions, and gaps between them."""
    position, expected = 0, base_offset
    while position < size_bytes:
        try:
            for at, header in check(file, position, size_bytes, expected):
                yield at, header
                position, expected = at + header.size, header.next_offset
        except Damage as damage:
            found = find_sound(file, position, size_bytes, expected)
            end, next_offset = (size_bytes, expected) if found is None else found
            yield Gap(position, end, expected, damage.what)
            position, expected = end, next_offset


def find_sound(file: DiskFile, position: int, size_bytes: int, offset: int) -> tuple[int, int] | None:
    """Position and base offset of the first sound batch past `position` that is not before `offset`."""
    declared = _declared_end(file, position, size_bytes)
    if declared is not None and (found := _sound_at(file, declared, size_bytes, offset)) is not None:
        return declared, found
    start = position + 1
    while start + HEADER_BYTES <= size_bytes:
        window = file.read_at(min(SEARCH_BYTES, size_bytes - start), start)
        at = window.find(MAGIC, MAGIC_AT)
        while at >= 0:
            candidate = start + at - MAGIC_AT
            if (found := _sound_at(file, candidate, size_bytes, offset)) is not None:
                return candidate, found
            at = window.find(MAGIC, at + 1)
        # The last bytes of a window may begin a header that ends in the next.
        start += max(len(window) - MAGIC_AT, 1)
    return None


def _declared_end(file: DiskFile, position: int, size_bytes: int) -> int | None:
    raw = file.read_at(HEADER_BYTES, position)
    if len(raw) < HEADER_BYTES:
        return None
    end = position + parse_header(raw).size
    return end if position < end <= size_bytes - HEADER_BYTES else None


def _sound_at(file: DiskFile, position: int, size_bytes: int, offset: int) -> int | None:
    raw = file.read_at(HEADER_BYTES, position)
    if len(raw) < HEADER_BYTES:
        return None
    header = parse_header(raw)
    if (
        header.base_offset < offset
        or not HEADER_BYTES - LENGTH_END <= header.length <= size_bytes - position - LENGTH_END
    ):
        return None
    whole = file.read_at(header.size, position)
    return header.base_offset if fault(whole, 0, len(whole)) is None else None
