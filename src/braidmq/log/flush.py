"""A flush: the blocking half of a group commit, made to run in a thread.

The log hands out a job with the files that hold unsynced bytes, pinned, so that they stay open whatever the
loop does meanwhile. What is appended after that goes with the next job.
"""

from __future__ import annotations

from braidmq.log.files import OpenFile
from braidmq.log.segment import Segment
from braidmq.platform.disk import Disk


class FlushJob:
    """Syncs everything a log held when the job began."""

    __slots__ = (
        "_directories",
        "_disk",
        "_files",
        "begun_ms",
        "end_offset",
        "error",
        "position",
        "segment",
        "segments",
    )

    def __init__(
        self,
        disk: Disk,
        segments: list[Segment],
        directories: list[str],
        end_offset: int,
        active: Segment,
        begun_ms: int,
    ) -> None:
        self._disk = disk
        self._directories = directories
        self._files: list[OpenFile] = []
        self.segments = segments
        self.end_offset = end_offset
        self.segment = active
        self.position = active.size_bytes
        self.begun_ms = begun_ms
        self.error: OSError | None = None
        for segment in segments:
            file = segment.open()
            file.pin()
            self._files.append(file)

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
            raise

    def release(self) -> None:
        """Lets the files be closed; belongs to the thread that made the job."""
        files, self._files = self._files, []
        for file in files:
            file.unpin()
