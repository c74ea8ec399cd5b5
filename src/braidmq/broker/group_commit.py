"""Group commit: many waiting writes, one fdatasync.

A partition with unsynced records is handed to a small pool of threads, where the disk is waited for with
the interpreter free. While its sync is under way more records may arrive; they go with the next one. So the
rate of syncs follows the disk, and the number of records per sync follows the load. Starting a sync is put
off to the end of the loop's turn, so that all requests read in that turn share it.

Threads report through one queue and one wake-up of the loop. A sync that fails stops its partition for
good: after a failed fsync the kernel may have dropped the very pages that failed, so a second try that
succeeds proves nothing.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
from collections import deque
from collections.abc import Callable
from typing import Protocol

log = logging.getLogger("braid.disk")


class Job(Protocol):
    """Disk work that may run in any thread."""

    def run(self) -> None: ...


Done = Callable[[BaseException | None], None]


class DiskThreads:
    """A few threads that run blocking disk jobs and report to the event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, threads: int) -> None:
        self._loop = loop
        self._jobs: queue.SimpleQueue[tuple[Callable[[], None], Done] | None] = queue.SimpleQueue()
        self._finished: deque[tuple[Done, BaseException | None]] = deque()
        self._woken = False
        self._threads = [
            threading.Thread(target=self._work, name=f"disk-{number}", daemon=True)
            for number in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, run: Callable[[], None], done: Done) -> None:
        """Runs `run` in a thread, then `done(error or None)` on the loop."""
        self._jobs.put((run, done))

    async def run(self, run: Callable[[], None]) -> None:
        """Runs `run` in a thread and waits for it."""
        outcome: asyncio.Future[None] = self._loop.create_future()

        def done(error: BaseException | None) -> None:
            if outcome.cancelled():
                return
            if error is None:
                outcome.set_result(None)
            else:
                outcome.set_exception(error)

        self.submit(run, done)
        await outcome

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            run, done = job
            error: BaseException | None = None
            try:
                run()
            except BaseException as caught:
                error = caught
            self._finished.append((done, error))
            if not self._woken:
                self._woken = True
                self._loop.call_soon_threadsafe(self._report)

    def _report(self) -> None:
        # Cleared first: a job that finishes from here on wakes the loop again.
        self._woken = False
        while self._finished:
            done, error = self._finished.popleft()
            done(error)

    def stop(self) -> None:
        """Ends the threads after the jobs already handed in."""
        for _ in self._threads:
            self._jobs.put(None)
        for thread in self._threads:
            thread.join()
        self._report()


class Flushable(Protocol):
    """What group commit needs of a partition."""

    @property
    def deleted(self) -> bool:
        """Whether its files are being removed, so that a failed sync is nobody's trouble."""
        ...

    def flush_begin(self) -> Job | None: ...
    def flush_done(self, job: Job, error: BaseException | None) -> None: ...


class GroupCommit:
    """Keeps at most one sync per partition under way; starts the next when records have come meanwhile."""

    def __init__(self, loop: asyncio.AbstractEventLoop, threads: DiskThreads) -> None:
        self._loop = loop
        self._threads = threads
        self._wanted: dict[Flushable, None] = {}
        self._under_way: set[Flushable] = set()
        self._scheduled = False

    def request(self, partition: Flushable) -> None:
        """Asks that everything appended to `partition` until the end of this turn be synced."""
        self._wanted[partition] = None
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._start)

    def _start(self) -> None:
        self._scheduled = False
        for partition in [p for p in self._wanted if p not in self._under_way]:
            del self._wanted[partition]
            job = partition.flush_begin()
            if job is not None:
                self._under_way.add(partition)
                self._threads.submit(job.run, _finisher(self, partition, job))

    def finish(self, partition: Flushable, job: Job, error: BaseException | None) -> None:
        self._under_way.discard(partition)
        if error is not None and not partition.deleted:
            log.critical("%s: sync failed, the partition takes no more writes: %s", partition, error)
        partition.flush_done(job, error)
        if partition in self._wanted:
            self._start()


def _finisher(commit: GroupCommit, partition: Flushable, job: Job) -> Done:
    def done(error: BaseException | None) -> None:
        commit.finish(partition, job, error)

    return done
