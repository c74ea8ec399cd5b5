"""A window of consecutive offsets, each with a value, kept as runs of equal ones.

A run is a first offset and a value; it ends where the next begins. So a window in which a consumer holds five
hundred messages costs one entry, not five hundred, and neighbours that become equal become one run again.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

Value = TypeVar("Value")


class Runs(Generic[Value]):
    """Values of the offsets in [start, end); no two neighbouring runs are equal."""

    __slots__ = ("_firsts", "_values", "end", "start")

    def __init__(self, start: int) -> None:
        self.start = start
        self.end = start
        self._firsts: list[int] = []
        self._values: list[Value] = []

    def __len__(self) -> int:
        """How many runs there are, which is what the window costs."""
        return len(self._firsts)

    def __iter__(self) -> Iterator[tuple[int, int, Value]]:
        """First offset, last offset and value of every run."""
        return self.between(self.start, self.end - 1)

    def between(self, first: int, last: int) -> Iterator[tuple[int, int, Value]]:
        """The runs in [first, last], those at the edges cut to it; the window must not change meanwhile."""
        first, last = max(first, self.start), min(last, self.end - 1)
        number = bisect_right(self._firsts, first) - 1
        while first <= last:
            stop = self._stop(number)
            yield first, min(stop - 1, last), self._values[number]
            first = stop
            number += 1

    def append(self, last: int, value: Value) -> None:
        """Extends the window up to `last` with `value`."""
        assert last >= self.end, "a window is extended at its end"
        if not self._values or self._values[-1] != value:
            self._firsts.append(self.end)
            self._values.append(value)
        self.end = last + 1

    def rewrite(self, first: int, last: int, change: Callable[[Value], Value]) -> None:
        """Gives every offset of [first, last] the value that `change` makes of its old one."""
        assert self.start <= first <= last < self.end, "only what is in the window can change"
        firsts, values = self._firsts, self._values
        low = bisect_right(firsts, first) - 1
        high = bisect_left(firsts, last + 1, low)
        pieces = [(firsts[low], values[low])] if firsts[low] < first else []
        pieces += [(max(firsts[at], first), change(values[at])) for at in range(low, high)]
        if last + 1 < self._stop(high - 1):
            pieces.append((last + 1, values[high - 1]))
        # The neighbours take part, so that they merge with what has become equal to them.
        if low:
            low -= 1
            pieces.insert(0, (firsts[low], values[low]))
        if high < len(firsts):
            pieces.append((firsts[high], values[high]))
            high += 1
        merged = [
            piece for number, piece in enumerate(pieces) if not number or piece[1] != pieces[number - 1][1]
        ]
        firsts[low:high] = [piece[0] for piece in merged]
        values[low:high] = [piece[1] for piece in merged]

    def drop_before(self, offset: int) -> None:
        """Moves the start up to `offset`; the window is empty there if it ended before."""
        if offset >= self.end:
            self._firsts.clear()
            self._values.clear()
            self.start = self.end = offset
        elif offset > self.start:
            number = bisect_right(self._firsts, offset) - 1
            del self._firsts[:number]
            del self._values[:number]
            self._firsts[0] = self.start = offset

    def _stop(self, number: int) -> int:
        return self._firsts[number + 1] if number + 1 < len(self._firsts) else self.end
