"""Share groups as a client of any kind would speak to them: sessions, acknowledgements, administration."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from braidmq.broker.broker import Broker
from braidmq.wire.errors import ErrorCode
from braidmq.wire.messages.configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
    IncrementalAlterableConfig,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
    IncrementalAlterConfigsResponse,
)
from braidmq.wire.messages.groups import (
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    ListGroupsRequest,
    ListGroupsResponse,
)
from braidmq.wire.messages.share_fetch import (
    AcknowledgementBatch,
    AcknowledgePartition,
    AcknowledgeTopic,
    ForgottenTopic,
    ShareAcknowledgeRequest,
    ShareAcknowledgeResponse,
    ShareFetchPartitionData,
    ShareFetchRequest,
    ShareFetchResponse,
)
from braidmq.wire.messages.share_groups import (
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsRequestPartition,
    AlterShareGroupOffsetsRequestTopic,
    AlterShareGroupOffsetsResponse,
    DeleteShareGroupOffsetsRequest,
    DeleteShareGroupOffsetsRequestTopic,
    DeleteShareGroupOffsetsResponse,
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsRequestGroup,
    DescribeShareGroupOffsetsRequestTopic,
    DescribeShareGroupOffsetsResponse,
    ShareGroupDescribeRequest,
    ShareGroupDescribeResponse,
    ShareGroupHeartbeatRequest,
    ShareGroupHeartbeatResponse,
)
from unit.embedded import append
from unit.faces.spoken import Speaker, speaker

ACCEPT, RELEASE, REJECT, RENEW = 1, 2, 3, 4
GROUP = 32
Story = Callable[[Speaker], Awaitable[None]]


@pytest.fixture
def tell(tmp_path: Path) -> Callable[..., None]:
    """Runs a story against a broker with ten records in each of two partitions, and a member `ada`."""

    def run(story: Story, **options: object) -> None:
        async def told() -> None:
            async with speaker(tmp_path, group_share_auto_offset_reset="earliest", **options) as one:
                topic = await one.broker.topics.create("jobs", 2, {"flush": "async"})
                for partition in topic.partitions:
                    append(partition, b"job", one.broker.clock.wall_ms(), 10)
                await join(one)
                await story(one)

        asyncio.run(told())

    return run


async def join(one: Speaker, member: str = "ada", epoch: int = 0) -> ShareGroupHeartbeatResponse:
    return await one.ask(
        ShareGroupHeartbeatRequest(
            group_id="workers",
            member_id=member,
            member_epoch=epoch,
            subscribed_topic_names=["jobs"] if epoch == 0 else None,
        ),
        ShareGroupHeartbeatResponse,
    )


def topics(
    broker: Broker, *indexes: int, acks: tuple[AcknowledgementBatch, ...] = ()
) -> list[AcknowledgeTopic]:
    topic = broker.topics.get("jobs")
    parts = [AcknowledgePartition(partition_index=n, acknowledgement_batches=list(acks)) for n in indexes]
    return [AcknowledgeTopic(topic_id=topic.id, partitions=parts)]


def verdict(first: int, last: int, *kinds: int) -> AcknowledgementBatch:
    return AcknowledgementBatch(first_offset=first, last_offset=last, acknowledge_types=list(kinds))


async def fetch(
    one: Speaker, epoch: int, *indexes: int, acks: tuple[AcknowledgementBatch, ...] = (), **fields: object
) -> ShareFetchResponse:
    given = {"member_id": "ada", "max_records": 500, "max_wait_ms": 0, "group_id": "workers", **fields}
    wanted = topics(one.broker, *indexes, acks=acks) if indexes else []
    return await one.ask(
        ShareFetchRequest(share_session_epoch=epoch, topics=wanted, **given), ShareFetchResponse
    )


async def acknowledge(
    one: Speaker, epoch: int, *acks: AcknowledgementBatch, index: int = 0, **fields: object
) -> ShareAcknowledgeResponse:
    given = {"member_id": "ada", "group_id": "workers", **fields}
    wanted = topics(one.broker, index, acks=acks)
    return await one.ask(
        ShareAcknowledgeRequest(share_session_epoch=epoch, topics=wanted, **given), ShareAcknowledgeResponse
    )


def parts(answer: ShareFetchResponse) -> dict[int, ShareFetchPartitionData]:
    assert answer.error_code == 0, answer.error_message
    return {part.partition_index: part for topic in answer.responses for part in topic.partitions}


def acquired(answer: ShareFetchResponse) -> dict[int, list[tuple[int, int, int]]]:
    return {
        index: [(each.first_offset, each.last_offset, each.delivery_count) for each in part.acquired_records]
        for index, part in parts(answer).items()
        if part.acquired_records
    }


def code_of(answer: ShareAcknowledgeResponse) -> int:
    assert answer.error_code == 0, answer.error_message
    return answer.responses[0].partitions[0].error_code


def test_records_are_acquired_acknowledged_and_never_come_again(tell: Callable[..., None]) -> None:
    """C1 F1: verdicts ride on the next fetch; released records come again with a higher count."""

    async def story(one: Speaker) -> None:
        first = await fetch(one, 0, 0, 1)
        assert acquired(first) == {0: [(0, 9, 1)], 1: [(0, 9, 1)]}
        assert first.acquisition_lock_timeout_ms == 30_000
        assert len(parts(first)[0].records) > 60
        second = await fetch(one, 1, 0, acks=(verdict(0, 3, ACCEPT), verdict(4, 6, RELEASE, REJECT, ACCEPT)))
        assert acquired(second) == {0: [(4, 4, 2)]}
        assert parts(second)[0].acknowledge_error_code == 0
        assert code_of(await acknowledge(one, 2, verdict(4, 4, ACCEPT), verdict(7, 9, ACCEPT))) == 0
        assert acquired(await fetch(one, 3)) == {}

    tell(story)


def test_a_session_goes_through_its_epochs(tell: Callable[..., None]) -> None:
    """F1: stale and unknown sessions get their codes; partitions are added and forgotten on the way."""

    async def story(one: Speaker) -> None:
        assert (await fetch(one, 1, 0)).error_code == ErrorCode.SHARE_SESSION_NOT_FOUND
        assert (await acknowledge(one, 0)).error_code == ErrorCode.INVALID_SHARE_SESSION_EPOCH
        refused = await fetch(one, 0, 0, acks=(verdict(0, 0, ACCEPT),))
        assert refused.error_code == ErrorCode.INVALID_REQUEST
        assert acquired(await fetch(one, 0, 0)) == {0: [(0, 9, 1)]}
        assert (await fetch(one, 2, 0)).error_code == ErrorCode.INVALID_SHARE_SESSION_EPOCH
        gone = [ForgottenTopic(topic_id=one.broker.topics.get("jobs").id, partitions=[0])]
        assert acquired(await fetch(one, 1, 1, forgotten_topics_data=gone)) == {1: [(0, 9, 1)]}
        assert code_of(await acknowledge(one, 2, verdict(0, 9, RELEASE))) == 0
        assert acquired(await fetch(one, 3)) == {}
        assert acquired(await fetch(one, 0, 0)) == {0: [(0, 9, 2)]}
        assert (await fetch(one, -1)).error_code == 0
        assert (await fetch(one, -1)).error_code == ErrorCode.SHARE_SESSION_NOT_FOUND

    tell(story)


def test_the_end_of_a_session_and_of_a_connection_give_back_what_was_held(tell: Callable[..., None]) -> None:
    """C1: at once, not when the lock ends."""

    async def story(one: Speaker) -> None:
        await join(one, "bob")
        await fetch(one, 0, 0)
        assert acquired(await fetch(one, 0, 0, member_id="bob")) == {}
        await acknowledge(one, -1, verdict(0, 4, ACCEPT))
        assert acquired(await fetch(one, 1, member_id="bob")) == {0: [(5, 9, 2)]}
        one.close()
        assert len(one.face.share_sessions) == 0
        await fetch(one, 0, 0, member_id="bob")
        assert acquired(await fetch(one, 0, 0)) == {}
        part = next(part for part in one.broker.sharing if part.place.partition == 0)
        assert [(first, last, held.deliveries) for first, last, held in part.window.runs()] == [(5, 9, 3)]

    tell(story)


def test_a_fetch_waits_for_records_to_come_or_to_come_back(tell: Callable[..., None]) -> None:
    """C1: it is woken by a producer, by a release of somebody else, and by the time."""

    async def story(one: Speaker) -> None:
        await join(one, "bob")
        await fetch(one, 0, 0)
        assert acquired(await fetch(one, 0, 0, member_id="bob", max_wait_ms=20)) == {}
        waiting = asyncio.ensure_future(fetch(one, 1, member_id="bob", max_wait_ms=60_000))
        await asyncio.sleep(0.05)
        await acknowledge(one, 1, verdict(3, 3, RELEASE))
        assert acquired(await asyncio.wait_for(waiting, 10)) == {0: [(3, 3, 2)]}
        waiting = asyncio.ensure_future(fetch(one, 2, member_id="bob", max_wait_ms=60_000))
        await asyncio.sleep(0.05)
        append(one.broker.topics.get("jobs").partitions[0], b"job", one.broker.clock.wall_ms())
        assert acquired(await asyncio.wait_for(waiting, 10)) == {0: [(10, 10, 1)]}
        waiting = asyncio.ensure_future(fetch(one, 3, member_id="bob", max_wait_ms=60_000))
        await asyncio.sleep(0.05)
        one.face.begin_drain()
        assert acquired(await asyncio.wait_for(waiting, 10)) == {}

    tell(story)


def test_limits_of_a_fetch_are_kept_to_whole_batches_or_exactly(tell: Callable[..., None]) -> None:
    """C1: as the client asks; a fetch for no records brings none."""

    async def story(one: Speaker) -> None:
        assert acquired(await fetch(one, 0, 0, 1, max_records=3, share_acquire_mode=1)) == {0: [(0, 2, 1)]}
        assert acquired(await fetch(one, 1, max_records=0)) == {}
        assert acquired(await fetch(one, 2, max_records=4)) == {1: [(0, 9, 1)]}
        assert acquired(await fetch(one, 3, max_bytes=1)) == {0: [(3, 9, 1)]}

    tell(story)


def test_verdicts_that_cannot_be_are_refused_partition_by_partition(tell: Callable[..., None]) -> None:
    """C1: with Kafka's codes; the session goes on."""

    async def story(one: Speaker) -> None:
        await fetch(one, 0, 0)
        assert code_of(await acknowledge(one, 1, verdict(0, 99, ACCEPT))) == ErrorCode.INVALID_RECORD_STATE
        assert code_of(await acknowledge(one, 2, verdict(0, 0, 9))) == ErrorCode.INVALID_REQUEST
        assert code_of(await acknowledge(one, 3, verdict(0, 5, 1, 1))) == ErrorCode.INVALID_REQUEST
        assert code_of(await acknowledge(one, 4, verdict(0, 0, RENEW))) == ErrorCode.INVALID_REQUEST
        assert code_of(await acknowledge(one, 5, verdict(0, 9, RENEW), is_renew_ack=True)) == 0
        unread = await acknowledge(one, 6, verdict(0, 0, ACCEPT), index=1)
        assert code_of(unread) == ErrorCode.INVALID_RECORD_STATE
        refused = parts(await fetch(one, 7, 0, acks=(verdict(0, 0, ACCEPT), verdict(0, 0, ACCEPT))))
        assert refused[0].acknowledge_error_code == ErrorCode.INVALID_RECORD_STATE
        assert code_of(await acknowledge(one, 8, verdict(0, 9, ACCEPT))) == 0

    tell(story)


def test_partitions_and_groups_that_do_not_exist_are_told_so(tell: Callable[..., None]) -> None:
    """F1: a partition's error does not hide the records of another; a deleted topic is gone at once."""

    async def story(one: Speaker) -> None:
        assert (await fetch(one, 0, 0, group_id="none")).error_code == ErrorCode.GROUP_ID_NOT_FOUND
        assert (await fetch(one, 0, 0, member_id="")).error_code == ErrorCode.INVALID_REQUEST
        answer = await fetch(one, 0, 7, 0)
        assert parts(answer)[7].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert acquired(answer) == {0: [(0, 9, 1)]}
        await one.broker.delete_topic("jobs")
        answer = await one.ask(
            ShareFetchRequest(group_id="workers", member_id="ada", share_session_epoch=1, max_records=1),
            ShareFetchResponse,
        )
        assert {part.error_code for part in parts(answer).values()} == {ErrorCode.UNKNOWN_TOPIC_ID}

    tell(story)


def test_sessions_are_limited(tell: Callable[..., None]) -> None:
    """W4: one more than allowed is refused, until another ends."""

    async def story(one: Speaker) -> None:
        await fetch(one, 0, 0)
        refused = await fetch(one, 0, 0, member_id="bob")
        assert refused.error_code == ErrorCode.SHARE_SESSION_LIMIT_REACHED
        await fetch(one, -1)
        assert acquired(await fetch(one, 0, 0, member_id="bob")) == {0: [(0, 9, 2)]}

    tell(story, group_share_max_share_sessions=1)


def test_members_are_assigned_described_and_listed(tell: Callable[..., None]) -> None:
    """C4 F1: a share group is shown as what it is, and is no classic group."""

    async def story(one: Speaker) -> None:
        joined = await join(one, "bob")
        assert (joined.error_code, joined.heartbeat_interval_ms) == (0, 5000)
        assert joined.assignment is not None
        assert joined.assignment.topic_partitions[0].topic_id == one.broker.topics.get("jobs").id
        assert (await join(one, "nobody", 3)).error_code == ErrorCode.UNKNOWN_MEMBER_ID
        asked = ShareGroupDescribeRequest(group_ids=["workers", "none"])
        workers, missing = (await one.ask(asked, ShareGroupDescribeResponse)).groups
        assert (workers.group_state, workers.assignor_name) == ("Stable", "simple")
        assert workers.group_epoch == workers.assignment_epoch
        assert [member.member_id for member in workers.members] == ["ada", "bob"]
        assert workers.members[1].assignment.topic_partitions[0].topic_name == "jobs"
        assert missing.error_code == ErrorCode.GROUP_ID_NOT_FOUND
        listed = (await one.ask(ListGroupsRequest(types_filter=["share"]), ListGroupsResponse)).groups
        assert [(g.group_id, g.group_type, g.protocol_type) for g in listed] == [
            ("workers", "share", "share")
        ]
        others = await one.ask(ListGroupsRequest(types_filter=["classic", "consumer"]), ListGroupsResponse)
        assert others.groups == []
        classic = await one.ask(DescribeGroupsRequest(groups=["workers"]), DescribeGroupsResponse)
        assert classic.groups[0].error_code == ErrorCode.GROUP_ID_NOT_FOUND

    tell(story)


def test_the_place_of_a_group_is_shown_moved_and_forgotten(tell: Callable[..., None]) -> None:
    """C7: only while nobody is in the group."""

    async def story(one: Speaker) -> None:
        move = AlterShareGroupOffsetsRequest(
            group_id="workers",
            topics=[
                AlterShareGroupOffsetsRequestTopic(
                    topic_name="jobs",
                    partitions=[
                        AlterShareGroupOffsetsRequestPartition(partition_index=0, start_offset=8),
                        AlterShareGroupOffsetsRequestPartition(partition_index=9, start_offset=0),
                    ],
                )
            ],
        )
        forget = DeleteShareGroupOffsetsRequest(
            group_id="workers", topics=[DeleteShareGroupOffsetsRequestTopic(topic_name="jobs")]
        )
        delete = DeleteGroupsRequest(groups_names=["workers"])
        await fetch(one, 0, 0)
        await fetch(one, 1, 0, acks=(verdict(0, 1, ACCEPT), verdict(5, 5, ACCEPT)))
        assert await place(one) == [(0, 2, 7)]
        assert (await one.ask(move, AlterShareGroupOffsetsResponse)).error_code == ErrorCode.NON_EMPTY_GROUP
        assert (
            await one.ask(forget, DeleteShareGroupOffsetsResponse)
        ).error_code == ErrorCode.NON_EMPTY_GROUP
        await fetch(one, -1)
        await join(one, epoch=-1)
        moved = (await one.ask(move, AlterShareGroupOffsetsResponse)).responses[0].partitions
        assert [each.error_code for each in moved] == [0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
        assert await place(one) == [(0, 8, 2)]
        await join(one)
        assert acquired(await fetch(one, 0, 0)) == {0: [(8, 9, 1)]}
        await join(one, epoch=-1)
        await fetch(one, -1)
        assert (await one.ask(forget, DeleteShareGroupOffsetsResponse)).responses[0].error_code == 0
        assert await place(one) == []
        assert (await one.ask(delete, DeleteGroupsResponse)).results[0].error_code == 0
        asked = DescribeShareGroupOffsetsRequest(
            groups=[DescribeShareGroupOffsetsRequestGroup(group_id="workers", topics=None)]
        )
        missing = (await one.ask(asked, DescribeShareGroupOffsetsResponse)).groups[0]
        assert missing.error_code == ErrorCode.GROUP_ID_NOT_FOUND

    tell(story)


async def place(one: Speaker) -> list[tuple[int, int, int]]:
    """Partition, start and lag, of all partitions that the group has read; others are told as not read."""
    unread = DescribeShareGroupOffsetsRequestTopic(topic_name="jobs", partitions=[1, 9])
    asked = DescribeShareGroupOffsetsRequest(
        groups=[
            DescribeShareGroupOffsetsRequestGroup(group_id="workers", topics=None),
            DescribeShareGroupOffsetsRequestGroup(group_id="workers", topics=[unread]),
        ]
    )
    every, some = (await one.ask(asked, DescribeShareGroupOffsetsResponse)).groups
    codes = [(each.start_offset, each.error_code) for each in some.topics[0].partitions]
    assert codes == [(-1, 0), (-1, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)]
    return [
        (each.partition_index, each.start_offset, each.lag)
        for topic in every.topics
        for each in topic.partitions
    ]


def test_options_of_a_group_are_set_and_shown(tell: Callable[..., None]) -> None:
    """C1: where it begins, and how long it holds; before the group exists, too."""

    async def story(one: Speaker) -> None:
        change = IncrementalAlterableConfig(
            name="share.auto.offset.reset", config_operation=0, value="latest"
        )
        wrong = IncrementalAlterableConfig(name="retention.ms", config_operation=0, value="1")
        resources = [
            IncrementalAlterConfigsResource(resource_type=GROUP, resource_name="workers", configs=[each])
            for each in (change, wrong)
        ]
        altered = await one.ask(
            IncrementalAlterConfigsRequest(resources=resources), IncrementalAlterConfigsResponse
        )
        assert [each.error_code for each in altered.responses] == [0, ErrorCode.INVALID_CONFIG]
        asked = DescribeConfigsRequest(
            resources=[DescribeConfigsResource(resource_type=GROUP, resource_name="workers")]
        )
        described = (await one.ask(asked, DescribeConfigsResponse)).results[0].configs
        assert {each.name: (each.value, each.config_source) for each in described} == {
            "consumer.session.timeout.ms": ("45000", 5),
            "consumer.heartbeat.interval.ms": ("5000", 5),
            "share.session.timeout.ms": ("45000", 5),
            "share.heartbeat.interval.ms": ("5000", 5),
            "share.record.lock.duration.ms": ("30000", 5),
            "share.delivery.count.limit": ("3", 4),
            "share.auto.offset.reset": ("latest", 8),
            "share.isolation.level": ("read_uncommitted", 5),
            "share.partition.max.record.locks": ("2000", 5),
        }
        assert acquired(await fetch(one, 0, 0)) == {}

    tell(story, group_share_delivery_count_limit=3)


def test_this_broker_coordinates_the_state_of_share_groups(tell: Callable[..., None]) -> None:
    """C4: keys are group, topic id and partition."""

    async def story(one: Speaker) -> None:
        keys = ["workers:AAAAAAAAAAAAAAAAAAAAAA:0", "workers"]
        asked = FindCoordinatorRequest(key_type=2, coordinator_keys=keys)
        found = (await one.ask(asked, FindCoordinatorResponse)).coordinators
        assert [(each.node_id, each.error_code) for each in found] == [
            (1, 0),
            (-1, ErrorCode.INVALID_REQUEST),
        ]

    tell(story)
