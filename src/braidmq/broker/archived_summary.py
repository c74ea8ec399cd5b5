"""What share groups give up, summed up for the broker's log.

A consumer that rejects every second record would fill the log with a line for each. So they are counted, and
every `EVERY_S` seconds there is one line for each group and partition. Every single range is logged at DEBUG.
"""

from __future__ import annotations

import asyncio
import logging

from braidmq.broker.partition import Partition
from braidmq.delivery.status import Archived, Reason

log = logging.getLogger("braid.share")

EVERY_S = 30.0


class _Sum:
    """What one group has given up of one partition since the last line."""

    __slots__ = ("by_reason", "first", "last")

    def __init__(self, first: int) -> None:
        self.first = self.last = first
        self.by_reason = dict.fromkeys(Reason, 0)

    def add(self, archived: Archived) -> None:
        self.first = min(self.first, archived.first)
        self.last = max(self.last, archived.last)
        self.by_reason[archived.reason] += archived.last - archived.first + 1


class ArchivedSummary:
    """Counts archived records and writes the sums to the log."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._sums: dict[tuple[str, Partition], _Sum] = {}
        self._timer: asyncio.TimerHandle | None = None

    def note(self, group_id: str, partition: Partition, archived: Archived) -> None:
        """Takes note of records that are not delivered again."""
        log.debug(
            "group %s, %s: offsets %d to %d are not delivered again: %s after %d deliveries",
            group_id, partition, archived.first, archived.last, archived.reason.name.lower(),
            archived.deliveries,
        )  # fmt: skip
        key = (group_id, partition)
        found = self._sums.get(key)
        if found is None:
            found = self._sums[key] = _Sum(archived.first)
        found.add(archived)
        if self._timer is None:
            self._timer = self._loop.call_later(EVERY_S, self.write)

    def write(self) -> None:
        """Logs what was counted since the last time."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        sums, self._sums = self._sums, {}
        for (group_id, partition), found in sums.items():
            log.info(
                "group %s, %s: %d records between offsets %d and %d are not delivered again:"
                " %d rejected, %d after their last delivery",
                group_id, partition, sum(found.by_reason.values()), found.first, found.last,
                found.by_reason[Reason.REJECTED], found.by_reason[Reason.EXHAUSTED],
            )  # fmt: skip
