"""Disk threads that take turns with the loop by a seed.

A job runs in a thread of its own, but never at the same time as the loop: it stops at every change it makes
to the simulated disk, and the seed draws how long the loop goes on before the job may. An fdatasync stops
before it counts, so what is written meanwhile is not synced by it. The same seed gives the same interleaving.

`SimThreading` stands for the module `threading` in the few places of the product where a job holds a lock, or
the loop waits for a job: whoever has to wait there lets the others go on.
"""

from __future__ import annotations

import asyncio
import random
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from unittest import mock

from tests.sim.disk import SimDisk

from braidmq.broker import opening
from braidmq.log import checkpoint
from braidmq.platform.threads import DiskThreads, Done

DELAYS_MS = (0, 0, 0, 1, 1, 3, 20)


class Abandoned(BaseException):
    """Ends a job whose broker has been killed."""


class _Worker:
    """A thread that is used for one job after the other: to start one takes longer than most jobs."""

    idle: list[_Worker] = []

    def __init__(self) -> None:
        self.turn: _Turn | None = None
        # Plain locks that one side takes and the other releases: a semaphore takes several times as long.
        self.may_go = threading.Lock()
        self.has_stopped = threading.Lock()
        self.may_go.acquire()
        self.has_stopped.acquire()
        threading.Thread(target=self._work, daemon=True).start()

    def _work(self) -> None:
        while True:
            self.may_go.acquire()
            assert self.turn is not None
            _turns[threading.get_ident()] = self.turn
            self.turn.work()
            del _turns[threading.get_ident()]
            self.turn = None
            self.has_stopped.release()


class _Turn:
    """A job, and whose turn it is: its own or the loop's."""

    def __init__(self, run: Callable[[], None], done: Done) -> None:
        self._run = run
        self.done = done
        self.error: BaseException | None = None
        self.ended = False
        self.abandoned = False
        self._worker = _Worker.idle.pop() if _Worker.idle else _Worker()
        self._worker.turn = self

    def go(self) -> None:
        """On the loop: lets the job go on to its next change of the disk, or to its end."""
        self._worker.may_go.release()
        self._worker.has_stopped.acquire()
        if self.ended:
            _Worker.idle.append(self._worker)

    def stop(self) -> None:
        """In the job: lets the loop go on."""
        self._worker.has_stopped.release()
        self._worker.may_go.acquire()
        if self.abandoned:
            raise Abandoned

    def work(self) -> None:
        try:
            if not self.abandoned:
                self._run()
        except BaseException as error:
            self.error = error
        self.ended = True


_turns: dict[int, _Turn] = {}


def give_way(_: str = "") -> None:
    """Called by a simulated disk at every change: a job stops there, the loop does not."""
    turn = _turns.get(threading.get_ident())
    if turn is not None:
        turn.stop()


class SimThreads(DiskThreads):
    """`count` jobs at a time, each going on when the seed says so."""

    under_way: dict[_Turn, SimThreads] = {}
    """Of all pools, in the order in which they were begun."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, count: int, disk: SimDisk, chance: random.Random
    ) -> None:
        self._chance = chance
        self._queue: deque[tuple[Callable[[], None], Done]] = deque()
        self._begun: dict[_Turn, None] = {}
        self._width = 0
        super().__init__(loop, count)
        disk.on_operation = disk.before_sync = give_way

    @property
    def count(self) -> int:
        return self._width

    @property
    def busy(self) -> bool:
        return bool(self._begun)

    def widen(self, count: int) -> None:
        self._width = max(self._width, count)

    def submit(self, run: Callable[[], None], done: Done) -> None:
        self._queue.append((run, done))
        self._begin()

    def _begin(self) -> None:
        while self._queue and len(self._begun) < self._width:
            turn = _Turn(*self._queue.popleft())
            self._begun[turn] = None
            SimThreads.under_way[turn] = self
            self._later(self._go, turn)

    def _go(self, turn: _Turn) -> None:
        if not turn.ended:
            self.push(turn)
            if not turn.ended:
                self._later(self._go, turn)

    def push(self, turn: _Turn) -> None:
        """Lets a job go on by one step."""
        turn.go()
        if turn.ended:
            del self._begun[turn], SimThreads.under_way[turn]
            self._finished.append((turn.done, turn.error))
            self._later(self._report)
            self._begin()

    def _later(self, call: Callable[..., None], *arguments: object) -> None:
        self._loop.call_later(self._chance.choice(DELAYS_MS) / 1000, call, *arguments)

    def stop(self, patience_s: float | None = None) -> bool:  # noqa: ARG002
        """Ends what is under way at once."""
        self._stopped = True
        while self._begun or self._queue:
            for turn in list(self._begun):
                self.push(turn)
        self._report()
        return True

    def abandon(self) -> None:
        """The process is gone: no job makes another change."""
        self._queue.clear()
        for turn in self._begun:
            del SimThreads.under_way[turn]
            turn.abandoned = True
            while not turn.ended:
                turn.go()
        self._begun.clear()


class _Lock:
    """A lock for which a job waits by letting the others go on."""

    def __init__(self) -> None:
        self._held = False

    def acquire(self) -> None:
        _wait_until(lambda: not self._held)
        self._held = True

    def release(self) -> None:
        assert self._held, "a lock that nobody holds is released"
        self._held = False

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


def _wait_until(met: Callable[[], bool]) -> None:
    """In a job: gives its turn away until then. On the loop, which would stand still: all jobs go on."""
    turn = _turns.get(threading.get_ident())
    while not met():
        if turn is not None:
            turn.stop()
        else:
            for other, pool in list(SimThreads.under_way.items()):
                pool.push(other)


class SimThreading:
    Lock = _Lock


@contextmanager
def threads_take_turns() -> Iterator[None]:
    """Puts `SimThreading` in the place of `threading` where jobs and loop wait for each other."""
    with (
        mock.patch.object(checkpoint, "threading", SimThreading),
        mock.patch.object(opening, "threading", SimThreading),
    ):
        yield
