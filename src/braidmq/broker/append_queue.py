"""Batches that wait to be appended to a partition, in the order in which they came.

A batch waits while the partition's log is being opened, and while it is opened itself: a topic that stores
another codec than the producer chose, or that needs to see keys, has it inflated, and that may take longer
than the event loop may block. It is done in a thread, of one batch at a time in the whole broker: opened, a
batch may take a hundred times the memory. Batches that come meanwhile wait after it, or they would overtake
it.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from braidmq.broker.batch_preparation import Prepared
from braidmq.wire.errors import ApiError, ErrorCode

if TYPE_CHECKING:
    from braidmq.broker.replica import Replica
    from braidmq.broker.serial_executor import SerialExecutor

log = logging.getLogger("braid.disk")


Turn = Callable[[Prepared | ApiError | None], None]
"""Called when the batch may be appended: with what was made of it, why it is refused, or nothing."""


class _QueuedBatch(NamedTuple):
    batch: bytearray
    now_ms: int
    turn: Turn


class AppendQueue:
    """The queue of one partition; it ends when it is empty."""

    __slots__ = ("_busy", "_ended", "_inflating", "_partition", "_waiting")

    def __init__(self, partition: Replica, inflating: SerialExecutor, ended: Callable[[], None]) -> None:
        self._partition = partition
        self._inflating = inflating
        self._ended = ended
        self._waiting: deque[_QueuedBatch] = deque()
        self._busy = False

    def join(self, batch: bytearray, now_ms: int, turn: Turn) -> None:
        self._waiting.append(_QueuedBatch(batch, now_ms, turn))
        if not self._busy:
            self._busy = True
            self._partition.when_open(self._advance)
            self._partition.prefer_open()

    def _advance(self) -> None:
        while self._waiting:
            first = self._waiting[0]
            if self._partition.is_open and self._partition.takes_long(first.batch):
                self._prepare(first)
                return
            self._take_turn(None)
        self._busy = False
        self._ended()

    def _take_turn(self, outcome: Prepared | ApiError | None) -> None:
        try:
            self._waiting.popleft().turn(outcome)
        except Exception:
            log.exception("%s: appending a batch failed", self._partition)

    def _prepare(self, first: _QueuedBatch) -> None:
        outcome: Prepared | ApiError = ApiError(ErrorCode.UNKNOWN_SERVER_ERROR, "the batch was not prepared")

        def run() -> None:
            nonlocal outcome
            try:
                outcome = self._partition.prepare(memoryview(first.batch), first.now_ms)
            except ApiError as error:
                outcome = error

        def done(_: BaseException | None) -> None:
            self._take_turn(outcome)
            self._advance()

        self._inflating.submit(run, done)
