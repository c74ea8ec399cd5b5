"""One partition of a topic that brokers keep for themselves, under one leader epoch.

A coordinator reads it when this broker becomes its leader, and appends keys and values to it from then on.
The epoch under which that began goes with every append: under another epoch, or when this broker leads the
partition no longer, it is refused, because the coordinator does not know what was written in between.

Whatever `flush` is for other topics, what is written here waits for the disk: see `topic.effective_config`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress

from braidmq.broker.opening import opened
from braidmq.broker.partition import CommittedCallback
from braidmq.broker.replica import Replica
from braidmq.log.transactions import EndMarker, Guard
from braidmq.platform.clock import Clock
from braidmq.wire.errors import ApiError, ErrorCode
from braidmq.wire.records import BatchHeader, build_batch, records

TOGETHER_RECORDS_MAX = 500
SLICE_S = 0.010
"""How long loading keeps the loop to itself."""
SLICE_BATCHES = 256
"""Batches after which others have their turn, however fast they are read."""
READ_BYTES = 256 * 1024

KeyValue = tuple[bytes, bytes | None]
"""A record of the partition; without a value it is a tombstone."""

Batch = tuple[BatchHeader, memoryview]
TakeBatch = Callable[[BatchHeader, memoryview], None]

log = logging.getLogger("braid.shards")


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


class _Wait:
    """Somebody who waits for an offset; called once, by the partition or by `resign`."""

    __slots__ = ("_callback", "_partition")

    def __init__(self, partition: InternalPartition, callback: CommittedCallback) -> None:
        self._partition = partition
        self._callback = callback

    def __call__(self, code: ErrorCode) -> None:
        if self._partition.waits_no_more(self):
            if code is not ErrorCode.NONE:
                self._partition.lost(code)
            self._callback(code)


class InternalPartition:
    """Reads, appends records, and says when they are committed."""

    def __init__(self, replica: Replica, clock: Clock, turns: asyncio.Lock | None = None) -> None:
        self.replica = replica
        self.index = replica.index
        self.epoch = replica.leader_epoch
        """The leader epoch under which all of this happens."""
        self._clock = clock
        self._turns = turns or asyncio.Lock()
        self._together: _Together | None = None
        self._waits: dict[_Wait, None] = {}
        self._resigned = False
        self.on_lost: Callable[[], None] | None = None
        """Called when it is not known what became of a write: the coordinator is to be read anew."""

    def __str__(self) -> str:
        return str(self.replica)

    # -- loading --------------------------------------------------------------------------------

    async def read(self, take: TakeBatch) -> int:
        """Gives every batch that was here when the epoch began to `take`, oldest first, in slices of time.

        It returns the offset where that ends, when all of it is committed. What is after the high watermark
        is read, too: it will be committed, as a leader cuts nothing. ApiError if this broker leads the
        partition no more.
        """
        await opened([self.replica])
        self._check_epoch()
        end = self.replica.end_offset
        stored = self.replica.stored_batches(end, READ_BYTES)
        more = True
        while more:
            # One partition at a time: many that are loaded together would each take a slice of every turn.
            async with self._turns:
                more = self._read_slice(stored, take)
            await asyncio.sleep(0)
            self._check_epoch()
        await self.durable(end)
        return end

    def _read_slice(
        self,
        stored: Iterator[tuple[BatchHeader, memoryview]],
        take: TakeBatch,
    ) -> bool:
        """Whether there may be more."""
        until_s = self._clock.monotonic() + SLICE_S
        for _ in range(SLICE_BATCHES):
            found = next(stored, None)
            if found is None:
                return False
            take(*found)
            if self._clock.monotonic() >= until_s:
                break
        return True

    async def read_records(self, take: Callable[[bytes, bytes | None], None]) -> None:
        """As `read`, with every key and value."""

        def of_batch(_: BatchHeader, batch: memoryview) -> None:
            for record in records(batch):
                if record.key is not None:
                    take(record.key, record.value)

        await self.read(of_batch)

    # -- writing --------------------------------------------------------------------------------

    def append(self, changes: Sequence[KeyValue]) -> int:
        """Appends records as one batch; the offset that must be durable for them to count."""
        now_ms = self._clock.wall_ms()
        return self.append_batch(build_batch([(key, value, (), now_ms) for key, value in changes]))

    def append_batch(self, batch: bytearray, guard: Guard | None = None) -> int:
        """Appends a batch that is built; as above."""
        self._check_epoch()
        return self.replica.append_own(memoryview(batch), guard)

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
        """Records that count if the producer's transaction commits, for `append_batch`."""
        now_ms = self._clock.wall_ms()
        return build_batch(
            [(key, value, (), now_ms) for key, value in changes],
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            transactional=True,
        )

    # -- waiting --------------------------------------------------------------------------------

    def is_durable(self, offset: int) -> bool:
        """Whether everything below `offset` is on disk."""
        return self.replica.high_watermark >= offset

    def when_durable(self, offset: int, callback: CommittedCallback) -> None:
        """Calls back when everything below `offset` is on disk, or never will be, or `resign` was called."""
        if self._resigned:
            callback(ErrorCode.NOT_COORDINATOR)
            return
        wait = _Wait(self, callback)
        self._waits[wait] = None
        self.replica.when_committed(offset, wait)

    def waits_no_more(self, wait: _Wait) -> bool:
        """Forgets one who waited; whether it still did."""
        if wait not in self._waits:
            return False
        del self._waits[wait]
        return True

    async def settled(self) -> None:
        """Returns when those who have handed in something before have their answer, whatever it is."""
        if self._together is not None:
            await asyncio.wait([self._together.written])
        with suppress(ApiError):
            await self.durable(self.replica.end_offset)

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

    # -- the end of it --------------------------------------------------------------------------

    def watch_markers(self, on_marker: Callable[[EndMarker, int], None] | None) -> None:
        """Has `on_marker` called with every marker that is appended here, and the offset after it."""
        self.replica.on_marker = on_marker

    def resign(self) -> None:
        """Writes nothing more; those who wait hear that this broker does not coordinate them any longer."""
        self._resigned = True
        self.on_lost = None
        self.watch_markers(None)
        for wait in list(self._waits):
            wait(ErrorCode.NOT_COORDINATOR)

    def lost(self, code: ErrorCode) -> None:
        """It is not known what became of a write.

        A log that has failed takes no more writes until the broker is started again, and what was not
        confirmed does not show: then there is nothing to gain by reading it.
        """
        if self._resigned or self.on_lost is None or self.replica.failed:
            return
        log.error("%s: a write may or may not count (%s), the partition is read again", self, code.name)
        self.on_lost()

    def _check_epoch(self) -> None:
        if self._resigned or self.replica.leader_epoch != self.epoch:
            raise ApiError(
                ErrorCode.NOT_COORDINATOR, f"{self}: this broker does not lead it under epoch {self.epoch}"
            )
