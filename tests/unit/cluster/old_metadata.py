"""Writes metadata as release 0.x did: `metadata.journal`, keys with JSON values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from braidmq.cluster import journal
from braidmq.cluster.carry_over import OLD_NAME
from braidmq.platform.disk import Disk


class OldJournal:
    """A journal to which every commit adds an entry."""

    def __init__(self, disk: Disk, directory: Path) -> None:
        path = directory / OLD_NAME
        if not disk.exists(path):
            disk.write_atomically(path, b"")
        self._file = disk.open_append(path)
        self.newest_revision = 0

    def commit(self, puts: Mapping[str, Any], deletes: Iterable[str] = ()) -> None:
        change = {"put": dict(puts), "delete": list(deletes)}
        self._file.write(journal.encode(change, self._file.size()))
        self._file.fdatasync()
        self.newest_revision += 1

    def close(self) -> None:
        self._file.close()
