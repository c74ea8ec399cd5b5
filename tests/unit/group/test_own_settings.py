"""Groups that have limits of their own beside the broker's."""

from __future__ import annotations

from dataclasses import replace

from braidmq.group.consumer_group import ConsumerGroup
from braidmq.group.consumer_member import Heartbeat
from braidmq.group.heartbeat_interval import BEATS_PER_SECOND, HeartbeatInterval
from braidmq.group.settings import GroupSettings
from braidmq.group.share_group import ShareGroup
from unit.group.catalogs import FakeCatalog


def settings_with(**own: int) -> GroupSettings:
    """The broker's settings, with a group `special` that has these."""
    settings = GroupSettings()
    settings.own["special"] = replace(settings, **own)
    return settings


def consumer(group_id: str, settings: GroupSettings) -> ConsumerGroup:
    group = ConsumerGroup(group_id, settings, lambda: "id", 0)
    beat = Heartbeat("ann", 0, "c", "/h", None, None, 60_000, frozenset({"orders"}), owned=frozenset())
    group.heartbeat(beat, FakeCatalog(orders=4), 0)
    return group


def share(group_id: str, settings: GroupSettings) -> ShareGroup:
    group = ShareGroup(group_id, settings)
    group.heartbeat(Heartbeat("ann", 0, topics=frozenset({"orders"})), FakeCatalog(orders=4), 0)
    return group


def test_a_consumer_group_with_a_session_of_its_own_keeps_to_it() -> None:
    """C4 C7: consumer.session.timeout.ms of one group; others have the broker's."""
    settings = settings_with(group_consumer_session_timeout_ms=7_000)
    assert consumer("special", settings).next_deadline() == 7_000
    assert consumer("other", settings).next_deadline() == 45_000


def test_a_share_group_with_a_session_and_an_interval_of_its_own_keeps_to_them() -> None:
    """C3 C7: share.session.timeout.ms and share.heartbeat.interval.ms of one group."""
    settings = settings_with(group_share_session_timeout_ms=9_000, group_share_heartbeat_interval_ms=2_000)
    assert share("special", settings).next_deadline() == 9_000
    assert share("other", settings).next_deadline() == 45_000
    catalog = FakeCatalog(orders=4)
    beats = [
        share(group_id, settings).heartbeat(Heartbeat("ann", 1), catalog, 1)
        for group_id in ("special", "other")
    ]
    assert [beat.heartbeat_interval_ms for beat in beats] == [2_000, 5_000]


def test_a_change_counts_from_the_next_heartbeat_on() -> None:
    """C7: groups look their settings up when they need them."""
    settings = GroupSettings()
    group = share("special", settings)
    settings.own["special"] = replace(settings, group_share_session_timeout_ms=9_000)
    group.heartbeat(Heartbeat("ann", 1), FakeCatalog(orders=4), 100)
    assert group.tick(9_100) == ["ann"]


def test_a_group_with_an_interval_of_its_own_has_it_however_many_members_there_are() -> None:
    """C4 C7: consumer.heartbeat.interval.ms of one group; the others are paced."""
    settings = settings_with(
        group_consumer_heartbeat_interval_ms=8_000, group_consumer_quick_interval_ms=8_000
    )
    for members, others_ms in ((1, 1_000), (3 * BEATS_PER_SECOND, 3_000)):
        interval = HeartbeatInterval(settings, lambda members=members: members)
        assert interval.ms_of("special", 0) == 8_000
        assert interval.ms_of("other", 0) == others_ms
