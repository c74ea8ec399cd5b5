"""Topics that were deleted: a durable record of each, and the removal of their files.

The record is committed together with the end of the topic. Files go afterwards, in the background, a few
at a time, so that neither other changes of topics nor syncs wait for them; what does not finish is
continued at the next start. A directory is first renamed, so that one which is removed in part is never taken
for a topic. The record is kept for some days after that: a copy of the directory that comes back from a
backup is then known to be deleted, and not taken for lost.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from itertools import islice, takewhile
from pathlib import Path

from braidmq.broker.metadata import Metadata
from braidmq.broker.topic import directory_name
from braidmq.broker.topic_directories import TRASH_SUFFIX
from braidmq.cluster.image import Delta
from braidmq.cluster.metadata_store import StoreError
from braidmq.config import MS_PER_DAY
from braidmq.platform.clock import Clock
from braidmq.platform.disk import Disk
from braidmq.platform.threads import DiskThreads

KEPT_MS = 7 * MS_PER_DAY
KEPT_MAX = 10_000
DROPPED_TOGETHER = 100
"""Records that go with one commit."""
RETRY_S = 30.0
FILES_PER_JOB = 16
"""A stop waits for the job under way, and so do syncs where there is one thread for all of it."""

log = logging.getLogger("braid.topics")


class Deletion:
    """A topic that was deleted and whose traces are not all gone."""

    __slots__ = ("at_ms", "directory", "failures", "forgotten", "name", "retry_at_s", "topic_id")

    def __init__(self, topic_id: bytes, name: str, at_ms: int, forgotten: bool) -> None:
        self.topic_id = topic_id
        self.name = name
        self.directory = directory_name(name, topic_id)
        self.at_ms = at_ms
        self.forgotten = forgotten
        """Whether nothing is kept under the topic's name any more."""
        self.failures = 0
        self.retry_at_s = 0.0


class Deletions:
    """The recorded deletions of this broker."""

    def __init__(
        self, metadata: Metadata, disk: Disk, root: Path, threads: DiskThreads, clock: Clock
    ) -> None:
        self._image = metadata.image
        self._changes = metadata.changes
        self._shared = metadata.shared
        self._disk = disk
        self._root = root
        self._threads = threads
        self._clock = clock
        self._under_way: dict[bytes, Deletion] = {}
        self._done: dict[bytes, Deletion] = {}

    def load(self) -> None:
        """Reads the records of earlier runs."""
        found = [deletion for each in self._image.all_deleted() if (deletion := self._read(each)) is not None]
        for deletion in sorted(found, key=lambda deletion: deletion.at_ms):
            # Others' records do not say whether the files are gone here.
            done = deletion.forgotten and not self._shared
            (self._done if done else self._under_way)[deletion.topic_id] = deletion

    def follow(self, delta: Delta) -> None:
        """From now on the files of topics that were deleted are removed."""
        for topic_id in delta.deleted:
            deletion = self._read(topic_id)
            if deletion is not None and topic_id not in self._under_way and topic_id not in self._done:
                self._under_way[topic_id] = deletion

    def _read(self, topic_id: bytes) -> Deletion | None:
        record = self._image.deleted(topic_id)
        return None if record is None else Deletion(topic_id, record.name, record.at_ms, record.done)

    @property
    def directories(self) -> set[str]:
        """The directories that may be removed."""
        return {deletion.directory for deletion in (*self._under_way.values(), *self._done.values())}

    @property
    def unfinished(self) -> list[Deletion]:
        """Deletions that a stop or a crash came between. In a cluster groups look after themselves."""
        if self._shared:
            return []
        return [deletion for deletion in self._under_way.values() if not deletion.forgotten]

    def holds(self, topic_id: bytes) -> bool:
        """Whether the deletion of this topic is on record."""
        return self._image.was_deleted(topic_id)

    def forgotten(self, topic_id: bytes) -> None:
        """Nothing is kept under the topic's name any more."""
        deletion = self._under_way.get(topic_id)
        if deletion is not None:
            deletion.forgotten = True

    def found_again(self, directories: list[str]) -> None:
        """These are there though their removal was finished, as after restoring a backup."""
        bases = {name.removesuffix(TRASH_SUFFIX) for name in directories}
        for deletion in list(self._done.values()):
            if deletion.directory in bases:
                self._under_way[deletion.topic_id] = self._done.pop(deletion.topic_id)

    def outdated(self) -> list[bytes]:
        """Topics whose records are no longer needed, to be deleted with the next commit.

        None in a cluster, where the controller deletes them.
        """
        if self._shared:
            return []
        self._drop_outdated()
        before_ms = self._clock.wall_ms() - KEPT_MS
        old = takewhile(lambda item: item[1].at_ms < before_ms, self._done.items())
        too_many = islice(self._done, max(len(self._done) - KEPT_MAX, 0))
        return list(islice([topic_id for topic_id, _ in old] or too_many, DROPPED_TOGETHER))

    def _drop_outdated(self) -> None:
        """Forgets some of the oldest whose records are gone."""
        for topic_id in [each for each in islice(self._done, DROPPED_TOGETHER) if not self.holds(each)]:
            del self._done[topic_id]

    # -- removal --------------------------------------------------------------------------------

    async def remove(self) -> None:
        """One round: removes the files of every topic that was deleted."""
        removed = []
        for deletion in list(self._under_way.values()):
            if deletion.retry_at_s > self._clock.monotonic():
                continue
            try:
                await self._remove_one(self._root / deletion.directory)
                removed.append(deletion)
            except OSError as error:
                # Once is no trouble: a sync or a checkpoint that was under way may have added a file.
                deletion.failures += 1
                if deletion.failures == 1:
                    continue
                deletion.retry_at_s = self._clock.monotonic() + RETRY_S
                log.error(
                    "topic %s was deleted, and its files in %s could not be removed, which is tried again"
                    " in %.0f s: %s", deletion.name, deletion.directory, RETRY_S, error,
                )  # fmt: skip
        await self._finish(removed)

    async def _remove_one(self, directory: Path) -> None:
        trash = directory.with_name(directory.name + TRASH_SUFFIX)
        await self._remove_trash(trash)
        if await self._exists(directory):
            await self._threads.run(lambda: self._disk.rename(directory, trash))
            await self._remove_trash(trash)

    async def _remove_trash(self, trash: Path) -> None:
        if not await self._exists(trash):
            return
        for name in await self._listed(trash):
            if name.isdecimal():
                files = iter(await self._listed(trash / name))
                while some := list(islice(files, FILES_PER_JOB)):
                    await self._threads.run(_unlinking(self._disk, trash / name, some))
        await self._threads.run(lambda: self._disk.remove_tree(trash))

    async def _listed(self, directory: Path) -> list[str]:
        names: list[str] = []
        await self._threads.run(lambda: names.extend(self._disk.listdir(directory)))
        return names

    async def _exists(self, path: Path) -> bool:
        found: list[bool] = []
        await self._threads.run(lambda: found.append(self._disk.exists(path)))
        return found[0]

    async def _finish(self, removed: list[Deletion]) -> None:
        for deletion in removed:
            del self._under_way[deletion.topic_id]
            # One that is not forgotten is on record as that: the next start does the rest.
            self._done[deletion.topic_id] = deletion
        if self._shared:
            self._drop_outdated()
            return
        done = [deletion.topic_id for deletion in removed if deletion.forgotten]
        try:
            await self._changes.finish_deletions(done)
        except StoreError as error:
            log.error("cannot record that %d deletions are done: %s", len(done), error)


def _unlinking(disk: Disk, directory: Path, names: list[str]) -> Callable[[], None]:
    def run() -> None:
        for name in names:
            # What stays is met again, and complained of, when the directory is removed.
            with suppress(OSError):
                disk.unlink(directory / name)

    return run
