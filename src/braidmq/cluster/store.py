"""The metadata store of a single machine: a small map of keys to JSON values, kept in a journaled file.

A commit is one journal entry, `length, crc32c, JSON`, appended and synced before it counts; either all of
its puts and deletes happen or none. On opening, entries are replayed up to the first one that is torn or
damaged at the tail; damage before intact entries is refused, because skipping it would bring deleted topics
back or lose live ones. When the file has grown to several times its live content, it is rewritten beside
itself and swapped in by rename.

Every value carries the revision of the commit that wrote it, and a commit may demand revisions, so that the
same interface can stand on etcd where there are several machines.
"""

from __future__ import annotations

import json
import struct
import threading
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from braidmq.platform.disk import Disk
from braidmq.wire.checksum import crc32c

_ENTRY = struct.Struct(">II")
ENTRY_BYTES_MAX = 64 * 1024 * 1024
REWRITE_BYTES_MIN = 1024 * 1024
REWRITE_FACTOR = 4


class Conflict(Exception):
    """A commit's demands on revisions were not met; nothing was changed."""


class StoreCorrupt(Exception):
    """The journal is damaged in the middle."""


class Store:
    """Keys, values and revisions; every change is on disk when `commit` returns."""

    def __init__(self, disk: Disk, path: Path) -> None:
        self._disk = disk
        self._path = path
        self._values: dict[str, tuple[int, Any]] = {}
        self._revision = 0
        self._failed: OSError | None = None
        self._lock = threading.Lock()
        if not disk.exists(path):
            disk.write_atomically(path, b"")
        self._replay()
        self._file = disk.open_append(path)

    def get(self, key: str) -> Any:
        """The value of `key`, or None."""
        entry = self._values.get(key)
        return None if entry is None else entry[1]

    def revision(self, key: str) -> int:
        """The revision that wrote `key`; 0 if it does not exist."""
        entry = self._values.get(key)
        return 0 if entry is None else entry[0]

    @property
    def newest_revision(self) -> int:
        """The revision of the last commit."""
        return self._revision

    def items(self, prefix: str) -> Iterator[tuple[str, Any]]:
        """Keys that start with `prefix`, in order, with their values."""
        for key in sorted(key for key in self._values if key.startswith(prefix)):
            yield key, self._values[key][1]

    def commit(
        self, puts: Mapping[str, Any], deletes: Iterable[str] = (), revisions: Mapping[str, int] | None = None
    ) -> None:
        """Applies all changes durably, or raises Conflict if a key is not at the revision demanded."""
        with self._lock:
            for key, revision in (revisions or {}).items():
                if self.revision(key) != revision:
                    raise Conflict(f"{key} is at revision {self.revision(key)}, not {revision}")
            change = {"put": dict(puts), "delete": list(deletes)}
            self._append(_encode(change))
            self._apply(change)
            self._rewrite_if_bloated()

    def close(self) -> None:
        self._file.close()

    # -- journal --------------------------------------------------------------------------------

    def _append(self, entry: bytes) -> None:
        if self._failed is not None:
            raise self._failed
        before = self._file.size()
        try:
            self._file.write(entry)
        except OSError:
            self._file.truncate(before)
            raise
        try:
            self._file.fdatasync()
        except OSError as error:
            # The kernel may have dropped the pages it could not write: no later sync can be believed.
            self._failed = error
            raise

    def _apply(self, change: Mapping[str, Any]) -> None:
        self._revision += 1
        for key, value in change["put"].items():
            self._values[key] = (self._revision, value)
        for key in change["delete"]:
            self._values.pop(key, None)

    def _replay(self) -> None:
        content = self._disk.read_file(self._path)
        at = 0
        while (entry := _decode(content, at)) is not None:
            change, at = entry
            self._apply(change)
        if at < len(content):
            if _intact_entry_after(content, at):
                raise StoreCorrupt(
                    f"{self._path.name}: the entry at byte {at} is damaged and intact ones follow it;"
                    " restore the file from a backup"
                )
            # A commit that was cut off by a crash was never reported as done.
            with_tail = self._disk.open_append(self._path)
            with_tail.truncate(at)
            with_tail.fdatasync()
            with_tail.close()

    def _rewrite_if_bloated(self) -> None:
        if self._file.size() < REWRITE_BYTES_MIN:
            return
        live = _encode({"put": {key: value for key, (_, value) in self._values.items()}, "delete": []})
        if self._file.size() < REWRITE_FACTOR * len(live):
            return
        self._disk.write_atomically(self._path, live)
        self._file.close()
        self._file = self._disk.open_append(self._path)


def _encode(change: Mapping[str, Any]) -> bytes:
    body = json.dumps(change, separators=(",", ":")).encode()
    if len(body) > ENTRY_BYTES_MAX:
        raise ValueError(f"a metadata change of {len(body):,} bytes is too large")
    return _ENTRY.pack(len(body), crc32c(body)) + body


def _decode(content: bytes, at: int) -> tuple[Mapping[str, Any], int] | None:
    """The entry at `at` and where the next one starts; None if there is no intact one."""
    if len(content) - at < _ENTRY.size:
        return None
    length, crc = _ENTRY.unpack_from(content, at)
    start, end = at + _ENTRY.size, at + _ENTRY.size + length
    if not 0 < length <= ENTRY_BYTES_MAX or end > len(content) or crc32c(content[start:end]) != crc:
        return None
    return json.loads(content[start:end]), end


def _intact_entry_after(content: bytes, at: int) -> bool:
    return any(_decode(content, later) is not None for later in range(at + 1, len(content) - _ENTRY.size))
