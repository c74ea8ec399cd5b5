"""Which old segments may go: by age, by size, by DeleteRecords, by a full disk.

Whole segments go, oldest first. A segment is first renamed to `*.deleted`, which takes it out of the log at
once, and removed later, when nobody can still be sending it. Only segments before the recovery point on
disk may go: recovery then knows that what is missing there was deleted, and that the log ended behind it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from braidmq.config import NO_LIMIT, TopicConfig
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
