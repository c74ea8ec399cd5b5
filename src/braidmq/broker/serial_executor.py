"""Jobs for the disk threads of which one runs at a time, because each may take much memory."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from braidmq.broker.group_commit import DiskThreads, Done


class SerialExecutor:
    """Hands jobs to threads one after the other, in the order in which they came."""

    def __init__(self, threads: DiskThreads) -> None:
        self._threads = threads
        self._waiting: deque[tuple[Callable[[], None], Done]] = deque()
        self._busy = False

    def submit(self, run: Callable[[], None], done: Done) -> None:
        """Runs `run` in a thread when its turn comes, then `done(error or None)` on the loop."""
        self._waiting.append((run, done))
        if not self._busy:
            self._next()

    def _next(self) -> None:
        self._busy = bool(self._waiting)
        if not self._waiting:
            return
        run, done = self._waiting.popleft()

        def ended(error: BaseException | None) -> None:
            self._next()
            done(error)

        self._threads.submit(run, ended)
