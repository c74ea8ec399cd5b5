"""Groups over three brokers: who coordinates which, and what becomes of them when a broker is away."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

from tests.cluster import Cluster, cluster

from braidmq.broker.shards import partition_of
from braidmq.wire.errors import ErrorCode
from braidmq.wire.messages.commits import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchResponse,
)
from braidmq.wire.messages.consumer_groups import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from braidmq.wire.messages.groups import (
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    HeartbeatRequest,
    HeartbeatResponse,
    ListGroupsRequest,
    ListGroupsResponse,
)
from braidmq.wire.messages.share_groups import ShareGroupHeartbeatRequest, ShareGroupHeartbeatResponse
from braidmq.wire.messages.streams_groups import (
    HeartbeatSubtopology,
    HeartbeatTopology,
    KeyValue,
    StreamsGroupHeartbeatRequest,
    StreamsGroupHeartbeatResponse,
    TopicInfo,
)
from unit.faces.spoken import Speaker

NAMES = [f"group-{number}" for number in range(12)]
SHARDS = 16
BY_NAME = 9
"""The last version of OffsetCommit and OffsetFetch that names topics."""
Told = Callable[[Cluster, dict[int, Speaker]], Awaitable[None]]


def tell(tmp_path: Path, story: Told) -> None:
    async def told() -> None:
        async with cluster(tmp_path, 3) as found:
            topic = await found[1].broker.topics.create("t", 6, {})
            await found.shown(topic.id)
            await story(found, speakers(found))

    asyncio.run(told())


def speakers(found: Cluster) -> dict[int, Speaker]:
    return {node.broker.node_id: Speaker(node.broker) for node in found}


async def coordinators(one: Speaker, names: list[str], kind: int = 0) -> dict[str, int]:
    asked = FindCoordinatorRequest(key_type=kind, coordinator_keys=names)
    answer = await one.ask(asked, FindCoordinatorResponse)
    return {each.key: each.node_id for each in answer.coordinators}


async def settled(found: Cluster) -> None:
    """Every broker knows the topic of offsets, and has loaded its part."""
    await found.until(lambda broker: broker.groups.exists and not broker.groups.is_loading)


async def commit(one: Speaker, group_id: str, offset: int, topic: str = "t") -> int:
    part = OffsetCommitRequestPartition(partition_index=0, committed_offset=offset)
    wanted = OffsetCommitRequestTopic(name=topic, partitions=[part])
    request = OffsetCommitRequest(group_id=group_id, topics=[wanted])
    answer = await one.ask(request, OffsetCommitResponse, BY_NAME)
    return answer.topics[0].partitions[0].error_code


async def fetch(one: Speaker, names: list[str]) -> dict[str, tuple[int, int | None]]:
    """Each group's error code, and its first offset if it has one."""
    groups = [OffsetFetchRequestGroup(group_id=name, topics=None) for name in names]
    answer = await one.ask(OffsetFetchRequest(groups=groups), OffsetFetchResponse, BY_NAME)
    return {
        each.group_id: (
            each.error_code,
            each.topics[0].partitions[0].committed_offset if each.topics else None,
        )
        for each in answer.groups
    }


def test_every_broker_names_the_same_coordinator_and_only_that_one_serves_the_group(tmp_path: Path) -> None:
    """N4 C6: groups are spread over the brokers by Kafka's hash; the others send clients away."""

    async def story(found: Cluster, said: dict[int, Speaker]) -> None:
        named = [await coordinators(one, NAMES) for one in said.values()]
        await settled(found)
        assert named[0] == named[1] == named[2]
        assert set(named[0].values()) == {1, 2, 3}
        shown = found[1].broker.image.find("__consumer_offsets")
        assert shown is not None
        for name, node_id in named[0].items():
            partition = shown.partitions[partition_of(name, SHARDS)]
            assert partition is not None
            assert partition.record.leader == node_id
            codes = {at: await commit(one, name, 5) for at, one in said.items()}
            assert codes == {at: 0 if at == node_id else int(ErrorCode.NOT_COORDINATOR) for at in said}
        for at, one in said.items():
            mine = {name for name, node_id in named[0].items() if node_id == at}
            assert await fetch(one, NAMES) == {
                name: (0, 5) if name in mine else (int(ErrorCode.NOT_COORDINATOR), None) for name in NAMES
            }
            listed = (await one.ask(ListGroupsRequest(), ListGroupsResponse)).groups
            assert {each.group_id for each in listed} == mine

    tell(tmp_path, story)


def test_requests_that_come_to_another_broker_are_refused_group_by_group(tmp_path: Path) -> None:
    """N4: a client that asks the wrong broker hears so, and does not take the group for missing."""

    async def story(found: Cluster, said: dict[int, Speaker]) -> None:
        at = (await coordinators(said[1], ["g"]))["g"]
        await settled(found)
        other = said[at % 3 + 1]
        beat = await other.ask(HeartbeatRequest(group_id="g", member_id="m"), HeartbeatResponse)
        described = await other.ask(DescribeGroupsRequest(groups=["g"]), DescribeGroupsResponse)
        served = await other.ask(ConsumerGroupDescribeRequest(group_ids=["g"]), ConsumerGroupDescribeResponse)
        deleted = await other.ask(DeleteGroupsRequest(groups_names=["g"]), DeleteGroupsResponse)
        forgotten = await other.ask(OffsetDeleteRequest(group_id="g"), OffsetDeleteResponse)
        joined = await other.ask(joining("g"), ConsumerGroupHeartbeatResponse)
        codes = [
            beat.error_code,
            described.groups[0].error_code,
            served.groups[0].error_code,
            deleted.results[0].error_code,
            forgotten.error_code,
            joined.error_code,
        ]
        assert codes == [ErrorCode.NOT_COORDINATOR] * 6

    tell(tmp_path, story)


def joining(group_id: str, epoch: int = 0) -> ConsumerGroupHeartbeatRequest:
    return ConsumerGroupHeartbeatRequest(
        group_id=group_id,
        member_id="m",
        member_epoch=epoch,
        rebalance_timeout_ms=30_000,
        subscribed_topic_names=["t"],
        topic_partitions=[],
    )


def test_a_server_assigned_member_gets_partitions_of_all_brokers(tmp_path: Path) -> None:
    """N4 C2: what there is to assign comes from the image, not from what the coordinator holds."""

    async def story(found: Cluster, said: dict[int, Speaker]) -> None:
        at = (await coordinators(said[1], ["g"]))["g"]
        await settled(found)
        answer = await said[at].ask(joining("g"), ConsumerGroupHeartbeatResponse)
        assert answer.assignment is not None
        (assigned,) = answer.assignment.topic_partitions
        assert sorted(assigned.partitions) == list(range(6))

    tell(tmp_path, story)


def test_a_groups_own_options_count_with_its_coordinator(tmp_path: Path) -> None:
    """C2 N4: whichever broker was asked to set them."""

    async def story(found: Cluster, said: dict[int, Speaker]) -> None:
        at = (await coordinators(said[1], ["g"]))["g"]
        await settled(found)
        other = found[at % 3 + 1].broker
        await other.reconfigure_group("g", {"consumer.heartbeat.interval.ms": "7000"})
        await found.until(lambda broker: broker.group_options.overrides("g"))
        answer = await said[at].ask(joining("g"), ConsumerGroupHeartbeatResponse)
        assert answer.heartbeat_interval_ms == 7000

    tell(tmp_path, story)


def test_a_streams_application_has_its_tasks_and_topics_over_all_brokers(tmp_path: Path) -> None:
    """C2 N4: its coordinator makes the topics that are missing; other brokers hold their part of them."""
    changelog = TopicInfo(
        name="app-changelog", topic_configs=[KeyValue(key="cleanup.policy", value="compact")]
    )
    part = HeartbeatSubtopology(subtopology_id="0", source_topics=["t"], state_changelog_topics=[changelog])

    async def story(found: Cluster, said: dict[int, Speaker]) -> None:
        at = (await coordinators(said[1], ["app"]))["app"]
        await settled(found)
        await found[at].broker.reconfigure_group("app", {"streams.initial.rebalance.delay.ms": "0"})
        beat = StreamsGroupHeartbeatRequest(
            group_id="app",
            member_id="m",
            rebalance_timeout_ms=60_000,
            topology=HeartbeatTopology(subtopologies=[part]),
            active_tasks=[],
            standby_tasks=[],
            warmup_tasks=[],
            process_id="p",
        )
        first = await said[at].ask(beat, StreamsGroupHeartbeatResponse)
        assert first.error_code == 0
        await found.until(lambda broker: broker.topics.find("app-changelog"))
        held = [len(node.broker.topics.get("app-changelog").held) for node in found]
        assert (sum(held), min(held) > 0) == (6, True)
        steady = StreamsGroupHeartbeatRequest(
            group_id="app", member_id="m", member_epoch=first.member_epoch, rebalance_timeout_ms=60_000
        )
        tasks = first.active_tasks
        for _ in range(50):
            answer = await said[at].ask(steady, StreamsGroupHeartbeatResponse)
            steady.member_epoch, tasks = answer.member_epoch, answer.active_tasks or tasks
            if tasks:
                break
            await asyncio.sleep(0.02)
        assert [(each.subtopology_id, sorted(each.partitions)) for each in tasks or []] == [
            ("0", list(range(6)))
        ]

    tell(tmp_path, story)


def test_the_groups_of_a_broker_that_was_away_come_back_with_it(tmp_path: Path) -> None:
    """N4 C6: offsets and members are read from the partition; members of share groups join again."""

    async def story(found: Cluster, said: dict[int, Speaker]) -> None:
        named = await coordinators(said[1], NAMES)
        await settled(found)
        mine = [name for name, node_id in named.items() if node_id == 2]
        for number, name in enumerate(mine):
            assert await commit(said[2], name, number) == 0
        joined = await said[2].ask(joining(mine[0]), ConsumerGroupHeartbeatResponse)
        assert joined.error_code == 0
        others = await coordinators(said[1], [f"s-{number}" for number in range(50)])
        shared = next(name for name, node_id in others.items() if node_id == 2)
        beat = ShareGroupHeartbeatRequest(
            group_id=shared, member_id="s", member_epoch=0, subscribed_topic_names=["t"]
        )
        sharing = await said[2].ask(beat, ShareGroupHeartbeatResponse)
        assert sharing.error_code == 0
        await found.stop(2)
        await found.complete(2)
        assert await coordinators(said[1], [mine[0]]) == {mine[0]: -1}
        await found.start(2)
        await found.complete(3)
        await settled(found)
        again = Speaker(found[2].broker)
        assert await coordinators(said[1], NAMES) == named
        assert await fetch(again, mine) == {name: (0, number) for number, name in enumerate(mine)}
        kept = joining(mine[0], joined.member_epoch)
        assert (await again.ask(kept, ConsumerGroupHeartbeatResponse)).error_code == 0
        beat.member_epoch, beat.subscribed_topic_names = sharing.member_epoch, None
        unknown = await again.ask(beat, ShareGroupHeartbeatResponse)
        assert unknown.error_code == ErrorCode.UNKNOWN_MEMBER_ID

    tell(tmp_path, story)


def test_offsets_of_a_deleted_topic_are_forgotten_on_every_broker(tmp_path: Path) -> None:
    """N3 C6: wherever the deletion was asked for, also by a broker that was away meanwhile."""

    async def story(found: Cluster, said: dict[int, Speaker]) -> None:
        for name in ("doomed", "later"):
            topic = await found[1].broker.topics.create(name, 1, {})
            await found.shown(topic.id)
        named = await coordinators(said[1], NAMES)
        await settled(found)
        for name, at in named.items():
            for topic_name in ("doomed", "later", "t"):
                assert await commit(said[at], name, 3, topic_name) == 0

        def kept(topic_name: str) -> set[str]:
            return {
                group.group_id
                for node in found
                for shard in node.broker.groups
                for group in shard.groups
                if shard.groups.offsets(group.group_id).of_topic(topic_name)
            }

        assert kept("doomed") == set(NAMES)
        await found[1].broker.delete_topic("doomed")
        await found.until(lambda _: not kept("doomed"))
        await found.stop(3)
        await found[1].broker.delete_topic("later")
        await found.until(lambda _: not kept("later"))
        await found.start(3)
        await settled(found)
        assert kept("later") == set()
        assert kept("t") == set(NAMES)

    tell(tmp_path, story)


def test_the_count_of_shards_is_an_option_and_one_on_a_broker_alone(tmp_path: Path) -> None:
    """N4: offsets.topic.num.partitions; 16 in a cluster where nobody chose."""

    async def story() -> None:
        async with cluster(tmp_path / "a", 1, offsets_topic_num_partitions=5) as found:
            await found[1].broker.groups.ensure()
            assert found[1].broker.topics.get("__consumer_offsets").partition_count == 5
        async with cluster(tmp_path / "b", 1) as found:
            await found[1].broker.groups.ensure()
            assert found[1].broker.topics.get("__consumer_offsets").partition_count == SHARDS

    asyncio.run(story())


def test_transactions_and_share_partitions_have_coordinators_of_their_own(tmp_path: Path) -> None:
    """N4: each kind of key has its own topic, and any broker names the leader of its partition."""

    async def story(_found: Cluster, said: dict[int, Speaker]) -> None:
        keys = {1: [f"id-{n}" for n in range(12)], 2: [f"g:AAAAAAAAAAAAAAAAAAAAAA:{n}" for n in range(12)]}
        for kind, names in keys.items():
            first = await coordinators(said[1], names, kind)
            assert set(first.values()) == {1, 2, 3}
            for at in (2, 3):
                assert await coordinators(said[at], names, kind) == first

    tell(tmp_path, story)
