"""The checkpoint of a log: up to where it is known to be safe, and what the batches alone do not tell.

It holds the recovery point (everything before it was synced, so recovery checks only what follows), the start
offset (DeleteRecords moves it without touching segments) and the leader epochs. It is one line of JSON behind
its CRC, written twice into one small file: the start offset exists nowhere else, and a single flipped bit
must not bring deleted records back.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from dataclasses import dataclass

from crc32c import crc32c

from braidmq.log.producer_state import SNAPSHOT_NAME
from braidmq.platform.disk import Disk

CHECKPOINT_NAME = "checkpoint"
NO_SNAPSHOT = -1


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
    snapshot_offset: int
    """Offset of the newest producer snapshot this checkpoint relies on."""

    def encode(self) -> bytes:
        line = _sealed(
            json.dumps(
                {
                    "recovery_offset": self.recovery_offset,
                    "segment_offset": self.segment_offset,
                    "position": self.position,
                    "start_offset": self.start_offset,
                    "epochs": self.epochs,
                    "segment_created_ms": self.segment_created_ms,
                    "snapshot_offset": self.snapshot_offset,
                },
                separators=(",", ":"),
            ).encode()
        )
        return line + line


def decode(content: bytes) -> tuple[Checkpoint | None, bool]:
    """The checkpoint, None if no copy is sound; and whether both copies are."""
    lines = content.split(b"\n")
    sound = [line for line in lines if _sealed(line[9:]) == line + b"\n"]
    whole = len(sound) == 2 and sound[0] == sound[1] and lines[2:] == [b""]
    if not sound:
        return None, False
    fields = json.loads(sound[0][9:])
    fields["epochs"] = tuple((epoch, start) for epoch, start in fields["epochs"])
    return Checkpoint(**fields), whole


def load(disk: Disk, directory: str) -> Checkpoint | None:
    """The directory's checkpoint; None if there is none or it is damaged beyond its copy."""
    try:
        content = disk.read_file(f"{directory}/{CHECKPOINT_NAME}")
    except FileNotFoundError:
        return None
    return decode(content)[0]


class CheckpointFiles:
    """Where the checkpoints of a log go; an older one never replaces a newer one."""

    __slots__ = ("_directory", "_disk", "_lock", "_newest", "_newest_snapshot")

    def __init__(self, disk: Disk, directory: str) -> None:
        self._disk = disk
        self._directory = directory
        self._lock = threading.Lock()
        self._newest = 0
        self._newest_snapshot = 0

    def write(
        self, number: int, checkpoint: Checkpoint, snapshot: bytes | None, directories: Sequence[str]
    ) -> None:
        """Makes checkpoint `number` durable, unless a later one already is; `directories` are synced first."""
        with self._lock:
            for directory in directories:
                self._disk.sync_directory(directory)
            # In this order: a snapshot newer than the checkpoint is fine, one older would lack batches.
            if snapshot is not None and number > self._newest_snapshot:
                self._disk.write_atomically(f"{self._directory}/{SNAPSHOT_NAME}", snapshot)
                self._newest_snapshot = number
            if number > self._newest:
                self._disk.write_atomically(f"{self._directory}/{CHECKPOINT_NAME}", checkpoint.encode())
                self._newest = number


class CheckpointJob:
    """Writes a checkpoint, and the producer snapshot if it changed; may run in any thread."""

    __slots__ = ("_directories", "_files", "_number", "_snapshot", "checkpoint", "error", "producers_version")

    def __init__(
        self,
        files: CheckpointFiles,
        number: int,
        checkpoint: Checkpoint,
        snapshot: bytes | None,
        directories: Sequence[str],
    ) -> None:
        self._files = files
        self._number = number
        self._snapshot = snapshot
        self._directories = directories
        self.checkpoint = checkpoint
        self.producers_version = -1
        """Which state of the producers is wholly on disk once this is; -1 if batches are left out of it."""
        self.error: OSError | None = None

    def run(self) -> None:
        """Blocks until both are durable."""
        try:
            self._files.write(self._number, self.checkpoint, self._snapshot, self._directories)
        except OSError as error:
            self.error = error
            raise


def _sealed(body: bytes) -> bytes:
    return b"%08x %s\n" % (crc32c(body), body)
