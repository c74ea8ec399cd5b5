"""Closing logs: all of them at the end of a broker's life, many at a time.

A log belongs to the loop; a thread gets only what blocks. So each log is closed in five steps:

    loop    the partition gives its log away; requests for it are refused from then on
    thread  what is not durable yet is synced
    loop    the durable offset moves, and the checkpoint is made of it
    thread  the checkpoint is written
    loop    the files are let go

A batch of logs goes through the steps together, several batches at once, so that the threads always have
work and the loop is woken rarely. A log whose checkpoint is current costs the disk nothing. One that cannot
be closed is reported; the next start recovers it, and the others do not notice.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from functools import partial

from braidmq.broker.group_commit import DiskThreads
from braidmq.broker.partition import Partition
from braidmq.log.log import Log

LOGS_PER_BATCH = 16
THREADS = 16
"""A close is small writes that wait for the disk's journal; more of them at a time share its commits."""

log = logging.getLogger("braid.broker")


async def close_logs(partitions: Iterable[Partition], threads: DiskThreads, patience_s: float) -> bool:
    """Closes the logs of those partitions that have one open; whether all were closed cleanly.

    No sync of theirs is under way. A disk that ends no job for `patience_s` is given up on.
    """
    closings = [_Closing(str(one), taken) for one in partitions if (taken := one.release_log()) is not None]
    left = len(closings)
    batches = iter([closings[at : at + LOGS_PER_BATCH] for at in range(0, left, LOGS_PER_BATCH)])

    async def work() -> None:
        nonlocal left
        for batch in batches:
            await _close(batch, threads)
            left -= len(batch)

    threads.widen(min(THREADS, -(-left // LOGS_PER_BATCH)))
    workers = {asyncio.ensure_future(work()) for _ in range(threads.count)}
    while workers:
        before = left
        _, workers = await asyncio.wait(workers, timeout=patience_s)
        if workers and left == before:
            log.error(
                "%d partitions are not closed, they are recovered at the next start: the disk has ended"
                " nothing for %.1f s",
                left,
                patience_s,
            )
            for worker in workers:
                worker.cancel()
            return False
    refused = [closing for closing in closings if closing.is_refused()]
    return not refused


async def _close(batch: Sequence[_Closing], threads: DiskThreads) -> None:
    for step in (_Closing.flush, _Closing.checkpoint):
        begun = [closing for closing in batch if closing.begin(step)]
        if begun:
            await threads.run(partial(_run, begun))
        for closing in begun:
            closing.end()
    for closing in batch:
        closing.let_go()


def _run(begun: Sequence[_Closing]) -> None:
    for closing in begun:
        closing.run()


class _Closing:
    """One log on its way out, and the job of the step it is in."""

    __slots__ = ("_done", "_error", "_log", "_name", "_run")

    def __init__(self, name: str, taken: Log) -> None:
        self._name = name
        self._log = taken
        self._error: BaseException | None = taken.failed
        self._run: Callable[[], None] | None = None
        self._done: Callable[[], None] | None = None

    def flush(self) -> None:
        job = self._log.flush_begin()
        if job is not None:
            self._run, self._done = job.run, partial(self._log.flush_done, job)

    def checkpoint(self) -> None:
        job = self._log.checkpoint_begin()
        if job is not None:
            self._run, self._done = job.run, partial(self._log.checkpoint_done, job)

    def begin(self, step: Callable[[_Closing], None]) -> bool:
        """Whether the step has something for a thread to do."""
        self._run = self._done = None
        if self._error is None:
            self._guarded(partial(step, self))
        return self._run is not None

    def run(self) -> None:
        """In a thread."""
        if self._run is not None:
            self._guarded(self._run)

    def end(self) -> None:
        if self._done is not None:
            self._guarded(self._done)

    def let_go(self) -> None:
        self._guarded(self._log.abandon)

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:
            self._error = self._error or error

    def is_refused(self) -> bool:
        """Whether the log could not be closed cleanly; says so."""
        error = self._error or self._log.failed
        if error is not None:
            log.error("%s: not closed cleanly; it is recovered at the next start: %s", self._name, error)
        return error is not None
