"""What a client may do with topics, groups and the cluster, told where a request asks for it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from braidmq.wire.messages.cluster import DescribeClusterRequest, DescribeClusterResponse
from braidmq.wire.messages.consumer_groups import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from braidmq.wire.messages.groups import (
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
)
from braidmq.wire.messages.metadata import (
    OPERATIONS_NOT_ASKED_FOR,
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
)
from braidmq.wire.messages.share_groups import (
    ShareGroupDescribeRequest,
    ShareGroupDescribeResponse,
    ShareGroupHeartbeatRequest,
    ShareGroupHeartbeatResponse,
)
from braidmq.wire.messages.topics import (
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    TopicRequest,
)
from unit.faces.spoken import Speaker, speaker

READ, WRITE, CREATE, DELETE, ALTER, DESCRIBE = 3, 4, 5, 6, 7, 8
CLUSTER_ACTION, DESCRIBE_CONFIGS, ALTER_CONFIGS, IDEMPOTENT_WRITE = 9, 10, 11, 12
OF_A_TOPIC = {READ, WRITE, CREATE, DELETE, ALTER, DESCRIBE, DESCRIBE_CONFIGS, ALTER_CONFIGS}
OF_A_GROUP = {READ, DELETE, DESCRIBE, DESCRIBE_CONFIGS, ALTER_CONFIGS}
OF_THE_CLUSTER = {
    CREATE,
    ALTER,
    DESCRIBE,
    CLUSTER_ACTION,
    DESCRIBE_CONFIGS,
    ALTER_CONFIGS,
    IDEMPOTENT_WRITE,
}
NO_SESSION_ENDS_MS = 30_000
Story = Callable[[Speaker], Awaitable[None]]


def told(tmp_path: Path, story: Story) -> None:
    async def run() -> None:
        async with speaker(tmp_path, group_initial_rebalance_delay_ms=0) as one:
            await story(one)

    asyncio.run(run())


def named(bits: int) -> set[int]:
    return {number for number in range(32) if bits & (1 << number)}


@pytest.mark.parametrize("version", [8, 10, 13])
def test_metadata_tells_operations_on_topics_and_the_cluster_when_asked(tmp_path: Path, version: int) -> None:
    """F1: for topics from version 8 on, for the cluster up to version 10; not for a missing topic."""

    async def story(one: Speaker) -> None:
        await one.broker.topics.create("t", 1, {})
        wanted = [MetadataRequestTopic(name="t"), MetadataRequestTopic(name="missing")]
        asked = MetadataRequest(
            topics=wanted,
            allow_auto_topic_creation=False,
            include_cluster_authorized_operations=version <= 10,
            include_topic_authorized_operations=True,
        )
        answer = await one.ask(asked, MetadataResponse, version)
        assert named(answer.topics[0].topic_authorized_operations) == OF_A_TOPIC
        assert answer.topics[1].topic_authorized_operations == OPERATIONS_NOT_ASKED_FOR
        if version <= 10:
            assert named(answer.cluster_authorized_operations) == OF_THE_CLUSTER
        all_of_them = MetadataRequest(topics=None, include_topic_authorized_operations=True)
        answer = await one.ask(all_of_them, MetadataResponse, version)
        assert named(answer.topics[0].topic_authorized_operations) == OF_A_TOPIC
        silent = await one.ask(MetadataRequest(topics=wanted[:1]), MetadataResponse, version)
        assert silent.topics[0].topic_authorized_operations == OPERATIONS_NOT_ASKED_FOR
        assert silent.cluster_authorized_operations == OPERATIONS_NOT_ASKED_FOR

    told(tmp_path, story)


def test_metadata_tells_operations_on_a_topic_that_it_creates(tmp_path: Path) -> None:
    """F1: the first request for a topic is answered like the second."""

    async def story(one: Speaker) -> None:
        asked = MetadataRequest(
            topics=[MetadataRequestTopic(name="new")], include_topic_authorized_operations=True
        )
        answer = await one.ask(asked, MetadataResponse)
        assert named(answer.topics[0].topic_authorized_operations) == OF_A_TOPIC

    told(tmp_path, story)


def test_described_partitions_always_tell_operations_on_their_topic(tmp_path: Path) -> None:
    """F1: DescribeTopicPartitions has no flag for it; Kafka always answers it."""

    async def story(one: Speaker) -> None:
        await one.broker.topics.create("t", 1, {})
        asked = DescribeTopicPartitionsRequest(topics=[TopicRequest(name="t")])
        answer = await one.ask(asked, DescribeTopicPartitionsResponse)
        assert named(answer.topics[0].topic_authorized_operations) == OF_A_TOPIC

    told(tmp_path, story)


def test_the_cluster_tells_its_operations_when_asked(tmp_path: Path) -> None:
    """F1: DescribeCluster."""

    async def story(one: Speaker) -> None:
        asked = DescribeClusterRequest(include_cluster_authorized_operations=True)
        answer = await one.ask(asked, DescribeClusterResponse)
        assert named(answer.cluster_authorized_operations) == OF_THE_CLUSTER
        silent = await one.ask(DescribeClusterRequest(), DescribeClusterResponse)
        assert silent.cluster_authorized_operations == OPERATIONS_NOT_ASKED_FOR

    told(tmp_path, story)


async def join_classic(one: Speaker) -> None:
    join = JoinGroupRequest(
        group_id="classic",
        session_timeout_ms=NO_SESSION_ENDS_MS,
        rebalance_timeout_ms=NO_SESSION_ENDS_MS,
        protocol_type="consumer",
        protocols=[JoinGroupRequestProtocol(name="range", metadata=b"")],
    )
    await one.ask(join, JoinGroupResponse, 3)


async def join_consumer(one: Speaker) -> None:
    beat = ConsumerGroupHeartbeatRequest(
        group_id="consumer",
        member_id="m",
        rebalance_timeout_ms=NO_SESSION_ENDS_MS,
        subscribed_topic_names=["t"],
        topic_partitions=[],
    )
    assert (await one.ask(beat, ConsumerGroupHeartbeatResponse)).error_code == 0


async def join_share(one: Speaker) -> None:
    beat = ShareGroupHeartbeatRequest(group_id="share", member_id="m", subscribed_topic_names=["t"])
    assert (await one.ask(beat, ShareGroupHeartbeatResponse)).error_code == 0


async def describe_classic(one: Speaker, *, asked: bool) -> list[int]:
    request = DescribeGroupsRequest(groups=["classic", "missing"], include_authorized_operations=asked)
    return [each.authorized_operations for each in (await one.ask(request, DescribeGroupsResponse)).groups]


async def describe_consumer(one: Speaker, *, asked: bool) -> list[int]:
    request = ConsumerGroupDescribeRequest(
        group_ids=["consumer", "missing"], include_authorized_operations=asked
    )
    answer = await one.ask(request, ConsumerGroupDescribeResponse)
    return [each.authorized_operations for each in answer.groups]


async def describe_share(one: Speaker, *, asked: bool) -> list[int]:
    request = ShareGroupDescribeRequest(group_ids=["share", "missing"], include_authorized_operations=asked)
    answer = await one.ask(request, ShareGroupDescribeResponse)
    return [each.authorized_operations for each in answer.groups]


@pytest.mark.parametrize(
    ("join", "describe"),
    [
        (join_classic, describe_classic),
        (join_consumer, describe_consumer),
        (join_share, describe_share),
    ],
    ids=["classic", "consumer", "share"],
)
def test_described_groups_tell_their_operations_when_asked(
    tmp_path: Path, join: Story, describe: Callable[..., Awaitable[list[int]]]
) -> None:
    """C7: groups of every kind; nothing for one that is missing."""

    async def story(one: Speaker) -> None:
        await one.broker.topics.create("t", 1, {})
        await join(one)
        found, missing = await describe(one, asked=True)
        assert named(found) == OF_A_GROUP
        assert missing == OPERATIONS_NOT_ASKED_FOR
        assert await describe(one, asked=False) == [OPERATIONS_NOT_ASKED_FOR] * 2

    told(tmp_path, story)
