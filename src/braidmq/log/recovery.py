"""Opening a log: what is there, what can be trusted, and where it ends.

Everything before the checkpoint's recovery point was synced and is taken as it is; reads check it later.
What follows is read and checked batch by batch: CRC, dense offsets, a known epoch. The log ends at the
first thing that is not right, because bytes that were not synced may be missing, torn, zeroed or out of
order after a power loss, and nothing after them was ever promised to anybody. A whole segment that is cut
off is renamed, not removed.

The end never moves back before the recovery point, so that no offset is given twice. If synced bytes have
vanished all the same, whatever is sound after the hole stays, and an empty batch in a segment of its own
covers the offsets that are lost: readers step over it, as over what compaction has removed.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass, field

from braidmq.log import checkpoint as checkpoints
from braidmq.log import compaction_progress, segment_swap
from braidmq.log.checkpoint import NO_SNAPSHOT, Checkpoint
from braidmq.log.cleaner import gap
from braidmq.log.epochs import LeaderEpochs
from braidmq.log.files import FileCache
from braidmq.log.flush import FAILED_NAME
from braidmq.log.index import OFFSET_SUFFIX, TIME_SUFFIX
from braidmq.log.producer_state import SNAPSHOT_NAME, ProducerLimits, ProducerState
from braidmq.log.salvage import Gap, survey
from braidmq.log.scan import Damage, check_bytes, hop
from braidmq.log.segment import DELETED_SUFFIX, LOG_SUFFIX, LogDirectory, Segment, check_epoch
from braidmq.platform.clock import Clock
from braidmq.platform.disk import TEMPORARY_SUFFIX, Disk, DiskFile
from braidmq.wire.records import BatchHeader

LOST_SUFFIX = ".lost"
OFFSET_DIGITS = 20
NOTHING_FITS = -1


@dataclass(slots=True)
class Recovered:
    """A log as it was found."""

    directory: LogDirectory
    segments: list[Segment]
    start_offset: int
    end_offset: int
    producers: ProducerState
    checkpoint: Checkpoint | None
    compacted_offset: int
    must_checkpoint: bool
    """The checkpoint on disk says something that does not hold any more."""
    deleted: list[str] = field(default_factory=list)
    """Files of deleted segments, to be removed when a checkpoint has the start of the log."""
    notes: list[str] = field(default_factory=list)
    """What was cut off, set aside or rebuilt, for people."""


class Recovery:
    """Opens one directory; uses no shared handles, so it may run in any thread."""

    def __init__(self, directory: LogDirectory, clock: Clock, limits: ProducerLimits) -> None:
        self._directory = directory
        self._disk = directory.disk
        self._path = directory.path
        self._now_ms = clock.wall_ms()
        self._producers = ProducerState(limits)
        self._segments: list[Segment] = []
        self._point: Checkpoint | None = None
        self._replay_from = 0
        """Batches from this offset on are not in the producer snapshot; NOTHING_FITS: there is none."""
        self._checked: set[int] = set()
        self._notes: list[str] = []
        self._deleted: list[str] = []
        self._lost = False
        self._names_changed = False
        self._compacted_offset = 0
        self._rewrites = False

    def run(self) -> Recovered:
        """Leaves the directory so that every byte of every segment belongs to the log and is durable."""
        names = segment_swap.recover(self._disk, self._path, self._names())
        bases = self._tidy(names)
        if checkpoints.CHECKPOINT_NAME in names:
            self._point = checkpoints.load(self._disk, self._path)
        if self._point is not None:
            self._directory.epochs = LeaderEpochs(self._point.epochs)
        elif checkpoints.CHECKPOINT_NAME in names:
            self._notes.append("the checkpoint was damaged; every segment was checked")
        self._rewrites = FAILED_NAME in names
        if compaction_progress.PROGRESS_NAME in names:
            self._compacted_offset = compaction_progress.read(self._disk, self._path)
        self._restore_producers(names)
        self._segments = [self._found(base) for base in bases]
        end_offset, appendable = self._check_tail(self._point or _beginning(self._segments))
        recovered = self._conclude(end_offset, appendable)
        if self._rewrites:
            self._unlink(FAILED_NAME)
        return recovered

    # -- the directory --------------------------------------------------------------------------

    def _names(self) -> list[str]:
        """What is in the directory; one that nothing was ever written to does not exist."""
        try:
            return self._disk.listdir(self._path)
        except FileNotFoundError:
            return []

    def _tidy(self, names: list[str]) -> list[int]:
        """Base offsets of the segments; what a crash left half done is finished or removed."""
        self._deleted = [name for name in names if name.endswith(DELETED_SUFFIX)]
        deleted_to = deleted_offset(self._deleted)
        bases = segment_offsets(names)
        kept = [base for base in bases if base > deleted_to]
        # Segments are deleted from the oldest on, so a rename that survived a crash speaks for the earlier
        # ones too. It must not go before they are gone, nor before it is itself durable.
        for base in bases[: len(bases) - len(kept)]:
            self._unlink(segment_name(base, LOG_SUFFIX))
        if self._deleted:
            self._disk.sync_directory(self._path)
        stems = {segment_name(base, "") for base in kept}
        for name in names:
            orphan = name.endswith((OFFSET_SUFFIX, TIME_SUFFIX)) and name.partition(".")[0] not in stems
            if orphan or name.endswith(TEMPORARY_SUFFIX):
                self._unlink(name)
        return kept

    def _unlink(self, name: str) -> None:
        self._disk.unlink(f"{self._path}/{name}")

    def _found(self, base: int) -> Segment:
        segment = Segment(self._directory, base, self._created_ms(base))
        size = self._disk.size(segment.path)
        segment.found(size, trusted_from=size)
        segment.sealed = True
        return segment

    def _created_ms(self, base: int) -> int:
        if self._point is not None and self._point.segment_offset == base:
            return self._point.segment_created_ms
        return self._now_ms

    # -- the tail -------------------------------------------------------------------------------

    def _check_tail(self, point: Checkpoint) -> tuple[int, bool]:
        """Checks what follows the recovery point and cuts the log where it ends.

        Returns the end offset, and whether the last segment ends there and can take appends.
        """
        first = bisect_left([segment.base_offset for segment in self._segments], point.segment_offset)
        if self._is_lost(first, point):
            return self._check_after_loss(first, point)
        expected, appendable = point.recovery_offset, False
        for number, segment in enumerate(self._segments[first:], first):
            start = point.position if segment.base_offset == point.segment_offset else 0
            if start == 0 and expected != segment.base_offset:
                self._set_aside(number, f"it does not follow offset {expected}")
                break
            expected, sound = self._check_segment(segment, start, expected)
            appendable = True
            if not sound:
                self._set_aside(number + 1, "the log ends before it")
                break
        return expected, appendable

    # -- what was synced and is gone ------------------------------------------------------------

    def _is_lost(self, number: int, point: Checkpoint) -> bool:
        """Whether bytes before the recovery point have vanished, in the segment where it lies."""
        found = self._segments[number] if number < len(self._segments) else None
        if found is not None and found.base_offset == point.segment_offset:
            return found.size_bytes < point.position
        # A segment that ends at the recovery point may have been deleted, if all before it were.
        deleted = number == 0 and (found is None or found.base_offset == point.recovery_offset)
        return point.position > 0 and not deleted

    def _check_after_loss(self, number: int, point: Checkpoint) -> tuple[int, bool]:
        """Keeps what is sound from the segment of the recovery point on, and covers what is missing."""
        segments, self._lost = self._segments, True
        if number < len(segments) and segments[number].base_offset == point.segment_offset:
            expected = self._cut_to_sound(segments[number])
            number += 1
        elif number:
            expected = self._cut_to_sound(segments[number - 1])
        else:
            # Nothing is left before: the log starts later.
            expected = segments[0].base_offset
        while number < len(segments):
            segment = segments[number]
            if segment.base_offset < expected:
                self._set_aside(number, f"it does not follow offset {expected}")
                break
            if segment.base_offset > expected:
                expected = self._cover(number, expected, segment.base_offset)
            expected, _ = self._check_segment(segment, 0, expected)
            number = segments.index(segment) + 1
        if expected < point.recovery_offset:
            expected = self._cover(number, expected, point.recovery_offset)
        return expected, True

    def _cut_to_sound(self, segment: Segment) -> int:
        """Cuts off what follows the last sound batch of a segment; the offset that is expected after it."""
        file = self._disk.open(segment.path)
        end, expected = 0, segment.base_offset
        try:
            for found in survey(file, segment.size_bytes, segment.base_offset):
                if not isinstance(found, Gap):
                    end, expected = found[0] + found[1].size, found[1].next_offset
            file.truncate(end)
            file.fdatasync()
        finally:
            file.close()
        self._notes.append(f"segment {segment.name}: what was synced after byte {end} is gone")
        segment.found(end, trusted_from=end)
        segment.index.load(end)
        segment.index.cut()
        self._checked.add(segment.base_offset)
        return expected

    def _cover(self, number: int, first: int, until: int) -> int:
        """Puts an empty batch over the offsets from `first` on, in a segment before `number`; gives `until`.

        Not in the segment before, whose size has to tell of the loss until there is a new checkpoint.
        """
        segment = self._segments[number - 1] if number else None
        if segment is None or segment.base_offset != first:
            segment = Segment(self._directory, first, self._created_ms(first))
            self._segments.insert(number, segment)
        batch = gap(first, until - 1, self._directory.epochs.at(first))
        file = self._disk.open(segment.path, create=True)
        try:
            file.truncate(0)
            file.write(batch)
            file.fdatasync()
        finally:
            file.close()
        self._notes.append(f"segment {segment.name}: offsets {first} to {until - 1} are lost and left empty")
        segment.found(len(batch), trusted_from=0)
        segment.sealed = True
        self._checked.add(first)
        self._names_changed = True
        return until

    # -- one segment ----------------------------------------------------------------------------

    def _check_segment(self, segment: Segment, start: int, expected: int) -> tuple[int, bool]:
        """Checks a segment from `start`; the offset that follows it, and whether it was sound to its end."""
        if segment.size_bytes == start:
            return expected, True
        file = self._disk.open(segment.path)
        end = start
        try:
            try:
                for at, header, batch in check_bytes(file, start, segment.size_bytes, expected):
                    self._take(at, header, batch)
                    if self._rewrites:
                        _write_again(file, batch, at)
                    end, expected = at + header.size, header.next_offset
            except Damage as damage:
                self._notes.append(f"segment {segment.name}: cut {segment.size_bytes - end} bytes, {damage}")
                file.truncate(end)
            # Found in the page cache is not on the disk yet.
            file.fdatasync()
        finally:
            file.close()
        sound = segment.size_bytes == end
        segment.found(end, trusted_from=start)
        # Entries of the checked part are rebuilt: those in the file may be of a tail that was lost.
        segment.index.load(start)
        segment.index.cut()
        self._checked.add(segment.base_offset)
        self._names_changed = True
        return expected, sound

    def _take(self, position: int, header: BatchHeader, batch: memoryview) -> None:
        epochs = self._directory.epochs
        if self._point is None and header.leader_epoch > epochs.latest:
            epochs.begin(header.leader_epoch, header.base_offset)
        check_epoch(position, header, epochs)
        if header.producer_id >= 0 and header.base_offset >= self._replay_from:
            self._producers.replay(header, batch if header.is_control else None, self._now_ms)

    def _set_aside(self, number: int, why: str) -> None:
        """Takes segments from `number` on out of the log; they stay for somebody to look at."""
        for segment in self._segments[number:]:
            if segment.size_bytes:
                self._notes.append(f"segment {segment.name} was set aside as {LOST_SUFFIX}: {why}")
                self._disk.rename(segment.path, segment.path + LOST_SUFFIX)
            segment.unlink()
            self._names_changed = True
        del self._segments[number:]

    # -- producers ------------------------------------------------------------------------------

    def _restore_producers(self, names: list[str]) -> None:
        wanted = self._point.snapshot_offset if self._point is not None else NO_SNAPSHOT
        self._replay_from = self._point.recovery_offset if self._point is not None else 0
        restored = None
        if SNAPSHOT_NAME in names:
            restored = self._producers.restore(self._disk.read_file(f"{self._path}/{SNAPSHOT_NAME}"))
        if restored is not None and restored >= wanted:
            self._replay_from = max(restored, self._replay_from)
        elif wanted != NO_SNAPSHOT:
            self._replay_from = NOTHING_FITS

    def _rebuild_producers(self) -> None:
        self._notes.append("the producer snapshot was missing or damaged; it was rebuilt from the log")
        self._producers = ProducerState(self._producers.limits)
        self._notes += replay_producers(self._segments, self._producers, self._now_ms)

    # -- the result -----------------------------------------------------------------------------

    def _conclude(self, end_offset: int, appendable: bool) -> Recovered:
        point, segments = self._point, self._segments
        start_offset = segments[0].base_offset if segments else end_offset
        if point is not None:
            start_offset = max(start_offset, point.start_offset)
        # A snapshot from past the end would take for stored what was lost; it must not be used again.
        must_checkpoint = self._replay_from == NOTHING_FITS or self._replay_from > end_offset or self._lost
        if point is not None and start_offset > point.start_offset and not self._deleted:
            gone = f"offsets {point.start_offset} to {start_offset - 1} are lost: their segments are missing"
            self._notes.append(gone)
        if start_offset > end_offset:
            # Records were deleted that the disk then lost: the log continues, empty, where it starts.
            end_offset, appendable = start_offset, False
        if not appendable:
            must_checkpoint |= bool(segments) and (point is None or point.segment_offset != end_offset)
            segments.append(Segment(self._directory, end_offset, self._created_ms(end_offset)))
        segments[-1].sealed = False
        if self._replay_from == NOTHING_FITS:
            self._rebuild_producers()
        self._producers.cut_to(end_offset)
        self._producers.begin_at(start_offset)
        self._producers.drop_aborted(min(self._compacted_offset, end_offset))
        self._directory.epochs.cut_to(end_offset)
        for segment in segments:
            if segment.base_offset in self._checked:
                segment.load()
        if self._names_changed:
            self._disk.sync_directory(self._path)
        return Recovered(
            directory=self._directory,
            segments=segments,
            start_offset=start_offset,
            end_offset=end_offset,
            producers=self._producers,
            checkpoint=point,
            deleted=self._deleted,
            compacted_offset=min(self._compacted_offset, end_offset),
            must_checkpoint=must_checkpoint,
            notes=self._notes,
        )


def new_directory(disk: Disk, files: FileCache, path: str, interval_bytes: int) -> LogDirectory:
    """A log's directory before anything is known of it."""
    return LogDirectory(disk, files, path, interval_bytes, LeaderEpochs())


def _beginning(segments: list[Segment]) -> Checkpoint:
    """The recovery point of a log without one: all of it is to be checked."""
    base = segments[0].base_offset if segments else 0
    return Checkpoint(base, base, 0, base, ((0, 0),), 0, NO_SNAPSHOT)


def _write_again(file: DiskFile, batch: memoryview, position: int) -> None:
    """Makes the pages dirty once more.

    After a failed fdatasync the kernel holds them for clean, and the next one would succeed without writing.
    """
    while batch:
        count = file.write_at(batch, position)
        position += count
        batch = batch[count:]


def replay_producers(
    segments: Iterable[Segment], producers: ProducerState, now_ms: int, end_offset: int | None = None
) -> list[str]:
    """Tells `producers` of every batch before `end_offset`; returns what could not be read, for people."""
    notes = []
    for segment in segments:
        if not segment.size_bytes:
            continue
        file = segment.open_apart()
        try:
            for at, header in hop(file, 0, segment.size_bytes, segment.base_offset):
                if end_offset is not None and header.base_offset >= end_offset:
                    break
                if header.producer_id >= 0:
                    marker = file.read_at(header.size, at) if header.is_control else None
                    producers.replay(header, marker, now_ms)
        except Damage as damage:
            notes.append(f"segment {segment.name}: {damage}; run braid doctor")
        finally:
            file.close()
    return notes


def cut_producers(
    producers: ProducerState, segments: Iterable[Segment], end_offset: int, now_ms: int
) -> ProducerState:
    """What is known of producers when the log is cut to `end_offset`; read from the log if need be."""
    if not producers.cut_to(end_offset):
        producers = ProducerState(producers.limits)
        replay_producers(segments, producers, now_ms, end_offset)
    return producers


def segment_name(base: int, suffix: str) -> str:
    """The name of a segment's file: its first offset, so that names sort as offsets do."""
    return f"{base:0{OFFSET_DIGITS}d}{suffix}"


def segment_offsets(names: Iterable[str]) -> list[int]:
    """Base offsets of the segments among `names`, ascending."""
    return sorted(_offset_of(name) for name in names if _is_segment(name))


def deleted_offset(names: Iterable[str]) -> int:
    """Base offset of the newest deleted segment among `names`, -1 if none; all before it are deleted too."""
    return max((_offset_of(name) for name in names if name.endswith(DELETED_SUFFIX)), default=-1)


def _is_segment(name: str) -> bool:
    stem, dot, suffix = name.partition(".")
    return dot + suffix == LOG_SUFFIX and len(stem) == OFFSET_DIGITS and stem.isdigit()


def _offset_of(name: str) -> int:
    return int(name.partition(".")[0])
