"""Streams groups over the protocol: internal topics, restarts, administration, other kinds of groups."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from braidmq.wire.errors import ErrorCode
from braidmq.wire.messages.commits import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
)
from braidmq.wire.messages.configs import (
    IncrementalAlterableConfig,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
    IncrementalAlterConfigsResponse,
)
from braidmq.wire.messages.consumer_groups import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from braidmq.wire.messages.groups import (
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    ListGroupsRequest,
    ListGroupsResponse,
    MemberIdentity,
)
from braidmq.wire.messages.streams_groups import (
    CopartitionGroup,
    DescribedStreamsGroup,
    Endpoint,
    HeartbeatSubtopology,
    HeartbeatTopology,
    KeyValue,
    StreamsGroupDescribeRequest,
    StreamsGroupDescribeResponse,
    StreamsGroupHeartbeatRequest,
    StreamsGroupHeartbeatResponse,
    TaskIds,
    TaskOffset,
    TopicInfo,
)
from braidmq.wire.messages.versions import ApiVersionsRequest, ApiVersionsResponse
from unit.faces.spoken import Speaker, speaker

Story = Callable[[Speaker], Coroutine[Any, Any, None]]
NOT_FOUND = ErrorCode.GROUP_ID_NOT_FOUND
MISSING_INTERNAL = 3


@pytest.fixture
def tell(tmp_path: Path) -> Callable[..., None]:
    """Tells stories, one after the other, to brokers on the same data."""

    def told(*stories: Story, **options: object) -> None:
        async def each(story: Story) -> None:
            async with speaker(tmp_path, group_streams_initial_rebalance_delay_ms=0, **options) as one:
                await story(one)

        for story in stories:
            asyncio.run(each(story))

    return told


def word_count(changelog: dict[str, str] | None = None, name: str = "changelog") -> HeartbeatTopology:
    compacted = {"cleanup.policy": "compact"} if changelog is None else changelog
    options = [KeyValue(key=key, value=value) for key, value in compacted.items()]
    return HeartbeatTopology(
        subtopologies=[
            HeartbeatSubtopology(
                subtopology_id="0", source_topics=["lines"], repartition_sink_topics=["repartitioned"]
            ),
            HeartbeatSubtopology(
                subtopology_id="1",
                repartition_source_topics=[TopicInfo(name="repartitioned")],
                state_changelog_topics=[TopicInfo(name=name, topic_configs=options)],
                copartition_groups=[CopartitionGroup(repartition_source_topics=[0])],
            ),
        ]
    )


def joining(member: str = "ann", topology: HeartbeatTopology | None = None) -> StreamsGroupHeartbeatRequest:
    return StreamsGroupHeartbeatRequest(
        group_id="app",
        member_id=member,
        rebalance_timeout_ms=60_000,
        topology=word_count() if topology is None else topology,
        active_tasks=[],
        standby_tasks=[],
        warmup_tasks=[],
        process_id=f"process of {member}",
        client_tags=[KeyValue(key="zone", value="a")],
        user_endpoint=Endpoint(host="here", port=65_535),
        endpoint_information_epoch=-1,
    )


def beating(epoch: int, member: str = "ann") -> StreamsGroupHeartbeatRequest:
    return StreamsGroupHeartbeatRequest(group_id="app", member_id=member, member_epoch=epoch)


async def beat(one: Speaker, request: StreamsGroupHeartbeatRequest) -> StreamsGroupHeartbeatResponse:
    return await one.ask(request, StreamsGroupHeartbeatResponse)


async def described(one: Speaker) -> DescribedStreamsGroup:
    return (
        await one.ask(StreamsGroupDescribeRequest(group_ids=["app"]), StreamsGroupDescribeResponse)
    ).groups[0]


async def started(one: Speaker) -> int:
    """The application runs; the epoch of its only member."""
    await one.broker.topics.create("lines", 2, {})
    first = await beat(one, joining())
    assert first.error_code == 0, first.error_message
    answer = await beat(one, beating(first.member_epoch))
    assert answer.active_tasks == all_tasks()
    return answer.member_epoch


def all_tasks() -> list[TaskIds]:
    return [TaskIds(subtopology_id=name, partitions=[0, 1]) for name in "01"]


def test_internal_topics_are_created_before_the_first_answer(tell: Callable[..., None]) -> None:
    """C4: with the options and as many partitions as the application needs; then tasks are handed out."""

    async def story(one: Speaker) -> None:
        await one.broker.topics.create("lines", 2, {})
        answer = await beat(one, joining())
        assert [each.status_code for each in answer.status or ()] == [MISSING_INTERNAL]
        assert (answer.active_tasks, answer.member_epoch) == ([], 1)
        assert one.broker.topics.get("repartitioned").partition_count == 2
        changelog = one.broker.topics.get("changelog")
        assert changelog.partition_count == 2
        assert changelog.config.cleanup_policy == ("compact",)
        answer = await beat(one, beating(1))
        assert (answer.status, answer.active_tasks) == ([], all_tasks())
        located = answer.partitions_by_user_endpoint
        assert located is not None
        assert [each.user_endpoint for each in located] == [Endpoint(host="here", port=65_535)]
        assert {each.topic for each in located[0].active_partitions} == {"lines", "repartitioned"}

    tell(story)


def test_a_topic_that_cannot_be_created_is_named_to_the_members(tell: Callable[..., None]) -> None:
    """C4: with the reason, in the status of every heartbeat."""

    async def story(one: Speaker) -> None:
        await one.broker.topics.create("lines", 2, {})
        answer = await beat(one, joining(topology=word_count({"no.such.option": "1"})))
        assert answer.error_code == 0
        [status] = answer.status or []
        assert status.status_code == MISSING_INTERNAL
        assert "changelog" in status.status_detail
        assert "no.such.option" in status.status_detail
        assert (await described(one)).group_state == "NotReady"

    tell(story)


def test_a_topic_of_the_broker_is_not_created_for_an_application(tell: Callable[..., None]) -> None:
    """C4: nor with options that an application would like."""

    async def story(one: Speaker) -> None:
        await one.broker.topics.create("lines", 2, {})
        answer = await beat(one, joining(topology=word_count(name="__transaction_state")))
        assert "__transaction_state" in (answer.status or [])[0].status_detail
        assert one.broker.topics.find("__transaction_state") is None

    tell(story)


def test_a_group_goes_on_after_a_restart(tell: Callable[..., None]) -> None:
    """C4: members, tasks and epochs are as they were, so nobody has to join again."""
    epochs = []

    async def before(one: Speaker) -> None:
        epochs.append(await started(one))

    async def after(one: Speaker) -> None:
        assert (await described(one)).group_state == "Stable"
        answer = await beat(one, beating(epochs[0]))
        assert (answer.error_code, answer.member_epoch, answer.active_tasks) == (0, epochs[0], None)

    tell(before, after)


def test_a_group_is_listed_described_and_deleted(tell: Callable[..., None]) -> None:
    """C4 O1: under its own type; not before its members have left, and its offsets go with it."""

    async def story(one: Speaker) -> None:
        epoch = await started(one)
        listed = await one.ask(ListGroupsRequest(types_filter=["Streams"]), ListGroupsResponse)
        assert [
            (each.group_id, each.group_type, each.protocol_type, each.group_state) for each in listed.groups
        ] == [("app", "streams", "streams", "Stable")]
        assert (await one.ask(ListGroupsRequest(types_filter=["classic"]), ListGroupsResponse)).groups == []
        group = await described(one)
        assert (group.group_epoch, group.assignment_epoch) == (epoch, epoch)
        assert group.topology is not None
        assert group.topology.subtopologies is not None
        assert [each.subtopology_id for each in group.topology.subtopologies] == ["0", "1"]
        assert group.topology.subtopologies[1].state_changelog_topics[0].partitions == 2
        [member] = group.members
        assert (member.member_id, member.process_id, member.member_epoch) == ("ann", "process of ann", epoch)
        assert member.assignment.active_tasks == member.target_assignment.active_tasks == all_tasks()
        assert member.client_tags == [KeyValue(key="zone", value="a")]
        old = await one.ask(DescribeGroupsRequest(groups=["app"]), DescribeGroupsResponse)
        assert old.groups[0].error_code == NOT_FOUND
        delete = DeleteGroupsRequest(groups_names=["app"])
        refused = await one.ask(delete, DeleteGroupsResponse)
        assert refused.results[0].error_code == ErrorCode.NON_EMPTY_GROUP
        assert (await beat(one, beating(-1))).member_epoch == -1
        assert (await described(one)).group_state == "Empty"
        assert (await one.ask(delete, DeleteGroupsResponse)).results[0].error_code == 0
        assert (await described(one)).error_code == NOT_FOUND

    async def after(one: Speaker) -> None:
        assert (await one.ask(ListGroupsRequest(), ListGroupsResponse)).groups == []

    tell(story, after)


def test_offsets_are_committed_with_the_epoch_of_the_member(tell: Callable[..., None]) -> None:
    """C4 C6: and fetched with it; others are refused."""

    async def story(one: Speaker) -> None:
        epoch = await started(one)
        assert await commit(one, "ann", epoch) == 0
        assert await commit(one, "ann", epoch + 1) == ErrorCode.STALE_MEMBER_EPOCH
        assert await commit(one, "bob", epoch) == ErrorCode.UNKNOWN_MEMBER_ID
        assert await fetch(one, "ann", epoch) == (0, 7)
        assert await fetch(one, None, -1) == (0, 7)
        assert (await fetch(one, "ann", epoch - 1))[0] == ErrorCode.STALE_MEMBER_EPOCH

    tell(story)


async def commit(one: Speaker, member: str, epoch: int) -> int:
    part = OffsetCommitRequestPartition(partition_index=0, committed_offset=7, committed_metadata="")
    request = OffsetCommitRequest(
        group_id="app",
        member_id=member,
        generation_id_or_member_epoch=epoch,
        topics=[OffsetCommitRequestTopic(name="lines", partitions=[part])],
    )
    return (await one.ask(request, OffsetCommitResponse, 9)).topics[0].partitions[0].error_code


async def fetch(one: Speaker, member: str | None, epoch: int) -> tuple[int, int]:
    topics = [OffsetFetchRequestTopics(name="lines", partition_indexes=[0])]
    group = OffsetFetchRequestGroup(group_id="app", member_id=member, member_epoch=epoch, topics=topics)
    found = (await one.ask(OffsetFetchRequest(groups=[group]), OffsetFetchResponse, 9)).groups[0]
    return found.error_code, found.topics[0].partitions[0].committed_offset if found.topics else -1


def test_kinds_of_groups_do_not_mix(tell: Callable[..., None]) -> None:
    """C4: an empty classic group becomes a streams group and back, its offsets stay; others are refused."""

    async def story(one: Speaker) -> None:
        await one.broker.topics.create("lines", 2, {})
        assert await commit(one, "", -1) == 0, "a simple consumer makes a classic group"
        epoch = (await beat(one, joining())).member_epoch
        assert await fetch(one, None, -1) == (0, 7)
        assert (await join(one)).error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        assert (await consumer_beat(one)).error_code == NOT_FOUND
        assert (await beat(one, beating(-1))).error_code == 0
        assert (await beat(one, beating(epoch))).error_code == ErrorCode.UNKNOWN_MEMBER_ID
        assert (await consumer_beat(one)).error_code == NOT_FOUND
        joined = await join(one)
        assert joined.error_code == 0
        assert (await described(one)).error_code == NOT_FOUND
        assert (await beat(one, joining())).error_code == NOT_FOUND, "it has members of the other kind"
        left = LeaveGroupRequest(group_id="app", members=[MemberIdentity(member_id=joined.member_id)])
        assert (await one.ask(left, LeaveGroupResponse)).error_code == 0

    async def after(one: Speaker) -> None:
        assert await fetch(one, None, -1) == (0, 7)
        assert (await beat(one, beating(-1))).error_code == NOT_FOUND
        assert (await beat(one, joining())).error_code == 0

    tell(story, after, group_initial_rebalance_delay_ms=0)


async def join(one: Speaker) -> JoinGroupResponse:
    request = JoinGroupRequest(
        group_id="app",
        session_timeout_ms=10_000,
        rebalance_timeout_ms=10_000,
        protocol_type="consumer",
        protocols=[JoinGroupRequestProtocol(name="range", metadata=b"")],
    )
    first = await one.ask(request, JoinGroupResponse)
    if first.error_code != ErrorCode.MEMBER_ID_REQUIRED:
        return first
    request.member_id = first.member_id
    return await one.ask(request, JoinGroupResponse)


async def consumer_beat(one: Speaker) -> ConsumerGroupHeartbeatResponse:
    request = ConsumerGroupHeartbeatRequest(
        group_id="app",
        member_id="cat",
        rebalance_timeout_ms=1_000,
        subscribed_topic_names=["lines"],
        topic_partitions=[],
    )
    return await one.ask(request, ConsumerGroupHeartbeatResponse)


def test_an_option_of_the_group_counts_from_the_next_heartbeat_on(tell: Callable[..., None]) -> None:
    """C4 O1: two processes, and a copy of each task with state; bounds are checked."""

    async def story(one: Speaker) -> None:
        epoch = await started(one)
        assert await set_standbys(one, "99") == ErrorCode.INVALID_CONFIG
        assert await set_standbys(one, "1") == 0
        bob = await beat(one, joining("bob"))
        request = beating(epoch)
        request.active_tasks = [TaskIds(subtopology_id=name, partitions=[0]) for name in "01"]
        request.standby_tasks = request.warmup_tasks = []
        await beat(one, request)
        await beat(one, beating(bob.member_epoch, "bob"))
        members = (await described(one)).members
        standbys = [each.target_assignment.standby_tasks for each in members]
        assert sorted(part for tasks in standbys for each in tasks for part in each.partitions) == [0, 1]

    tell(story)


async def set_standbys(one: Speaker, number: str) -> int:
    change = IncrementalAlterableConfig(name="streams.num.standby.replicas", config_operation=0, value=number)
    resource = IncrementalAlterConfigsResource(resource_type=32, resource_name="app", configs=[change])
    request = IncrementalAlterConfigsRequest(resources=[resource])
    return (await one.ask(request, IncrementalAlterConfigsResponse)).responses[0].error_code


def test_what_the_message_has_room_for_and_nobody_serves_is_refused(tell: Callable[..., None]) -> None:
    """C4: static members, patterns, warm-up tasks, half a list of tasks, places that are not there."""

    async def story(one: Speaker) -> None:
        static, lag, half, partly = joining(), joining(), joining(), joining()
        static.instance_id = "i"
        lag.task_offsets = [TaskOffset(subtopology_id="0")]
        half.standby_tasks = None
        pattern = word_count()
        pattern.subtopologies[0].source_topic_regex = ["lines.*"]
        for request in (static, lag, half, joining(topology=pattern)):
            assert (await beat(one, request)).error_code == ErrorCode.INVALID_REQUEST
        assert partly.topology is not None
        partly.topology.subtopologies[1].copartition_groups = [CopartitionGroup(source_topics=[-1])]
        assert (await beat(one, partly)).error_code == ErrorCode.STREAMS_INVALID_TOPOLOGY
        assert (await one.ask(ListGroupsRequest(), ListGroupsResponse)).groups == []

    tell(story)


def test_too_much_said_about_an_application_is_refused(tell: Callable[..., None]) -> None:
    """W4: a topology counts towards what a member may say, and names have their bound."""

    async def story(one: Speaker) -> None:
        wide = HeartbeatTopology(
            subtopologies=[HeartbeatSubtopology(subtopology_id="0", source_topics=["t" * 200] * 3_000)]
        )
        assert (await beat(one, joining(topology=wide))).error_code == ErrorCode.MESSAGE_TOO_LARGE
        long = joining()
        long.process_id = "p" * 2_000
        assert (await beat(one, long)).error_code == ErrorCode.INVALID_REQUEST

    tell(story)


def test_clients_are_told_that_streams_groups_are_served(tell: Callable[..., None]) -> None:
    """C4 W1: by the feature that Kafka finalizes for them."""

    async def story(one: Speaker) -> None:
        answer = await one.ask(ApiVersionsRequest(), ApiVersionsResponse)
        levels = {each.name: each.max_version_level for each in answer.finalized_features}
        assert levels["streams.version"] == 1

    tell(story)
