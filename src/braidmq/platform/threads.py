"""Threads for work that blocks: a job runs in one of them, and the event loop learns when it ends.

Everything the broker does off its loop goes through `DiskThreads`: syncs, cold reads, opening and removing
files. The threads report through one queue and one wake-up of the loop. A simulation puts its own in this
place, whose jobs continue when a seed says so.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import queue
import threading
from collections import deque
from collections.abc import Callable

log = logging.getLogger("braid.disk")

Done = Callable[[BaseException | None], None]


class DiskThreads:
    """A few threads that run blocking disk jobs and report to the event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, threads: int) -> None:
        self._loop = loop
        self._jobs: queue.SimpleQueue[tuple[Callable[[], None], Done] | None] = queue.SimpleQueue()
        self._finished: deque[tuple[Done, BaseException | None]] = deque()
        self._woken = False
        self._awaited: dict[_Outcome, None] = {}
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
        self._awaited[outcome] = None

        def done(error: BaseException | None) -> None:
            self._awaited.pop(outcome, None)
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
            outcome.set_exception(OSError(errno.ETIMEDOUT, "the disk has not answered"))
        self._awaited.clear()
        return not any(thread.is_alive() for thread in self._threads)


class _Outcome(asyncio.Future[None]):
    """The end of a job. It cannot be cancelled: a task that is cancelled while it waits is so afterwards."""

    def cancel(self, msg: object | None = None) -> bool:  # noqa: ARG002
        return False
