"""Walking the batches of a segment file, in two depths.

`hop` reads headers only and jumps from one to the next; it finds a batch by offset or time, and rebuilds an
index. `check` reads every byte and verifies every CRC; recovery, first reads and the doctor use it. Both
insist on dense offsets, because the base offset is not covered by the batch's CRC: a flipped bit there shows
only as a gap or an overlap.
"""

from __future__ import annotations

from collections.abc import Iterator

from braidmq.platform.disk import DiskFile
from braidmq.wire.records import HEADER_BYTES, LENGTH_END, MAGIC, BatchHeader, fault, parse_header

# One read of this many bytes usually covers the way from an index entry to the batch looked for.
HOP_BYTES = 8 * 1024
CHECK_BYTES = 4 * 1024 * 1024


class Damage(Exception):
    """The batch at `position` is not what was written; `what` says how one can tell."""

    def __init__(self, position: int, what: str) -> None:
        super().__init__(f"batch at byte {position}: {what}")
        self.position = position
        self.what = what


def hop(file: DiskFile, position: int, end: int, expected: int | None) -> Iterator[tuple[int, BatchHeader]]:
    """Positions and headers of the batches in [position, end); the first has base offset `expected` if given.

    Raises Damage at the first header that makes no sense; records are not looked at.
    """
    window = b""
    window_at = position
    while position < end:
        at = position - window_at
        if at + HEADER_BYTES > len(window):
            window = file.read_at(min(HOP_BYTES, end - position), position)
            window_at = position
            at = 0
            if len(window) < HEADER_BYTES:
                raise Damage(position, f"{len(window)} bytes are left, a batch header needs {HEADER_BYTES}")
        header = parse_header(window, at)
        if header.magic != MAGIC or header.length < HEADER_BYTES - LENGTH_END or header.size > end - position:
            raise Damage(position, fault(window, at, at + end - position) or "its header makes no sense")
        _expect(header, expected, position)
        yield position, header
        position += header.size
        expected = header.next_offset


def check(file: DiskFile, position: int, end: int, expected: int | None) -> Iterator[tuple[int, BatchHeader]]:
    """Like `hop`, with every byte read and every CRC verified; raises Damage at the first bad batch."""
    for at, header, _ in check_bytes(file, position, end, expected):
        yield at, header


def check_bytes(
    file: DiskFile, position: int, end: int, expected: int | None
) -> Iterator[tuple[int, BatchHeader, memoryview]]:
    """Like `check`, with the batch itself; the view is good until the next one is asked for."""
    view = memoryview(bytearray(min(CHECK_BYTES, max(end - position, 0))))
    view_at = position
    filled = 0
    while position < end:
        at = position - view_at
        wanted = HEADER_BYTES
        if filled - at >= HEADER_BYTES:
            wanted = parse_header(view, at).size
        if filled - at < wanted and view_at + filled < end:
            if at == 0 and len(view) < wanted <= end - position:
                view = memoryview(bytearray(wanted))
            elif at == 0 and filled:
                raise Damage(position, f"length says {wanted} bytes where {end - position} are left")
            view_at = position
            filled = file.read_into(view[: min(len(view), end - position)], position)
            if filled < min(HEADER_BYTES, end - position):
                raise Damage(position, "the file ends here")
            continue
        if (what := fault(view, at, filled)) is not None:
            raise Damage(position, what)
        header = parse_header(view, at)
        _expect(header, expected, position)
        yield position, header, view[at : at + header.size]
        position += header.size
        expected = header.next_offset


def _expect(header: BatchHeader, expected: int | None, position: int) -> None:
    if header.last_offset_delta < 0 or (expected is not None and header.base_offset != expected):
        raise Damage(position, f"base offset is {header.base_offset}, expected {expected}")
