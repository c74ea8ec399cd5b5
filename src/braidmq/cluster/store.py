"""The metadata store of a single machine: a small map of keys to JSON values, kept in a journaled file.

A commit is one entry of the journal, appended and synced before it counts; either all of its puts and deletes
happen or none. On opening, entries are replayed. One that a crash has cut off is dropped; damage is refused,
because skipping it would bring deleted topics back or lose live ones (`cluster/journal.py` says which is
which). When the file has grown to several times its live content, it is rewritten beside itself and swapped
in by rename. A rewrite only saves space, so one that fails fails no commit.

Every value carries the revision of the commit that wrote it, and a commit may demand revisions, so that
the same interface can be served by etcd where there are several machines. Revisions survive rewriting and
reopening.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from braidmq.cluster import journal
from braidmq.cluster.journal import Tail
from braidmq.platform.disk import TEMPORARY_SUFFIX, Disk, DiskFile

REWRITE_BYTES_MIN = 1024 * 1024
REWRITE_FACTOR = 4
KEYS_PER_ENTRY = 1000
"""How many keys an entry of a rewritten journal holds, so that no entry grows too large."""

log = logging.getLogger("braid.store")


class Conflict(Exception):
    """A commit's demands on revisions were not met; nothing was changed."""


class StoreCorrupt(Exception):
    """The journal is missing or damaged: what it held is not known."""


class Store:
    """Keys, values and revisions; every change is on disk when `commit` returns."""

    def __init__(self, disk: Disk, path: Path) -> None:
        self._disk = disk
        self._path = path
        self._values: dict[str, tuple[int, Any]] = {}
        self._revision = 0
        self._failed: OSError | None = None
        self._lock = threading.Lock()
        self._rewrite_above_bytes = 0
        if not disk.exists(path):
            disk.write_atomically(path, b"")
        self._replay()
        self._file = disk.open_append(path)
        # What a killed process has written or renamed without a sync is shown from here on: it must stay.
        self._file.fdatasync()
        disk.sync_directory(path.parent)

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
        # Copied first: a commit in a thread may change the map at any time.
        found = {key: entry for key, entry in self._values.copy().items() if key.startswith(prefix)}
        for key in sorted(found):
            yield key, found[key][1]

    def commit(
        self, puts: Mapping[str, Any], deletes: Iterable[str] = (), revisions: Mapping[str, int] | None = None
    ) -> None:
        """Applies all changes durably, or raises Conflict if a key is not at the revision demanded."""
        with self._lock:
            for key, revision in (revisions or {}).items():
                if self.revision(key) != revision:
                    raise Conflict(f"{key} is at revision {self.revision(key)}, not {revision}")
            change = {"put": dict(puts), "delete": list(deletes)}
            self._append(journal.encode(change, self._file.size()))
            self._apply(change)
            self._rewrite_if_bloated()

    def close(self) -> None:
        self._file.close()

    # -- journal --------------------------------------------------------------------------------

    def _append(self, entry: bytes) -> None:
        if self._failed is not None:
            raise OSError(
                self._failed.errno,
                f"{self._path.name} takes no more changes since a disk error ({self._failed});"
                " check the disk, then restart the broker",
            )
        before = self._file.size()
        try:
            self._file.write(entry)
        except OSError as error:
            self._take_back(before, error)
            raise
        try:
            self._file.fdatasync()
        except OSError as error:
            # The kernel may have dropped the pages it could not write: no later sync can be believed.
            self._failed = error
            raise

    def _take_back(self, size: int, error: OSError) -> None:
        try:
            self._file.truncate(size)
        except OSError:
            # Part of an entry is in the way: whatever followed it would not be found again.
            self._failed = error

    def _apply(self, change: journal.Change) -> None:
        self._revision = change.get("revision", self._revision + 1)
        revisions = change.get("revisions", {})
        for key, value in change["put"].items():
            self._values[key] = (revisions.get(key, self._revision), value)
        for key in change["delete"]:
            self._values.pop(key, None)

    def _replay(self) -> None:
        content = self._disk.read_file(self._path)
        found = journal.read(content)
        if found.tail in (Tail.DAMAGED, Tail.DAMAGED_LAST):
            raise StoreCorrupt(complaint(self._path.name, found))
        for change in found.changes:
            self._apply(change)
        if found.tail is Tail.TORN:
            log.warning("%s: dropped a change that a crash cut off at byte %d", self._path.name, found.end)
            cut_journal(self._disk, self._path, found.end)

    # -- rewriting ------------------------------------------------------------------------------

    def _rewrite_if_bloated(self) -> None:
        size = self._file.size()
        if size < REWRITE_BYTES_MIN or size < self._rewrite_above_bytes:
            return
        live = self._live()
        if size < REWRITE_FACTOR * len(live):
            self._rewrite_above_bytes = REWRITE_FACTOR * len(live)
        else:
            self._rewrite(live)

    def _live(self) -> bytes:
        """A journal that holds what is live, with the revisions it has."""
        content = b""
        entries = iter(self._values.items())
        while chunk := dict(islice(entries, KEYS_PER_ENTRY)):
            change = {
                "put": {key: value for key, (_, value) in chunk.items()},
                "delete": [],
                "revision": self._revision,
                "revisions": {key: revision for key, (revision, _) in chunk.items()},
            }
            content += journal.encode(change, len(content))
        return content

    def _rewrite(self, content: bytes) -> None:
        temporary = self._path.with_name(self._path.name + TEMPORARY_SUFFIX)
        file: DiskFile | None = None
        try:
            file = self._disk.open(temporary, create=True)
            file.truncate(0)
            file.write(content)
            file.fdatasync()
            self._disk.rename(temporary, self._path)
        except OSError as error:
            if file is not None:
                file.close()
            self._rewrite_above_bytes = self._file.size() + REWRITE_BYTES_MIN
            log.warning("cannot rewrite %s, it stays as it is: %s", self._path.name, error)
            return
        self._file.close()
        self._file = file
        self._rewrite_above_bytes = 0
        try:
            self._disk.sync_directory(self._path.parent)
        except OSError as error:
            # A crash could bring back the old file, without what is committed from here on.
            self._failed = error
            log.error("%s: cannot make its rewrite durable: %s", self._path.name, error)


def cut_journal(disk: Disk, path: Path, end: int) -> None:
    """Ends a journal at a byte, durably."""
    file = disk.open(path)
    try:
        file.truncate(end)
        file.fdatasync()
    finally:
        file.close()


def complaint(name: str, found: journal.Journal) -> str:
    """What is wrong with a damaged journal, and what to do."""
    what = f"{name}: the entry at byte {found.end} is damaged"
    if found.tail is Tail.DAMAGED:
        return f"{what} and intact ones follow it; restore the file from a backup"
    return (
        f"{what}; it is the last one. Restore the file from a backup, or run braid doctor DIR --repair, which"
        " undoes this last change"
    )
