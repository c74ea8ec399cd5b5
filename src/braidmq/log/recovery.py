"""Opening a log: what is there, what can be trusted, and where it ends.

Everything before the checkpoint's recovery point was synced and is taken as it is; reads check it later. What
follows the recovery point is read and checked batch by batch: CRC, dense offsets, known epoch. The log ends at the
first thing that is not right, because bytes that were not synced may be missing, torn, zeroed or out of order
after a power loss, and nothing behind them was ever promised to anybody. What is cut off in a whole
segment is renamed, not removed.

The end never moves back before the recovery point. If synced bytes have vanished all the same, the log goes on in
a new segment behind the hole, so that no offset is given twice.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from braidmq.log import checkpoint as checkpoints
from braidmq.log.checkpoint import NO_SNAPSHOT, Checkpoint
from braidmq.log.epochs import LeaderEpochs
from braidmq.log.files import FileCache
from braidmq.log.index import OFFSET_SUFFIX, TIME_SUFFIX
from braidmq.log.producer_state import SNAPSHOT_NAME, ProducerLimits, ProducerState
from braidmq.log.scan import Damage, check, hop
from braidmq.log.segment import DELETED_SUFFIX, LOG_SUFFIX, Segment
from braidmq.platform.clock import Clock
from braidmq.platform.disk import TEMPORARY_SUFFIX, Disk

LOST_SUFFIX = ".lost"
OFFSET_DIGITS = 20


@dataclass(slots=True)
class Recovered:
    """A log as it was found."""

    segments: list[Segment]
    start_offset: int
    end_offset: int
    epochs: LeaderEpochs
    producers: ProducerState
    checkpoint: Checkpoint | None
    notes: list[str] = field(default_factory=list)
    """What was cut off, dropped or rebuilt, for people."""
    must_checkpoint: bool = False
    """The checkpoint on disk says something that does not hold any more."""


class Recovery:
    """Opens one directory; uses no shared handles, so it may run in any thread."""

    def __init__(
        self,
        disk: Disk,
        files: FileCache,
        directory: str,
        interval_bytes: int,
        clock: Clock,
        limits: ProducerLimits,
    ) -> None:
        self._disk = disk
        self._files = files
        self._directory = directory
        self._interval_bytes = interval_bytes
        self._now_ms = clock.wall_ms()
        self._producers = ProducerState(limits)
        self._notes: list[str] = []
        self._names_changed = False
        self._checked: set[int] = set()
        self._appendable = False

    def run(self) -> Recovered:
        """Leaves the directory so that every byte of every segment belongs to the log and is durable."""
        names = self._disk.listdir(self._directory)
        bases = self._tidy(names)
        point = checkpoints.load(self._disk, self._directory)
        if point is None and checkpoints.CHECKPOINT_NAME in names:
            self._notes.append("the checkpoint was damaged; every segment was checked")
        epochs = LeaderEpochs(point.epochs if point is not None else ())
        replay_from = self._restore_producers(names, point)
        segments = [self._segment(base, point) for base in bases]
        end_offset = self._check_tail(segments, point, epochs, max(replay_from, 0))
        return self._conclude(segments, end_offset, epochs, point, replay_from)

    # -- the directory --------------------------------------------------------------------------

    def _tidy(self, names: list[str]) -> list[int]:
        """Base offsets of the segments; what a crash left half done is finished or removed."""
        deleted = [name for name in names if name.endswith(DELETED_SUFFIX)]
        deleted_to = max((_offset_of(name) for name in deleted), default=-1)
        bases = sorted(_offset_of(name) for name in names if _is_segment(name))
        kept = [base for base in bases if base > deleted_to]
        if len(kept) < len(bases):
            # Segments are deleted from the oldest on, so a rename that survived a crash speaks for the earlier
            # ones too, and must not go before they are gone.
            for base in bases[: -len(kept) or None]:
                self._unlink(_name(base, LOG_SUFFIX))
            self._disk.sync_directory(self._directory)
        stems = {_name(base, "") for base in kept}
        for name in names:
            orphan = name.endswith((OFFSET_SUFFIX, TIME_SUFFIX)) and name.partition(".")[0] not in stems
            if orphan or name.endswith((DELETED_SUFFIX, TEMPORARY_SUFFIX)):
                self._unlink(name)
        return kept

    def _unlink(self, name: str) -> None:
        self._disk.unlink(f"{self._directory}/{name}")

    def _segment(self, base: int, point: Checkpoint | None) -> Segment:
        known = point is not None and point.segment_offset == base
        created_ms = point.segment_created_ms if known and point is not None else self._now_ms
        segment = Segment(self._disk, self._files, self._directory, base, self._interval_bytes, created_ms)
        size = self._disk.size(segment.path)
        segment.found(size, trusted_from=size)
        segment.sealed = True
        return segment

    # -- the tail -------------------------------------------------------------------------------

    def _check_tail(
        self, segments: list[Segment], point: Checkpoint | None, epochs: LeaderEpochs, replay_from: int
    ) -> int:
        """Checks what follows the recovery point and cuts the log where it ends; the end offset."""
        if point is None:
            point = _beginning(segments)
        expected = point.recovery_offset
        self._appendable = False
        for number, segment in enumerate(segments):
            if segment.base_offset < point.segment_offset:
                continue
            start = point.position if segment.base_offset == point.segment_offset else 0
            if start == 0 and expected != segment.base_offset:
                self._drop(segments, number, f"it does not follow offset {expected}")
                break
            if segment.size_bytes < start:
                self._check_short(segment, start, epochs, replay_from)
                continue
            expected, sound = self._check_segment(segment, start, expected, epochs, replay_from)
            self._appendable = True
            if not sound:
                self._drop(segments, number + 1, "the log ends before it")
                break
        return expected

    def _check_short(self, segment: Segment, position: int, epochs: LeaderEpochs, replay_from: int) -> None:
        self._notes.append(
            f"segment {segment.name} has {segment.size_bytes} bytes, {position} were synced; records are lost"
        )
        self._check_segment(segment, 0, segment.base_offset, epochs, replay_from)

    def _check_segment(
        self, segment: Segment, start: int, expected: int, epochs: LeaderEpochs, replay_from: int
    ) -> tuple[int, bool]:
        """Checks a segment from `start`; the offset that follows it, and whether it was sound to its end."""
        end = start
        if segment.size_bytes == start:
            return expected, True
        file = self._disk.open(segment.path)
        try:
            try:
                for at, header in check(file, start, segment.size_bytes, expected):
                    if header.leader_epoch != epochs.at(header.base_offset):
                        raise Damage(at, f"leader epoch {header.leader_epoch} is not known")
                    if header.producer_id >= 0 and header.base_offset >= replay_from:
                        self._producers.record(header, header.base_offset, self._now_ms)
                    end = at + header.size
                    expected = header.next_offset
            except Damage as damage:
                self._notes.append(
                    f"segment {segment.name}: cut {segment.size_bytes - end} bytes from {damage}"
                )
                file.truncate(end)
            # Found in the page cache is not on the disk yet.
            file.fdatasync()
            self._names_changed = True
        finally:
            file.close()
        sound = segment.size_bytes == end
        self._checked.add(segment.base_offset)
        segment.found(end, trusted_from=start)
        self._cut_index(segment, start)
        return expected, sound

    def _cut_index(self, segment: Segment, start: int) -> None:
        """Entries of the checked part are made anew: those in the file may be of a tail that was lost."""
        segment.index.load(start)
        segment.index.cut()

    def _drop(self, segments: list[Segment], number: int, why: str) -> None:
        for segment in segments[number:]:
            if segment.size_bytes:
                self._notes.append(f"segment {segment.name} was set aside as {LOST_SUFFIX}: {why}")
                self._disk.rename(segment.path, segment.path + LOST_SUFFIX)
            else:
                self._disk.unlink(segment.path)
            for suffix in (OFFSET_SUFFIX, TIME_SUFFIX):
                if self._disk.exists(segment.stem + suffix):
                    self._disk.unlink(segment.stem + suffix)
            self._names_changed = True
        del segments[number:]

    # -- producers ------------------------------------------------------------------------------

    def _restore_producers(self, names: list[str], point: Checkpoint | None) -> int:
        """Restores the producer snapshot; batches from the returned offset on are replayed. -1: none fits."""
        wanted = point.snapshot_offset if point is not None else NO_SNAPSHOT
        restored = None
        if SNAPSHOT_NAME in names:
            restored = self._producers.restore(self._disk.read_file(f"{self._directory}/{SNAPSHOT_NAME}"))
        recovery_offset = point.recovery_offset if point is not None else 0
        if restored is not None and restored >= wanted:
            return max(restored, recovery_offset)
        return recovery_offset if wanted == NO_SNAPSHOT else -1

    def _rebuild_producers(self, segments: list[Segment]) -> None:
        self._notes.append("the producer snapshot was missing or damaged; it was rebuilt from the log")
        self._producers = ProducerState(self._producers.limits)
        for segment in segments:
            if not segment.size_bytes:
                continue
            file = self._disk.open(segment.path)
            try:
                for _, header in hop(file, 0, segment.size_bytes, segment.base_offset):
                    if header.producer_id >= 0:
                        self._producers.record(header, header.base_offset, self._now_ms)
            except Damage as damage:
                self._notes.append(f"segment {segment.name}: {damage}; run braid doctor")
            finally:
                file.close()

    # -- the result -----------------------------------------------------------------------------

    def _conclude(
        self,
        segments: list[Segment],
        end_offset: int,
        epochs: LeaderEpochs,
        point: Checkpoint | None,
        replay_from: int,
    ) -> Recovered:
        start_offset = segments[0].base_offset if segments else end_offset
        if point is not None:
            start_offset = max(start_offset, point.start_offset)
        must_checkpoint = replay_from < 0 or replay_from > end_offset
        if start_offset > end_offset:
            # Records were deleted that the disk then lost: the log goes on, empty, where it starts.
            end_offset = start_offset
            self._appendable = False
        if not segments or not self._appendable:
            segments.append(
                Segment(
                    self._disk, self._files, self._directory, end_offset, self._interval_bytes, self._now_ms
                )
            )
            must_checkpoint = must_checkpoint or len(segments) > 1
        segments[-1].sealed = False
        if replay_from < 0:
            self._rebuild_producers(segments)
        self._producers.cut_to(end_offset)
        epochs.cut_to(end_offset)
        for segment in segments:
            if segment.base_offset in self._checked:
                segment.load()
        if self._names_changed:
            self._disk.sync_directory(self._directory)
        return Recovered(
            segments, start_offset, end_offset, epochs, self._producers, point, self._notes, must_checkpoint
        )


def _beginning(segments: list[Segment]) -> Checkpoint:
    """The recovery point of a log without one: all of it is to be checked."""
    base = segments[0].base_offset if segments else 0
    return Checkpoint(base, base, 0, base, ((0, 0),), 0, NO_SNAPSHOT)


def _name(base: int, suffix: str) -> str:
    return f"{base:0{OFFSET_DIGITS}d}{suffix}"


def _is_segment(name: str) -> bool:
    stem, dot, suffix = name.partition(".")
    return dot + suffix == LOG_SUFFIX and len(stem) == OFFSET_DIGITS and stem.isdigit()


def _offset_of(name: str) -> int:
    return int(name.partition(".")[0])
