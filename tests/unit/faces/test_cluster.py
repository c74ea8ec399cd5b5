"""What clients of Kafka are told by one of several brokers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from braidmq.client.admin import Admin
from braidmq.client.cluster import Cluster as ClientCluster
from braidmq.client.consumer import Consumer
from braidmq.client.producer import Producer
from braidmq.wire.errors import ErrorCode
from braidmq.wire.messages.cluster import DescribeClusterRequest, DescribeClusterResponse
from braidmq.wire.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from braidmq.wire.messages.metadata import MetadataRequest, MetadataResponse
from braidmq.wire.messages.offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from braidmq.wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from braidmq.wire.messages.topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
)
from braidmq.wire.records import build_batch
from cluster import Cluster, cluster
from unit.faces.spoken import Speaker

BAD_FACTOR = ErrorCode.INVALID_REPLICATION_FACTOR

Story = Callable[[Cluster], Awaitable[None]]


def tell(data: Path, story: Story, count: int = 3, **options: object) -> None:
    async def told() -> None:
        async with cluster(data, count, **options) as found:
            await story(found)

    asyncio.run(told())


def speaker(found: Cluster, node_id: int) -> Speaker:
    spoken = Speaker(found[node_id].broker)
    spoken.face.advertise("127.0.0.1", found[node_id].port)
    return spoken


def test_every_broker_shows_all_brokers_and_who_leads(tmp_path: Path) -> None:
    """N2: a client may ask any broker, and finds the same leaders at each."""

    async def story(found: Cluster) -> None:
        await found.restart(3, rack="r3")
        await found.complete(3)
        topic = await found[1].broker.topics.create("t", 6, {})
        await found.shown(topic.id)
        answers = []
        for node_id in (1, 2, 3):
            asked = speaker(found, node_id)
            metadata = await asked.ask(MetadataRequest(topics=None), MetadataResponse)
            described = await asked.ask(DescribeClusterRequest(), DescribeClusterResponse)
            brokers = [(one.node_id, one.host, one.port, one.rack) for one in metadata.brokers]
            assert brokers == [
                (each, "127.0.0.1", found[each].port, "r3" if each == 3 else None) for each in (1, 2, 3)
            ]
            assert [(one.broker_id, one.host, one.port, one.rack) for one in described.brokers] == brokers
            assert metadata.controller_id == described.controller_id == asked.broker.view.controller_id
            partitions = metadata.topics[0].partitions
            assert metadata.topics[0].topic_id == topic.id
            paged = await asked.ask(DescribeTopicPartitionsRequest(), DescribeTopicPartitionsResponse)
            assert [one.leader_id for one in paged.topics[0].partitions] == [
                one.leader_id for one in partitions
            ]
            answers.append([(one.partition_index, one.leader_id, one.replica_nodes) for one in partitions])
        assert answers[0] == answers[1] == answers[2]
        assert sorted(leader for _, leader, _ in answers[0]) == [1, 1, 2, 2, 3, 3]

    tell(tmp_path, story)


def test_the_partitions_of_a_broker_that_is_gone_have_no_leader_until_it_is_back(tmp_path: Path) -> None:
    """R5: the others go on; its records are back with it."""

    async def story(found: Cluster) -> None:
        topic = await found[1].broker.topics.create("t", 2, {}, [[1], [2]])
        await found.shown(topic.id)
        await found.stop(2)
        await found.complete(1)
        asked = speaker(found, 1)
        metadata = await asked.ask(MetadataRequest(topics=None), MetadataResponse)
        assert [one.node_id for one in metadata.brokers] == [1]
        first, second = metadata.topics[0].partitions
        assert (first.error_code, first.leader_id, first.offline_replicas) == (0, 1, [])
        assert (second.leader_id, second.replica_nodes, second.offline_replicas) == (-1, [2], [2])
        assert second.error_code == ErrorCode.LEADER_NOT_AVAILABLE
        await found.start(2)
        await found.complete(2)
        metadata = await asked.ask(MetadataRequest(topics=None), MetadataResponse)
        assert [one.leader_id for one in metadata.topics[0].partitions] == [1, 2]

    tell(tmp_path, story, 2)


def test_a_request_to_the_wrong_broker_names_the_right_one(tmp_path: Path) -> None:
    """N2: at once on a stale route, with where to go instead (KIP-951)."""

    async def story(found: Cluster) -> None:
        topic = await found[1].broker.topics.create("t", 2, {}, [[1], [2]])
        await found.shown(topic.id)
        asked = speaker(found, 1)
        batch = bytes(build_batch([(None, b"x", [], 1)]))
        data = [PartitionProduceData(index=index, records=batch) for index in (0, 1)]
        sent = ProduceRequest(
            acks=-1, timeout_ms=1000, topic_data=[TopicProduceData(topic_id=topic.id, partition_data=data)]
        )
        produced = await asked.ask(sent, ProduceResponse)
        kept, refused = produced.responses[0].partition_responses
        assert (kept.error_code, refused.error_code) == (0, ErrorCode.NOT_LEADER_OR_FOLLOWER)
        assert refused.current_leader is not None
        assert (refused.current_leader.leader_id, refused.current_leader.leader_epoch) == (2, 0)
        port = found[2].port
        assert [(one.node_id, one.host, one.port) for one in produced.node_endpoints] == [
            (2, "127.0.0.1", port)
        ]
        wanted = [FetchPartition(partition=index, partition_max_bytes=1 << 20) for index in (0, 1)]
        fetched = await asked.ask(
            FetchRequest(max_wait_ms=0, topics=[FetchTopic(topic_id=topic.id, partitions=wanted)]),
            FetchResponse,
        )
        read, refusal = fetched.responses[0].partitions
        assert (read.error_code, refusal.error_code) == (0, ErrorCode.NOT_LEADER_OR_FOLLOWER)
        assert refusal.current_leader is not None
        assert refusal.current_leader.leader_id == 2
        assert [one.port for one in fetched.node_endpoints] == [port]
        listed = await asked.ask(
            ListOffsetsRequest(
                topics=[
                    ListOffsetsTopic(
                        name="t", partitions=[ListOffsetsPartition(partition_index=1, timestamp=-1)]
                    )
                ]
            ),
            ListOffsetsResponse,
        )
        assert listed.topics[0].partitions[0].error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER

    tell(tmp_path, story, 2)


async def created(asked: Speaker, topic: CreatableTopic) -> tuple[int, int]:
    answer = await asked.ask(CreateTopicsRequest(topics=[topic]), CreateTopicsResponse)
    return answer.topics[0].error_code, answer.topics[0].num_partitions


def test_topics_are_placed_by_count_or_by_hand(tmp_path: Path) -> None:
    """N3: four partitions per broker if nobody says, or exactly where the client says."""

    async def story(found: Cluster) -> None:
        asked = speaker(found, 2)
        assert await created(asked, CreatableTopic(name="usual")) == (0, 12)
        assert await created(asked, CreatableTopic(name="two", num_partitions=2)) == (0, 2)
        by_hand = [
            CreatableReplicaAssignment(partition_index=index, broker_ids=[node_id])
            for index, node_id in ((1, 3), (0, 1), (2, 3))
        ]
        assert await created(asked, CreatableTopic(name="hand", assignments=by_hand)) == (0, 3)
        view = found[2].broker.view
        hand = found[2].broker.topics.get("hand")
        assert [one.leader.node_id for _, one in view.partitions(hand)] == [1, 3, 3]
        grow = CreatePartitionsTopic(
            name="hand", count=4, assignments=[CreatePartitionsAssignment(broker_ids=[2])]
        )
        grown = await asked.ask(CreatePartitionsRequest(topics=[grow]), CreatePartitionsResponse)
        assert grown.results[0].error_code == 0
        assert [one.leader.node_id for _, one in view.partitions(hand)] == [1, 3, 3, 2]

    tell(tmp_path, story)


@pytest.mark.parametrize(
    ("topic", "code"),
    [
        (
            CreatableTopic(name="t", num_partitions=1, replication_factor=2),
            ErrorCode.INVALID_REPLICATION_FACTOR,
        ),
        (
            CreatableTopic(name="t", num_partitions=1, replication_factor=3),
            ErrorCode.INVALID_REPLICATION_FACTOR,
        ),
        (
            CreatableTopic(
                name="t", assignments=[CreatableReplicaAssignment(partition_index=0, broker_ids=[7])]
            ),
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
        ),
        (
            CreatableTopic(
                name="t", assignments=[CreatableReplicaAssignment(partition_index=0, broker_ids=[1, 2])]
            ),
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
        ),
    ],
    ids=["more than one", "more than there are", "nobody", "two replicas"],
)
def test_a_placement_that_cannot_be_is_refused(
    tmp_path: Path, topic: CreatableTopic, code: ErrorCode
) -> None:
    """N3: with the code that clients know for it."""

    async def story(found: Cluster) -> None:
        assert (await created(speaker(found, 1), topic))[0] == code

    tell(tmp_path, story, 2)


def test_records_go_to_three_brokers_and_come_back(tmp_path: Path) -> None:
    """R5: a client sends to every partition and reads all of them, from whichever broker leads."""

    def client(bootstrap: str) -> list[bytes]:
        with ClientCluster(bootstrap) as connected:
            Admin(connected).create_topic("t", 9)
            with Producer(connected) as producer:
                for number in range(900):
                    producer.send("t", b"%d" % number, partition=number % 9)
            with Consumer(connected) as consumer:
                consumer.assign("t")
                values: list[bytes] = []
                for _ in range(200):
                    values += [message.value or b"" for message in consumer.poll(0.5)]
                    if len(values) >= 900:
                        break
                return values

    async def story(found: Cluster) -> None:
        values = await asyncio.to_thread(client, found[3].address)
        assert sorted(values, key=int) == [b"%d" % number for number in range(900)]
        for node in found:
            held = node.broker.topics.get("t").held.values()
            assert [partition.high_watermark for partition in held] == [100, 100, 100]

    tell(tmp_path, story)
