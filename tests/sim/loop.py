"""An event loop whose time passes only while it waits, and disk threads that take turns with it by a seed.

A job runs in a thread of its own, but never at the same time as the loop: it stops after every change it
makes to the simulated disk, and the seed draws how long the loop goes on before the job may. So the same seed
gives the same interleaving of loop and threads, and other seeds give others.
"""

from __future__ import annotations

import asyncio
import random
import selectors
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from tests.sim.clock import SimClock
from tests.sim.disk import SimDisk

from braidmq.platform.threads import DiskThreads, Done

DELAYS_MS = (0, 0, 0, 1, 1, 3, 20)


class SimLoop(asyncio.SelectorEventLoop):
    """Waiting costs no time but the clock's."""

    def __init__(self, clock: SimClock) -> None:
        self._clock = clock
        super().__init__(_Passing(clock))
        # Wall-clock seconds as a float do not resolve asyncio's nanosecond; a timer is due within the ms.
        self._clock_resolution = 0.0005

    def time(self) -> float:
        return self._clock.monotonic()


class _Passing(selectors.SelectSelector):
    """Nothing ever arrives; instead the time passes for which the loop would wait."""

    def __init__(self, clock: SimClock) -> None:
        super().__init__()
        self._clock = clock

    def select(self, timeout: float | None = None) -> list[Any]:
        assert timeout is not None, "everybody waits, and nothing will ever happen"
        if timeout > 0:
            self._clock.advance_ms(max(1, round(timeout * 1000)))
        return []


class Abandoned(BaseException):
    """Ends a job whose broker has been killed."""


class _Turn:
    """A job, and whose turn it is: its own or the loop's."""

    def __init__(self, run: Callable[[], None], done: Done) -> None:
        self._run = run
        self.done = done
        self.error: BaseException | None = None
        self.ended = False
        self.abandoned = False
        self._may_go = threading.Semaphore(0)
        self._has_stopped = threading.Semaphore(0)
        self.thread = threading.Thread(target=self._work, daemon=True)
        self.thread.start()

    def go(self) -> None:
        """On the loop: lets the job go on to its next change of the disk, or to its end."""
        self._may_go.release()
        self._has_stopped.acquire()

    def stop(self) -> None:
        """In the job: lets the loop go on."""
        self._has_stopped.release()
        self._may_go.acquire()
        if self.abandoned:
            raise Abandoned

    def _work(self) -> None:
        self._may_go.acquire()
        try:
            if not self.abandoned:
                self._run()
        except BaseException as error:
            self.error = error
        self.ended = True
        self._has_stopped.release()


class SimThreads(DiskThreads):
    """`count` jobs at a time, each going on when the seed says so."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, count: int, disk: SimDisk, chance: random.Random
    ) -> None:
        self._chance = chance
        self._disk = disk
        self._queue: deque[tuple[Callable[[], None], Done]] = deque()
        self._turns: dict[threading.Thread, _Turn] = {}
        self._width = 0
        super().__init__(loop, count)
        self._next_hook = disk.on_operation
        """Of other threads on the same disk."""
        disk.on_operation = self._on_operation

    @property
    def count(self) -> int:
        return self._width

    def widen(self, count: int) -> None:
        self._width = max(self._width, count)

    def submit(self, run: Callable[[], None], done: Done) -> None:
        self._queue.append((run, done))
        self._begin()

    def _begin(self) -> None:
        while self._queue and len(self._turns) < self._width:
            turn = _Turn(*self._queue.popleft())
            self._turns[turn.thread] = turn
            self._later(self._go, turn)

    def _go(self, turn: _Turn) -> None:
        if turn.ended:
            return  # it was brought to its end by `stop`
        turn.go()
        if turn.ended:
            del self._turns[turn.thread]
            self._finished.append((turn.done, turn.error))
            self._later(self._report)
            self._begin()
        else:
            self._later(self._go, turn)

    def _later(self, call: Callable[..., None], *arguments: object) -> None:
        self._loop.call_later(self._chance.choice(DELAYS_MS) / 1000, call, *arguments)

    def _on_operation(self, kind: str) -> None:
        turn = self._turns.get(threading.current_thread())
        if turn is not None:
            turn.stop()
        elif self._next_hook is not None:
            self._next_hook(kind)

    def stop(self, patience_s: float | None = None) -> bool:  # noqa: ARG002
        """Ends what is under way at once."""
        self._stopped = True
        while self._turns or self._queue:
            for turn in list(self._turns.values()):
                self._go(turn)
        self._report()
        return True

    def abandon(self) -> None:
        """The process is gone: no job makes another change."""
        self._queue.clear()
        for turn in self._turns.values():
            turn.abandoned = True
            while not turn.ended:
                turn.go()
            turn.thread.join()
        self._turns.clear()


def kill(loop: SimLoop) -> None:
    """Ends a loop in the middle of everything."""
    for task in asyncio.all_tasks(loop):
        task._log_destroy_pending = False  # type: ignore[attr-defined]
        coroutine = task.get_coro()
        assert coroutine is not None
        # Closed here and now, so that nothing of it is run by the garbage collector at some other time.
        with suppress(RuntimeError):
            coroutine.close()
    loop.close()
