"""Options of single groups that have to do with their members (KIP-848, KIP-932)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from braidmq.wire.errors import ErrorCode
from braidmq.wire.messages.consumer_groups import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from braidmq.wire.messages.share_groups import ShareGroupHeartbeatRequest, ShareGroupHeartbeatResponse
from unit.embedded import TurnedClock
from unit.faces.options_client import BROKER, GROUP, described, refused, set_options
from unit.faces.spoken import Speaker, speaker

OF_GROUP, AT_START = 8, 4
Story = Callable[[Speaker], Awaitable[None]]


def tell(data: Path, *stories: Story, **options: object) -> None:
    """Runs stories one after the other, each on a broker that was started again."""

    async def told() -> None:
        for story in stories:
            async with speaker(data, clock=TurnedClock(), **options) as one:
                await story(one)

    asyncio.run(told())


async def consumer_beat(one: Speaker, group_id: str, epoch: int = 0) -> ConsumerGroupHeartbeatResponse:
    beat = ConsumerGroupHeartbeatRequest(group_id=group_id, member_id="m", member_epoch=epoch)
    if epoch == 0:
        beat.rebalance_timeout_ms, beat.subscribed_topic_names, beat.topic_partitions = 60_000, ["t"], []
    answer = await one.ask(beat, ConsumerGroupHeartbeatResponse)
    assert answer.error_code == 0
    return answer


async def share_beat(one: Speaker, group_id: str, epoch: int = 0) -> ShareGroupHeartbeatResponse:
    topics = ["t"] if epoch == 0 else None
    beat = ShareGroupHeartbeatRequest(
        group_id=group_id, member_id="m", member_epoch=epoch, subscribed_topic_names=topics
    )
    answer = await one.ask(beat, ShareGroupHeartbeatResponse)
    assert answer.error_code == 0
    return answer


def session_ms(one: Speaker) -> int:
    """How long the first member to be missed has, on a clock that stands."""
    (shard,) = one.broker.groups
    deadline_ms = shard.groups.next_deadline()
    assert deadline_ms is not None
    return deadline_ms - shard.now_ms()


def test_a_consumer_group_keeps_to_its_own_session_and_interval(tmp_path: Path) -> None:
    """C4 C7: consumer.session.timeout.ms and consumer.heartbeat.interval.ms, also after a restart."""
    options = {"consumer.session.timeout.ms": "9000", "consumer.heartbeat.interval.ms": "3000"}

    async def story(one: Speaker) -> None:
        await one.broker.topics.create("t", 1, {})
        await set_options(one, GROUP, "special", options)
        first = await consumer_beat(one, "special")
        assert (first.heartbeat_interval_ms, session_ms(one)) == (3000, 9000)
        steady = await consumer_beat(one, "special", first.member_epoch)
        assert steady.heartbeat_interval_ms == 3000

    async def after(one: Speaker) -> None:
        assert session_ms(one) == 9000
        entries = await described(one, GROUP, "special")
        assert [(entries[name].value, entries[name].config_source) for name in options] == [
            ("9000", OF_GROUP),
            ("3000", OF_GROUP),
        ]
        usual = await consumer_beat(one, "usual")
        assert usual.heartbeat_interval_ms == 1000

    tell(tmp_path, story, after)


def test_options_count_for_members_that_are_there_already(tmp_path: Path) -> None:
    """C7: from their next heartbeat on, and the broker's again when the group's are deleted."""

    async def story(one: Speaker) -> None:
        await one.broker.topics.create("t", 1, {})
        first = await share_beat(one, "workers")
        assert (first.heartbeat_interval_ms, session_ms(one)) == (5000, 45_000)
        options = {"share.session.timeout.ms": "8000", "share.heartbeat.interval.ms": "2000"}
        await set_options(one, GROUP, "workers", options)
        again = await share_beat(one, "workers", first.member_epoch)
        assert (again.heartbeat_interval_ms, session_ms(one)) == (2000, 8000)
        await set_options(one, GROUP, "workers", dict.fromkeys(options))
        again = await share_beat(one, "workers", first.member_epoch)
        assert again.heartbeat_interval_ms == 5000

    tell(tmp_path, story)


def test_a_group_keeps_its_own_value_when_the_brokers_changes(tmp_path: Path) -> None:
    """C7: the broker's option is the default and no more; synonyms show both."""

    async def story(one: Speaker) -> None:
        await one.broker.topics.create("t", 1, {})
        await set_options(one, GROUP, "own", {"share.session.timeout.ms": "20000"})
        await set_options(one, BROKER, "1", {"group.share.session.timeout.ms": "10000"})
        await share_beat(one, "own")
        assert session_ms(one) == 20_000
        await share_beat(one, "usual")
        assert session_ms(one) == 10_000
        synonyms = (await described(one, GROUP, "own"))["share.session.timeout.ms"].synonyms
        assert [(each.name, each.value, each.source) for each in synonyms] == [
            ("share.session.timeout.ms", "20000", OF_GROUP),
            ("group.share.session.timeout.ms", "10000", 2),
            ("group.share.session.timeout.ms", "45000", 5),
        ]

    tell(tmp_path, story)


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"consumer.session.timeout.ms": "0"}, ErrorCode.INVALID_CONFIG),
        ({"consumer.session.timeout.ms": "soon"}, ErrorCode.INVALID_CONFIG),
        ({"consumer.heartbeat.interval.ms": "45000"}, ErrorCode.INVALID_CONFIG),
        ({"consumer.session.timeout.ms": "5000"}, ErrorCode.INVALID_CONFIG),
        ({"share.heartbeat.interval.ms": "60000"}, ErrorCode.INVALID_CONFIG),
        ({"consumer.migration.policy": "disabled"}, ErrorCode.INVALID_CONFIG),
    ],
)
def test_a_session_has_room_for_more_than_one_heartbeat(
    tmp_path: Path, options: dict[str, str | None], code: ErrorCode
) -> None:
    """C7: what would throw every member out is refused, with what the broker's default adds to it."""

    async def story(one: Speaker) -> None:
        assert await refused(one, GROUP, "g", options) is code
        assert (
            await refused(one, GROUP, "", {"share.session.timeout.ms": "9000"}) is ErrorCode.INVALID_REQUEST
        )

    tell(tmp_path, story)
