"""One timer of the event loop: set to the nearest of many deadlines, and again after every change."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from braidmq.platform.clock import Clock


class Alarm:
    """Calls back when a deadline, in ms of a clock that never goes back, has come.

    A timer may fire a little early; the callback then finds nothing due and sets it again.
    """

    __slots__ = ("_clock", "_due_ms", "_loop", "_on_due", "_silent", "_timer")

    def __init__(self, clock: Clock, on_due: Callable[[], None]) -> None:
        self._clock = clock
        self._on_due = on_due
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._due_ms: int | None = None
        self._silent = False

    def now_ms(self) -> int:
        return int(self._clock.monotonic() * 1000)

    def set(self, due_ms: int | None) -> None:
        """Rings at `due_ms` and not before; None never."""
        if due_ms == self._due_ms or self._silent:
            return
        self._cancel()
        self._due_ms = due_ms
        if due_ms is not None:
            self._timer = self._loop.call_later(max(0, due_ms - self.now_ms()) / 1000, self._ring)

    def stop(self) -> None:
        """Never rings again, whatever it is set to."""
        self._silent = True
        self._cancel()

    def _cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._due_ms = None

    def _ring(self) -> None:
        self._timer = self._due_ms = None
        self._on_due()
