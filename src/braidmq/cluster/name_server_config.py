"""The small key-value configuration of a name server: a file, read at the start and written whole.

Each name server has its own; `braid nameserver config` writes to all that it is given.
"""

from __future__ import annotations

import json
from pathlib import Path

from braidmq.platform.disk import Disk
from braidmq.wire.checksum import seal, unseal

FILE_NAME = "config"
KEY_BYTES_MAX = 256
VALUE_BYTES_MAX = 64 * 1024
ENTRIES_MAX = 1000
BYTES_MAX = 4 * 1024 * 1024


class BadEntry(Exception):
    """An entry that cannot be kept, or is not there; the text says why."""


class NameServerConfig:
    """Entries in a file of `directory`; on disk when `put` and `delete` return."""

    def __init__(self, disk: Disk, directory: Path) -> None:
        self._disk = disk
        self._path = directory / FILE_NAME
        self._entries: dict[str, str] = self._read()

    def _read(self) -> dict[str, str]:
        if not self._disk.exists(self._path):
            return {}
        body = unseal(self._disk.read_file(self._path))
        try:
            return {str(key): str(value) for key, value in json.loads(body or b"").items()}
        except (ValueError, AttributeError):
            raise BadEntry(
                f"{self._path} is damaged; restore it, or remove it and put the entries in again"
            ) from None

    def all(self) -> dict[str, str]:
        return dict(self._entries)

    def get(self, key: str) -> dict[str, str]:
        if key not in self._entries:
            raise BadEntry(f"there is no entry {key!r:.100}")
        return {key: self._entries[key]}

    def put(self, key: str, value: str) -> None:
        if not 0 < len(key.encode()) <= KEY_BYTES_MAX:
            raise BadEntry(f"a key has from 1 to {KEY_BYTES_MAX} bytes, this one {len(key.encode())}")
        if len(value.encode()) > VALUE_BYTES_MAX:
            raise BadEntry(f"a value has up to {VALUE_BYTES_MAX} bytes, this one {len(value.encode())}")
        changed = {**self._entries, key: value}
        size = sum(len(each.encode()) + len(held.encode()) for each, held in changed.items())
        if len(changed) > ENTRIES_MAX or size > BYTES_MAX:
            raise BadEntry(f"up to {ENTRIES_MAX} entries of {BYTES_MAX} bytes together are kept")
        self._write(changed)

    def delete(self, key: str) -> None:
        self.get(key)
        self._write({each: value for each, value in self._entries.items() if each != key})

    def _write(self, changed: dict[str, str]) -> None:
        body = json.dumps(changed, separators=(",", ":")).encode()
        self._disk.write_atomically(self._path, seal(body))
        self._entries = changed
