"""Is everything in a partition's directory what was written, and can it be mended?

`verify` reads every byte of every segment, index, checkpoint and snapshot and changes nothing. `repair`
mends what can be: indexes, checkpoints and snapshots are made anew from the log; records that are damaged
beyond recovery are replaced by an empty batch that covers their offsets, so that everything else can be
read again, and the file as it was found is kept beside it. The broker must be stopped for both.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from struct import Struct
from typing import NamedTuple

from braidmq.config import configure
from braidmq.log import checkpoint as checkpoints
from braidmq.log.checkpoint import CHECKPOINT_NAME, Checkpoint
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
from braidmq.log.recovery import LOST_SUFFIX, segment_name, segment_offsets
from braidmq.log.salvage import Gap, survey
from braidmq.log.segment import LOG_SUFFIX, NO_TIMESTAMP
from braidmq.platform.clock import SystemClock
from braidmq.platform.disk import TEMPORARY_SUFFIX, Bytes, Disk, DiskFile
from braidmq.wire.records import (
    HEADER_BYTES,
    LENGTH_END,
    BatchHeader,
    build_batch,
    restamp_append_time,
    stamp,
)

DAMAGED_SUFFIX = ".damaged"
COPY_BYTES = 1024 * 1024

_INT32 = Struct(">i")
_LENGTH_AT = LENGTH_END - 4
_LAST_OFFSET_DELTA_AT = 23
_RECORD_COUNT_AT = HEADER_BYTES - 4
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


def verify(disk: Disk, path: Path) -> list[Finding]:
    """Everything that is wrong in a partition's directory; empty if nothing is."""
    names = set(disk.listdir(path))
    findings, point = _verify_checkpoint(disk, path, names)
    findings += _verify_snapshot(disk, path, names)
    findings += [Finding(name, 0, "set aside by a recovery") for name in names if name.endswith(LOST_SUFFIX)]
    bases = segment_offsets(names)
    epochs = LeaderEpochs(point.epochs if point is not None else ())
    for number, base in enumerate(bases):
        surveyed = _survey(disk, path, base, epochs)
        findings += [Finding(surveyed.name, gap.position, gap.what) for gap in surveyed.gaps]
        findings += [
            Finding(surveyed.name, at, f"leader epoch {header.leader_epoch} is not known")
            for at, header in surveyed.wrong_epochs
        ]
        follower = bases[number + 1] if number + 1 < len(bases) else None
        if follower is not None and not surveyed.gaps and surveyed.next_offset != follower:
            what = f"the segment ends before offset {surveyed.next_offset}, the next begins at {follower}"
            findings.append(Finding(surveyed.name, surveyed.size_bytes, what))
        findings += _verify_index(disk, path, surveyed, closed=follower is not None)
    return findings


def repair(disk: Disk, path: Path) -> list[str]:
    """Mends a partition's directory; what was done, for people."""
    names = set(disk.listdir(path))
    found, point = _verify_checkpoint(disk, path, names)
    done = []
    if found and point is not None:
        disk.write_atomically(path / CHECKPOINT_NAME, point.encode())
        done.append(f"{CHECKPOINT_NAME}: restored from its second copy")
    elif found:
        done.append(f"{CHECKPOINT_NAME}: written anew; records deleted by offset may be back")
    epochs = LeaderEpochs(point.epochs if point is not None else ())
    bases = segment_offsets(names)
    for number, base in enumerate(bases):
        surveyed = _survey(disk, path, base, epochs)
        follower = bases[number + 1] if number + 1 < len(bases) else None
        done += _mend_segment(disk, path, surveyed, follower, point)
        if _verify_index(disk, path, surveyed, closed=follower is not None) or surveyed.gaps:
            done.append(f"{segment_name(base, OFFSET_SUFFIX)}: made anew")
            for suffix in (OFFSET_SUFFIX, TIME_SUFFIX):
                if disk.exists(path / segment_name(base, suffix)):
                    disk.unlink(path / segment_name(base, suffix))
    log = Log.open(disk, path, configure({}).topic({}), SystemClock(), FileCache(16), _KEEP_ALL)
    log.load_indexes()
    log.close()
    return done + log.notes


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


def _survey(disk: Disk, path: Path, base_offset: int, epochs: LeaderEpochs) -> Surveyed:
    file = disk.open(path / segment_name(base_offset, LOG_SUFFIX))
    try:
        surveyed = Surveyed(base_offset, file.size(), [], [], [])
        for found in survey(file, surveyed.size_bytes, base_offset):
            if isinstance(found, Gap):
                surveyed.gaps.append(found)
                continue
            surveyed.batches.append(found)
            if found[1].leader_epoch != epochs.at(found[1].base_offset):
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


# -- mending ------------------------------------------------------------------------------------


def _mend_segment(
    disk: Disk, path: Path, surveyed: Surveyed, follower: int | None, point: Checkpoint | None
) -> list[str]:
    """Replaces damaged batches by empty ones over their offsets; corrects epochs that make no sense."""
    if not surveyed.gaps and not surveyed.wrong_epochs:
        return []
    # What follows the last sound batch and was never synced is for recovery to cut.
    synced = point.recovery_offset if point is not None else surveyed.next_offset
    end_offset = follower if follower is not None else max(synced, surveyed.next_offset)
    name = f"{path}/{surveyed.name}"
    mended = name + TEMPORARY_SUFFIX
    source = disk.open(name)
    try:
        _write_new(disk, name + DAMAGED_SUFFIX, _chunks(source, surveyed.size_bytes))
        done: list[str] = []
        _write_new(disk, mended, _mended(source, surveyed, end_offset, done))
    finally:
        source.close()
    if point is not None and point.segment_offset == surveyed.base_offset:
        # Batches move within the file, so the recovery point goes back to where it begins.
        lowered = replace(point, recovery_offset=surveyed.base_offset, position=0)
        disk.write_atomically(path / CHECKPOINT_NAME, lowered.encode())
    disk.rename(mended, name)
    disk.sync_directory(path)
    return [*done, f"{surveyed.name}: as it was found it is kept as {surveyed.name}{DAMAGED_SUFFIX}"]


def _mended(source: DiskFile, surveyed: Surveyed, end_offset: int, done: list[str]) -> Iterator[Bytes]:
    """The batches of the mended segment; tells in `done` what is lost."""
    expected, newest_ms, epoch = surveyed.base_offset, 0, 0
    wrong = {position for position, _ in surveyed.wrong_epochs}
    for position, header in surveyed.batches:
        if header.base_offset > expected:
            yield empty_batch(expected, header.base_offset - 1, newest_ms, epoch)
            done.append(f"{surveyed.name}: offsets {expected} to {header.base_offset - 1} are lost")
        batch = bytearray(source.read_at(header.size, position))
        if position in wrong:
            stamp(batch, header.base_offset, epoch)
            done.append(f"{surveyed.name}: leader epoch of offset {header.base_offset} set to {epoch}")
        else:
            epoch = header.leader_epoch
        yield batch
        expected, newest_ms = header.next_offset, header.max_timestamp
    if end_offset > expected:
        yield empty_batch(expected, end_offset - 1, newest_ms, epoch)
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


def empty_batch(first_offset: int, last_offset: int, timestamp_ms: int, leader_epoch: int) -> bytearray:
    """A batch without records that covers offsets, such as compaction leaves; every client skips it."""
    batch = build_batch([(None, None, [], timestamp_ms)])
    del batch[HEADER_BYTES:]
    _INT32.pack_into(batch, _LENGTH_AT, HEADER_BYTES - LENGTH_END)
    _INT32.pack_into(batch, _LAST_OFFSET_DELTA_AT, last_offset - first_offset)
    _INT32.pack_into(batch, _RECORD_COUNT_AT, 0)
    restamp_append_time(batch, timestamp_ms)
    stamp(batch, first_offset, leader_epoch)
    return batch
