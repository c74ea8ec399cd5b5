"""Notices when the event loop stands still, and where.

A heartbeat on the loop says when it was last due. A thread looks at it now and then: if it is late by more
than the limit, some turn of the loop has not ended, and the stack of the loop's thread is taken while it
still stands there. When the heartbeat comes at last, the stall is counted and logged once, with its length
and the stack. A turn costs nothing; a heartbeat some microseconds, a few times a second.

A call that keeps the interpreter to itself is over before the thread can look. Such a stall is counted and
logged all the same, and the log says that no stack was caught.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time
import traceback

FRAMES_MAX = 20

log = logging.getLogger("braid.watchdog")


class Watchdog:
    """Watches the loop it is started on until `stop`."""

    def __init__(self, limit_ms: int) -> None:
        self._limit_s = limit_ms / 1000
        self._due_s = 0.0
        self.caught: str | None = None
        """The stack of a stall that has not ended."""
        self._timer: asyncio.TimerHandle | None = None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)
        self._loop_thread = 0
        self.stalls = 0
        """How many turns have taken longer than the limit."""
        self.longest_s = 0.0

    def start(self) -> None:
        """Begins; called on the loop."""
        self._loop_thread = threading.get_ident()
        self._next_beat(asyncio.get_running_loop())
        self._thread.start()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()

    def _next_beat(self, loop: asyncio.AbstractEventLoop) -> None:
        self._due_s = time.monotonic() + self._limit_s / 2
        self._timer = loop.call_later(self._limit_s / 2, self._beat, loop)

    def _beat(self, loop: asyncio.AbstractEventLoop) -> None:
        late_s = time.monotonic() - self._due_s
        stack, self.caught = self.caught, None
        if late_s > self._limit_s:
            self.stalls += 1
            self.longest_s = max(self.longest_s, late_s)
            where = "where is not known" if stack is None else f"it was here:\n{stack}"
            log.warning(
                "the event loop was blocked for %.0f ms (stall %d); %s", late_s * 1000, self.stalls, where
            )
        self._next_beat(loop)

    def _watch(self) -> None:
        while not self._ended.wait(self._limit_s / 4):
            # Half of the limit: a stall just over it would be over before the next look.
            if time.monotonic() - self._due_s > self._limit_s / 2:
                self.caught = self._stack()

    def _stack(self) -> str | None:
        """Where the loop stands, as text: a frame that is kept keeps alive all that its locals hold."""
        frame = sys._current_frames().get(self._loop_thread)
        if frame is None:
            return None
        return "".join(traceback.format_stack(frame)[-FRAMES_MAX:]).rstrip()
