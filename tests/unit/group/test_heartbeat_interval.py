"""How often members of server-assigned groups are asked to report."""

from __future__ import annotations

import pytest

from braidmq.group.heartbeat_interval import BEATS_PER_SECOND, COUNT_AGAIN_MS, HeartbeatInterval
from braidmq.group.settings import GroupSettings


@pytest.mark.parametrize(
    ("members", "ms_of"),
    [(0, 1_000), (1, 1_000), (BEATS_PER_SECOND, 1_000), (3 * BEATS_PER_SECOND, 3_000), (100_000, 5_000)],
)
def test_few_members_report_every_second_and_many_as_rarely_as_usual(members: int, ms_of: int) -> None:
    """C4: the reports of all members together stay below a rate that is hardly felt."""
    assert HeartbeatInterval(GroupSettings(), lambda: members).ms_of("g", 0) == ms_of


def test_an_operator_who_wants_it_more_often_gets_it() -> None:
    """C4: the usual interval is the longest."""
    settings = GroupSettings(group_consumer_heartbeat_interval_ms=300)
    assert HeartbeatInterval(settings, lambda: 1).ms_of("g", 0) == 300
    assert HeartbeatInterval(settings, lambda: 100_000).ms_of("g", 0) == 300


def test_members_are_counted_again_after_a_second_and_not_for_every_report() -> None:
    """C4: counting takes time in proportion to the groups."""
    counts: list[int] = []

    def count() -> int:
        counts.append(0)
        return 10_000 * (len(counts) - 1)

    interval = HeartbeatInterval(GroupSettings(), count)
    assert [interval.ms_of("g", now_ms) for now_ms in (0, 1, COUNT_AGAIN_MS - 1)] == [1_000] * 3
    assert interval.ms_of("g", COUNT_AGAIN_MS) == 5_000
    assert len(counts) == 2
