"""A topic that the broker keeps for itself: one compacted partition of keys and values, read back on start.

It is made when something is first written to it, so a broker that does not need it never has it. Whatever
`flush` is for other topics, what is written here waits for the disk: see `topic.effective_config`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress

from braidmq.broker.partition import CommittedCallback
from braidmq.broker.replica import Replica
from braidmq.broker.topics import Topics
from braidmq.platform.clock import Clock
from braidmq.wire.errors import ApiError, ErrorCode
from braidmq.wire.records import BatchHeader, build_batch, records

TOGETHER_RECORDS_MAX = 500

KeyValue = tuple[bytes, bytes | None]
"""A record of the topic; without a value it is a tombstone."""


class _Together:
    """Records of several who wait for the same write."""

    __slots__ = ("changes", "written")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.changes: list[KeyValue] = []
        self.written: asyncio.Future[None] = loop.create_future()

    def settle(self, code: ErrorCode) -> None:
        if self.written.done():
            return  # one who waited was cancelled, and the future with it
        if code is ErrorCode.NONE:
            self.written.set_result(None)
        else:
            self.written.set_exception(ApiError(code, "the change could not be written to disk"))


class InternalTopic:
    """Appends records and says when they are on disk."""

    def __init__(self, topics: Topics, clock: Clock, name: str, options: Mapping[str, str]) -> None:
        self._topics = topics
        self._clock = clock
        self._name = name
        self._options = options
        self._partition: Replica | None = None
        self._opening = asyncio.Lock()
        self._together: _Together | None = None

    @property
    def partition(self) -> Replica:
        """Where the records are, once the topic is open."""
        assert self._partition is not None, "the topic is opened first"
        return self._partition

    def stored(self) -> Iterator[KeyValue]:
        """Every record of earlier runs, oldest first; blocks."""
        for _, batch in self.batches():
            for record in records(batch):
                if record.key is not None:
                    yield record.key, record.value

    def batches(self) -> Iterator[tuple[BatchHeader, memoryview]]:
        """Every batch of earlier runs, oldest first; blocks."""
        topic = self._topics.find(self._name)
        if topic is not None:
            self._partition = topic.held.get(0)
            if self._partition is not None:
                yield from self._partition.stored_batches()

    async def open(self) -> None:
        """Makes the topic if it is not there yet."""
        if self._partition is not None:
            return
        async with self._opening:
            if self._partition is None:
                made = await self._topics.create_own(self._name, self._options)
                self._partition = made.leading(0)

    def append(self, changes: Sequence[KeyValue]) -> int:
        """Appends records as one batch; the offset that must be durable for them to count."""
        now_ms = self._clock.wall_ms()
        batch = build_batch([(key, value, (), now_ms) for key, value in changes])
        return self.partition.append_own(memoryview(batch))

    def written(self, changes: Sequence[KeyValue]) -> asyncio.Future[None]:
        """Done when these records are on disk; ApiError when they never will be.

        They go into one batch with what else is handed in in this turn of the loop: most of what a small
        batch costs does not depend on its size.
        """
        together = self._together
        if together is None:
            together = self._together = _Together(asyncio.get_running_loop())
            together.written.get_loop().call_soon(self._write, together)
        together.changes += changes
        if len(together.changes) >= TOGETHER_RECORDS_MAX:
            self._together = None
        return together.written

    def _write(self, together: _Together) -> None:
        if self._together is together:
            self._together = None
        try:
            self.when_durable(self.append(together.changes), together.settle)
        except Exception as error:
            if not together.written.done():
                together.written.set_exception(error)

    def transactional_batch(
        self, changes: Sequence[KeyValue], producer_id: int, producer_epoch: int
    ) -> bytearray:
        """Records that count if the producer's transaction commits, to be appended to the partition."""
        now_ms = self._clock.wall_ms()
        return build_batch(
            [(key, value, (), now_ms) for key, value in changes],
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            transactional=True,
        )

    def is_durable(self, offset: int) -> bool:
        """Whether everything below `offset` is on disk."""
        return self.partition.high_watermark >= offset

    def when_durable(self, offset: int, callback: CommittedCallback) -> None:
        """Calls back when everything below `offset` is on disk, or never will be."""
        self.partition.when_committed(offset, callback)

    async def settled(self) -> None:
        """Returns when those who have handed in something before have their answer, whatever it is."""
        if self._together is not None:
            await asyncio.wait([self._together.written])
        if self._partition is not None:
            with suppress(ApiError):
                await self.durable(self._partition.end_offset)

    async def durable(self, offset: int) -> None:
        """Returns when everything below `offset` is on disk; ApiError when it never will be."""
        code_ready: asyncio.Future[ErrorCode] = asyncio.get_running_loop().create_future()

        def on_durable(code: ErrorCode) -> None:
            if not code_ready.done():
                code_ready.set_result(code)

        self.when_durable(offset, on_durable)
        code = await code_ready
        if code is not ErrorCode.NONE:
            raise ApiError(code, "the change could not be written to disk")
