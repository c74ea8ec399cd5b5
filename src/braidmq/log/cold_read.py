"""Reading what is not in memory: the blocking part of a read, made to run in a thread.

A log belongs to one thread, and the loop's must not wait for a disk. So a read that would have to raises
`ColdRead` with a job instead. The job runs in any thread and shares nothing with the log but values it was
given: it opens files of its own, and what it reads stays in the page cache. `done` belongs to the log's
thread again; after it, the same read finds what it needs.

    WakeJob    a segment that was not looked into for some time: its index, and the batches near an offset
    CheckJob   bytes that an earlier run wrote: their CRCs, before they are first served
"""

from __future__ import annotations

from enum import Enum, auto
from typing import TYPE_CHECKING, Protocol

from braidmq.log.files import FileCache
from braidmq.log.index import OFFSET_SUFFIX, TIME_SUFFIX, BadIndex, SegmentIndex
from braidmq.log.scan import Damage, check
from braidmq.platform.disk import Disk, DiskFile
from braidmq.wire.records import BatchHeader

if TYPE_CHECKING:
    from braidmq.log.segment import Segment

CHECK_BYTES_MAX = 1024 * 1024
"""Checked at a time while a reader waits; what is good is served, and the rest comes with its next read."""
TOUCH_BYTES = 256 * 1024
HOT_BYTES = 8 * 1024 * 1024
"""The newest bytes of a log that is being written: they are in the page cache."""


class Cold(Enum):
    """What a read does that needs the disk."""

    WAITS = auto()
    """It reads, here and now."""
    RAISES = auto()
    """ColdRead, with the job that reads."""


class ColdJob(Protocol):
    """Blocking work between two tries of a read."""

    @property
    def key(self) -> tuple[int, int]:
        """Equal for jobs of one log that would do the same."""
        ...

    def run(self) -> None:
        """In any thread."""

    def done(self) -> None:
        """In the log's own thread."""


class ColdRead(Exception):
    """A read needs the disk; it can be tried again when the job is done."""

    def __init__(self, job: ColdJob) -> None:
        super().__init__("the disk must be read first")
        self.job = job


class CheckJob:
    """Checks the batches of a segment from `start` until `stop` is reached."""

    __slots__ = ("_damage", "_end", "_error", "_expected", "_next_offset", "_segment", "_start", "_stop")

    def __init__(self, segment: Segment, start: int, stop: int, expected: int | None) -> None:
        self._segment = segment
        self._start = start
        self._stop = stop
        self._expected = expected
        self._end = start
        self._next_offset = expected
        self._damage: Damage | None = None
        self._error: OSError | None = None

    @property
    def key(self) -> tuple[int, int]:
        return self._segment.base_offset, self._start

    def run(self) -> None:
        try:
            file = self._segment.open_apart()
            try:
                self._check(file)
            finally:
                file.close()
        except OSError as error:
            self._error = error

    def _check(self, file: DiskFile) -> None:
        segment = self._segment
        try:
            for at, header in check(file, self._start, segment.untrusted_below, self._expected):
                segment.check_epoch(at, header)
                self._note(at, header)
                if self._end >= self._stop:
                    break
        except Damage as damage:
            self._damage = damage

    def _note(self, at: int, header: BatchHeader) -> None:
        self._end, self._next_offset = at + header.size, header.next_offset

    def done(self) -> None:
        verified = self._segment.verified
        if self._next_offset is not None and self._end > self._start:
            verified.add(self._start, self._end, self._next_offset)
        if self._error is not None:
            verified.unreadable = (self._end, self._error)
        elif self._damage is not None:
            verified.damaged[self._end] = self._damage


class WakeJob:
    """Brings into the page cache what finding an offset in a segment needs."""

    __slots__ = ("_disk", "_offset", "_segment", "_size", "_stem")

    def __init__(self, disk: Disk, segment: Segment, offset: int) -> None:
        self._disk = disk
        self._segment = segment
        self._stem = segment.stem
        self._size = segment.size_bytes
        self._offset = offset

    @property
    def key(self) -> tuple[int, int]:
        return self._segment.base_offset, -1

    def run(self) -> None:
        files = FileCache(2)
        index = SegmentIndex(self._disk, files, self._stem, self._segment.base_offset)
        try:
            # Read first: a page that a map brings in is waited for with the interpreter held.
            for suffix in (OFFSET_SUFFIX, TIME_SUFFIX):
                self._touch(self._stem + suffix)
            index.load(self._size)
            entry = index.floor_offset(self._offset)
            positions = [one.position for one in (entry, index.last) if one is not None] or [0]
            file = self._segment.open_apart()
            try:
                for position in positions:
                    file.read_at(min(TOUCH_BYTES, self._size - position), position)
            finally:
                file.close()
        except (OSError, BadIndex):
            pass  # the read itself meets the same, and says so
        finally:
            index.forget_files()

    def _touch(self, path: str) -> None:
        if not self._disk.exists(path):
            return
        file = self._disk.open(path)
        try:
            position = 0
            while chunk := file.read_at(TOUCH_BYTES, position):
                position += len(chunk)
        finally:
            file.close()

    def done(self) -> None:
        self._segment.resting = False
