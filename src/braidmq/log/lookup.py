"""From a time to an offset: the first record not before a timestamp, and the newest timestamp of all.

The time index leads near the right batch; the batch's records, checked and opened, give the exact answer.
"""

from __future__ import annotations

from collections.abc import Sequence

from braidmq.log.segment import NO_TIMESTAMP, Segment
from braidmq.wire.records import records


def first_at_or_after(
    segments: Sequence[Segment], start_offset: int, timestamp_ms: int
) -> tuple[int, int] | None:
    """Timestamp and offset of the first record from `start_offset` on that is not before `timestamp_ms`."""
    for segment in segments:
        segment.load()
        if segment.max_timestamp < timestamp_ms:
            continue
        for position, header in segment.batches_since(timestamp_ms, start_offset):
            for record in records(segment.read(position, header.size)):
                if record.timestamp >= timestamp_ms and record.offset >= start_offset:
                    return record.timestamp, record.offset
    return None


def newest(segments: Sequence[Segment], start_offset: int) -> tuple[int, int] | None:
    """The largest timestamp at or past `start_offset`, and the first offset that has it."""
    best_ms = NO_TIMESTAMP
    best: Segment | None = None
    for segment in segments:
        segment.load()
        found_ms = segment.max_timestamp
        if segment.base_offset < start_offset and found_ms > best_ms:
            found_ms = _newest_in_rest(segment, start_offset)
        if found_ms > best_ms:
            best_ms, best = found_ms, segment
    return first_at_or_after([best], start_offset, best_ms) if best is not None else None


def _newest_in_rest(segment: Segment, start_offset: int) -> int:
    newest_ms = NO_TIMESTAMP
    for position, header in segment.batches_since(NO_TIMESTAMP, start_offset):
        for record in records(segment.read(position, header.size)):
            if record.offset >= start_offset:
                newest_ms = max(newest_ms, record.timestamp)
    return newest_ms
