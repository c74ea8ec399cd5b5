"""A segment: one file of record batches, named by its first offset, with its sparse index.

The last segment of a log takes appends; the others only shrink the log from its old end. A segment keeps no
file open by itself (see `files`), creates its file with its first batch, and loads its index when somebody
first looks something up in it or appends to it.

Where the newest batches start is also kept in memory, so that consumers at the tail need no
index and no disk.
"""

from __future__ import annotations

import logging
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator

from braidmq.log.cold_read import CHECK_BYTES_MAX, CheckJob, Cold, ColdRead
from braidmq.log.epochs import LeaderEpochs
from braidmq.log.files import FileCache, OpenFile
from braidmq.log.index import OFFSET_SUFFIX, TIME_SUFFIX, BadIndex, IndexEntry, SegmentIndex
from braidmq.log.scan import Damage, check, hop
from braidmq.log.verified_ranges import VerifiedRanges
from braidmq.platform.disk import Disk, DiskFile
from braidmq.wire.errors import ApiError, ErrorCode
from braidmq.wire.records import BatchHeader

LOG_SUFFIX = ".log"
DELETED_SUFFIX = ".deleted"
SUFFIXES = (LOG_SUFFIX, OFFSET_SUFFIX, TIME_SUFFIX)
RECENT_BATCHES_MAX = 128
NO_TIMESTAMP = -1
REPORTED_MAX = 100

log = logging.getLogger("braid.log")


class DamagedSegment(ApiError):
    """A batch is not what was written; what clients get is CORRUPT_MESSAGE."""

    def __init__(self, name: str, damage: Damage) -> None:
        super().__init__(ErrorCode.CORRUPT_MESSAGE, f"segment {name}: {damage}; run braid doctor")
        self.position = damage.position


class LogDirectory:
    """What the segments of one log share."""

    __slots__ = ("disk", "epochs", "files", "interval_bytes", "path")

    def __init__(
        self, disk: Disk, files: FileCache, path: str, interval_bytes: int, epochs: LeaderEpochs
    ) -> None:
        self.disk = disk
        self.files = files
        self.path = path
        self.interval_bytes = interval_bytes
        """Bytes of log between two index entries."""
        self.epochs = epochs

    def begin_epoch(self, epoch: int, offset: int, make_durable: Callable[[], None]) -> None:
        """Epoch `epoch` writes from `offset` on, once that is durable; if it cannot be, all is as it was."""
        known = self.epochs
        if epoch < known.latest:
            raise ApiError(
                ErrorCode.FENCED_LEADER_EPOCH,
                f"{self.path}: leader epoch {epoch} is over, epoch {known.latest} has begun",
            )
        if epoch > known.latest:
            self.epochs = known.followed_by(epoch, offset)
        try:
            make_durable()
        except BaseException:
            self.epochs = known
            raise


class Segment:
    """One file of a partition's log."""

    __slots__ = (
        "_directory", "_file", "_index", "_indexed_at", "_loaded", "_recent_offsets", "_recent_positions",
        "_reported", "_verified", "base_offset", "created_ms", "dirty", "exists", "max_timestamp", "resting",
        "sealed", "size_bytes", "untrusted_below", "used",
    )  # fmt: skip

    def __init__(self, directory: LogDirectory, base_offset: int, created_ms: int) -> None:
        self._directory = directory
        self.base_offset = base_offset
        self.created_ms = created_ms
        self.size_bytes = 0
        self.max_timestamp = NO_TIMESTAMP
        """Largest timestamp of the segment; known once its index is loaded, see `load`."""
        self.sealed = False
        self.dirty = False
        self.exists = False
        self.untrusted_below = 0
        """Bytes before this position were written by an earlier run and not checked since."""
        self.resting = False
        """Whether nobody has looked into it lately, so that even its index may have to come from the disk."""
        self.used = False
        self._file: OpenFile | None = None
        self._index: SegmentIndex | None = None
        self._loaded = True
        self._indexed_at = 0
        self._verified: VerifiedRanges | None = None
        self._reported: set[int] | None = None
        self._recent_offsets: array[int] | None = None
        self._recent_positions: array[int] | None = None

    def found(self, size_bytes: int, trusted_from: int) -> None:
        """Takes over a file of an earlier run, checked from `trusted_from` on."""
        self.exists = True
        self.size_bytes = size_bytes
        self.untrusted_below = trusted_from
        self.resting = True
        self._loaded = False

    def successor(self, created_ms: int) -> Segment:
        """A segment in the place of this one."""
        return Segment(self._directory, self.base_offset, created_ms)

    @property
    def stem(self) -> str:
        """The path of the segment's files without their suffix."""
        return f"{self._directory.path}/{self.base_offset:020d}"

    @property
    def path(self) -> str:
        return self.stem + LOG_SUFFIX

    @property
    def name(self) -> str:
        return f"{self.base_offset:020d}{LOG_SUFFIX}"

    # -- writing --------------------------------------------------------------------------------

    def append(self, batch: memoryview, base_offset: int, timestamp: int) -> None:
        """Writes a stamped batch at the end. OSError: nothing was appended, but `undo` must be called."""
        file = self._file
        if file is None or file.closed:
            file = self.open(create=True)
        if not self._loaded:
            self.load()
        file.used = True
        position = self.size_bytes
        size = len(batch)
        written = file.disk_file.write_at(batch, position)
        while written < size:
            written += file.disk_file.write_at(batch[written:], position + written)
        self.size_bytes = position + size
        if timestamp > self.max_timestamp:
            self.max_timestamp = timestamp
        if position - self._indexed_at > self._directory.interval_bytes:
            self.index.add(base_offset, position, self.max_timestamp)
            self._indexed_at = position
        offsets, positions = self._recent_offsets, self._recent_positions
        if offsets is None or positions is None:
            self._recent_offsets, self._recent_positions = array("q", (base_offset,)), array("q", (position,))
        else:
            offsets.append(base_offset)
            positions.append(position)
            if len(offsets) > RECENT_BATCHES_MAX:
                del offsets[: RECENT_BATCHES_MAX // 2]
                del positions[: RECENT_BATCHES_MAX // 2]

    def undo(self) -> None:
        """Removes what a failed append left after the last whole batch."""
        if self.exists:
            self.open().disk_file.truncate(self.size_bytes)

    def seal(self) -> None:
        """Ends appends: the index gets its last entry and is written out."""
        self.sealed = True
        self._forget_recent()
        self._loaded = False
        try:
            self.load()
        except OSError:
            pass  # the records are safe; the index is completed when somebody looks something up

    def open(self, create: bool = False) -> OpenFile:
        """The segment's file, open until the cache needs its place."""
        file = self._file
        if file is None or file.closed:
            file = self._file = self._directory.files.open(self._directory.disk, self.path, create)
            self.exists = True
        return file

    def open_apart(self) -> DiskFile:
        """The segment's file with a handle of its own, for a thread that may not touch the cache."""
        return self._directory.disk.open(self.path)

    # -- finding --------------------------------------------------------------------------------

    def locate(self, offset: int) -> tuple[int, int] | None:
        """Position and size of the batch that holds `offset`, or of the first after it; None past the end."""
        offsets, positions = self._recent_offsets, self._recent_positions
        if offsets is not None and positions is not None and offset >= offsets[0]:
            number = bisect_right(offsets, offset)
            position = positions[number - 1]
            return position, (positions[number] if number < len(positions) else self.size_bytes) - position
        found = self.find_offset(offset)
        return None if found is None else (found[0], found[1].size)

    def is_in(self, file: OpenFile | None) -> bool:
        return file is not None and self._file is file

    def offset_after(self, position: int) -> int | None:
        """An offset not before the end of the batches that end by `position`; None where none is known."""
        offsets, positions = self._recent_offsets, self._recent_positions
        if offsets is not None and positions is not None and position > positions[0]:
            number = bisect_left(positions, position)
            return offsets[number] if number < len(offsets) else None
        index = self.index
        try:
            number = bisect_left(range(len(index)), position, key=lambda at: index.entry(at).position)
            return index.entry(number).offset if number < len(index) else None
        except BadIndex:
            return None

    def find_offset(self, offset: int) -> tuple[int, BatchHeader] | None:
        """Position and header of the batch that holds `offset`, or of the first one after it."""
        try:
            return self._find_offset(offset)
        except BadIndex:
            self.rebuild_index()
            return self._find_offset(offset)

    def _find_offset(self, offset: int) -> tuple[int, BatchHeader] | None:
        self.load()
        entry = self.index.floor_offset(offset) if self.size_bytes > self._directory.interval_bytes else None
        position, expected = (entry.position, entry.offset) if entry is not None else (0, self.base_offset)
        try:
            for at, header in hop(self.open().disk_file, position, self.size_bytes, expected):
                if header.last_offset >= offset:
                    return at, header
        except Damage as damage:
            if entry is not None and damage.position == position:
                raise BadIndex(str(damage)) from damage
            raise self.corrupt(damage) from damage
        return None

    def batches_since(self, timestamp: int, offset: int) -> Iterator[tuple[int, BatchHeader]]:
        """Positions and headers of batches that reach `timestamp` and `offset`, from the first such on."""
        self.load()
        try:
            entry = self._later(self.index.before_time(timestamp), self.index.floor_offset(offset))
        except BadIndex:
            self.rebuild_index()
            entry = self._later(self.index.before_time(timestamp), self.index.floor_offset(offset))
        position, expected = (entry.position, entry.offset) if entry is not None else (0, self.base_offset)
        # A rotten timestamp must not send a reader to the wrong place, so what is not trusted is checked.
        walk = check if position < self.untrusted_below else hop
        try:
            for at, header in walk(self.open().disk_file, position, self.size_bytes, expected):
                if header.max_timestamp >= timestamp and header.last_offset >= offset:
                    yield at, header
        except Damage as damage:
            raise self.corrupt(damage) from damage

    @staticmethod
    def _later(one: IndexEntry | None, other: IndexEntry | None) -> IndexEntry | None:
        if one is None or other is None:
            return one or other
        return max(one, other)

    def read(self, position: int, size: int) -> bytes:
        """Bytes of the file, checked first if an earlier run wrote them; fewer if some are damaged."""
        if position < self.untrusted_below:
            size = self.verify(position, size)
        return self.open().disk_file.read_at(size, position)

    # -- checking -------------------------------------------------------------------------------

    @property
    def verified(self) -> VerifiedRanges:
        """What has been found of the bytes of earlier runs."""
        if self._verified is None:
            self._verified = VerifiedRanges()
        return self._verified

    def check_epoch(self, position: int, header: BatchHeader) -> None:
        """Raises Damage if a stored batch is not of the epoch that wrote its offset."""
        check_epoch(position, header, self._directory.epochs)

    def verify(self, position: int, size: int, cold: Cold = Cold.WAITS) -> int:
        """Checks the batches of [position, position + size) that an earlier run wrote, once; the good bytes.

        `position` is where a batch starts. Fewer bytes than asked for end before a damaged batch, or before
        one that a later read has to have checked. ApiError CORRUPT_MESSAGE if the first one is damaged,
        ColdRead if `cold` says so and it has not been checked yet.
        """
        verified = self.verified
        stop = min(position + size, self.untrusted_below)
        while True:
            reach = verified.reach(position)
            start, expected = reach if reach is not None else (position, None)
            if start >= stop:
                return size
            known = verified.unreadable is not None or start in verified.damaged
            if start > position and (known or cold is Cold.RAISES):
                return start - position
            if verified.unreadable is not None:
                _, error = verified.unreadable
                verified.unreadable = None
                raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, f"segment {self.name}: {error}")
            if start in verified.damaged:
                raise self.corrupt(verified.damaged[start])
            if cold is Cold.RAISES:
                raise ColdRead(CheckJob(self, start, min(stop, start + CHECK_BYTES_MAX), expected))
            job = CheckJob(self, start, stop, expected)
            job.run()
            job.done()

    def corrupt(self, damage: Damage) -> DamagedSegment:
        """The error for those who meet damage, which is logged the first time."""
        if self._reported is None:
            self._reported = set()
        if damage.position not in self._reported and len(self._reported) < REPORTED_MAX:
            self._reported.add(damage.position)
            log.error("%s: %s; run braid doctor", self.path, damage)
        return DamagedSegment(self.name, damage)

    # -- index ----------------------------------------------------------------------------------

    @property
    def index(self) -> SegmentIndex:
        if self._index is None:
            self._index = SegmentIndex(
                self._directory.disk, self._directory.files, self.stem, self.base_offset
            )
        return self._index

    def load(self) -> None:
        """Completes the index from the log, normally a hop over the last few batches.

        Afterwards `max_timestamp` is known. Uses no shared handle, so that recovery can do it in a thread.
        """
        if self._loaded:
            return
        if not len(self.index):
            self.index.load(self.size_bytes)
        try:
            self._complete_index()
        except BadIndex:
            self.rebuild_index()
        self._loaded = True

    def rebuild_index(self) -> None:
        """Rebuilds the index from the batch headers."""
        self.index.clear()
        self.index.cut()
        self._complete_index()
        self._loaded = True

    def _complete_index(self) -> None:
        index = self.index
        last = index.last
        position, expected = (last.position, last.offset) if last is not None else (0, self.base_offset)
        self.max_timestamp = last.timestamp if last is not None else NO_TIMESTAMP
        self._indexed_at = position
        if not self.size_bytes:
            return
        file = self.open_apart()
        try:
            for at, header in hop(file, position, self.size_bytes, expected):
                self.max_timestamp = max(self.max_timestamp, header.max_timestamp)
                ends_sealed = self.sealed and at + header.size == self.size_bytes
                indexed = len(index) and at == self._indexed_at
                if not indexed and (ends_sealed or at - self._indexed_at > self._directory.interval_bytes):
                    index.add(header.base_offset, at, self.max_timestamp)
                    self._indexed_at = at
        except Damage as damage:
            if last is not None and damage.position == position:
                raise BadIndex(str(damage)) from damage
            # What lies before the damage stays findable; reading past it reports the damage.
            self._indexed_at = damage.position - self._directory.interval_bytes
        finally:
            file.close()
        if self.sealed:
            index.write_out()

    def truncate(self, position: int) -> None:
        """Cuts the file at `position`, durably, and the index with it; the segment takes appends again."""
        file = self.open().disk_file
        file.truncate(position)
        file.fdatasync()
        self._forget_recent()
        self.sealed = False
        self.size_bytes = position
        self.untrusted_below = min(self.untrusted_below, position)
        self._verified = None
        self.index.write_out()
        self.index.clear()
        self.index.load(position)
        self.index.cut()
        self._loaded = False

    # -- leaving --------------------------------------------------------------------------------

    def rename_deleted(self) -> list[str]:
        """Takes the segment out of the log by name; the files to remove later."""
        self.forget_files()
        renamed = []
        for suffix in SUFFIXES:
            path = self.stem + suffix
            if self._directory.disk.exists(path):
                self._directory.disk.rename(path, path + DELETED_SUFFIX)
                renamed.append(path + DELETED_SUFFIX)
        return renamed

    def unlink(self) -> None:
        """Removes the segment's files."""
        self.forget_files()
        for suffix in SUFFIXES:
            if self._directory.disk.exists(self.stem + suffix):
                self._directory.disk.unlink(self.stem + suffix)

    def forget_files(self) -> None:
        """Closes the segment's files, once nobody uses them."""
        self._file = None
        self._directory.files.forget(self.path)
        if self._index is not None:
            self._index.forget_files()

    def _forget_recent(self) -> None:
        self._recent_offsets = self._recent_positions = None


def check_epoch(position: int, header: BatchHeader, epochs: LeaderEpochs) -> None:
    """Raises Damage if a stored batch is not of the epoch that wrote its offset."""
    if header.leader_epoch != epochs.at(header.base_offset):
        raise Damage(position, f"leader epoch {header.leader_epoch} is not the one that wrote it")
