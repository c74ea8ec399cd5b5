"""When each group has to be looked at again, for one timer that serves all of them."""

from __future__ import annotations

import heapq
from collections.abc import Iterator


class Deadlines:
    """The earliest deadline of each group. A later one is noticed when the earlier has come."""

    def __init__(self) -> None:
        self._queue: list[tuple[int, str]] = []
        self._of: dict[str, int] = {}

    def next_ms(self) -> int | None:
        """The earliest of all; it may be that of a group whose deadline has moved since."""
        return self._queue[0][0] if self._queue else None

    def set(self, group_id: str, due_ms: int | None) -> None:
        """Takes note of a deadline that is earlier than what is known."""
        known_ms = self._of.get(group_id)
        if due_ms is not None and (known_ms is None or due_ms < known_ms):
            self._of[group_id] = due_ms
            heapq.heappush(self._queue, (due_ms, group_id))

    def pop_due(self, now_ms: int) -> Iterator[str]:
        """The groups whose deadline has come; new ones may be set meanwhile."""
        while self._queue and self._queue[0][0] <= now_ms:
            due_ms, group_id = heapq.heappop(self._queue)
            if self._of.get(group_id) == due_ms:
                del self._of[group_id]
                yield group_id

    def drop(self, group_id: str) -> None:
        self._of.pop(group_id, None)
