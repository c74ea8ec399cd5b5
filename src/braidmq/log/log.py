"""A partition's log: batches in, slices of files out, nothing else.

    append   producer check → offset stamped in place → one write at the end of the last segment
    read     offset → segment → position, from memory at the tail, else through the sparse index → FileSlice
    flush    begin (loop) → run (any thread: fdatasync) → done (loop): durable_offset moves
    checkpoint   the same three steps, for the recovery point and the producers

A log belongs to one thread; only the `run` of a job may happen elsewhere. What is below `durable_offset`
survives a power loss. After an fdatasync that failed the log is `failed`: it takes no more appends, serves
what was durable before, and a restart must decide what the disk holds.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from braidmq.config import TimestampType, TopicConfig
from braidmq.log import compaction_progress, time_lookup
from braidmq.log.append_result import AppendResult
from braidmq.log.checkpoint import Checkpoint, CheckpointFile, CheckpointJob
from braidmq.log.cold_read import HOT_BYTES, Cold, ColdRead, WakeJob
from braidmq.log.epochs import UNDEFINED
from braidmq.log.files import FileCache, FileSlice
from braidmq.log.flush import FlushJob, make_directory, sync_ancestors
from braidmq.log.index import RELATIVE_OFFSET_MAX
from braidmq.log.producer_state import ProducerLimits
from braidmq.log.recovery import Recovered, Recovery, cut_producers, new_directory
from braidmq.log.retention import expired_count, remove
from braidmq.log.segment import Segment
from braidmq.log.segment_list import SegmentList
from braidmq.log.segment_swap import Swap
from braidmq.log.transactions import EndMarker, Guard, end_marker
from braidmq.platform.clock import Clock
from braidmq.platform.disk import NO_FILES, NO_ROOM, Disk
from braidmq.wire.errors import ApiError, ErrorCode
from braidmq.wire.records import BatchHeader, parse_header, stamp

__all__ = ["CheckpointJob", "FlushJob", "Log", "ProducerLimits"]


class Log:
    """One partition's log."""

    __slots__ = (
        "_active", "_checkpoint_file", "_clock", "_config", "_directory", "_dirty", "_disk",
        "_durable_position", "_durable_segment", "_epoch", "_flushing", "_path", "_segments",
        "_stamps_append_time", "_unsynced_directories", "compacted_offset", "durable_offset", "end_offset",
        "failed", "notes", "producers", "roll_at_ms", "size_bytes", "start_offset", "unflushed_since_ms",
    )  # fmt: skip

    def __init__(self, config: TopicConfig, clock: Clock, recovered: Recovered) -> None:
        self._directory = recovered.directory
        self._disk = recovered.directory.disk
        self._path = recovered.directory.path
        self._clock = clock
        self._segments = SegmentList(recovered.segments)
        self._active = recovered.segments[-1]
        self._epoch = recovered.directory.epochs.latest
        self.producers = recovered.producers
        """The producers this partition remembers, and their transactions."""
        self._checkpoint_file = CheckpointFile(self._disk, self._path, recovered.checkpoint)
        self._dirty: list[Segment] = []
        self._flushing: FlushJob | None = None
        self._unsynced_directories: list[str] = []
        self._durable_segment = self._active
        self._durable_position = self._active.size_bytes
        self.start_offset = recovered.start_offset
        self.end_offset = recovered.end_offset
        self.durable_offset = recovered.end_offset
        """Everything below survives a power loss."""
        self.compacted_offset = recovered.compacted_offset
        """Before it every record was compacted at least once."""
        self.size_bytes = self._segments.size_bytes
        self.failed: Exception | None = None
        """Why the log takes no more records, if so."""
        self.unflushed_since_ms: int | None = None
        """Wall time of the oldest append that is not durable yet."""
        self.notes = recovered.notes
        """What recovery had to cut off or rebuild, for people."""
        self.reconfigure(config)

    @classmethod
    def open(
        cls,
        disk: Disk,
        path: Path,
        config: TopicConfig,
        clock: Clock,
        files: FileCache,
        producers: ProducerLimits,
    ) -> Log:
        """Opens or recovers the log in `path`; may run in any thread. Its first batch makes the directory."""
        directory = new_directory(disk, files, str(path), config.index_interval_bytes)
        recovered = Recovery(directory, clock, producers).run()
        log = cls(config, clock, recovered)
        if recovered.checkpoint is None and log.end_offset:
            sync_ancestors(disk, path)
        if recovered.must_checkpoint:
            log._checkpoint_now()
        if recovered.deleted:
            # Once the checkpoint tells a deletion from a loss; on a full disk, all the same.
            with suppress(ApiError):
                log._checkpoint_now()
            remove(disk, [path / name for name in recovered.deleted])
        return log

    def reconfigure(self, config: TopicConfig) -> None:
        """Takes new options; they hold from the next append, roll or expiry on."""
        self._config = config
        self._directory.interval_bytes = config.index_interval_bytes
        self.roll_at_ms = self._active.created_ms + config.segment_age_max_ms
        self._stamps_append_time = config.message_timestamp_type == TimestampType.APPEND

    # -- writing --------------------------------------------------------------------------------

    def append(
        self, batch: memoryview, header: BatchHeader, leader_epoch: int = 0, guard: Guard | None = None
    ) -> AppendResult:
        """Appends one checked batch, stamping its offset and epoch in place.

        A repeated batch of an idempotent producer is not written again; the answer says where it is. ApiError
        if the producer's sequence is wrong, if a batch would begin a transaction without a `guard` that still
        holds, or if the disk refuses: then nothing of the batch remains.
        """
        if header.producer_id >= 0 and (kept := self.producers.check(header, guard)) is not None:
            return AppendResult(kept.base_offset, kept.append_time_ms, True)
        now_ms = self._clock.wall_ms()
        base_offset = self._write(batch, header, leader_epoch, now_ms)
        append_time_ms = header.max_timestamp if self._stamps_append_time else -1
        if header.producer_id >= 0:
            self.producers.record(header, base_offset, now_ms, append_time_ms)
        return AppendResult(base_offset, append_time_ms, False)

    def append_marker(self, marker: EndMarker, leader_epoch: int = 0) -> int:
        """Appends the control batch that ends a transaction here; its offset."""
        now_ms = self._clock.wall_ms()
        batch = memoryview(end_marker(marker, now_ms))
        offset = self._write(batch, parse_header(batch), leader_epoch, now_ms)
        self.producers.end(marker, offset, now_ms)
        return offset

    def _write(self, batch: memoryview, header: BatchHeader, leader_epoch: int, now_ms: int) -> int:
        """Puts a batch at the end; its base offset. ApiError if the disk refuses."""
        if self.failed is not None:
            raise self._refusal(self.failed)
        if leader_epoch != self._epoch:
            self._begin_epoch(leader_epoch)
        size = len(batch)
        base_offset = self.end_offset
        end_offset = base_offset + header.last_offset_delta + 1
        segment = self._active
        if (
            segment.size_bytes + size > self._config.segment_bytes
            or now_ms >= self.roll_at_ms
            or end_offset - segment.base_offset > RELATIVE_OFFSET_MAX
        ):
            segment = self.roll(now_ms)
        stamp(batch, base_offset, leader_epoch)
        try:
            if not segment.dirty:
                self._soil(segment)
            segment.append(batch, base_offset, header.max_timestamp)
        except OSError as error:
            raise self._undo_append(segment, error) from error
        self.end_offset = end_offset
        self.size_bytes += size
        if self.unflushed_since_ms is None:
            self.unflushed_since_ms = now_ms
        return base_offset

    def _soil(self, segment: Segment) -> None:
        segment.dirty = True
        self._dirty.append(segment)
        if not segment.exists:
            make_directory(self._disk, self._path, self._unsynced_directories)

    def _undo_append(self, segment: Segment, error: OSError) -> ApiError:
        try:
            segment.undo()
        except OSError as second:
            self.fail(second)
        if not segment.exists:
            segment.dirty = False
            self._dirty.remove(segment)
        if error.errno not in NO_ROOM:
            self.fail(error)
        return self._refusal(error)

    def _refusal(self, error: Exception) -> ApiError:
        what = "nothing was stored" if self.failed is None else "the log has failed and takes no more records"
        return ApiError(ErrorCode.KAFKA_STORAGE_ERROR, f"{self._path}: {what}: {error}")

    def roll(self, now_ms: int) -> Segment:
        """Begins the next segment; nothing is synced here, the flush job takes every dirty segment."""
        if self._active.size_bytes:
            self._active.seal()
            self._active = Segment(self._directory, self.end_offset, now_ms)
            self._segments.append(self._active)
            if self.durable_offset == self.end_offset:
                self._durable_segment, self._durable_position = self._active, 0
        self._active.created_ms = now_ms
        self.roll_at_ms = now_ms + self._config.segment_age_max_ms
        return self._active

    def _begin_epoch(self, leader_epoch: int) -> None:
        # A checkpoint that fails may be on disk all the same: then even the epoch before is written again.
        self._epoch = UNDEFINED
        self._directory.begin_epoch(leader_epoch, self.end_offset, self._checkpoint_now)
        self._epoch = leader_epoch

    # -- reading --------------------------------------------------------------------------------

    def read(
        self, offset: int, max_bytes: int, limit_offset: int, cold: Cold = Cold.WAITS
    ) -> FileSlice | None:
        """Batches from the one that holds `offset` on, all below `limit_offset`; None if there are none yet.

        At least one whole batch, even if larger than `max_bytes`; the last one may be cut. ApiError
        OFFSET_OUT_OF_RANGE outside of the log, CORRUPT_MESSAGE when the disk does not hold what was written
        at `offset`; sound batches before damage are given.
        """
        if offset < self.start_offset or offset > self.end_offset:
            raise self._out_of_range(offset)
        if self.failed is not None and limit_offset > self.durable_offset:
            limit_offset = self.durable_offset
        if offset >= limit_offset:
            return None
        segment = self._active
        if offset < segment.base_offset:
            segment = self._segments[self._segments.number_of(offset)]
            segment.used = True
        if segment.resting and cold is Cold.RAISES:
            raise ColdRead(WakeJob(self._disk, segment, offset))
        found = segment.locate(offset)
        if found is None:
            self._segments.check_reaches(segment, offset)
            return None
        position, size = found
        left = self._limit_position(segment, limit_offset) - position
        if size > left:
            return None
        if size < max_bytes:
            size = max_bytes if max_bytes < left else left
        if position < segment.untrusted_below:
            size = segment.verify(position, size, cold)
        file = segment.open()
        file.used = True
        hot = segment is self._active and segment.size_bytes - position <= HOT_BYTES
        return FileSlice(file, position, size, hot)

    @property
    def files(self) -> FileCache:
        return self._directory.files

    def rest(self) -> None:
        """Called now and then: what was not read since the last time is taken for cold."""
        for segment in self._segments[:-1]:
            segment.resting, segment.used = not segment.used, False

    def offset_after(self, offset: int, found: FileSlice) -> int | None:
        """An offset not before the end of what `read(offset)` found; None if only the log's end is known."""
        segment = self._segments[self._segments.number_of(offset)]
        return segment.offset_after(found.position + found.size) if segment.is_in(found.file) else None

    def _limit_position(self, segment: Segment, limit_offset: int) -> int:
        """The byte of `segment` at which `limit_offset` begins; its end if that is later."""
        if limit_offset == self.durable_offset and segment is self._durable_segment:
            return self._durable_position
        if limit_offset >= self.end_offset:
            return segment.size_bytes
        return self._segments.position_of(limit_offset, segment)

    def _out_of_range(self, offset: int) -> ApiError:
        return ApiError(
            ErrorCode.OFFSET_OUT_OF_RANGE,
            f"{self._path}: offset {offset} is outside {self.start_offset} to {self.end_offset}",
        )

    def end_offset_for_epoch(self, epoch: int) -> tuple[int, int]:
        """The largest epoch not above `epoch`, and the offset where it ended; (-1, -1) if unknown."""
        return self._directory.epochs.end_offset(epoch, self.end_offset)

    def offset_for_time(self, timestamp_ms: int) -> tuple[int, int] | None:
        """Timestamp and offset of the first record not before `timestamp_ms`; None if all are."""
        return time_lookup.first_at_or_after(self._segments, self.start_offset, timestamp_ms)

    def max_timestamp(self) -> tuple[int, int] | None:
        """The largest timestamp in the log and the first offset that has it; None if the log is empty."""
        return time_lookup.newest(self._segments, self.start_offset)

    # -- durability -----------------------------------------------------------------------------

    @property
    def unflushed_records(self) -> int:
        return self.end_offset - self.durable_offset

    @property
    def has_unflushed_ended_segment(self) -> bool:
        """Whether recovery would have to check more than the last segment."""
        return bool(self._dirty) and self._dirty[0] is not self._active

    def flush_begin(self) -> FlushJob | None:
        """A job that makes all durable; None if it is, or while one is under way. NO_FILES: ask again."""
        if self._flushing is not None or not self._dirty or self.failed is not None:
            return None
        try:
            job = FlushJob(self._disk, self._path, self._dirty, self._unsynced_directories, self.end_offset)
        except OSError as error:
            if error.errno in NO_FILES:
                raise
            self.fail(error)
            return None
        job.begun_ms = self._clock.wall_ms()
        for segment in self._dirty:
            segment.dirty = False
        self._dirty, self._unsynced_directories = [], []
        self._flushing = job
        return job

    def flush_done(self, job: FlushJob) -> None:
        """Takes note of a job that has run; if it failed, the log has."""
        self._flushing = None
        job.release()
        if job.error is not None:
            self.fail(job.error)
        if self.failed is not None:
            return
        self.durable_offset = job.end_offset
        self.producers.settle(job.end_offset)
        self._durable_segment = job.segment
        self._durable_position = job.position
        self.unflushed_since_ms = job.begun_ms if self.end_offset > job.end_offset else None

    def fail(self, error: Exception) -> None:
        """Stops appends for good; what was durable stays readable."""
        if self.failed is None:
            self.failed = error

    def checkpoint_begin(self) -> CheckpointJob | None:
        """A job that writes recovery point, start offset, epochs and producers; None if they are on disk."""
        untouched = self._checkpoint_file.written is None and not self._directory.epochs.latest
        if self.failed is not None or (untouched and not self.end_offset):
            return None
        self.producers.expire(self._clock.wall_ms())
        self._active.index.write_out()
        checkpoint = Checkpoint(
            recovery_offset=self.durable_offset,
            segment_offset=self._durable_segment.base_offset,
            position=self._durable_position,
            start_offset=self.start_offset,
            epochs=tuple(self._directory.epochs.entries()),
            segment_created_ms=self._durable_segment.created_ms,
        )
        return self._checkpoint_file.begin(checkpoint, self.producers, tuple(self._unsynced_directories))

    def checkpoint_done(self, job: CheckpointJob) -> None:
        """Takes note of a job that has run; one that failed is made up for by the next."""
        self._checkpoint_file.done(job)
        if (written := self._checkpoint_file.written) is not None:
            # Only now: a start offset that a crash takes back must not bring aborted records with it.
            self.producers.drop_aborted(written.start_offset)

    def _checkpoint_now(self) -> None:
        try:
            if self._checkpoint_file.written is None and self._directory.epochs.latest:
                make_directory(self._disk, self._path, self._unsynced_directories)
            if (job := self.checkpoint_begin()) is not None:
                try:
                    job.run()
                finally:
                    self.checkpoint_done(job)
        except OSError as error:
            raise self._refusal(error) from error

    # -- the old end ----------------------------------------------------------------------------

    def delete_before(self, offset: int) -> None:
        """Hides the records before `offset`; durable with the next checkpoint; files go at an expiry."""
        if offset > self.end_offset or offset < 0:
            raise self._out_of_range(offset)
        self._begin_at(offset)

    def _begin_at(self, offset: int) -> None:
        if offset > self.start_offset:
            self.start_offset = offset
            self.producers.begin_at(offset)

    def expire(self, now_ms: int, by_time: bool) -> list[Path]:
        """Takes segments past retention out of the log; their files, for `retention.remove` some time later.

        `by_time` says whether retention.ms counts this time. An expired last segment is ended, and goes when
        the recovery point has passed it.
        """
        if self.failed is not None:
            return []
        count = expired_count(self._segments, self._config, self.start_offset, now_ms, by_time)
        if count == len(self._segments):
            self.roll(now_ms)
        return self._drop_segments(min(count, len(self._segments) - 1))

    def drop_oldest(self) -> list[Path]:
        """Takes the oldest segment, but never the one being written, out of the log: the disk is full."""
        return [] if self.failed is not None else self._drop_segments(min(1, len(self._segments) - 1))

    def ended_segments(self, limit_offset: int) -> list[tuple[Segment, int]]:
        """Segments before `limit_offset` and the recovery point on disk, each with the offset after it."""
        written = self._checkpoint_file.written
        if written is None or self.failed is not None:
            return []
        return self._segments.ended(min(written.segment_offset, limit_offset))

    def replace_segments(self, replaced: Sequence[Segment], swap: Swap, size_bytes: int) -> bool:
        """Puts a compacted file in the place of segments; False if one of them is gone by now.

        Slices of the old files stay readable until they are released.
        """
        if not self._segments.holds(replaced):
            return False
        for segment in replaced:
            segment.forget_files()
        swap.rename()
        self._segments.replace(replaced, size_bytes)
        self.size_bytes = self._segments.size_bytes
        return True

    def _drop_segments(self, count: int) -> list[Path]:
        written = self._checkpoint_file.written
        paths = self._segments.drop_first(count, written.recovery_offset if written is not None else 0)
        self.size_bytes = self._segments.size_bytes
        self._begin_at(self._segments[0].base_offset)
        return paths

    # -- the rest of its life -------------------------------------------------------------------

    def truncate_to(self, offset: int) -> None:
        """Cuts off the batch that holds `offset` and all after it, as a follower must; blocks.

        If the disk refuses, the log has failed: its files may hold more than it says.
        """
        if self.failed is not None:
            raise self._refusal(self.failed)
        if offset >= self.end_offset:
            return
        segment, position, end_offset = self._segments.batch_of(max(offset, self.start_offset))
        self._forget_from(end_offset, segment, position)
        try:
            # First the recovery point: what is written after it has to be checked after a crash.
            self._checkpoint_now()
            if end_offset < self.compacted_offset:
                self.compacted_offset = end_offset
                compaction_progress.write(self._disk, self._path, end_offset)
            self._segments.unlink_after(self._segments.number_of(segment.base_offset))
            segment.truncate(position)
            self._disk.sync_directory(self._path)
        except (OSError, ApiError) as error:
            self.fail(error)
            raise self._refusal(error) from error
        self._active = segment
        self.roll_at_ms = segment.created_ms + self._config.segment_age_max_ms
        self._dirty = [dirty for dirty in self._dirty if dirty in self._segments]
        self.size_bytes = self._segments.size_bytes

    def _forget_from(self, end_offset: int, segment: Segment, position: int) -> None:
        """The log ends at `end_offset`, byte `position` of `segment`; the files are as they were."""
        if self._flushing is not None:
            self._flushing.cut_to(end_offset, segment, position)
        if end_offset < self.durable_offset:
            self.durable_offset, self._durable_segment, self._durable_position = end_offset, segment, position
        if end_offset == self.durable_offset:
            self.unflushed_since_ms = None
        self.end_offset = end_offset
        self.start_offset = min(self.start_offset, end_offset)
        self.producers = cut_producers(self.producers, self._segments, end_offset, self._clock.wall_ms())
        self._directory.epochs.cut_to(end_offset)
        self._epoch = self._directory.epochs.latest

    def load_indexes(self) -> None:
        """Completes the indexes of all segments and writes them out, as the doctor wants it."""
        for segment in self._segments:
            segment.load()
            segment.index.write_out()

    def close(self) -> None:
        """Makes everything durable and closes: the next open has nothing to check."""
        if self.failed is None:
            job = self.flush_begin()
            if job is not None:
                try:
                    job.run()
                finally:
                    self.flush_done(job)
            self._checkpoint_now()
        self.abandon()

    def abandon(self) -> None:
        """Lets go of all files, as after a crash or before the directory is removed."""
        for segment in self._segments:
            segment.forget_files()
