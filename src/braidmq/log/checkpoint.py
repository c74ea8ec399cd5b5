"""The checkpoint of a log: up to where it is known to be safe, and what the batches alone do not tell.

It holds the recovery point (everything before it was synced, so recovery checks only what follows), the start
offset (DeleteRecords moves it without touching segments) and the leader epochs. It is one line of JSON after
its CRC, written twice into one small file: the start offset exists nowhere else, and a single flipped bit
must not bring deleted records back.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

from braidmq.log.producer_state import SNAPSHOT_NAME, ProducerState
from braidmq.platform.disk import Disk
from braidmq.wire.checksum import crc32c

CHECKPOINT_NAME = "checkpoint"
NO_SNAPSHOT = -1
INCOMPLETE = -1

_BODY_AT = 9


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What is written; equal checkpoints need not be written again."""

    recovery_offset: int
    segment_offset: int
    """Base offset of the segment in which the recovery point lies."""
    position: int
    """Byte of that segment at which `recovery_offset` begins."""
    start_offset: int
    epochs: tuple[tuple[int, int], ...]
    segment_created_ms: int
    snapshot_offset: int = NO_SNAPSHOT
    """Offset of the newest producer snapshot this checkpoint relies on."""

    def encode(self) -> bytes:
        return 2 * _sealed(json.dumps(asdict(self), separators=(",", ":")).encode())


def decode(content: bytes) -> tuple[Checkpoint | None, bool]:
    """The checkpoint, None if no copy is sound; and whether both copies are."""
    # By halves, so that a flipped line end spoils one copy only; by lines, if the file was cut short.
    half = len(content) // 2
    candidates = [content[:half], content[half:], *(line + b"\n" for line in content.split(b"\n"))]
    for copy in candidates:
        body = copy[_BODY_AT:-1]
        if _sealed(body) == copy:
            fields = json.loads(body)
            fields["epochs"] = tuple((epoch, start) for epoch, start in fields["epochs"])
            return Checkpoint(**fields), 2 * copy == content
    return None, False


def load(disk: Disk, directory: str) -> Checkpoint | None:
    """The directory's checkpoint; None if there is none or it is damaged beyond its copy."""
    try:
        content = disk.read_file(f"{directory}/{CHECKPOINT_NAME}")
    except FileNotFoundError:
        return None
    return decode(content)[0]


class CheckpointJob:
    """Writes a checkpoint, and the producer snapshot if it changed; may run in any thread."""

    __slots__ = ("_directories", "_file", "checkpoint", "error", "number", "producers_version", "snapshot")

    def __init__(
        self, file: CheckpointFile, number: int, checkpoint: Checkpoint, snapshot: bytes | None,
        producers_version: int, directories: Sequence[str],
    ) -> None:  # fmt: skip
        self._file = file
        self._directories = directories
        self.number = number
        self.checkpoint = checkpoint
        self.snapshot = snapshot
        self.producers_version = producers_version
        self.error: OSError | None = None

    def run(self) -> None:
        """Blocks until all of it is durable."""
        try:
            self._file.write(self, self._directories)
        except OSError as error:
            self.error = error
            raise


class CheckpointFile:
    """Makes the checkpoints of one log and remembers what is on disk; an older one never replaces a newer."""

    __slots__ = (
        "_begun", "_directory", "_disk", "_lock", "_snapshot_version", "_snapshot_written", "_uncertain",
        "_written", "written",
    )  # fmt: skip

    def __init__(self, disk: Disk, directory: str, found: Checkpoint | None) -> None:
        self.written = found
        """The newest checkpoint that is durable."""
        self._disk = disk
        self._directory = directory
        self._lock = threading.Lock()
        self._begun = 0
        self._written = 0
        self._uncertain = False
        """A job has failed, maybe after its file was in place: what is on disk has to be written again."""
        self._snapshot_written = 0
        self._snapshot_version = 0

    def begin(
        self, checkpoint: Checkpoint, producers: ProducerState, directories: Sequence[str]
    ) -> CheckpointJob | None:
        """A job for `checkpoint`, None if it is on disk; `directories` are synced before its first one."""
        snapshot = None
        snapshot_offset = self.written.snapshot_offset if self.written is not None else NO_SNAPSHOT
        if producers.version != self._snapshot_version:
            snapshot_offset = checkpoint.recovery_offset
            snapshot = producers.snapshot(snapshot_offset)
        checkpoint = replace(checkpoint, snapshot_offset=snapshot_offset)
        if checkpoint == self.written and snapshot is None and not self._uncertain:
            return None
        self._begun += 1
        whole = producers.newest_offset < checkpoint.recovery_offset
        # A checkpoint stands for a directory that is found again, so that recovery need not wonder.
        unsynced = directories if self.written is None else ()
        if self.written is not None and snapshot is not None and producers.transactions is not None:
            # The snapshot may lack aborted transactions whose records went with a swap. If the swap were
            # undone by a power loss, and the snapshot not, those records would be taken for committed.
            unsynced = (self._directory,)
        version = producers.version if whole else INCOMPLETE
        return CheckpointJob(self, self._begun, checkpoint, snapshot, version, unsynced)

    def write(self, job: CheckpointJob, directories: Sequence[str]) -> None:
        """Makes a job's checkpoint durable, unless a later one already is."""
        with self._lock:
            for directory in directories:
                self._disk.sync_directory(directory)
            # In this order: a snapshot newer than the checkpoint is fine, one older would lack batches.
            if job.snapshot is not None and job.number > self._snapshot_written:
                self._disk.write_atomically(f"{self._directory}/{SNAPSHOT_NAME}", job.snapshot)
                self._snapshot_written = job.number
            if job.number > self._written:
                self._disk.write_atomically(f"{self._directory}/{CHECKPOINT_NAME}", job.checkpoint.encode())
                self._written = job.number

    def done(self, job: CheckpointJob) -> None:
        """Takes note of a job that has run; one that failed is made up for by the next."""
        if job.error is not None:
            self._uncertain = True
        elif job.number >= self._written:
            self.written = job.checkpoint
            self._snapshot_version = job.producers_version
            self._uncertain = False


def _sealed(body: bytes) -> bytes:
    return b"%08x %s\n" % (crc32c(body), body)
