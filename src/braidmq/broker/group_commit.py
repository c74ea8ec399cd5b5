"""Group commit: many waiting writes, one fdatasync.

A partition with unsynced records is handed to a small pool of threads, where the disk is waited for with
the interpreter free. While its sync is under way more records may arrive; they go with the next one. So the
rate of syncs follows the disk, and the number of records per sync follows the load. Starting a sync is put
off to the end of the loop's turn, so that all requests read in that turn share it. A sync keeps its files
open until it ends, so not all of ten thousand partitions are begun at once; those that wait gather records.

Threads report through one queue and one wake-up of the loop. A sync that fails stops its partition for
good: after a failed fsync the kernel may have dropped the very pages that failed, so a second try that
succeeds proves nothing.

Trouble stays where it arose. A callback that raises is logged, and the next one is called all the same; a
partition that cannot take the end of its own sync fails, and nobody else notices.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import queue
import threading
from collections import deque
from collections.abc import Callable
from itertools import islice
from typing import Protocol

from braidmq.platform.disk import NO_FILES

UNDER_WAY_MAX = 64
"""Syncs that are begun at once: enough to keep the threads busy."""
NO_FILES_PAUSE_S = 0.1
"""How long to wait when the process has no file left to open. Nothing was synced then, so nothing failed."""

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
        self._awaited: set[_Outcome] = set()
        self._stopped = False
        self._threads: list[threading.Thread] = []
        self.widen(threads)

    @property
    def count(self) -> int:
        return len(self._threads)

    def widen(self, count: int) -> None:
        """Makes the threads at least `count`."""
        for number in range(self.count, count):
            thread = threading.Thread(target=self._work, name=f"disk-{number}", daemon=True)
            self._threads.append(thread)
            thread.start()

    def submit(self, run: Callable[[], None], done: Done) -> None:
        """Runs `run` in a thread, then `done(error or None)` on the loop."""
        self._jobs.put((run, done))

    async def run(self, run: Callable[[], None]) -> None:
        """Runs `run` in a thread and waits for it.

        A caller that is cancelled is held until its job has ended: what it does then, such as taking note of
        the job, must not happen while the job still runs.
        """
        if self._stopped:
            raise OSError(errno.ESHUTDOWN, "the broker has stopped")
        outcome = _Outcome(loop=self._loop)
        self._awaited.add(outcome)

        def done(error: BaseException | None) -> None:
            self._awaited.discard(outcome)
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
            if not self._woken and not self._stopped:
                self._woken = True
                self._loop.call_soon_threadsafe(self._report)

    def _report(self) -> None:
        # Cleared first: a job that finishes from here on wakes the loop again.
        self._woken = False
        while self._finished:
            done, error = self._finished.popleft()
            try:
                done(error)
            except Exception:
                log.exception("the callback of a disk job failed")

    def stop(self, patience_s: float | None = None) -> bool:
        """Ends the threads after the jobs already handed in; False if one still runs after `patience_s`.

        Those who wait for one that still runs get an OSError then.
        """
        self._stopped = True
        for _ in self._threads:
            self._jobs.put(None)
        deadline_s = None if patience_s is None else self._loop.time() + patience_s
        for thread in self._threads:
            thread.join(None if deadline_s is None else max(0.0, deadline_s - self._loop.time()))
        self._report()
        for outcome in self._awaited:
            outcome.set_exception(OSError(errno.ETIMEDOUT, "the disk did not answer in time"))
        self._awaited.clear()
        return not any(thread.is_alive() for thread in self._threads)


class _Outcome(asyncio.Future[None]):
    """The end of a job. It cannot be cancelled: a task that is cancelled while it waits is so afterwards."""

    def cancel(self, msg: object | None = None) -> bool:  # noqa: ARG002
        return False


class Flushable(Protocol):
    """What group commit needs of a partition."""

    @property
    def deleted(self) -> bool:
        """Whether its files are being removed, so that a failed sync is nobody's trouble."""
        ...

    def flush_begin(self) -> Job | None: ...
    def flush_done(self, job: Job, error: BaseException | None) -> None: ...
    def fail(self, error: Exception) -> None:
        """Takes no more writes, and answers those who wait."""
        ...


class GroupCommit:
    """Keeps at most one sync per partition under way; starts the next when records have come meanwhile."""

    def __init__(self, loop: asyncio.AbstractEventLoop, threads: DiskThreads) -> None:
        self._loop = loop
        self._threads = threads
        self._wanted: dict[Flushable, None] = {}
        self._under_way: set[Flushable] = set()
        self._scheduled = False
        self._puts_off = False
        self._idle: asyncio.Event | None = None

    def request(self, partition: Flushable) -> None:
        """Asks that everything appended to `partition` until the end of this turn be synced."""
        self._wanted[partition] = None
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._start)

    def _start(self) -> None:
        self._scheduled = False
        room = UNDER_WAY_MAX - len(self._under_way)
        for partition in list(islice((p for p in self._wanted if p not in self._under_way), room)):
            del self._wanted[partition]
            try:
                job = partition.flush_begin()
            except Exception as caught:
                if isinstance(caught, OSError) and caught.errno in NO_FILES:
                    self._put_off(partition, caught)
                else:
                    self._stop(partition, caught)
                continue
            self._puts_off = False
            if job is not None:
                self._under_way.add(partition)
                self._threads.submit(job.run, _finisher(self, partition, job))
        self._tell_if_idle()

    def _put_off(self, partition: Flushable, why: OSError) -> None:
        if not self._puts_off:
            self._puts_off = True
            log.error("%s: syncs wait until a file can be opened: %s", partition, why)
        self._loop.call_later(NO_FILES_PAUSE_S, self.request, partition)

    def finish(self, partition: Flushable, job: Job, error: BaseException | None) -> None:
        self._under_way.discard(partition)
        if error is not None and not partition.deleted:
            log.critical("%s: sync failed, the partition takes no more writes: %s", partition, error)
        try:
            partition.flush_done(job, error)
        except Exception as caught:
            self._stop(partition, caught)
        if self._wanted:
            self._start()
        self._tell_if_idle()

    def _stop(self, partition: Flushable, error: Exception) -> None:
        log.critical(
            "%s: a sync failed, the partition takes no more writes",
            partition,
            exc_info=error,
        )
        try:
            partition.fail(error)
        except Exception:
            log.exception("%s: stopping its writes failed", partition)

    # -- the end --------------------------------------------------------------------------------

    @property
    def under_way(self) -> frozenset[Flushable]:
        """The partitions whose sync has not ended."""
        return frozenset(self._under_way)

    async def settle(self, patience_s: float) -> bool:
        """Returns when nothing is under way and nothing wanted; False if no sync ended for `patience_s`."""
        while self._under_way or self._wanted:
            before = self.under_way
            self._idle = asyncio.Event()
            try:
                await asyncio.wait_for(self._idle.wait(), patience_s)
            except TimeoutError:
                if self.under_way == before:
                    return False
        return True

    def _tell_if_idle(self) -> None:
        if self._idle is not None and not self._under_way and not self._wanted:
            self._idle.set()


def _finisher(commit: GroupCommit, partition: Flushable, job: Job) -> Done:
    def done(error: BaseException | None) -> None:
        commit.finish(partition, job, error)

    return done
