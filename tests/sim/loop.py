"""An event loop with virtual time, on which several processes run in an order drawn from a seed.

A *strand* is what one process would be: callbacks of one strand run in the order in which they became due, as
asyncio promises; which strand goes next is drawn. A strand is found by a context variable, so whatever a
callback schedules belongs to its own strand. A strand can be paused, and killed: what was due to run is kept
and never run, because to collect it would run the `finally` blocks of dead coroutines.

Time passes while everybody waits, and a little with every callback. Readers and writers are level-triggered,
on descriptors that the simulated network gives out. `digest` covers every callback and everything that is
noted: two runs of a seed are the same if it is.
"""

from __future__ import annotations

import asyncio
import hashlib
import heapq
import random
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context, ContextVar, copy_context
from typing import Any

CALLBACK_S = 5e-6
"""What a callback takes of virtual time."""
CALLBACKS_MAX = 2_000_000
SLACK_S = 1e-9


class Strand:
    """One process: its callbacks, in order."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.ready: deque[asyncio.Handle] = deque()
        self.paused = False
        self.dead = False

    def __repr__(self) -> str:
        return self.name


_STRAND: ContextVar[Strand] = ContextVar("strand")


class _Watched:
    """A descriptor's reader or writer."""

    __slots__ = ("handle", "queued")

    def __init__(self, handle: asyncio.Handle) -> None:
        self.handle = handle
        self.queued = False


class VirtualLoop(asyncio.AbstractEventLoop):
    """See the module."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.now_s = 0.0
        self.callbacks = 0
        self.failures: list[str] = []
        """What nobody caught."""
        self.graveyard: list[object] = []
        """What belonged to the dead: kept, so that nothing of it is run."""
        self.is_ready: Callable[[int, str], bool] = lambda _fd, _what: False
        """Whether a descriptor can be read or written; the network tells."""
        self._digest = hashlib.blake2b(digest_size=16)
        self._world = Strand("world")
        self._strands: list[Strand] = [self._world]
        self._timers: list[tuple[float, float, int, asyncio.TimerHandle]] = []
        self._watched: dict[tuple[int, str], _Watched] = {}
        self._poked: dict[int, None] = {}
        self._number = 0
        self._nobody = copy_context()
        self._nobody.run(_STRAND.set, self._world)
        self._closed = False
        self._running = False

    # -- strands --------------------------------------------------------------------------------

    def strand(self, name: str) -> Context:
        """A new strand, as the context in which its first callback is to run."""
        made = Strand(name)
        self._strands.append(made)
        context = copy_context()
        context.run(_STRAND.set, made)
        return context

    def strand_of(self, context: Context) -> Strand:
        return context.get(_STRAND, self._world) or self._world

    @property
    def current(self) -> Strand:
        return _STRAND.get(self._world)

    def kill(self, strand: Strand) -> None:
        """Nothing of this strand runs any more."""
        strand.dead = True
        self._strands.remove(strand)
        self.graveyard.extend(strand.ready)
        strand.ready.clear()

    def note(self, what: str) -> None:
        """Something that two runs of a seed must agree on."""
        self._digest.update(what.encode())

    @property
    def digest(self) -> str:
        return self._digest.hexdigest()

    # -- scheduling -----------------------------------------------------------------------------

    def time(self) -> float:
        return self.now_s

    def call_soon(self, callback: Callable[..., Any], *args: Any, context: Context | None = None) -> Any:
        handle = asyncio.Handle(callback, args, self, context)
        self._queue(handle)
        return handle

    call_soon_threadsafe = call_soon

    def call_later(
        self, delay: float, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> Any:
        return self.call_at(self.now_s + delay, callback, *args, context=context)

    def call_at(
        self, when: float, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> Any:
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        self._number += 1
        # Among timers of one instant the order is drawn.
        heapq.heappush(self._timers, (when, self.chance.random(), self._number, handle))
        return handle

    def world_later(self, delay: float, callback: Callable[..., Any]) -> None:
        """As `call_later`, for what belongs to nobody."""
        self.call_later(delay, callback, context=self._nobody)

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Its place in the heap is passed over when it comes up."""

    def _queue(self, handle: asyncio.Handle) -> None:
        strand = self.strand_of(handle._context)  # type: ignore[attr-defined]
        if strand.dead or self._closed:
            self.graveyard.append(handle)
        else:
            strand.ready.append(handle)

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(self, coro: Any, *, name: str | None = None, context: Context | None = None) -> Any:
        return asyncio.Task(coro, loop=self, name=name, context=context)

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> Any:  # noqa: ARG002
        """The call takes a drawn time, and happens at its end."""
        ended = self.create_future()

        def run() -> None:
            if not ended.done():
                try:
                    ended.set_result(func(*args))
                except Exception as error:
                    ended.set_exception(error)

        self.call_later(self.chance.choice((0.0, 0.001, 0.02)), run)
        return ended

    # -- descriptors ----------------------------------------------------------------------------

    def add_reader(self, fd: Any, callback: Callable[..., Any], *args: Any) -> None:
        self._watch(fd, "read", callback, args)

    def add_writer(self, fd: Any, callback: Callable[..., Any], *args: Any) -> None:
        self._watch(fd, "write", callback, args)

    def remove_reader(self, fd: Any) -> bool:
        return self._unwatch(fd, "read")

    def remove_writer(self, fd: Any) -> bool:
        return self._unwatch(fd, "write")

    def _watch(self, fd: int, what: str, callback: Callable[..., Any], args: tuple[Any, ...]) -> None:
        self._unwatch(fd, what)
        self._watched[fd, what] = _Watched(asyncio.Handle(callback, args, self))
        self.poke(fd)

    def _unwatch(self, fd: int, what: str) -> bool:
        watched = self._watched.pop((fd, what), None)
        if watched is not None:
            watched.handle.cancel()
        return watched is not None

    def poke(self, fd: int) -> None:
        """Something about a descriptor has changed."""
        self._poked[fd] = None

    def _look_at_descriptors(self) -> None:
        poked = list(self._poked)
        self._poked.clear()
        if len(poked) > 1:
            self.chance.shuffle(poked)
        for fd in poked:
            for what in ("read", "write"):
                watched = self._watched.get((fd, what))
                if watched is not None and not watched.queued and self.is_ready(fd, what):
                    watched.queued = True
                    self.call_soon(
                        self._on_ready, fd, what, watched, context=watched.handle._context  # type: ignore
                    )  # fmt: skip

    def _on_ready(self, fd: int, what: str, watched: _Watched) -> None:
        watched.queued = False
        if self._watched.get((fd, what)) is watched and self.is_ready(fd, what):
            watched.handle._callback(*watched.handle._args)  # type: ignore[attr-defined]
        self.poke(fd)

    # -- running --------------------------------------------------------------------------------

    def run_until_complete(self, future: Any) -> Any:
        """Runs the world's coroutine to its end, and everybody else as far as they come until then."""
        asyncio._set_running_loop(self)
        self._running = True
        try:
            main: asyncio.Future[Any] = asyncio.ensure_future(future, loop=self)
            while not main.done():
                self._turn()
            return main.result()
        finally:
            self._running = False
            asyncio._set_running_loop(None)

    def _turn(self) -> None:
        if self._poked:
            self._look_at_descriptors()
        self._take_due_timers()
        able = [strand for strand in self._strands if strand.ready and not strand.paused]
        if not able:
            if not self._poked:
                self._pass_time()
            return
        strand = able[0] if len(able) == 1 else self.chance.choice(able)
        handle = strand.ready.popleft()
        if handle.cancelled():
            return
        self.callbacks += 1
        if self.callbacks > CALLBACKS_MAX:
            raise RuntimeError(f"no end after {CALLBACKS_MAX} callbacks; the last is {handle}")
        self.now_s += CALLBACK_S
        name = getattr(handle._callback, "__qualname__", "step")  # type: ignore[attr-defined]
        self._digest.update(f"{self.now_s:.6f}{strand.name}{name}".encode())
        handle._run()

    def _take_due_timers(self) -> None:
        while self._timers and self._timers[0][0] <= self.now_s + SLACK_S:
            handle = heapq.heappop(self._timers)[3]
            if not handle.cancelled():
                self._queue(handle)

    def _pass_time(self) -> None:
        while self._timers and self._timers[0][3].cancelled():
            heapq.heappop(self._timers)
        if not self._timers:
            raise RuntimeError("everybody waits, and nothing will ever happen")
        self.now_s = max(self.now_s, self._timers[0][0])

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        error = context.get("exception")
        self.failures.append(f"{context.get('message')}: {error!r}")

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return self._running

    def is_closed(self) -> bool:
        return self._closed

    def close(self) -> None:
        """Ends everybody; coroutines are closed here and not by the garbage collector, at some other time."""
        self._closed = True
        ended: set[asyncio.Task[Any]] = set()
        # What is closed may begin something: `finally` blocks do.
        asyncio._set_running_loop(self)
        try:
            while tasks := asyncio.all_tasks(self) - ended:
                ended |= tasks
                for task in tasks:
                    task._log_destroy_pending = False  # type: ignore[attr-defined]
                    self.graveyard.append(task)
                    _close(task.get_coro())
        finally:
            asyncio._set_running_loop(None)
        for strand in self._strands:
            strand.ready.clear()
        self._timers.clear()
        self._watched.clear()


def _close(coroutine: Coroutine[Any, Any, Any] | Any) -> None:
    try:
        coroutine.close()
    except BaseException:
        # A `finally` block has met the end of its world.
        return
