"""How often members of server-assigned groups are to report.

They learn of a change when they report, so the time of a rebalance is mostly this interval. A report costs
the broker some fifty microseconds, so while there are few members it can be more often than is usual; the
more there are, the longer it becomes, up to the usual.
"""

from __future__ import annotations

from collections.abc import Callable

from braidmq.group.settings import GroupSettings

BEATS_PER_SECOND = 200
"""So many reports are hardly felt: one percent of a core."""
COUNT_AGAIN_MS = 1_000


class HeartbeatInterval:
    """One for all groups of a broker; members are counted once a second, when one reports."""

    __slots__ = ("_count_members", "_counted_ms", "_settings", "_wanted_ms")

    def __init__(self, settings: GroupSettings, count_members: Callable[[], int]) -> None:
        self._settings = settings
        self._count_members = count_members
        self._counted_ms = -COUNT_AGAIN_MS
        self._wanted_ms = 0

    def ms_of(self, group_id: str, now_ms: int) -> int:
        if now_ms - self._counted_ms >= COUNT_AGAIN_MS:
            self._counted_ms = now_ms
            self._wanted_ms = self._count_members() * 1000 // BEATS_PER_SECOND
        settings = self._settings.of(group_id)
        most_ms = settings.group_consumer_heartbeat_interval_ms
        least_ms = min(most_ms, settings.group_consumer_quick_interval_ms)
        return max(least_ms, min(most_ms, self._wanted_ms))
