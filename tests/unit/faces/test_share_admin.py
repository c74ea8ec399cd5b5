"""Share groups as administrators see them: members, places and options."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from braidmq.broker.group_coordinator import Committer
from braidmq.group.offsets import Committed
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
from unit.faces.sharing import (
    ACCEPT,
    GROUP,
    acquired,
    fetch,
    join,
    run_story,
    verdict,
)
from unit.faces.spoken import Speaker


@pytest.fixture
def tell(tmp_path: Path) -> Callable[..., None]:
    """Runs a story with a share group."""
    return partial(run_story, tmp_path)


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


def test_the_place_of_a_group_can_be_set_before_its_first_member_joins(tell: Callable[..., None]) -> None:
    """C7: the group is created; an id of another kind of group is refused."""

    def move(group_id: str, index: int, topic: str = "jobs") -> AlterShareGroupOffsetsRequest:
        part = AlterShareGroupOffsetsRequestPartition(partition_index=index, start_offset=8)
        wanted = AlterShareGroupOffsetsRequestTopic(topic_name=topic, partitions=[part])
        return AlterShareGroupOffsetsRequest(group_id=group_id, topics=[wanted])

    async def story(one: Speaker) -> None:
        groups = one.broker.groups
        for mistaken in (move("early", 9), move("early", 0, "nothing")):
            answer = await one.ask(mistaken, AlterShareGroupOffsetsResponse)
            assert answer.responses[0].partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            assert groups.find("early") is None
        answer = await one.ask(move("early", 0), AlterShareGroupOffsetsResponse)
        assert (answer.error_code, answer.responses[0].partitions[0].error_code) == (0, 0)
        listed = (await one.ask(ListGroupsRequest(types_filter=["share"]), ListGroupsResponse)).groups
        assert [(each.group_id, each.group_state) for each in listed] == [
            ("workers", "Stable"),
            ("early", "Empty"),
        ]
        joining = ShareGroupHeartbeatRequest(
            group_id="early", member_id="bob", member_epoch=0, subscribed_topic_names=["jobs"]
        )
        await one.ask(joining, ShareGroupHeartbeatResponse)
        assert acquired(await fetch(one, 0, 0, group_id="early", member_id="bob")) == {0: [(8, 9, 1)]}
        refused = await one.ask(move("early", 0), AlterShareGroupOffsetsResponse)
        assert refused.error_code == ErrorCode.NON_EMPTY_GROUP
        await (await one.broker.groups.reach("plain")).commit(
            "plain", Committer("", None, -1, 9), [(("jobs", 0), Committed(1, -1, "", 0))]
        )
        other = await one.ask(move("plain", 0), AlterShareGroupOffsetsResponse)
        assert other.error_code == ErrorCode.GROUP_ID_NOT_FOUND
        nameless = await one.ask(move("", 0), AlterShareGroupOffsetsResponse)
        assert nameless.error_code == ErrorCode.INVALID_GROUP_ID

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
        shown = [each for each in described if each.name.startswith("share.")]
        assert {each.name: (each.value, each.config_source) for each in shown} == {
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
