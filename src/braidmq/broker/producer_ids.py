"""Ids for idempotent producers: unique for ever, handed out from blocks that the metadata store reserves.

Transactions need one now and then in the middle of a change that cannot wait. So some are always kept in
reserve, and the next block is fetched before they are used up.

Unique for ever means also after metadata of last week was restored. A second producer with an id that a
partition remembers would have its records taken for repetitions, and lost. So the first block of each run
begins at the time in microseconds, if that is above what the store says: a broker gives out fewer ids than
microseconds pass, so ids given out since the backup are below that time.
"""

from __future__ import annotations

import asyncio
import logging

from braidmq.broker.metadata import storing
from braidmq.cluster.changes import Changes
from braidmq.platform.clock import Clock
from braidmq.wire.errors import ApiError, ErrorCode

BLOCK = 1000
RESERVE = 100

log = logging.getLogger("braid.broker")


class ProducerIds:
    """The next free id. A crash loses the rest of a block, never reuses any of it."""

    def __init__(self, changes: Changes, clock: Clock) -> None:
        self._changes = changes
        self._first = clock.wall_ms() * 1000
        self._next = 0
        self._end = 0
        self._reserving = asyncio.Lock()
        self._ahead: asyncio.Task[None] | None = None

    async def take(self) -> int:
        """The next id, when it is certain that nobody else gets it."""
        while self._next == self._end:
            await self._reserve(0)
        return self._take()

    async def reserve(self) -> None:
        """Returns when `take_now` can be answered; ApiError if no id is left, and no more are to be had."""
        try:
            await self._reserve(RESERVE)
        except ApiError:
            if self._next == self._end:
                raise

    def take_now(self) -> int:
        """The next id, at once; ApiError, to be tried again, if none is in reserve."""
        if self._end - self._next <= RESERVE // 2 and self._ahead is None:
            self._ahead = asyncio.ensure_future(self._reserve(RESERVE))
            self._ahead.add_done_callback(self._on_reserved)
        if self._next == self._end:
            raise ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "the next producer ids are being reserved")
        return self._take()

    async def stop(self) -> None:
        """Does not wait for the store, which may be away: ids that it reserves now are lost, and no harm."""
        if self._ahead is not None:
            self._ahead.cancel()
            await asyncio.wait([self._ahead])

    def _take(self) -> int:
        producer_id = self._next
        self._next += 1
        return producer_id

    async def _reserve(self, left_min: int) -> None:
        """Takes another block if no more than `left_min` ids are left."""
        if self._end - self._next > left_min:
            return
        async with self._reserving:
            if self._end - self._next > left_min:
                return
            try:
                with storing(self._changes.outage):
                    start = await self._changes.reserve_producer_ids(self._first, BLOCK)
            except ApiError as error:
                # Producers ask again: this code is none that they give up on.
                raise ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE, error.message) from error
            if start != self._end:
                self._next = start
            self._end = start + BLOCK

    def _on_reserved(self, task: asyncio.Task[None]) -> None:
        self._ahead = None
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("%s", error)
