"""The metadata store of one process: `kv` in a journaled file.

A file begins with a header and the state it was made with; every batch of steps after that is one entry,
appended and synced off the event loop before anybody is answered. One entry per batch, because an entry is
only written when the one before it is synced: that separates a torn tail, which is cut, from damage,
which is refused (`cluster/journal.py`). When the file has grown to several times its live content it is
rewritten beside itself and swapped in by rename.

Revisions survive restarts and rewrites; history does so until the next rewrite. Leases survive, and have
their full time again after a restart: nobody could renew them in between. Time on the disk is not time:
deadlines are never written.

A write that the disk refuses (it is full) is taken back, and the store continues. A sync that fails ends the
store: the kernel may have dropped what it could not write, so no later sync can be believed. The data
directory must be locked by the caller.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from braidmq.cluster import journal
from braidmq.cluster.carry_over import carry_over, finish_carry_over
from braidmq.cluster.journal import Tail
from braidmq.cluster.kv import KeyValues, Step, step_to_json
from braidmq.cluster.kv_store import KvStore
from braidmq.cluster.metadata_store import StoreCorrupt
from braidmq.platform.clock import Clock
from braidmq.platform.disk import TEMPORARY_SUFFIX, Disk, DiskFile
from braidmq.platform.randomness import new_uuid

FILE_NAME = "metadata.store"
FORMAT = 1
REWRITE_BYTES_MIN = 1024 * 1024
REWRITE_FACTOR = 4

log = logging.getLogger("braid.store")

Run = Callable[[Callable[[], None]], Awaitable[None]]
"""Runs a job that waits for the disk in a thread; a caller that is cancelled is held until the job has
ended."""


class FileStore(KvStore):
    """Keys and values in a file of `directory`. Every change is on disk when its commit answers."""

    kind = "file"

    def __init__(self, disk: Disk, directory: Path, clock: Clock, run: Run = asyncio.to_thread) -> None:
        super().__init__(clock)
        self._disk = disk
        self._path = directory / FILE_NAME
        self._run = run
        self._file: DiskFile | None = None
        self._header: journal.Change = {}
        self._broken: OSError | None = None
        self._rewrite_above_bytes = 0

    @property
    def identity(self) -> str:
        """Which store this is: a new one in the same place has another."""
        return str(self._header["identity"])

    async def start(self) -> None:
        await self._run(self._open)
        await super().start()

    async def end_leases(self) -> None:
        """Ends all leases that earlier runs have left; for a process that keeps the store for itself."""
        for lease_id in self._kv.deadlines():
            await self.revoke(lease_id)

    async def close(self) -> None:
        await super().close()
        if self._file is not None:
            self._file.close()
            self._file = None

    # -- opening --------------------------------------------------------------------------------

    def _open(self) -> None:
        if not self._disk.exists(self._path):
            self._create()
        self._kv = self._replay()
        self._file = self._disk.open_append(self._path)
        # What a killed process has written or renamed without a sync is shown from here on: it must stay.
        self._file.fdatasync()
        self._disk.sync_directory(self._path.parent)
        finish_carry_over(self._disk, self._path.parent, self._header.get("carried"), self._kv.revision)

    def _create(self) -> None:
        # Leases of a store that was here before must not be taken for ours.
        last_lease = int.from_bytes(new_uuid()[:5], "big") << 20
        self._header = {"braid-metadata": FORMAT, "identity": new_uuid().hex()}
        kv, carried = carry_over(self._disk, self._path.parent, last_lease)
        if carried is not None:
            self._header["carried"] = carried
        self._disk.write_atomically(self._path, self._whole(kv))

    def _whole(self, kv: KeyValues) -> bytes:
        """A file that holds a state and nothing else."""
        content = bytearray()
        for entry in (self._header, *kv.entries()):
            content += journal.encode(entry, len(content))
        return bytes(content)

    def _replay(self) -> KeyValues:
        name = self._path.name
        found = journal.read(self._disk.read_file(self._path))
        self._header, kv = replayed(name, found, self._clock.monotonic())
        if found.tail is Tail.TORN:
            log.warning("%s: dropped a change that a crash cut off at byte %d", name, found.end)
            journal.cut(self._disk, self._path, found.end)
        return kv

    # -- writing --------------------------------------------------------------------------------

    async def _write(self, steps: Sequence[Step]) -> None:
        def write() -> None:
            self._append({"steps": [step_to_json(step) for step in steps]})
            self._rewrite_if_bloated()

        await self._run(write)

    def _append(self, entry: journal.Change) -> None:
        assert self._file is not None
        if self._broken is not None:
            raise self._broken
        before = self._file.size()
        try:
            self._file.write(journal.encode(entry, before))
        except OSError as error:
            try:
                self._file.truncate(before)
            except OSError:
                # Part of an entry is in the way: whatever followed it would not be found again.
                self._broken = error
            raise
        try:
            self._file.fdatasync()
        except OSError as error:
            self._broken = error
            raise

    async def _reload(self) -> KeyValues:
        if self._broken is not None:
            raise OSError(
                self._broken.errno,
                f"{self._path.name} takes no more changes since an error of the disk ({self._broken});"
                " look at the disk, then restart the broker",
            )
        loaded: list[KeyValues] = []
        await self._run(lambda: loaded.append(self._replay()))
        return loaded[0]

    # -- rewriting ------------------------------------------------------------------------------

    def _rewrite_if_bloated(self) -> None:
        """Runs in a thread while the task that changes the state waits for it."""
        assert self._file is not None
        size = self._file.size()
        if size < REWRITE_BYTES_MIN or size < self._rewrite_above_bytes:
            return
        content = self._whole(self._kv)
        if size < REWRITE_FACTOR * len(content):
            self._rewrite_above_bytes = REWRITE_FACTOR * len(content)
        else:
            self._rewrite(content)

    def _rewrite(self, content: bytes) -> None:
        """Only saves space, so one that fails fails no commit."""
        assert self._file is not None
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
            log.warning("%s could not be rewritten, it stays as it is: %s", self._path.name, error)
            return
        self._file.close()
        self._file = file
        self._rewrite_above_bytes = 0
        try:
            self._disk.sync_directory(self._path.parent)
        except OSError as error:
            # A crash could bring back the old file, without what is committed from here on.
            self._broken = error
            log.error("%s: its rewrite could not be made durable: %s", self._path.name, error)


def replayed(name: str, found: journal.Journal, now: float) -> tuple[journal.Change, KeyValues]:
    """The header and the state of a file called `name`; StoreCorrupt if it is damaged or not one of these."""
    if found.tail in (Tail.DAMAGED, Tail.DAMAGED_LAST):
        raise StoreCorrupt(journal.complaint(name, found))
    if not found.changes or "braid-metadata" not in found.changes[0]:
        raise StoreCorrupt(
            f"{name} does not begin like a metadata store; restore it from a backup, or move it away and run"
            " braid doctor DIR --adopt all, which makes a new one of what is there"
        )
    header, *entries = found.changes
    if header["braid-metadata"] != FORMAT:
        raise StoreCorrupt(f"{name} has format {header['braid-metadata']}; a newer release is needed")
    kv = KeyValues()
    for number, entry in enumerate(entries, 2):
        try:
            kv.load(entry, now)
        except (ValueError, KeyError, TypeError) as error:
            what = f"{name}: entry {number} does not fit: {error}; restore the file from a backup"
            raise StoreCorrupt(what) from error
    return header, kv
