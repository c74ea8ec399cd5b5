"""Share groups over several brokers: windows with the leaders, their state with the share coordinators."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from tests.cluster import Cluster, cluster

from braidmq.broker.group_coordinator import Committer
from braidmq.broker.share_records import SharePartitionKey
from braidmq.group.offsets import Committed
from braidmq.wire.errors import ApiError, ErrorCode
from braidmq.wire.messages.groups import DeleteGroupsRequest, DeleteGroupsResponse
from braidmq.wire.messages.share_fetch import (
    AcknowledgementBatch,
    ShareAcknowledgeResponse,
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
    DescribeShareGroupOffsetsResponse,
    ShareGroupHeartbeatRequest,
    ShareGroupHeartbeatResponse,
)
from braidmq.wire.messages.share_state import (
    DeleteShareGroupStateRequest,
    DeleteShareGroupStateResponse,
    DeleteStatePartition,
    DeleteStateTopic,
    ReadShareGroupStateSummaryRequest,
    ReadShareGroupStateSummaryResponse,
)
from unit.embedded import append
from unit.faces import sharing
from unit.faces.sharing import ACCEPT, RELEASE, acquired, code_of, parts, verdict
from unit.faces.spoken import Speaker

PARTITIONS = 6
RECORDS = 10
Story = Callable[["Shared"], Awaitable[None]]


class Client(Speaker):
    """A client of one broker that reads in the group of its story."""

    group = ""


async def fetch(one: Client, epoch: int, *indexes: int, **fields: Any) -> ShareFetchResponse:
    return await sharing.fetch(one, epoch, *indexes, **{"group_id": one.group, **fields})


async def acknowledge(
    one: Client, epoch: int, *acks: AcknowledgementBatch, **fields: Any
) -> ShareAcknowledgeResponse:
    return await sharing.acknowledge(one, epoch, *acks, **{"group_id": one.group, **fields})


class Shared:
    """Three brokers, and `jobs` with ten records in each of six partitions."""

    def __init__(self, brokers: Cluster) -> None:
        self.brokers = brokers
        self.speakers: dict[int, Client] = {}
        self.group = "workers"

    def on(self, node_id: int) -> Client:
        """A client that is connected to one broker; a new one after a restart."""
        broker = self.brokers[node_id].broker
        found = self.speakers.get(node_id)
        if found is None or found.broker is not broker:
            found = self.speakers[node_id] = Client(broker)
            found.group = self.group
        return found

    def leader(self, index: int) -> int:
        broker = next(iter(self.brokers)).broker
        return broker.leader(broker.topics.get("jobs").id, index).node_id

    def coordinator(self, index: int) -> int:
        broker = next(iter(self.brokers)).broker
        key = SharePartitionKey(self.group, broker.topics.get("jobs").id, index)
        return broker.share_state.leader_of(key.coordinator_key)

    async def group_coordinator(self) -> Client:
        """A client of the broker that coordinates the group."""
        broker = next(iter(self.brokers)).broker
        await broker.groups.ensure()
        await self.brokers.until(lambda one: one.groups.exists)
        node_id = broker.groups.leader_of(self.group)
        await self.brokers[node_id].broker.groups.loaded()
        return self.on(node_id)

    async def states_made(self) -> None:
        """The topic of states is there and loaded, on all brokers."""
        await next(iter(self.brokers)).broker.share_state.ensure()
        await self.brokers.until(lambda one: one.share_state.exists)
        for node in self.brokers:
            await node.broker.share_state.loaded()
        # Leaders and coordinators are both spread in turn: with a third of all groups they are the same.
        for number in range(10):
            self.group = f"workers-{number}"
            if self.leader(0) != self.coordinator(0):
                return

    def remote(self) -> int:
        """A partition whose state is kept by another broker than its leader."""
        return next(index for index in range(PARTITIONS) if self.leader(index) != self.coordinator(index))


def run_story(data: Path, story: Story, **options: object) -> None:
    async def told() -> None:
        given = {"group_share_auto_offset_reset": "earliest", **options}
        async with cluster(data, 3, **given) as brokers:
            topic = await brokers[1].broker.topics.create("jobs", PARTITIONS, {"flush": "sync"})
            await brokers.shown(topic.id)
            await brokers.until(lambda one: one.topics.get("jobs").held)
            for node in brokers:
                for partition in node.broker.topics.get("jobs").held.values():
                    append(partition, b"job", node.broker.clock.wall_ms(), RECORDS)
            shared = Shared(brokers)
            await shared.states_made()
            await story(shared)

    asyncio.run(told())


def taken(answers: Iterable[ShareFetchResponse]) -> dict[int, int]:
    """How many records were handed out, by partition."""
    counts: dict[int, int] = {}
    for answer in answers:
        for index, ranges in acquired(answer).items():
            counts[index] = counts.get(index, 0) + sum(last - first + 1 for first, last, _ in ranges)
    return counts


def error_of(answer: ShareFetchResponse, index: int) -> int:
    return parts(answer)[index].error_code


def test_every_partition_is_delivered_by_its_leader_and_every_record_once(tmp_path: Path) -> None:
    """N4 C1: two members read six partitions of three brokers; no record has two holders."""

    async def story(shared: Shared) -> None:
        kept_elsewhere = 0
        for index in range(PARTITIONS):
            one = shared.on(shared.leader(index))
            kept_elsewhere += shared.leader(index) != shared.coordinator(index)
            first = await fetch(one, 0, index, max_records=4, share_acquire_mode=1)
            second = await fetch(one, 0, index, member_id="ben")
            assert acquired(first) == {index: [(0, 3, 1)]}
            assert acquired(second) == {index: [(4, 9, 1)]}
            assert code_of(await acknowledge(one, 1, verdict(0, 3, ACCEPT), index=index)) == 0
            answer = await acknowledge(one, 1, verdict(4, 9, ACCEPT), index=index, member_id="ben")
            assert code_of(answer) == 0
            assert acquired(await fetch(one, 2)) == {}
        assert kept_elsewhere > 0

    run_story(tmp_path, story)


def test_a_broker_that_does_not_lead_a_partition_names_who_does(tmp_path: Path) -> None:
    """N4 C1: a share fetch that went astray hands out nothing."""

    async def story(shared: Shared) -> None:
        astray = shared.on(1 + shared.leader(0) % 3)
        found = parts(await fetch(astray, 0, 0))[0]
        assert found.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert found.current_leader.leader_id == shared.leader(0)
        assert list(found.acquired_records) == []
        refused = await acknowledge(astray, 1, verdict(0, 3, ACCEPT), index=0)
        assert code_of(refused) == ErrorCode.NOT_LEADER_OR_FOLLOWER

    run_story(tmp_path, story)


def test_acknowledgements_survive_a_restart_of_the_leader(tmp_path: Path) -> None:
    """N4 C1: what was confirmed is not delivered again; what was not is."""

    async def story(shared: Shared) -> None:
        index = shared.remote()
        leader = shared.leader(index)
        one = shared.on(leader)
        assert taken([await fetch(one, 0, index)]) == {index: RECORDS}
        accepted = await acknowledge(one, 1, verdict(0, 5, ACCEPT), verdict(8, 8, RELEASE), index=index)
        assert code_of(accepted) == 0
        await shared.brokers.restart(leader)
        await shared.brokers.complete(3)
        again = acquired(await fetch(shared.on(leader), 0, index))[index]
        assert [(first, last) for first, last, _ in again] == [(6, 9)]
        assert code_of(await acknowledge(shared.on(leader), 1, verdict(6, 9, ACCEPT), index=index)) == 0

    run_story(tmp_path, story)


def test_acknowledgements_survive_a_restart_of_the_share_coordinator(tmp_path: Path) -> None:
    """N4 C1: while it is gone nothing is confirmed; when it is back, what was waiting is."""

    async def story(shared: Shared) -> None:
        index = shared.remote()
        leader, coordinator = shared.leader(index), shared.coordinator(index)
        one = shared.on(leader)
        assert taken([await fetch(one, 0, index)]) == {index: RECORDS}
        assert code_of(await acknowledge(one, 1, verdict(0, 2, ACCEPT), index=index)) == 0
        await shared.brokers.stop(coordinator)
        waiting = asyncio.ensure_future(acknowledge(one, 2, verdict(3, 5, ACCEPT), index=index))
        await asyncio.sleep(0.5)
        assert not waiting.done()
        await shared.brokers.start(coordinator)
        await shared.brokers.complete(3)
        assert code_of(await waiting) == 0
        await shared.brokers.restart(leader)
        await shared.brokers.complete(3)
        again = acquired(await fetch(shared.on(leader), 0, index))[index]
        assert [(first, last) for first, last, _ in again] == [(6, 9)]

    run_story(tmp_path, story)


def test_a_window_whose_state_was_moved_is_read_again(tmp_path: Path) -> None:
    """N4 C1: a leader with the window of before gets no verdict through, and its members fetch again."""

    async def story(shared: Shared) -> None:
        index = shared.remote()
        one = shared.on(shared.leader(index))
        assert taken([await fetch(one, 0, index)]) == {index: RECORDS}
        admin = await shared.group_coordinator()
        await alter(admin, index, 7)
        fenced = await acknowledge(one, 1, verdict(0, 9, ACCEPT), index=index)
        # Where the group's coordinator leads the partition, too, the window goes at once.
        expected = ErrorCode.INVALID_RECORD_STATE if admin is one else ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert code_of(fenced) == expected
        assert acquired(await fetch(one, 2)) == {index: [(7, 9, 1)]}
        assert code_of(await acknowledge(one, 3, verdict(7, 9, ACCEPT), index=index)) == 0
        # A window with nothing to hand out writes nothing: the next session finds out all the same.
        await alter(admin, index, 2)
        assert acquired(await fetch(one, 0, index)) == {index: [(2, 9, 1)]}

    run_story(tmp_path, story)


async def alter(admin: Client, index: int, offset: int) -> None:
    wanted = AlterShareGroupOffsetsRequestPartition(partition_index=index, start_offset=offset)
    answer = await admin.ask(
        AlterShareGroupOffsetsRequest(
            group_id=admin.group,
            topics=[AlterShareGroupOffsetsRequestTopic(topic_name="jobs", partitions=[wanted])],
        ),
        AlterShareGroupOffsetsResponse,
    )
    assert answer.error_code == 0, answer.error_message
    assert answer.responses[0].partitions[0].error_code == 0, answer.responses[0].partitions[0].error_message


async def described(admin: Client) -> dict[int, tuple[int, int]]:
    """Start offset and lag of every partition that the group has read."""
    answer = await admin.ask(
        DescribeShareGroupOffsetsRequest(
            groups=[DescribeShareGroupOffsetsRequestGroup(group_id=admin.group)]
        ),
        DescribeShareGroupOffsetsResponse,
    )
    group = answer.groups[0]
    assert group.error_code == 0, group.error_message
    found = {}
    for topic in group.topics:
        for part in topic.partitions:
            assert part.error_code == 0, part.error_message
            found[part.partition_index] = (part.start_offset, part.lag)
    return found


async def joined(admin: Client, epoch: int = 0) -> None:
    beat = ShareGroupHeartbeatRequest(
        group_id=admin.group,
        member_id="ada",
        member_epoch=epoch,
        subscribed_topic_names=["jobs"] if epoch == 0 else None,
    )
    answer = await admin.ask(beat, ShareGroupHeartbeatResponse)
    assert answer.error_code == 0, answer.error_message


def test_a_groups_coordinator_knows_where_it_is_on_all_brokers(tmp_path: Path) -> None:
    """N4 C1: offsets and lag of partitions led anywhere; deleting them begins anew everywhere."""

    async def story(shared: Shared) -> None:
        admin = await shared.group_coordinator()
        await joined(admin)
        assert await described(admin) == {}
        for index in range(PARTITIONS):
            one = shared.on(shared.leader(index))
            await fetch(one, 0, index)
            acks = [verdict(0, index, ACCEPT), verdict(8, 8, ACCEPT)]
            assert code_of(await acknowledge(one, 1, *acks, index=index)) == 0
        assert await described(admin) == {
            index: (index + 1, RECORDS - (index + 1) - 1) for index in range(PARTITIONS)
        }
        await joined(admin, -1)
        answer = await admin.ask(
            DeleteShareGroupOffsetsRequest(
                group_id=admin.group, topics=[DeleteShareGroupOffsetsRequestTopic(topic_name="jobs")]
            ),
            DeleteShareGroupOffsetsResponse,
        )
        assert [topic.error_code for topic in answer.responses] == [0]
        assert await described(admin) == {}
        for index in range(PARTITIONS):
            again = await fetch(shared.on(shared.leader(index)), 0, index)
            assert [one[:2] for one in acquired(again)[index]] == [(0, 9)]

    run_story(tmp_path, story)


def states(shared: Shared) -> list[SharePartitionKey]:
    return [key for node in shared.brokers for shard in node.broker.share_state for key in shard]


def test_a_deleted_group_and_a_deleted_topic_leave_nothing_anywhere(tmp_path: Path) -> None:
    """N4 C1: the states are forgotten by every broker that keeps some."""

    async def story(shared: Shared) -> None:
        admin = await shared.group_coordinator()
        await joined(admin)
        for group in (admin.group, "others"):
            for index in range(PARTITIONS):
                await fetch(shared.on(shared.leader(index)), 0, index, group_id=group)
        assert len(states(shared)) == 2 * PARTITIONS
        await joined(admin, -1)
        answer = await admin.ask(DeleteGroupsRequest(groups_names=[admin.group]), DeleteGroupsResponse)
        assert [one.error_code for one in answer.results] == [0]
        assert {key.group_id for key in states(shared)} == {"others"}
        await shared.brokers[2].broker.delete_topic("jobs")
        await shared.brokers.until(lambda one: not any(list(shard) for shard in one.share_state))
        assert [part for node in shared.brokers for part in node.broker.share_delivery] == []

    run_story(tmp_path, story)


def test_clients_may_not_ask_for_delivery_state(tmp_path: Path) -> None:
    """N4: the verbs between brokers are refused to everybody else, and nothing happens."""

    async def story(shared: Shared) -> None:
        index = 0
        await fetch(shared.on(shared.leader(index)), 0, index)
        one = shared.on(shared.coordinator(index))
        topic = one.broker.topics.get("jobs")
        wanted = DeleteStateTopic(topic_id=topic.id, partitions=[DeleteStatePartition(partition=index)])
        refused = await one.ask(
            DeleteShareGroupStateRequest(group_id=one.group, topics=[wanted]), DeleteShareGroupStateResponse
        )
        code = refused.results[0].partitions[0].error_code
        assert code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        summary = await one.ask(
            ReadShareGroupStateSummaryRequest(group_id=one.group), ReadShareGroupStateSummaryResponse
        )
        # Not an empty answer: that would mean that nothing is kept.
        assert summary.results[0].partitions[0].error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        assert len(states(shared)) == 1

    run_story(tmp_path, story)


def test_a_share_group_is_deleted_when_everybody_who_keeps_some_of_it_is_there(tmp_path: Path) -> None:
    """N4 C1: else it stays, to be deleted later; a group of another kind does not wait for them."""

    async def story(shared: Shared) -> None:
        admin = await shared.group_coordinator()
        node_id = admin.broker.node_id
        plain = next(name for name in map(str, range(99)) if admin.broker.groups.leader_of(name) == node_id)
        coordinator = await admin.broker.groups.reach(plain)
        await coordinator.commit(plain, Committer("", None, -1, 9), [(("jobs", 0), Committed(1, -1, "", 0))])
        await joined(admin)
        for index in range(PARTITIONS):
            await fetch(shared.on(shared.leader(index)), 0, index, group_id=admin.group)
        await joined(admin, -1)
        away = 1 + node_id % 3
        await shared.brokers.stop(away)
        await shared.brokers.complete(2)
        deleting = DeleteGroupsRequest(groups_names=[plain, admin.group])
        answer = await admin.ask(deleting, DeleteGroupsResponse)
        codes = [one.error_code for one in answer.results]
        assert codes == [0, ErrorCode.COORDINATOR_NOT_AVAILABLE]
        await shared.brokers.start(away)
        await shared.brokers.complete(3)
        await shared.brokers[away].broker.share_state.loaded()
        answer = await admin.ask(DeleteGroupsRequest(groups_names=[admin.group]), DeleteGroupsResponse)
        assert [one.error_code for one in answer.results] == [0]
        assert states(shared) == []

    run_story(tmp_path, story)


def test_what_is_kept_for_a_group_is_not_nothing_while_it_is_being_loaded(tmp_path: Path) -> None:
    """N4 C1: a group of which nothing is left is forgotten, so nobody may say that too early."""

    async def story(shared: Shared) -> None:
        index = shared.remote()
        leader, keeper = (shared.brokers[at(index)].broker for at in (shared.leader, shared.coordinator))
        await fetch(shared.on(leader.node_id), 0, index)
        assert len(await leader.share_persister.of_group(shared.group)) == 1
        for led in keeper.share_state._led.values():
            led.loaded = False
        for broker in (leader, keeper):
            with pytest.raises(ApiError) as refused:
                await broker.share_persister.of_group(shared.group)
            assert refused.value.code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS

    run_story(tmp_path, story)
