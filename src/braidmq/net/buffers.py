"""Receive buffers, pooled by size class.

A connection holds a buffer only while part of a request sits in it, so ten thousand idle connections hold
none. A buffer is never sized by what a client merely declares: the first one is as large as the largest
request this connection has really sent before, and it doubles only when it is full. A request that trickles
in is moved to the smallest buffer that holds it, so slow connections cost what they have sent.

What is lent to all connections is bounded. Connections that then wait for each other's bytes would wait for
ever, so one of them, the first, may go past the bound until its request is complete; then the next may.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

SMALLEST_BYTES = 512
FIRST_BYTES = 64 * 1024
KEPT_BYTES_MAX = 8 * 1024 * 1024


def size_class(size_bytes: int) -> int:
    """The smallest power of two, from 512 on, that holds `size_bytes`."""
    return max(SMALLEST_BYTES, 1 << max(size_bytes - 1, 1).bit_length())


class BufferPool:
    """Free buffers by size, and the count of bytes lent out, which `lent_bytes_max` bounds."""

    __slots__ = ("_free", "_kept_bytes", "_lent_bytes_max", "_waiting", "favoured", "lent_bytes", "scratch")

    def __init__(self, lent_bytes_max: int) -> None:
        self._free: dict[int, list[memoryview]] = {}
        self._kept_bytes = 0
        self._lent_bytes_max = lent_bytes_max
        self._waiting: deque[Callable[[], bool]] = deque()
        self.favoured: object | None = None
        self.lent_bytes = 0
        self.scratch = memoryview(bytearray(FIRST_BYTES))
        """For requests that are handled before anything else is received."""

    def may_take(self, size_bytes: int, taker: object) -> bool:
        """Whether `taker` may be lent that much more now; if not, it waits with `when_free`."""
        if self.lent_bytes + size_class(size_bytes) <= self._lent_bytes_max:
            return True
        if self.favoured is None:
            self.favoured = taker
        return self.favoured is taker

    def when_free(self, resume: Callable[[], bool]) -> None:
        """Calls `resume` when there may be room; it says whether it had any use for that."""
        self._waiting.append(resume)

    def settle(self, taker: object) -> None:
        """`taker` has received a whole request, or is gone: another may be favoured."""
        if self.favoured is taker:
            self.favoured = None
            self._wake()

    def _wake(self) -> None:
        while self._waiting and not self._waiting.popleft()():
            pass

    def take(self, size_bytes: int) -> memoryview:
        """A writable buffer of the size class of `size_bytes`; its old content is undefined."""
        size = size_class(size_bytes)
        self.lent_bytes += size
        free = self._free.get(size)
        if free:
            self._kept_bytes -= size
            return free.pop()
        return memoryview(bytearray(size))

    def give(self, buffer: memoryview) -> None:
        """Returns a buffer; kept for the next taker while the pool is small, else left to the allocator."""
        size = len(buffer)
        self.lent_bytes -= size
        if self._kept_bytes + size <= KEPT_BYTES_MAX:
            self._kept_bytes += size
            self._free.setdefault(size, []).append(buffer)
        if self._waiting and self.lent_bytes <= self._lent_bytes_max // 2:
            self._wake()
