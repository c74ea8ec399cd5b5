"""Which old segments may go: by age, by size, by DeleteRecords, by a full disk.

Whole segments go, oldest first. A segment is first renamed to `*.deleted`, which takes it out of the log at
once, and removed later, when nobody can still be sending it. Only segments before the recovery point on
disk may go: recovery then knows that what is missing there was deleted, and that the log ended after it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from braidmq.config import NO_LIMIT, TopicConfig
from braidmq.log import checkpoint as checkpoints
from braidmq.log.files import FileCache
from braidmq.log.index import SegmentIndex
from braidmq.log.recovery import segment_name, segment_offsets
from braidmq.log.scan import Damage, hop
from braidmq.log.segment import LOG_SUFFIX, NO_TIMESTAMP, Segment
from braidmq.platform.disk import Disk


def expired_count(
    segments: Sequence[Segment], config: TopicConfig, start_offset: int, now_ms: int, by_time: bool
) -> int:
    """How many of the oldest segments are past retention, the last one included."""
    left_bytes = sum(segment.size_bytes for segment in segments)
    for number, segment in enumerate(segments):
        left_bytes -= segment.size_bytes
        follower = segments[number + 1] if number + 1 < len(segments) else None
        deleted = follower is not None and follower.base_offset <= start_offset
        limited = config.deletes and config.retention_bytes != NO_LIMIT
        too_large = limited and left_bytes >= config.retention_bytes
        if not (
            deleted or (too_large and follower is not None) or (by_time and _too_old(segment, config, now_ms))
        ):
            return number
    return len(segments)


def _too_old(segment: Segment, config: TopicConfig, now_ms: int) -> bool:
    if not config.deletes or config.retention_ms == NO_LIMIT or not segment.size_bytes:
        return False
    segment.load()
    newest_ms = segment.max_timestamp if segment.max_timestamp != NO_TIMESTAMP else segment.created_ms
    return newest_ms < now_ms - config.retention_ms


class Expiry(NamedTuple):
    """When a log next loses something, as far as its files tell."""

    by_size: bool
    """Whether it is past retention.bytes, or holds segments before its start."""
    by_time_ms: int | None
    """The wall time from which its oldest segment is past retention.ms; None: never."""

    def is_due(self, now_ms: int, by_time: bool) -> bool:
        return self.by_size or (by_time and self.by_time_ms is not None and now_ms > self.by_time_ms)


NOTHING_EXPIRES = Expiry(False, None)


def next_expiry(disk: Disk, path: str, config: TopicConfig, now_ms: int) -> Expiry:
    """When retention next has something to do in a log, without opening it; blocks, in any thread.

    It reads of an open log what `expired_count` is going to read, so that the loop finds it in memory.
    """
    try:
        names = disk.listdir(path)
    except FileNotFoundError:
        return NOTHING_EXPIRES
    bases = segment_offsets(names)
    if not bases:
        return NOTHING_EXPIRES
    sizes = [disk.size(f"{path}/{segment_name(base, LOG_SUFFIX)}") for base in bases]
    point = checkpoints.load(disk, path)
    deleted = len(bases) > 1 and point is not None and bases[1] <= point.start_offset
    limited = config.deletes and config.retention_bytes != NO_LIMIT
    too_large = len(bases) > 1 and limited and sum(sizes[1:]) >= config.retention_bytes
    by_time_ms = None
    if config.deletes and config.retention_ms != NO_LIMIT:
        for base, size in zip(bases, sizes, strict=True):
            newest_ms = _newest_timestamp(disk, f"{path}/{segment_name(base, '')}", base, size)
            until_ms = (now_ms if newest_ms == NO_TIMESTAMP else newest_ms) + config.retention_ms
            by_time_ms = until_ms if by_time_ms is None else by_time_ms
            if now_ms <= until_ms:
                break
    return Expiry(deleted or too_large, by_time_ms)


def _newest_timestamp(disk: Disk, stem: str, base: int, size: int) -> int:
    """The largest timestamp of a segment, from its index and the few batches past the index's end."""
    index = SegmentIndex(disk, FileCache(2), stem, base)
    index.load(size)
    last = index.last
    newest_ms, position, expected = (
        (NO_TIMESTAMP, 0, base) if last is None else (last.timestamp, last.position, last.offset)
    )
    file = disk.open(stem + LOG_SUFFIX)
    try:
        for _, header in hop(file, position, size, expected):
            newest_ms = max(newest_ms, header.max_timestamp)
    except Damage:
        pass  # what lies before it counts, as in an open log
    finally:
        file.close()
    return newest_ms


def remove(disk: Disk, paths: Iterable[Path]) -> None:
    """Removes renamed segments for good; blocks.

    The renames are made durable first: if some were undone by a power loss while others' files are gone,
    the log would have a hole.
    """
    paths = list(paths)
    for directory in {path.parent for path in paths}:
        if disk.exists(directory):
            disk.sync_directory(directory)
    for path in paths:
        try:
            disk.unlink(path)
        except FileNotFoundError:
            pass  # the topic was deleted meanwhile


def stored_bytes(disk: Disk, path: str) -> int:
    """Bytes in the segments of a log that is not open; blocks."""
    try:
        names = disk.listdir(path)
    except FileNotFoundError:
        return 0
    return sum(disk.size(f"{path}/{name}") for name in names if name.endswith(LOG_SUFFIX))
