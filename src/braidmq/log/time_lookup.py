"""From a time to an offset: the first record not before a timestamp, and the newest timestamp of all.

The time index leads near the right batch; the batch's records, checked and opened, give the exact answer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from braidmq.log.segment import NO_TIMESTAMP, Segment
from braidmq.wire.errors import ApiError
from braidmq.wire.records import BatchHeader, records


def first_at_or_after(
    segments: Sequence[Segment], start_offset: int, timestamp_ms: int
) -> tuple[int, int] | None:
    """Timestamp and offset of the first record from `start_offset` on that is not before `timestamp_ms`."""
    for segment in segments:
        segment.load()
        if segment.max_timestamp < timestamp_ms:
            continue
        for position, header in segment.batches_since(timestamp_ms, start_offset):
            for record_ms, offset in _times(segment, position, header):
                if record_ms >= timestamp_ms and offset >= start_offset:
                    return record_ms, offset
    return None


def _times(segment: Segment, position: int, header: BatchHeader) -> Iterator[tuple[int, int]]:
    """Timestamps and offsets of a batch's records.

    The broker does not look into a compressed batch when it takes it. One that cannot be opened stands for
    its first record, with its newest timestamp: a read from there finds it, and the others after it.
    """
    batch = segment.read(position, header.size)
    try:
        for record in records(batch):
            yield record.timestamp, record.offset
    except ApiError:
        yield header.max_timestamp, header.base_offset


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
        for record_ms, offset in _times(segment, position, header):
            if offset >= start_offset:
                newest_ms = max(newest_ms, record_ms)
    return newest_ms
