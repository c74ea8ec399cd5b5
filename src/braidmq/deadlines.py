"""Deadlines of many keys, for one timer: a heap with the earliest on top.

The owner of the timer sets it to `next_ms` after every change and takes what is due with `pop_due`. A
deadline that moves away stays in the heap until its old time comes; the owner finds nothing to do then and
sets the new one. So moving a deadline away, which heartbeats do all the time, costs nothing.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import Generic, TypeVar

STALE_MIN = 64
"""So many entries of the heap may be out of date, and half of it, before it is rebuilt."""

Key = TypeVar("Key", bound="str | tuple[object, ...]")


class Deadlines(Generic[Key]):
    """The earliest known deadline of each key."""

    __slots__ = ("_due_ms", "_heap")

    def __init__(self) -> None:
        self._heap: list[tuple[int, Key]] = []
        self._due_ms: dict[Key, int] = {}

    def next_ms(self) -> int | None:
        """The earliest of all; it may belong to a key whose deadline has moved since."""
        return self._heap[0][0] if self._heap else None

    def set(self, key: Key, due_ms: int | None) -> None:
        """Notes a deadline if it is earlier than the one known for `key`; None is no deadline."""
        known_ms = self._due_ms.get(key)
        if due_ms is not None and (known_ms is None or due_ms < known_ms):
            self._due_ms[key] = due_ms
            heapq.heappush(self._heap, (due_ms, key))

    def pop_due(self, now_ms: int) -> Iterator[Key]:
        """Takes the keys whose deadline has come, earliest first; new ones may be set meanwhile."""
        while self._heap and self._heap[0][0] <= now_ms:
            due_ms, key = heapq.heappop(self._heap)
            if self._due_ms.get(key) == due_ms:
                del self._due_ms[key]
                yield key

    def drop(self, key: Key) -> None:
        """Forgets the deadline of a key that is gone."""
        self._due_ms.pop(key, None)
        if len(self._heap) > 2 * len(self._due_ms) + STALE_MIN:
            # Keys may come and go all the time with deadlines that are days away.
            self._heap = [(due_ms, known) for known, due_ms in self._due_ms.items()]
            heapq.heapify(self._heap)
