"""Is everything in a partition's directory what was written, and can it be repaired?

`verify` reads every byte of every segment, index, checkpoint and snapshot and changes nothing. `repair`
repairs what can be: indexes, checkpoints and snapshots are rebuilt from the log; records that are damaged
beyond recovery are replaced by an empty batch that covers their offsets, so that everything else can be
read again, and the file as it was found is kept beside it. The broker must be stopped for both.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from braidmq.config import configure
from braidmq.log import checkpoint as checkpoints
from braidmq.log import segment_swap
from braidmq.log.checkpoint import CHECKPOINT_NAME, Checkpoint
from braidmq.log.cleaner import gap as empty_batch
from braidmq.log.epochs import LeaderEpochs
from braidmq.log.files import FileCache
from braidmq.log.index import (
    OFFSET_ENTRY_BYTES,
    OFFSET_SUFFIX,
    TIME_ENTRY_BYTES,
    TIME_SUFFIX,
    BadIndex,
    decode_offset_entry,
    decode_time_entry,
    index_seed,
)
from braidmq.log.log import Log
from braidmq.log.producer_state import SNAPSHOT_NAME, ProducerLimits, ProducerState
from braidmq.log.recovery import LOST_SUFFIX, deleted_offset, segment_name, segment_offsets
from braidmq.log.salvage import Gap, survey
from braidmq.log.segment import DELETED_SUFFIX, LOG_SUFFIX, NO_TIMESTAMP
from braidmq.platform.clock import SystemClock
from braidmq.platform.disk import TEMPORARY_SUFFIX, Bytes, Disk, DiskFile
from braidmq.wire.records import BatchHeader, stamp

DAMAGED_SUFFIX = ".damaged"
COPY_BYTES = 1024 * 1024

_KEEP_ALL = ProducerLimits(expiration_ms=2**62, ids_max=2**31)


class Finding(NamedTuple):
    """Something that is not as it was written."""

    file: str
    byte: int
    what: str


class Surveyed(NamedTuple):
    """A segment, read to its end."""

    base_offset: int
    size_bytes: int
    batches: list[tuple[int, BatchHeader]]
    gaps: list[Gap]
    wrong_epochs: list[tuple[int, BatchHeader]]

    @property
    def name(self) -> str:
        return segment_name(self.base_offset, LOG_SUFFIX)

    @property
    def next_offset(self) -> int:
        return self.batches[-1][1].next_offset if self.batches else self.base_offset

    def end_offset(self, follower: int | None, point: Checkpoint | None) -> int:
        """The offset that the segment must reach: the next segment's first, or all that was synced.

        What follows the last sound batch and was never synced is for recovery to cut.
        """
        if follower is not None:
            return follower
        return max(point.recovery_offset if point is not None else 0, self.next_offset)


def verify(disk: Disk, path: Path) -> list[Finding]:
    """Everything that is wrong in a partition's directory; empty if nothing is."""
    names = set(disk.listdir(path))
    findings, point = _verify_checkpoint(disk, path, names)
    findings += _verify_snapshot(disk, path, names)
    findings += [Finding(name, 0, "set aside by a recovery") for name in names if name.endswith(LOST_SUFFIX)]
    bases = _bases(names)
    findings += _verify_start(names, bases, point)
    epochs = Epochs(point)
    for number, base in enumerate(bases):
        surveyed = _survey(disk, path, base, epochs)
        findings += [Finding(surveyed.name, gap.position, gap.what) for gap in surveyed.gaps]
        findings += [
            Finding(surveyed.name, at, f"leader epoch {header.leader_epoch} is not known")
            for at, header in surveyed.wrong_epochs
        ]
        follower = bases[number + 1] if number + 1 < len(bases) else None
        findings += _verify_end(surveyed, follower, point)
        findings += _verify_index(disk, path, surveyed, closed=follower is not None)
    return findings


def repair(disk: Disk, path: Path) -> list[str]:
    """Repairs a partition's directory; what was done, for people."""
    names = set(segment_swap.recover(disk, str(path), disk.listdir(path)))
    found, point = _verify_checkpoint(disk, path, names)
    done = []
    if found and point is not None:
        disk.write_atomically(path / CHECKPOINT_NAME, point.encode())
        done.append(f"{CHECKPOINT_NAME}: restored from its second copy")
    elif found:
        done.append(f"{CHECKPOINT_NAME}: written again; records deleted by offset may be back")
    epochs = Epochs(point)
    bases = _bases(names)
    for number, base in enumerate(bases):
        surveyed = _survey(disk, path, base, epochs)
        follower = bases[number + 1] if number + 1 < len(bases) else None
        repaired = _repair_segment(disk, path, surveyed, follower, point, epochs)
        done += repaired
        if repaired or _verify_index(disk, path, surveyed, closed=follower is not None):
            done.append(f"{segment_name(base, OFFSET_SUFFIX)}: rebuilt")
            for suffix in (OFFSET_SUFFIX, TIME_SUFFIX):
                if disk.exists(path / segment_name(base, suffix)):
                    disk.unlink(path / segment_name(base, suffix))
    log = Log.open(disk, path, configure({}).topic({}), SystemClock(), FileCache(16), _KEEP_ALL)
    log.load_indexes()
    log.close()
    return done + log.notes + _put_away(disk, path)


def _put_away(disk: Disk, path: Path) -> list[str]:
    """Renames segments that a recovery has set aside: they belong to the log no more."""
    done = []
    for name in sorted(name for name in disk.listdir(path) if name.endswith(LOST_SUFFIX)):
        disk.rename(path / name, path / (name + DAMAGED_SUFFIX))
        done.append(f"{name}: does not follow the log; it is kept as {name}{DAMAGED_SUFFIX}")
    if done:
        disk.sync_directory(path)
    return done


# -- verifying ----------------------------------------------------------------------------------


def _verify_checkpoint(disk: Disk, path: Path, names: set[str]) -> tuple[list[Finding], Checkpoint | None]:
    if CHECKPOINT_NAME not in names:
        return [], None
    point, whole = checkpoints.decode(disk.read_file(path / CHECKPOINT_NAME))
    if whole:
        return [], point
    what = "both copies are damaged" if point is None else "one of the two copies is damaged"
    return [Finding(CHECKPOINT_NAME, 0, what)], point


def _verify_snapshot(disk: Disk, path: Path, names: set[str]) -> list[Finding]:
    if SNAPSHOT_NAME not in names or (
        ProducerState(_KEEP_ALL).restore(disk.read_file(path / SNAPSHOT_NAME)) is not None
    ):
        return []
    return [Finding(SNAPSHOT_NAME, 0, "its CRC does not match")]


def _bases(names: set[str]) -> list[int]:
    """Base offsets of the segments that count: what was half deleted or half replaced may still be there."""
    replaced, deleted = segment_swap.replaced(sorted(names)), deleted_offset(names)
    return [base for base in segment_offsets(names) if base not in replaced and base > deleted]


def _verify_start(names: set[str], bases: list[int], point: Checkpoint | None) -> list[Finding]:
    """Whether the first segment is there. One that is being deleted has another name until it is gone."""
    if point is None or any(name.endswith(DELETED_SUFFIX) for name in names):
        return []
    first = bases[0] if bases else point.recovery_offset
    if first <= point.start_offset:
        return []
    what = f"offsets {point.start_offset} to {first - 1} are missing: the log should start there"
    return [Finding(segment_name(point.start_offset, LOG_SUFFIX), 0, what)]


def _verify_end(surveyed: Surveyed, follower: int | None, point: Checkpoint | None) -> list[Finding]:
    """Whether a segment reaches the next one, and the last one what was synced."""
    end_offset = surveyed.end_offset(follower, point)
    if surveyed.gaps or surveyed.next_offset == end_offset or (point and end_offset <= point.start_offset):
        return []
    what = f"the segment ends before offset {end_offset}, its last batch ends at {surveyed.next_offset - 1}"
    if follower is not None and follower < surveyed.next_offset:
        what = f"the segment ends at offset {surveyed.next_offset - 1}, the next begins at {follower}"
    return [Finding(surveyed.name, surveyed.size_bytes, what)]


class Epochs:
    """The leader epochs that batches are checked against: those of the checkpoint, else learnt on the way."""

    def __init__(self, point: Checkpoint | None) -> None:
        self._known = LeaderEpochs(point.epochs if point is not None else ())
        self._learns = point is None

    def at(self, offset: int) -> int:
        """The epoch that wrote `offset`."""
        return self._known.at(offset)

    def fits(self, header: BatchHeader) -> bool:
        if self._learns and header.leader_epoch > self._known.latest:
            self._known.begin(header.leader_epoch, header.base_offset)
        return header.leader_epoch == self.at(header.base_offset)


def _survey(disk: Disk, path: Path, base_offset: int, epochs: Epochs) -> Surveyed:
    file = disk.open(path / segment_name(base_offset, LOG_SUFFIX))
    try:
        surveyed = Surveyed(base_offset, file.size(), [], [], [])
        for found in survey(file, surveyed.size_bytes, base_offset):
            if isinstance(found, Gap):
                surveyed.gaps.append(found)
                continue
            surveyed.batches.append(found)
            if not epochs.fits(found[1]):
                surveyed.wrong_epochs.append(found)
        return surveyed
    finally:
        file.close()


def _verify_index(disk: Disk, path: Path, surveyed: Surveyed, closed: bool) -> list[Finding]:
    """Wrong entries of both index files; of a closed segment, also a missing end."""
    offset_name = segment_name(surveyed.base_offset, OFFSET_SUFFIX)
    time_name = segment_name(surveyed.base_offset, TIME_SUFFIX)
    offsets = disk.read_file(path / offset_name) if disk.exists(path / offset_name) else b""
    times = disk.read_file(path / time_name) if disk.exists(path / time_name) else b""
    expected = _expected_entries(surveyed)
    seed = index_seed(surveyed.base_offset)
    findings = []
    last_position = -1
    for number in range(max(len(offsets) // OFFSET_ENTRY_BYTES, len(times) // TIME_ENTRY_BYTES)):
        at = number * OFFSET_ENTRY_BYTES
        time_at = number * TIME_ENTRY_BYTES
        try:
            offset, position = decode_offset_entry(
                offsets[at : at + OFFSET_ENTRY_BYTES], surveyed.base_offset, seed
            )
            if expected.get(position, (None,))[0] != offset:
                raise BadIndex(f"there is no batch of offset {offset} at byte {position}")
            last_position = position
        except BadIndex as bad:
            findings.append(Finding(offset_name, at, str(bad)))
            continue
        try:
            time_entry = decode_time_entry(
                times[time_at : time_at + TIME_ENTRY_BYTES], surveyed.base_offset, seed
            )
            if time_entry != (expected[position][1], offset):
                raise BadIndex(f"the largest timestamp up to offset {offset} is another")
        except BadIndex as bad:
            findings.append(Finding(time_name, time_at, str(bad)))
    if closed and not findings and surveyed.batches and last_position != surveyed.batches[-1][0]:
        findings.append(Finding(offset_name, len(offsets), "the index ends before its segment"))
    return findings


def _expected_entries(surveyed: Surveyed) -> dict[int, tuple[int, int]]:
    """By position, the offset of the batch there and the largest timestamp up to it."""
    newest_ms = NO_TIMESTAMP
    entries = {}
    for position, header in surveyed.batches:
        newest_ms = max(newest_ms, header.max_timestamp)
        entries[position] = (header.base_offset, newest_ms)
    return entries


# -- repairing ----------------------------------------------------------------------------------


def _repair_segment(
    disk: Disk,
    path: Path,
    surveyed: Surveyed,
    follower: int | None,
    point: Checkpoint | None,
    epochs: Epochs,
) -> list[str]:
    """Replaces lost batches by empty ones over their offsets; corrects epochs that make no sense."""
    end_offset = surveyed.end_offset(follower, point)
    if not surveyed.gaps and not surveyed.wrong_epochs and surveyed.next_offset >= end_offset:
        return []
    name = f"{path}/{surveyed.name}"
    repaired = name + TEMPORARY_SUFFIX
    source = disk.open(name)
    try:
        _write_new(disk, name + DAMAGED_SUFFIX, _chunks(source, surveyed.size_bytes))
        done: list[str] = []
        _write_new(disk, repaired, _repaired_batches(source, surveyed, end_offset, epochs, done))
    finally:
        source.close()
    if point is not None and point.segment_offset == surveyed.base_offset:
        # Batches move within the file, so the recovery point goes back to where it begins.
        lowered = replace(point, recovery_offset=surveyed.base_offset, position=0)
        disk.write_atomically(path / CHECKPOINT_NAME, lowered.encode())
    disk.rename(repaired, name)
    disk.sync_directory(path)
    return [*done, f"{surveyed.name}: as it was found it is kept as {surveyed.name}{DAMAGED_SUFFIX}"]


def _repaired_batches(
    source: DiskFile, surveyed: Surveyed, end_offset: int, epochs: Epochs, done: list[str]
) -> Iterator[Bytes]:
    """The batches of the repaired segment; says in `done` what is lost."""
    expected = surveyed.base_offset
    wrong = {position for position, _ in surveyed.wrong_epochs}
    for position, header in surveyed.batches:
        if header.base_offset > expected:
            yield empty_batch(expected, header.base_offset - 1, epochs.at(expected))
            done.append(f"{surveyed.name}: offsets {expected} to {header.base_offset - 1} are lost")
        batch = bytearray(source.read_at(header.size, position))
        if position in wrong:
            epoch = epochs.at(header.base_offset)
            stamp(batch, header.base_offset, epoch)
            done.append(f"{surveyed.name}: leader epoch of offset {header.base_offset} set to {epoch}")
        yield batch
        expected = header.next_offset
    if end_offset > expected:
        yield empty_batch(expected, end_offset - 1, epochs.at(expected))
        done.append(f"{surveyed.name}: offsets {expected} to {end_offset - 1} are lost")


def _chunks(source: DiskFile, size_bytes: int) -> Iterator[Bytes]:
    for position in range(0, size_bytes, COPY_BYTES):
        yield source.read_at(COPY_BYTES, position)


def _write_new(disk: Disk, path: str, parts: Iterable[Bytes]) -> None:
    file = disk.open(path, create=True)
    try:
        file.truncate(0)
        for part in parts:
            file.write(part)
        file.fdatasync()
    finally:
        file.close()
