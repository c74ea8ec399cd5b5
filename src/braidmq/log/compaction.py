"""Compaction: of every key the newest record stays, the others go (cleanup.policy=compact).

    begin (loop)   ended segments, and how much of them no round has looked at yet: worth it?
    run (thread)   first the newest offset of every key in that part; then segments from the oldest on,
                   rewritten with what stays, small ones together, into one file after the other
    done (loop)    the file takes the place of its segments; readers with a slice of the old ones keep them

`run` and `done` follow each other until the job has `ended`. Memory is bounded by the map of keys: when they
do not fit, the round ends where the map was full, and the next one continues there. Bytes are read with their
CRCs checked, so that damage is reported and not sealed with a new CRC. How the files change places and what
a crash leaves is described in `segment_swap`, what happens to a batch in `cleaner`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

from braidmq.config import INT64_MAX, TopicConfig
from braidmq.log import compaction_progress
from braidmq.log.aborted_transactions import AbortedRanges
from braidmq.log.cleaner import BatchCleaner, CleaningSurvey, Fate, opened, without_gaps
from braidmq.log.files import FileCache
from braidmq.log.index import RELATIVE_OFFSET_MAX, SegmentIndex
from braidmq.log.key_map import KeyMap
from braidmq.log.log import Log
from braidmq.log.scan import Damage, check_bytes, hop
from braidmq.log.segment import LOG_SUFFIX, NO_TIMESTAMP, Segment
from braidmq.log.segment_swap import Swap
from braidmq.platform.disk import Disk, DiskFile
from braidmq.wire.errors import ApiError
from braidmq.wire.records import HEADER_BYTES, BatchHeader, parse_header

WRITE_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True)
class CompactionLimits:
    """When a log is compacted, and what that may cost."""

    dirty_ratio_min: float = 0.5
    """Share of bytes never compacted that makes a round worth it (min.cleanable.dirty.ratio)."""
    lag_min_ms: int = 0
    """Segments with younger records are left alone (min.compaction.lag.ms)."""
    lag_max_ms: int = INT64_MAX
    """Older records make a round worth it by themselves (max.compaction.lag.ms)."""
    map_bytes_max: int = 32 * 1024 * 1024
    """Memory for keys; a million distinct ones in a round fit the default."""


class SourceSegment(NamedTuple):
    """An ended segment as it was when the job began."""

    segment: Segment
    path: str
    base_offset: int
    end_offset: int
    size_bytes: int


class Compactor:
    """Compacts one log, round by round; lives as long as the log does."""

    __slots__ = ("_busy", "_disk", "_limits", "_log", "_path", "_pause", "failed")

    def __init__(
        self,
        log: Log,
        disk: Disk,
        path: str,
        limits: CompactionLimits,
        pause: Callable[[], None] | None = None,
    ) -> None:
        self._log = log
        self._disk = disk
        self._path = path
        self._limits = limits
        self._pause = pause or _no_pause
        """Called by the thread after every batch, to let the loop have the interpreter."""
        self._busy = False
        self.failed: Exception | None = None
        """Why no round begins until the log is opened again: the disk refused to finish a swap."""

    @property
    def cleaned_offset(self) -> int:
        """Before it every record was compacted at least once."""
        return self._log.compacted_offset

    def begin(self, now_ms: int, limit_offset: int, config: TopicConfig) -> CompactionJob | None:
        """A job for what is below `limit_offset` (the last stable offset); None if it is not worth it."""
        if self._busy or self.failed is not None:
            return None
        sources = [
            SourceSegment(segment, segment.path, segment.base_offset, end_offset, segment.size_bytes)
            for segment, end_offset in self._log.ended_segments(limit_offset)
        ]
        if self._limits.lag_min_ms:
            sources = _older(sources, now_ms - self._limits.lag_min_ms)
        if not self._worth_it(sources, now_ms):
            return None
        self._busy = True
        sequences = frozenset(one.batches[-1].last_offset for one in self._log.producers if one.batches)
        transactions = self._log.producers.transactions
        aborted = b"" if transactions is None else transactions.aborted.packed()
        task = CompactionTask(
            sources, self.cleaned_offset, aborted, sequences, now_ms, config,
            KeyMap.keys_in(self._limits.map_bytes_max),
        )  # fmt: skip
        return CompactionJob(self._disk, self._path, task, self._pause)

    def _worth_it(self, sources: list[SourceSegment], now_ms: int) -> bool:
        """Whether enough of it was never looked at, or has not been for too long."""
        dirty = [one for one in sources if one.end_offset > self.cleaned_offset]
        if not dirty:
            return False
        dirty_bytes = sum(one.size_bytes for one in dirty)
        if dirty_bytes >= self._limits.dirty_ratio_min * sum(one.size_bytes for one in sources):
            return True
        if self._limits.lag_max_ms == INT64_MAX:
            return False
        first = parse_header(dirty[0].segment.read(0, HEADER_BYTES))
        return first.base_timestamp < now_ms - self._limits.lag_max_ms

    def done(self, job: CompactionJob) -> None:
        """After each `run`: swaps the file it has written, if any, and takes note of the end."""
        if job.error is None and job.prepared is not None:
            try:
                job.replaced = self._replace(job.prepared)
            except OSError as error:
                job.error = self.failed = error
        if job.error is not None:
            job.ended = True
            if job.replaced:
                self.failed = job.error
        if job.ended:
            self._busy = False
            if job.error is None and job.cleaned_offset is not None:
                self._log.compacted_offset = min(job.cleaned_offset, self._log.end_offset)
                self._log.producers.drop_aborted(job.cleaned_offset)

    def _replace(self, prepared: Prepared) -> bool:
        """False if the segments were deleted or cut off meanwhile, so that the new file is out of date."""
        if any(source.segment.size_bytes != source.size_bytes for source in prepared.sources):
            return False
        segments = [source.segment for source in prepared.sources]
        replaced = self._log.replace_segments(segments, prepared.swap, prepared.size_bytes)
        if replaced:
            # Rounds go from the oldest segment on, so nothing is left of what was aborted before here.
            self._log.producers.drop_aborted(prepared.cleaned_offset)
        return replaced


def compact(
    compactor: Compactor, now_ms: int, limit_offset: int, config: TopicConfig
) -> CompactionJob | None:
    """One whole round in the calling thread; None if there was nothing worth doing."""
    job = compactor.begin(now_ms, limit_offset, config)
    while job is not None and not job.ended:
        try:
            job.run()
        finally:
            compactor.done(job)
    return job


class CompactionTask(NamedTuple):
    """What a job is to do."""

    sources: list[SourceSegment]
    first_dirty_offset: int
    aborted: bytes
    """All transactions that the log knows to be aborted, packed."""
    sequences: frozenset[int]
    now_ms: int
    config: TopicConfig
    keys_max: int


class Prepared(NamedTuple):
    """A written file that waits to take the place of segments."""

    swap: Swap
    sources: list[SourceSegment]
    size_bytes: int
    cleaned_offset: int
    """Before it everything is clean once the file is in place."""


class CompactionJob:
    """A round over one log. `run` may happen in any thread; everything else on the log's own."""

    def __init__(self, disk: Disk, path: str, task: CompactionTask, pause: Callable[[], None]) -> None:
        self._disk = disk
        self._path = path
        self._task = task
        self._pause = pause
        self._waiting = list(task.sources)
        self._survey: CleaningSurvey | None = None
        self._cleaner: BatchCleaner | None = None
        self.prepared: Prepared | None = None
        self.replaced = False
        self.ended = False
        self.error: Exception | None = None
        self.cleaned_offset: int | None = None
        """Before it everything is compacted, once the job has ended well."""
        self.bytes_before = sum(source.size_bytes for source in task.sources)
        self.bytes_after = 0

    def run(self) -> None:
        """Finishes the swap before and prepares the next; blocks.

        OSError, or ApiError CORRUPT_MESSAGE if a batch is damaged: the job has ended, the log is as it was.
        """
        try:
            self._run()
        except (OSError, ApiError) as error:
            self.error = error
            raise

    def _run(self) -> None:
        if self.prepared is not None and not self._conclude(self.prepared):
            return
        if self._survey is None:
            self._survey = self._look()
            self._cleaner = BatchCleaner(
                self._survey, self._task.now_ms, self._task.config.delete_retention_ms
            )
        while self._waiting and self._waiting[0].base_offset < self._survey.end_offset:
            self.prepared = self._prepare(self._cleaner)
            if self.prepared is not None:
                return
        self.bytes_after += sum(source.size_bytes for source in self._waiting)
        self.cleaned_offset = self._survey.end_offset
        compaction_progress.write(self._disk, self._path, self.cleaned_offset)
        self.ended = True

    def _conclude(self, prepared: Prepared) -> bool:
        """Brings the swap before to its end; False if its segments had gone, so that the job ends here."""
        if not self.replaced:
            prepared.swap.undo()
            self.prepared = None
            self.ended = True
            return False
        prepared.swap.finish([source.base_offset for source in prepared.sources])
        self.prepared, self.replaced = None, False
        return True

    # -- looking --------------------------------------------------------------------------------

    def _look(self) -> CleaningSurvey:
        """Finds the newest offset of every key in the dirty part, as far as the memory for keys goes."""
        dirty_records = batch_records_max = 0
        for source in self._task.sources:
            with _open(self._disk, source) as file:
                for _, header in hop(file, 0, source.size_bytes, source.base_offset):
                    if header.next_offset > self._task.first_dirty_offset:
                        dirty_records += header.record_count
                        batch_records_max = max(batch_records_max, header.record_count)
        # One batch must fit in any case, or no round would ever get past it.
        newest = KeyMap(max(min(self._task.keys_max, dirty_records), batch_records_max, 1))
        survey = CleaningSurvey(
            newest,
            self._task.sources[-1].end_offset,
            self._task.first_dirty_offset,
            AbortedRanges(self._task.aborted),
            self._task.sequences,
        )
        for source in self._task.sources:
            if source.end_offset <= self._task.first_dirty_offset:
                continue
            full_at = self._collect(source, survey)
            if full_at is not None:
                survey.end_offset = full_at
                break
        return survey

    def _collect(self, source: SourceSegment, survey: CleaningSurvey) -> int | None:
        """Notes the keys of a segment; the offset of the batch at which the map was full, if it was."""
        for header, batch in self._batches(source):
            dirty = header.next_offset > self._task.first_dirty_offset
            if not dirty or header.is_control or survey.is_aborted(header):
                continue
            for record in opened(batch) or ():
                if record.key is not None and not survey.newest.put(record.key, record.offset):
                    return header.base_offset
        return None

    def _batches(self, source: SourceSegment) -> Iterator[tuple[BatchHeader, memoryview]]:
        """The batches of a segment, every CRC checked, from its first offset to its last."""
        expected = source.base_offset
        with _open(self._disk, source) as file:
            for _, header, batch in check_bytes(file, 0, source.size_bytes, source.base_offset):
                yield header, batch
                expected = header.next_offset
                self._pause()
            if expected != source.end_offset:
                raise Damage(source.size_bytes, f"the segment ends before offset {source.end_offset}")

    # -- rewriting ------------------------------------------------------------------------------

    def _prepare(self, cleaner: BatchCleaner | None) -> Prepared | None:
        """Writes what stays of the next segments into one file; None if all of a segment does."""
        assert cleaner is not None, "segments are cleaned after they were surveyed"
        first = self._waiting[0]
        swap = Swap(self._disk, self._path, first.base_offset, first.end_offset)
        swap.undo()
        group: list[SourceSegment] = []
        out = CompactedFile(
            self._disk, swap.cleaned_stem, first.base_offset, self._task.config.index_interval_bytes
        )
        try:
            changed = self._write_group(cleaner, out, group)
            self.bytes_after += out.size_bytes
            swap.end_offset = group[-1].end_offset
            if not changed and len(group) == 1:
                out.close()
                swap.undo()
                return None
            out.finish()
            swap.announce()
        except BaseException:
            out.close()
            swap.undo()
            raise
        assert self._survey is not None, "segments are cleaned after they were surveyed"
        return Prepared(swap, group, out.size_bytes, min(swap.end_offset, self._survey.end_offset))

    def _write_group(self, cleaner: BatchCleaner, out: CompactedFile, group: list[SourceSegment]) -> bool:
        """Takes segments for one file, whether anything of them changed.

        The next one is taken while the file could hold it even if all of it stays.
        """
        changed = False

        def cleaned() -> Iterator[tuple[BatchHeader, Fate, memoryview | bytearray]]:
            nonlocal changed
            while self._waiting and self._fits(out, group):
                source = self._waiting.pop(0)
                group.append(source)
                for header, batch in self._batches(source):
                    fate, content = cleaner.clean(header, batch)
                    changed |= fate is not Fate.KEPT and not _is_gap(header)
                    yield header, fate, content

        for content in without_gaps(cleaned()):
            out.append(content)
        return changed

    def _fits(self, out: CompactedFile, group: list[SourceSegment]) -> bool:
        if not group:
            return True
        following = self._waiting[0]
        assert self._survey is not None, "segments are cleaned after they were surveyed"
        return (
            out.size_bytes + following.size_bytes <= self._task.config.segment_bytes
            and following.end_offset - group[0].base_offset <= RELATIVE_OFFSET_MAX
            and following.base_offset < self._survey.end_offset
        )


class CompactedFile:
    """A segment file that is being written, with its index."""

    __slots__ = (
        "_buffer",
        "_file",
        "_index",
        "_indexed_at",
        "_interval_bytes",
        "_last",
        "_max_timestamp",
        "size_bytes",
    )

    def __init__(self, disk: Disk, stem: str, base_offset: int, interval_bytes: int) -> None:
        self._file = disk.open(stem + LOG_SUFFIX, create=True)
        # The index is only written here, so that its cache of open files stays empty.
        self._index = SegmentIndex(disk, FileCache(1), stem, base_offset)
        self._interval_bytes = interval_bytes
        self._indexed_at = 0
        self._max_timestamp = NO_TIMESTAMP
        self._last: tuple[int, int] | None = None
        self._buffer = bytearray()
        self.size_bytes = 0

    def append(self, batch: memoryview | bytearray) -> None:
        header = parse_header(batch)
        self._max_timestamp = max(self._max_timestamp, header.max_timestamp)
        self._last = header.base_offset, self.size_bytes
        if self.size_bytes - self._indexed_at > self._interval_bytes:
            self._add_entry()
        self._buffer += batch
        self.size_bytes += header.size
        if len(self._buffer) >= WRITE_BYTES:
            self._write()

    def finish(self) -> None:
        """Makes the content durable, names apart; blocks."""
        if self._last is not None and (self._index.last is None or self._index.last.offset != self._last[0]):
            self._add_entry()
        self._index.write_out()
        self._write()
        self._file.fdatasync()
        self.close()

    def close(self) -> None:
        self._file.close()

    def _add_entry(self) -> None:
        assert self._last is not None, "an entry is of a batch"
        offset, position = self._last
        self._index.add(offset, position, self._max_timestamp)
        self._indexed_at = position

    def _write(self) -> None:
        self._file.write(self._buffer)
        self._buffer = bytearray()


@contextmanager
def _open(disk: Disk, source: SourceSegment) -> Iterator[DiskFile]:
    """A segment's file; ApiError CORRUPT_MESSAGE if what is in it turns out to be damaged."""
    file = disk.open(source.path)
    try:
        yield file
    except Damage as damage:
        raise source.segment.corrupt(damage) from damage
    finally:
        file.close()


def _is_gap(header: BatchHeader) -> bool:
    return header.record_count == 0 and header.producer_id < 0


def _older(sources: list[SourceSegment], newest_ms: int) -> list[SourceSegment]:
    """The segments before the first that holds a record younger than `newest_ms`."""
    for number, source in enumerate(sources):
        source.segment.load()
        if source.segment.max_timestamp > newest_ms:
            return sources[:number]
    return sources


def _no_pause() -> None:
    return None
