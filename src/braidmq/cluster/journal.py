"""The bytes of the metadata journal: entries one after the other, and what a tail that cannot be read is.

An entry is `length, crc32c, JSON`, both numbers four bytes, big-endian, the checksum over the JSON. Newlines
after the JSON let the next entry begin at a multiple of eight, so that no header lies across two sectors.

An entry that cannot be read is torn or damaged, and the difference matters. A torn one was never synced, so
nobody was told that its commit is done, and it is cut off. A damaged one may have been reported as done:
dropping it would undo that commit, so opening is refused. After a power loss some sectors of an unsynced
entry hold what was written, and the others are past the end of the file or read as zeros. JSON holds no zero
byte, and a flipped bit makes no whole sector of them. So an entry is torn if

- the file ends within its header, or before the end that its length states;
- its length is zero, because the sector with its header was not written;
- its last byte is zero, or a whole sector within it is.

Anything else is damage: a wrong checksum with all bytes there, and a length that cannot be right because the
checksum matches what follows the header up to the end of the file. An unreadable entry that is followed by an
intact one is always damage, because an entry is written only after the one before it was synced. One case
cannot be told apart: a disk that turns a whole sector of the last entry to zeros after it was synced.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Mapping
from enum import Enum
from typing import Any, NamedTuple

from braidmq.platform.disk import Disk, StrPath
from braidmq.wire.checksum import crc32c

ENTRY_BYTES_MAX = 64 * 1024 * 1024
_HEADER = struct.Struct(">II")
_SECTOR_BYTES = 512

Change = Mapping[str, Any]


class Tail(Enum):
    """What follows the last entry that can be read."""

    NONE = "nothing"
    TORN = "an entry that a crash cut off"
    DAMAGED_LAST = "a damaged entry, the last one"
    DAMAGED = "a damaged entry with intact ones after it"


class Journal(NamedTuple):
    """What a file holds: its changes, oldest first, the byte after them, and what is there."""

    changes: list[Change]
    end: int
    tail: Tail


def encode(change: Change, position: int) -> bytes:
    """The entry of a change that is written at byte `position`."""
    body = json.dumps(change, separators=(",", ":")).encode()
    body += b"\n" * (-(position + _HEADER.size + len(body)) % _HEADER.size)
    if len(body) > ENTRY_BYTES_MAX:
        raise ValueError(f"a metadata change of {len(body):,} bytes is too large")
    return _HEADER.pack(len(body), crc32c(body)) + body


def read(content: bytes) -> Journal:
    """All changes that can be read."""
    changes = []
    at = 0
    while (entry := _decode(content, at)) is not None:
        change, at = entry
        changes.append(change)
    return Journal(changes, at, _tail(content, at))


def _decode(content: bytes, at: int) -> tuple[Change, int] | None:
    """The entry at `at` and where the next one starts; None if there is no intact one."""
    if len(content) - at < _HEADER.size:
        return None
    length, crc = _HEADER.unpack_from(content, at)
    start, end = at + _HEADER.size, at + _HEADER.size + length
    if not 0 < length <= ENTRY_BYTES_MAX or end > len(content) or crc32c(content[start:end]) != crc:
        return None
    return json.loads(content[start:end]), end


def _tail(content: bytes, at: int) -> Tail:
    if at == len(content):
        return Tail.NONE
    if any(_decode(content, later) is not None for later in range(at + 1, len(content) - _HEADER.size)):
        return Tail.DAMAGED
    return Tail.TORN if _is_torn(content, at) else Tail.DAMAGED_LAST


def _is_torn(content: bytes, at: int) -> bool:
    if len(content) - at < _HEADER.size:
        return True
    length, crc = _HEADER.unpack_from(content, at)
    start, end = at + _HEADER.size, at + _HEADER.size + length
    if not any(content[at:]):
        return True
    if length > ENTRY_BYTES_MAX or crc32c(content[start:]) == crc:
        return False
    return length == 0 or end > len(content) or content[end - 1] == 0 or _has_zero_sector(content, at, end)


def _has_zero_sector(content: bytes, start: int, end: int) -> bool:
    return any(not any(content[at : at + _SECTOR_BYTES]) for at in _sectors(start, end))


def _sectors(start: int, end: int) -> Iterator[int]:
    """Where the sectors begin that lie between two bytes of a file as a whole."""
    first = start + -start % _SECTOR_BYTES
    yield from range(first, end - _SECTOR_BYTES + 1, _SECTOR_BYTES)


def complaint(name: str, found: Journal) -> str:
    """What is wrong with a damaged journal, and what to do."""
    what = f"{name}: the entry at byte {found.end} is damaged"
    if found.tail is Tail.DAMAGED:
        return f"{what} and intact ones follow it; restore the file from a backup"
    return (
        f"{what}; it is the last one. Restore the file from a backup, or run braid doctor DIR --repair, which"
        " undoes this last change"
    )


def cut(disk: Disk, path: StrPath, end: int) -> None:
    """Ends a journal at a byte, durably."""
    file = disk.open(path)
    try:
        file.truncate(end)
        file.fdatasync()
    finally:
        file.close()
