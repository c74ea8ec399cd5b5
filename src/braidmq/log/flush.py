"""A flush: the blocking half of a group commit, made to run in a thread.

The log hands out a job with the files that hold unsynced bytes, pinned, so that they stay open whatever the
loop does meanwhile. What is appended after that goes with the next job.

When the disk refuses, a marker is left beside the segments: the page cache now holds bytes that the kernel
takes for written, and the recovery of the next start must write them again before it may believe a sync.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from braidmq.log.files import OpenFile
from braidmq.log.segment import Segment
from braidmq.platform.disk import Disk

FAILED_NAME = "failed"


class FlushJob:
    """Syncs everything a log held when the job began."""

    __slots__ = (
        "_directories", "_disk", "_files", "_path", "begun_ms", "end_offset", "error", "position", "segment",
    )  # fmt: skip

    def __init__(
        self, disk: Disk, path: str, dirty: Sequence[Segment], directories: Sequence[str], end_offset: int
    ) -> None:
        self._disk = disk
        self._path = path
        self._directories = directories
        self._files: list[OpenFile] = []
        self.end_offset = end_offset
        self.segment = dirty[-1]
        self.position = self.segment.size_bytes
        self.begun_ms = 0
        self.error: OSError | None = None
        try:
            for segment in dirty:
                file = segment.open()
                file.pin()
                self._files.append(file)
        except OSError:
            self.release()
            raise

    def cut_to(self, end_offset: int, segment: Segment, position: int) -> None:
        """The log was cut while the job is under way: it makes durable what is left."""
        if end_offset < self.end_offset:
            self.end_offset, self.segment, self.position = end_offset, segment, position

    def run(self) -> None:
        """Blocks until everything is on disk. OSError: it is not, and trying again would prove nothing."""
        try:
            for file in self._files:
                file.disk_file.fdatasync()
            # Names after contents: a name that survives a crash then stands for bytes that did.
            for directory in self._directories:
                self._disk.sync_directory(directory)
        except OSError as error:
            self.error = error
            self._leave_marker(error)
            raise

    def _leave_marker(self, error: OSError) -> None:
        try:
            self._disk.write_atomically(f"{self._path}/{FAILED_NAME}", f"{error}\n".encode())
        except OSError:
            pass  # the disk is in no state to keep even this; it is a help, not a promise

    def release(self) -> None:
        """Lets the files be closed; belongs to the thread that made the job."""
        files, self._files = self._files, []
        for file in files:
            file.unpin()


def make_directory(disk: Disk, path: str, unsynced: list[str]) -> None:
    """Makes a log's directory if it is missing; `unsynced` gets what the next flush must sync."""
    topmost = disk.makedirs(path)
    for directory in [path] if topmost is None else lineage(Path(path), topmost):
        if directory not in unsynced:
            unsynced.append(directory)


def lineage(path: Path, topmost: Path) -> list[str]:
    """Directories to sync so that `path`, created from `topmost` on, is found again after a crash."""
    return [str(parent) for parent in (path, *path.parents) if parent.is_relative_to(topmost.parent)]


def sync_ancestors(disk: Disk, path: Path) -> None:
    """Makes a directory durable that a run before created and, as far as one can tell, never synced."""
    for parent in path.parents:
        try:
            disk.sync_directory(parent)
        except PermissionError:
            return
