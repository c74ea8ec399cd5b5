"""From a time to an offset: the first record not before a timestamp, and the newest record of all.

The time index leads near the right batch; the batch's records, checked and opened, give the exact answer. To
open one may take long, and a log's thread must not wait for a disk. So a lookup is a generator: it looks into
what is in memory, gives away the rest as jobs for any thread (see `cold_read`), and goes on when one is done.
A job reads through a handle of its own, which was opened while the segment was part of the log: should the
segment be deleted or compacted meanwhile, the job still reads what it began with, and the lookup ends with
`SegmentsMoved`.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator

from braidmq.log.cold_read import ColdJob, WakeJob
from braidmq.log.scan import Damage, check_bytes, hop
from braidmq.log.segment import NO_TIMESTAMP, Segment
from braidmq.log.segment_list import SegmentList
from braidmq.platform.disk import Disk, DiskFile
from braidmq.wire.errors import ApiError, ErrorCode
from braidmq.wire.records import BatchHeader, records

Found = tuple[int, int] | None
"""Timestamp and offset of a record; None if there is no such record."""
TimeLookup = Generator[ColdJob, None, Found]


class SegmentsMoved(Exception):
    """What was being looked into is no part of the log any more; the lookup has to be begun again."""


def looked_up(lookup: TimeLookup) -> Found:
    """The answer, with all jobs done here and now."""
    try:
        while True:
            job = next(lookup)
            job.run()
            job.done()
    except StopIteration as ended:
        found: Found = ended.value
        return found


def first_at_or_after(disk: Disk, segments: SegmentList, start_offset: int, timestamp_ms: int) -> TimeLookup:
    """The first record from `start_offset` on that is not before `timestamp_ms`."""
    for segment in tuple(segments):
        yield from _load(disk, segments, segment, start_offset)
        if segment.max_timestamp >= timestamp_ms:
            found = yield from _scan(segments, ScanJob(segment, timestamp_ms, start_offset, _first))
            if found is not None:
                return found
    return None


def newest(disk: Disk, segments: SegmentList, start_offset: int) -> TimeLookup:
    """The record from `start_offset` on with the largest timestamp, the first one that has it."""
    best_ms = NO_TIMESTAMP
    best: Segment | None = None
    for segment in tuple(segments):
        yield from _load(disk, segments, segment, start_offset)
        found_ms = segment.max_timestamp
        if segment.base_offset < start_offset and found_ms > best_ms:
            found = yield from _scan(segments, ScanJob(segment, NO_TIMESTAMP, start_offset, _newest))
            found_ms = NO_TIMESTAMP if found is None else found[0]
        if found_ms > best_ms:
            best_ms, best = found_ms, segment
    if best is None:
        return None
    return (yield from _scan(segments, ScanJob(best, best_ms, start_offset, _first)))


def _load(
    disk: Disk, segments: SegmentList, segment: Segment, start_offset: int
) -> Generator[ColdJob, None, None]:
    """Makes the segment's largest timestamp known."""
    if segment.resting:
        yield WakeJob(disk, segment, start_offset)
    _check_holds(segments, segment)
    segment.load()


def _scan(segments: SegmentList, job: ScanJob) -> Generator[ColdJob, None, Found]:
    try:
        yield job
    finally:
        job.close()  # it may never have run
    _check_holds(segments, job.segment)
    return job.result()


def _check_holds(segments: SegmentList, segment: Segment) -> None:
    if not segments.holds((segment,)):
        raise SegmentsMoved(f"segment {segment.name} is gone")


class ScanJob:
    """Opens the batches of a segment that reach a time and an offset, until the record is chosen."""

    __slots__ = (
        "_choose", "_closed", "_end", "_error", "_expected", "_file", "_found", "_position",
        "_start_offset", "_timestamp_ms", "_trusted", "segment",
    )  # fmt: skip

    def __init__(
        self,
        segment: Segment,
        timestamp_ms: int,
        start_offset: int,
        choose: Callable[[Iterator[tuple[int, int]], int], Found],
    ) -> None:
        self.segment = segment
        self._timestamp_ms = timestamp_ms
        self._start_offset = start_offset
        self._choose = choose
        self._position, self._expected = segment.place_since(timestamp_ms, start_offset)
        self._end = segment.size_bytes
        # A rotten timestamp must not send a reader to the wrong place, so what is not trusted is checked.
        self._trusted = self._position >= segment.untrusted_below
        self._file: DiskFile = segment.open_apart()
        self._closed = False
        self._found: Found = None
        self._error: Damage | OSError | None = None

    @property
    def key(self) -> tuple[int, int]:
        return self.segment.base_offset, self._position

    def run(self) -> None:
        try:
            self._found = self._choose(self._times(), self._timestamp_ms)
        except (Damage, OSError) as error:
            self._error = error
        finally:
            self.close()

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._file.close()

    def done(self) -> None:
        """The outcome is for the one who asked."""

    def result(self) -> Found:
        """ApiError if the segment is damaged or cannot be read."""
        if isinstance(self._error, Damage):
            raise self.segment.corrupt(self._error) from self._error
        if self._error is not None:
            raise ApiError(
                ErrorCode.KAFKA_STORAGE_ERROR, f"segment {self.segment.name}: {self._error}"
            ) from self._error
        return self._found

    def _times(self) -> Iterator[tuple[int, int]]:
        """Timestamps and offsets of records.

        The broker does not look into a compressed batch when it takes it. One that cannot be opened stands
        for its first record, with its newest timestamp: a read from there finds it, and the others after it.
        """
        for header, batch in self._batches():
            try:
                for record in records(batch):
                    if record.offset >= self._start_offset:
                        yield record.timestamp, record.offset
            except ApiError:
                if header.base_offset >= self._start_offset:
                    yield header.max_timestamp, header.base_offset

    def _batches(self) -> Iterator[tuple[BatchHeader, memoryview | bytes]]:
        if not self._trusted:
            for _, header, batch in check_bytes(self._file, self._position, self._end, self._expected):
                if self._reaches(header):
                    yield header, batch
            return
        for at, header in hop(self._file, self._position, self._end, self._expected):
            if self._reaches(header):
                yield header, self._file.read_at(header.size, at)

    def _reaches(self, header: BatchHeader) -> bool:
        return header.max_timestamp >= self._timestamp_ms and header.last_offset >= self._start_offset


def _first(times: Iterator[tuple[int, int]], timestamp_ms: int) -> Found:
    return next((one for one in times if one[0] >= timestamp_ms), None)


def _newest(times: Iterator[tuple[int, int]], _: int) -> Found:
    return max(times, key=lambda one: one[0], default=None)
