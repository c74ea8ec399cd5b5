"""Runs a handler that has to wait, step by step, without a task of the event loop.

A task would make its first step in the loop's next turn and cost some 15 µs besides, several times what most
handlers do. Here the first step is made at once; if the handler turns out not to wait, its answer is there. A
handler may wait for futures, and for what is made of them (events, locks); it has no current task, so
`asyncio.timeout` and the like cannot be used in one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

Answered = Callable[[Any], None]
Failed = Callable[[Exception], None]


class HandlerRun:
    """One request under way."""

    __slots__ = ("_answered", "_coroutine", "_failed")

    def __init__(self, coroutine: Coroutine[Any, Any, Any], answered: Answered, failed: Failed) -> None:
        self._coroutine = coroutine
        self._answered = answered
        self._failed = failed

    def step(self, _: object = None) -> None:
        """Goes on until the handler waits again; calls `answered` or `failed` when it has ended.

        An answer that cannot be sent has failed, too: the client waits for it.
        """
        try:
            awaited = self._coroutine.send(None)
        except StopIteration as end:
            try:
                self._answered(end.value)
            except Exception as error:
                self._failed(error)
        except Exception as error:
            self._failed(error)
        else:
            if awaited is None:
                # asyncio.sleep(0): everything else that is ready runs first.
                asyncio.get_running_loop().call_soon(self.step)
            else:
                # A future sets this when it is awaited; who drives the coroutine takes note by clearing it.
                awaited._asyncio_future_blocking = False
                awaited.add_done_callback(self.step)
