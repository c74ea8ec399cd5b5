"""Markers for partitions that another broker leads: what is due, what is under way, what is tried again.

There is one queue per broker. One request is under way at a time, with everything in it that was due when it
was sent; what becomes due meanwhile goes into the next one. So under load requests grow in size, not number.
A marker that was not written stays due, and the queue pauses; the pause doubles as long as nothing succeeds.

Nothing is lost and nothing piles up: a marker is in the queue once, however often it is asked for, and it
stays until it is written, its coordinator resigns, or the image says that another broker leads its partition.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from braidmq.txn.events import Marker, TopicPartition
from braidmq.wire.errors import ErrorCode

PAUSE_MS_MIN = 50
PAUSE_MS_MAX = 2_000
TOGETHER_MAX = 5_000
"""Markers in one request."""

FINAL = frozenset(
    {ErrorCode.NONE, ErrorCode.TRANSACTION_COORDINATOR_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH}
)
"""What a partition says for good. Everything else may be different in a moment, or at another broker."""

MarkerKey = tuple[TopicPartition, Marker]
Codes = Mapping[MarkerKey, ErrorCode]


class DueMarker(NamedTuple):
    """A marker for one partition, and who wants to know what became of it."""

    topic_partition: TopicPartition
    marker: Marker
    owner: object
    then: Callable[[ErrorCode], None]

    @property
    def key(self) -> MarkerKey:
        return self.topic_partition, self.marker


class MarkerQueue:
    """The markers for one broker."""

    __slots__ = ("_due", "_pause_ms", "_paused_until_ms", "_under_way")

    def __init__(self) -> None:
        self._due: dict[MarkerKey, DueMarker] = {}
        self._under_way: dict[MarkerKey, DueMarker] = {}
        self._pause_ms = 0
        self._paused_until_ms: int | None = None

    def __len__(self) -> int:
        return len(self._due) + len(self._under_way)

    def add(self, one: DueMarker) -> None:
        self._due[one.key] = one

    def moved(self, belongs_here: Callable[[TopicPartition], bool]) -> list[DueMarker]:
        """Takes out what is due and belongs elsewhere now."""
        gone = [one for one in self._due.values() if not belongs_here(one.topic_partition)]
        for one in gone:
            del self._due[one.key]
        return gone

    def pause_left_ms(self, now_ms: int) -> int:
        """How long nothing is to be sent; 0 if it may be."""
        if self._paused_until_ms is None:
            return 0
        return max(0, self._paused_until_ms - now_ms)

    def resume(self) -> None:
        """Something has changed: what failed may work now."""
        self._paused_until_ms = None

    def take(self) -> list[DueMarker]:
        """What goes into the next request, oldest first."""
        assert not self._under_way, "one request at a time"
        for key in list(self._due)[:TOGETHER_MAX]:
            self._under_way[key] = self._due.pop(key)
        return list(self._under_way.values())

    def settle(self, codes: Codes, now_ms: int) -> list[tuple[DueMarker, ErrorCode]]:
        """The request has ended, with an answer for each or none at all; those that are final are returned.

        A request without an answer may have been carried out. It is repeated: a marker that is there already
        is not written again.
        """
        under_way, self._under_way = self._under_way, {}
        final = []
        failed = {}
        for key, one in under_way.items():
            code = codes.get(key)
            if code is not None and code in FINAL:
                final.append((one, code))
            else:
                failed[key] = one
        # Those that failed stay the oldest; what was asked for anew meanwhile is the one to answer.
        self._due = failed | self._due
        if failed:
            self._pause_ms = min(max(2 * self._pause_ms, PAUSE_MS_MIN), PAUSE_MS_MAX)
            self._paused_until_ms = now_ms + self._pause_ms
        if final:
            self._pause_ms = 0 if not failed else PAUSE_MS_MIN
        return final

    def drop(self, owner: object) -> None:
        """A coordinator has resigned; the one that follows asks for the markers again."""
        for kept in (self._due, self._under_way):
            for key in [key for key, one in kept.items() if one.owner is owner]:
                del kept[key]


def by_marker(due: Iterable[MarkerKey]) -> dict[Marker, dict[str, list[int]]]:
    """The partitions of each marker by topic, as a request lists them."""
    found: dict[Marker, dict[str, list[int]]] = {}
    for (topic, index), marker in due:
        found.setdefault(marker, {}).setdefault(topic, []).append(index)
    return found
