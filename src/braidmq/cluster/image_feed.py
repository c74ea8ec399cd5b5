"""Keeps the image of a cluster up to date: a snapshot of the store, then its watch, for as long as it runs.

When the watch is lost, because its position was compacted or the store went away, it takes a new snapshot
and compares; nothing between is missed, since the image says what differs. While the store cannot be reached
the image stays as it is: a broker serves from it. How old it is, is `age_s`.

What changes is handed on as deltas, in order, on the loop. A listener that fails is logged and the others are
called all the same: the image has moved on already, for everybody.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
from collections.abc import Callable
from itertools import count

from braidmq.cluster.image import Delta, Image
from braidmq.cluster.metadata_store import Lost, MetadataStore, StoreClosed, StoreError, Unknown
from braidmq.platform.clock import Clock

RETRY_FIRST_S = 0.1
RETRY_MAX_S = 2.0
REACHED_S_MAX = 5.0
"""How long a change that was made is waited for until the image shows it."""

log = logging.getLogger("braid.cluster")

OnDelta = Callable[[Delta], None]


class ImageFeed:
    """Feeds an image from a store."""

    def __init__(self, store: MetadataStore, image: Image, clock: Clock) -> None:
        self.image = image
        self._store = store
        self._clock = clock
        self._listeners: dict[OnDelta, None] = {}
        self._waiting: list[tuple[int, int, asyncio.Future[None]]] = []
        self._order = count()
        self._heard_at = clock.monotonic()
        self._task: asyncio.Task[None] | None = None

    def listen(self, on_delta: OnDelta) -> None:
        """Calls `on_delta` with every change from now on."""
        self._listeners[on_delta] = None

    async def start(self) -> None:
        """Takes the first snapshot; `StoreError` if there is none to be had."""
        self._show(self.image.load(await self._store.snapshot(self.image.key(""))))
        self._task = asyncio.get_running_loop().create_task(self._follow(), name="image-feed")
        self._task.add_done_callback(self._ended)

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    @property
    def age_s(self) -> float:
        """Since when nothing was heard from the store."""
        return self._clock.monotonic() - self._heard_at

    async def reached(self, revision: int) -> None:
        """Returns when the image shows everything up to a revision, such as one's own commit.

        `StoreClosed` if it follows the store no longer; `Unknown` if it does not get there in time, because
        the store went away after the commit.
        """
        if self.image.revision >= revision:
            return
        if self._task is None or self._task.done():
            raise _no_longer()
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiting, (revision, next(self._order), future))
        done, _ = await asyncio.wait([future], timeout=REACHED_S_MAX)
        if not done:
            future.cancel()
            raise Unknown(f"revision {revision} does not show here yet: the metadata store is silent")
        future.result()

    async def _follow(self) -> None:
        pause_s = RETRY_FIRST_S
        whole = False
        while True:
            try:
                if whole:
                    self._show(self.image.load(await self._store.snapshot(self.image.key(""))))
                    whole = False
                watch = self._store.watch(self.image.key(""), self.image.revision)
                try:
                    async for change in watch:
                        pause_s = RETRY_FIRST_S
                        self._show(self.image.apply(change))
                finally:
                    await watch.close()
                return
            except Lost as lost:
                log.info("the watch of the metadata was lost, all of it is read again: %s", lost)
                whole = True
            except StoreClosed:
                return
            except StoreError as error:
                log.warning(
                    "the metadata cannot be followed, it is tried again in %.1f s: %s", pause_s, error
                )
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, RETRY_MAX_S)
            except Exception:
                log.exception("the metadata cannot be followed, all of it is read again")
                whole = True
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, RETRY_MAX_S)

    def _show(self, delta: Delta) -> None:
        self._heard_at = self._clock.monotonic()
        for key, why in delta.unreadable.items():
            log.error("metadata is not understood, %s stays as it was: %s", key, why)
        for on_delta in list(self._listeners):
            try:
                on_delta(delta)
            except Exception:
                log.exception("a change of the metadata could not be followed")
        while self._waiting and self._waiting[0][0] <= self.image.revision:
            future = heapq.heappop(self._waiting)[2]
            if not future.done():
                future.set_result(None)

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            log.critical("the metadata is followed no longer", exc_info=error)
        waiting, self._waiting = self._waiting, []
        for _, _, future in waiting:
            if not future.done():
                future.set_exception(_no_longer())


def _no_longer() -> StoreClosed:
    return StoreClosed("the metadata is followed no longer")
