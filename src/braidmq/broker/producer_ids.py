"""Ids for idempotent producers: unique for ever, handed out from blocks that the metadata store reserves."""

from __future__ import annotations

import asyncio

from braidmq.broker.group_commit import DiskThreads
from braidmq.cluster.store import Store
from braidmq.wire.errors import ApiError, ErrorCode

KEY = "producer-ids/next"
BLOCK = 1000


class ProducerIds:
    """The next free id. A crash loses the rest of a block, never reuses any of it."""

    def __init__(self, store: Store, threads: DiskThreads) -> None:
        self._store = store
        self._threads = threads
        self._next = 0
        self._end = 0
        self._reserving = asyncio.Lock()

    async def take(self) -> int:
        if self._next == self._end:
            async with self._reserving:
                if self._next == self._end:
                    await self._reserve()
        producer_id = self._next
        self._next += 1
        return producer_id

    async def _reserve(self) -> None:
        start = int(self._store.get(KEY) or 0)
        try:
            await self._threads.run(lambda: self._store.commit({KEY: start + BLOCK}))
        except OSError as error:
            raise ApiError(
                ErrorCode.KAFKA_STORAGE_ERROR, f"no producer ids could be reserved: {error}"
            ) from error
        self._next, self._end = start, start + BLOCK
