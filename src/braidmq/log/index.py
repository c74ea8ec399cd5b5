"""The sparse index of a segment: from an offset or a time to a byte position near it.

Two files grow together, entry by entry, one entry for every few kilobytes of log:

    .index      u32 offset relative to the segment | u32 position | u32 check
    .timeindex  i64 largest timestamp up to and including that batch | u32 relative offset | u32 check

The check is a CRC-32C seeded with the segment's base offset, so a flipped bit, a zero-filled tail or an entry
of another segment is noticed when it is used. Nothing here is synced: an index can be rebuilt from the log.
A closed segment's index ends with an entry for the last batch, which shows that it is complete.

New entries wait in memory and are written many at a time; old ones are mapped and searched in place.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable
from struct import Struct
from typing import NamedTuple

from braidmq.log.files import FileCache
from braidmq.platform.disk import Disk, DiskFile, Mapped
from braidmq.wire.checksum import crc32c

OFFSET_SUFFIX = ".index"
TIME_SUFFIX = ".timeindex"
PENDING_ENTRIES_MAX = 64
RELATIVE_OFFSET_MAX = 2**31 - 1

_OFFSET = Struct(">III")
_OFFSET_BODY = Struct(">II")
_TIME = Struct(">qII")
_TIME_BODY = Struct(">qI")
OFFSET_ENTRY_BYTES = _OFFSET.size
TIME_ENTRY_BYTES = _TIME.size


class BadIndex(Exception):
    """An entry failed its check, or its file cannot be read; the index must be rebuilt."""


class IndexEntry(NamedTuple):
    """A batch the index knows: its base offset, its position, and the largest timestamp so far."""

    offset: int
    position: int
    timestamp: int


class SegmentIndex:
    """Both index files of one segment."""

    __slots__ = (
        "_base_offset", "_disk", "_files", "_pending_offsets", "_pending_times", "_seed", "_stem", "_written",
        "last",
    )  # fmt: skip

    def __init__(self, disk: Disk, files: FileCache, stem: str, base_offset: int) -> None:
        self._disk = disk
        self._files = files
        self._stem = stem
        self._base_offset = base_offset
        self._seed = index_seed(base_offset)
        self.last: IndexEntry | None = None
        """The newest entry."""
        self._written = 0
        self._pending_offsets = bytearray()
        self._pending_times = bytearray()

    def __len__(self) -> int:
        return self._written + len(self._pending_offsets) // OFFSET_ENTRY_BYTES

    # -- growing --------------------------------------------------------------------------------

    def add(self, offset: int, position: int, timestamp: int) -> None:
        """Adds an entry after all others."""
        relative = offset - self._base_offset
        body = _OFFSET_BODY.pack(relative, position)
        self._pending_offsets += _OFFSET.pack(relative, position, crc32c(body, self._seed))
        body = _TIME_BODY.pack(timestamp, relative)
        self._pending_times += _TIME.pack(timestamp, relative, crc32c(body, self._seed))
        self.last = IndexEntry(offset, position, timestamp)
        if len(self._pending_offsets) >= PENDING_ENTRIES_MAX * OFFSET_ENTRY_BYTES:
            self.write_out()

    def write_out(self) -> None:
        """Writes the entries that wait in memory. If the disk refuses they keep waiting: nothing is lost."""
        if not self._pending_offsets:
            return
        try:
            _write_at(
                self._disk,
                self._stem + OFFSET_SUFFIX,
                self._pending_offsets,
                self._written * OFFSET_ENTRY_BYTES,
            )
            _write_at(
                self._disk, self._stem + TIME_SUFFIX, self._pending_times, self._written * TIME_ENTRY_BYTES
            )
        except OSError:
            return
        self._written = len(self)
        self._pending_offsets.clear()
        self._pending_times.clear()

    # -- searching ------------------------------------------------------------------------------

    def floor_offset(self, offset: int) -> IndexEntry | None:
        """The last entry at or before `offset`; None if all come later."""
        offset_at = self._offsets()
        number = bisect_right(range(len(self)), offset, key=lambda middle: offset_at(middle)[0])
        return self.entry(number - 1) if number else None

    def before_time(self, timestamp: int) -> IndexEntry | None:
        """The last entry up to which every timestamp is smaller; None if the first is not."""
        time_at = self._times()
        number = bisect_left(range(len(self)), timestamp, key=lambda middle: time_at(middle)[0])
        return self.entry(number - 1) if number else None

    def entry(self, number: int) -> IndexEntry:
        """Entry `number`, both halves checked."""
        offset, position = self._offsets()(number)
        timestamp, time_offset = self._times()(number)
        if time_offset != offset:
            raise BadIndex(f"entry {number} is of offset {offset} in one file and {time_offset} in the other")
        return IndexEntry(offset, position, timestamp)

    def _offsets(self) -> Callable[[int], tuple[int, int]]:
        """What gives offset and position of an entry."""
        raw = self._reader(OFFSET_SUFFIX, OFFSET_ENTRY_BYTES, self._pending_offsets)
        return lambda number: decode_offset_entry(raw(number), self._base_offset, self._seed)

    def _times(self) -> Callable[[int], tuple[int, int]]:
        """What gives timestamp and offset of an entry."""
        raw = self._reader(TIME_SUFFIX, TIME_ENTRY_BYTES, self._pending_times)
        return lambda number: decode_time_entry(raw(number), self._base_offset, self._seed)

    def _reader(self, suffix: str, size: int, pending: bytearray) -> Callable[[int], bytes]:
        """What gives the bytes of an entry, from the mapped file or from memory."""
        written = self._written
        mapped = self._mapped(suffix, written * size) if written else None

        def raw(number: int) -> bytes:
            if mapped is not None and number < written:
                return mapped[number * size : (number + 1) * size]
            at = (number - written) * size
            return bytes(pending[at : at + size])

        return raw

    def _mapped(self, suffix: str, size: int) -> Mapped:
        path = self._stem + suffix
        try:
            mapped = self._files.map(self._disk, path).mapped
            if len(mapped) < size:
                # It was mapped before the file grew.
                self._files.forget(path)
                mapped = self._files.map(self._disk, path).mapped
        except (OSError, ValueError) as error:
            raise BadIndex(f"{path} cannot be read: {error}") from error
        if len(mapped) < size:
            raise BadIndex(f"{path} is shorter than it was")
        return mapped

    # -- opening and cutting --------------------------------------------------------------------

    def load(self, log_bytes: int) -> None:
        """Takes what the files hold, without the bad or premature entries a crash may leave at the end.

        Reads past the file cache, because recovery runs in a thread of its own.
        """
        try:
            offsets = self._disk.open(self._stem + OFFSET_SUFFIX)
        except OSError:
            return
        try:
            times = self._disk.open(self._stem + TIME_SUFFIX)
        except OSError:
            offsets.close()
            return
        try:
            self._take_sound(offsets, times, log_bytes)
        finally:
            offsets.close()
            times.close()

    def _take_sound(self, offsets: DiskFile, times: DiskFile, log_bytes: int) -> None:
        count = min(offsets.size() // OFFSET_ENTRY_BYTES, times.size() // TIME_ENTRY_BYTES)
        while count:
            raw = offsets.read_at(OFFSET_ENTRY_BYTES, (count - 1) * OFFSET_ENTRY_BYTES)
            raw_time = times.read_at(TIME_ENTRY_BYTES, (count - 1) * TIME_ENTRY_BYTES)
            try:
                offset, position = decode_offset_entry(raw, self._base_offset, self._seed)
                timestamp, time_offset = decode_time_entry(raw_time, self._base_offset, self._seed)
                if position < log_bytes and time_offset == offset:
                    self.last = IndexEntry(offset, position, timestamp)
                    break
            except BadIndex:
                pass
            count -= 1
        self._written = count

    def cut(self) -> None:
        """Removes from the files what `load` did not take.

        Synced, because an entry of a lost tail that came back later would carry a valid check.
        """
        self._cut_file(OFFSET_SUFFIX, self._written * OFFSET_ENTRY_BYTES)
        self._cut_file(TIME_SUFFIX, self._written * TIME_ENTRY_BYTES)

    def _cut_file(self, suffix: str, size: int) -> None:
        path = self._stem + suffix
        self._files.forget(path)
        if not self._disk.exists(path) or self._disk.size(path) <= size:
            return
        file = self._disk.open(path)
        try:
            file.truncate(size)
            file.fdatasync()
        finally:
            file.close()

    def clear(self) -> None:
        """Forgets every entry; the caller adds them again."""
        self.last = None
        self._written = 0
        self._pending_offsets.clear()
        self._pending_times.clear()
        self.forget_files()

    def forget_files(self) -> None:
        """Closes the maps; called before the files are renamed or left alone."""
        self._files.forget(self._stem + OFFSET_SUFFIX)
        self._files.forget(self._stem + TIME_SUFFIX)


def decode_offset_entry(raw: bytes, base_offset: int, seed: int) -> tuple[int, int]:
    """Offset and position of an `.index` entry; BadIndex if it fails its check."""
    if len(raw) < OFFSET_ENTRY_BYTES:
        raise BadIndex("an offset entry is missing")
    relative, position, check = _OFFSET.unpack(raw)
    if crc32c(raw[:8], seed) != check:
        raise BadIndex("an offset entry fails its check")
    return base_offset + relative, position


def decode_time_entry(raw: bytes, base_offset: int, seed: int) -> tuple[int, int]:
    """Timestamp and offset of a `.timeindex` entry; BadIndex if it fails its check."""
    if len(raw) < TIME_ENTRY_BYTES:
        raise BadIndex("a time entry is missing")
    timestamp, relative, check = _TIME.unpack(raw)
    if crc32c(raw[:12], seed) != check:
        raise BadIndex("a time entry fails its check")
    return timestamp, base_offset + relative


def index_seed(base_offset: int) -> int:
    """What the checks of a segment's entries start from."""
    return crc32c(base_offset.to_bytes(8, "big"))


def _write_at(disk: Disk, path: str, content: bytearray, position: int) -> None:
    file = disk.open(path, create=True)
    try:
        view = memoryview(content)
        while view:
            count = file.write_at(view, position)
            position += count
            view = view[count:]
    finally:
        file.close()
