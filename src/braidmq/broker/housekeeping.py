"""The broker's recurring work: recovery points, flushes by age, retention, and the level of the disk.

Each duty is a task that the broker owns; one that fails is logged and tried again at its next turn, because a
retention error must not stop checkpoints. Blocking work runs in the disk threads.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from datetime import datetime
from enum import IntEnum
from pathlib import Path

from braidmq.broker.opening import opened
from braidmq.broker.partition import Partition
from braidmq.broker.topics import Topics
from braidmq.config import MS_PER_DAY, Config, TopicConfig
from braidmq.log.compaction import CompactionJob, Compactor
from braidmq.log.retention import Expiry, next_expiry, remove, stored_bytes
from braidmq.platform.clock import Clock
from braidmq.platform.disk import Disk
from braidmq.platform.threads import DiskThreads
from braidmq.wire.errors import ApiError

FLUSH_ROUND_S = 0.2
PARTITIONS_PER_TURN = 64

log = logging.getLogger("braid.housekeeping")


Duty = tuple[float, Callable[[], Awaitable[None]]]


class DiskLevel(IntEnum):
    """How full the data disk is, by the watermarks of the configuration."""

    FINE = 0
    CLEAN = 1
    FORCE = 2
    FULL = 3


class Housekeeping:
    """Runs the duties from `start` until `stop`."""

    def __init__(
        self,
        config: Config,
        data: Path,
        disk: Disk,
        clock: Clock,
        topics: Topics,
        threads: DiskThreads,
        readers: DiskThreads,
    ) -> None:
        self._config = config
        self._data = data
        self._disk = disk
        self._clock = clock
        self._topics = topics
        self._threads = threads
        self._readers = readers
        self._expiries: dict[Partition, tuple[TopicConfig, Expiry]] = {}
        """When something of a partition expires, under the options for which that was found out."""
        self._dirty: dict[Partition, None] = {}
        self._ageing: dict[Partition, None] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._removals: dict[asyncio.Task[None], None] = {}
        self._stopping = False
        self.disk_level = DiskLevel.FINE
        self.disk_percent = 0.0

    def mark_dirty(self, partition: Partition) -> None:
        """`partition` has records past its last checkpoint, and maybe some that are not durable."""
        self._dirty[partition] = None
        self._ageing[partition] = None

    def start(self, *others: Duty) -> None:
        """Begins with its own duties and those of others: every so many seconds, a coroutine."""
        duties: list[Duty] = [
            *others,
            (FLUSH_ROUND_S, self.flush_aged),
            (self._config.log_checkpoint_interval_ms / 1000, self.checkpoint),
            (self._config.log_retention_check_interval_ms / 1000, self.clean),
            (self._config.log_compaction_check_interval_ms / 1000, self.compact),
        ]
        self._tasks = [asyncio.ensure_future(self._repeat(every_s, duty)) for every_s, duty in duties]

    async def stop(self) -> None:
        """Returns when no duty is under way; disk work that has begun is waited for."""
        self._stopping = True
        for task in (*self._tasks, *self._removals):
            task.cancel()
        await asyncio.gather(*self._tasks, *self._removals, return_exceptions=True)

    async def _repeat(self, every_s: float, duty: Callable[[], Awaitable[None]]) -> None:
        while True:
            await asyncio.sleep(every_s)
            try:
                await duty()
            except Exception:
                log.exception("%s failed; trying again in %.1f s", duty.__name__, every_s)

    # -- flushing and checkpoints ---------------------------------------------------------------

    async def flush_aged(self) -> None:
        """flush.ms, and segments that were ended: a crash should have to check the last one only."""
        now_ms = self._clock.wall_ms()
        for partition in list(self._ageing):
            since_ms = partition.log.unflushed_since_ms if partition.is_open else None
            if since_ms is None:
                # A partition that is not dirty comes back with its next record.
                if not partition.dirty:
                    del self._ageing[partition]
            elif not partition.syncs:
                aged = now_ms - since_ms >= partition.config.flush_ms
                if aged or partition.log.has_unflushed_ended_segment:
                    partition.request_flush()

    async def checkpoint(self) -> None:
        """Writes the recovery points of partitions that moved."""
        dirty, self._dirty = self._dirty, {}
        for partition in dirty:
            partition.dirty = False
            try:
                await self.checkpoint_one(partition)
            except OSError as error:
                if not partition.deleted:
                    log.error("%s: cannot write the checkpoint: %s", partition, error)
                    self.mark_dirty(partition)
            except Exception:
                log.exception("%s: cannot make a checkpoint", partition)
                self.mark_dirty(partition)

    async def checkpoint_one(self, partition: Partition) -> None:
        if not partition.is_open or partition.log.failed is not None:
            return
        partition_log = partition.log
        job = partition_log.checkpoint_begin()
        if job is not None:
            try:
                await self._threads.run(job.run)
            except OSError:
                partition_log.checkpoint_done(job)
                raise
            partition_log.checkpoint_done(job)

    # -- compaction -----------------------------------------------------------------------------

    async def compact(self) -> None:
        """One round for every compacted partition that has enough to gain from it."""
        for partition in self._all_partitions():
            try:
                begun = partition.begin_compaction(self._clock.wall_ms(), self._end_if_stopping)
                if begun is not None:
                    await self._compact_one(partition, *begun)
            except Exception:
                log.exception("%s: compaction failed", partition)

    async def _compact_one(self, partition: Partition, compactor: Compactor, job: CompactionJob) -> None:
        try:
            while not job.ended:
                try:
                    await self._threads.run(job.run)
                finally:
                    compactor.done(job)
        except (OSError, ApiError) as error:
            if not self._stopping and not partition.deleted:
                log.error("%s: compaction stopped: %s", partition, error)

    def _end_if_stopping(self) -> None:
        """Ends a round of compaction, in its thread, so that a stop need not wait for it."""
        if self._stopping:
            raise InterruptedError("the broker is stopping")

    # -- retention ------------------------------------------------------------------------------

    async def clean(self) -> None:
        """Removes what is expired; when the disk fills, more than that."""
        self.measure_disk()
        now_ms = self._clock.wall_ms()
        at_cleanup_hour = self.is_cleanup_time(now_ms)
        by_disk = self.disk_level >= DiskLevel.CLEAN
        partitions = list(self._all_partitions())
        self._expiries = {one: self._expiries[one] for one in partitions if one in self._expiries}
        for start in range(0, len(partitions), PARTITIONS_PER_TURN):
            await self._clean_some(
                partitions[start : start + PARTITIONS_PER_TURN], now_ms, by_disk or at_cleanup_hour
            )
        if self.disk_level >= DiskLevel.FORCE:
            await self._drop_oldest()

    async def _clean_some(self, some: list[Partition], now_ms: int, by_time: bool) -> None:
        """Applies retention; a partition that is not open stays so unless something of it is expired."""
        unknown = [one for one in some if not self._is_expiry_known(one)]
        if unknown:
            await self._readers.run(lambda: self._find_expiries(unknown, now_ms))
        expiring = []
        for partition in some:
            by_time_now = by_time or 0 <= partition.config.retention_ms < MS_PER_DAY
            known = self._expiries.get(partition)
            if partition.is_open or (known is not None and known[1].is_due(now_ms, by_time_now)):
                expiring.append((partition, by_time_now))
        await opened(partition for partition, _ in expiring)
        for partition, by_time_now in expiring:
            self._clean_one(partition, now_ms, by_time_now)

    def _is_expiry_known(self, partition: Partition) -> bool:
        known = self._expiries.get(partition)
        return known is not None and known[0] is partition.config

    def _find_expiries(self, partitions: list[Partition], now_ms: int) -> None:
        for partition in partitions:
            config = partition.config
            try:
                found = next_expiry(self._disk, str(partition.path), config, now_ms)
            except OSError as error:
                log.error("%s: retention failed: %s", partition, error)
            else:
                self._expiries[partition] = (config, found)

    def _clean_one(self, partition: Partition, now_ms: int, by_time: bool) -> None:
        if partition.deleted:
            return
        try:
            gone = partition.log.expire(now_ms, by_time)
        except (OSError, ApiError) as error:
            log.error("%s: retention failed: %s", partition, error)
            return
        partition.log.rest()
        if gone:
            # The next one is the oldest now, and nothing of it has been looked at.
            self._expiries.pop(partition, None)
        self._remove_later(partition, gone, partition.config.file_delete_delay_ms / 1000)

    async def _drop_oldest(self) -> None:
        """Deletes the oldest segments of the largest partitions until the disk is below the forced level."""
        sizes: dict[Partition, int] = {}
        closed = [partition for partition in self._all_partitions() if not partition.is_open]
        await self._readers.run(lambda: self._measure(closed, sizes))
        sizes |= {one: one.log.size_bytes for one in self._all_partitions() if one.is_open}
        for partition in sorted(sizes, key=lambda one: -sizes[one]):
            if self.disk_level < DiskLevel.FORCE:
                return
            await opened([partition])
            if not partition.is_open:
                continue
            gone = partition.log.drop_oldest()
            if gone:
                log.warning(
                    "%s: the disk is %.0f %% full, dropped the oldest segment", partition, self.disk_percent
                )
                await self._remove(partition, gone, 0)
                self.measure_disk()

    def _measure(self, closed: list[Partition], sizes: dict[Partition, int]) -> None:
        for partition in closed:
            try:
                sizes[partition] = stored_bytes(self._disk, str(partition.path))
            except OSError as error:
                log.error("%s: cannot read its size: %s", partition, error)

    def _all_partitions(self) -> Iterable[Partition]:
        for topic in list(self._topics):
            # One by one: a topic may be deleted while the caller waits.
            held = list(topic.held.values())
            yield from (partition for partition in held if not partition.deleted)

    def is_cleanup_time(self, now_ms: int) -> bool:
        """Whether retention of a day or more is applied now."""
        hour = self._config.log_cleanup_hour
        if hour < 0:
            return True
        return datetime.fromtimestamp(now_ms / 1000).hour == hour

    def measure_disk(self) -> None:
        """Looks at the disk now; also at start, so that a full one refuses writes from the first."""
        before = self.disk_level
        self.disk_percent = self._disk.usage(self._data).used_percent
        config = self._config
        thresholds = (config.disk_clean_percent, config.disk_force_percent, config.disk_full_percent)
        self.disk_level = DiskLevel(sum(self.disk_percent >= percent for percent in thresholds))
        if self.disk_level != before:
            log.warning("the disk is %.1f %% full: level %s", self.disk_percent, self.disk_level.name.lower())

    def _remove_later(self, partition: Partition, paths: list[Path], delay_s: float) -> None:
        if paths:
            task = asyncio.ensure_future(self._remove(partition, paths, delay_s))
            self._removals[task] = None
            task.add_done_callback(self._removals.pop)

    async def _remove(self, partition: Partition, paths: list[Path], delay_s: float) -> None:
        """Removes files once a checkpoint says that the log starts later: else they would seem lost."""
        if delay_s > 0:
            await asyncio.sleep(delay_s)
        try:
            await self.checkpoint_one(partition)
        except OSError as error:
            log.error("%s: cannot write the checkpoint: %s", partition, error)
        try:
            await self._threads.run(lambda: remove(self._disk, paths))
        except FileNotFoundError:
            pass  # the directory went with its topic
        except OSError as error:
            log.error("cannot remove expired segments: %s", error)
