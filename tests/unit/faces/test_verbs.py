"""The verbs of administration and lookup, one by one, as a client of any kind would send them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from braidmq.broker.outcomes import Acks
from braidmq.wire.errors import ErrorCode
from braidmq.wire.messages.cluster import (
    DescribableLogDirTopic,
    DescribeClusterRequest,
    DescribeClusterResponse,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
)
from braidmq.wire.messages.configs import (
    AlterableConfig,
    AlterConfigsRequest,
    AlterConfigsResource,
    AlterConfigsResponse,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
    IncrementalAlterableConfig,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
    IncrementalAlterConfigsResponse,
)
from braidmq.wire.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from braidmq.wire.messages.offsets import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopic,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from braidmq.wire.messages.producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
)
from braidmq.wire.messages.producers import TopicRequest as ProducersOf
from braidmq.wire.messages.topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    TopicRequest,
)
from braidmq.wire.messages.versions import ApiVersionsRequest, ApiVersionsResponse
from braidmq.wire.records import build_batch
from unit.embedded import append
from unit.faces.spoken import Speaker, speaker

TOPIC = 2
BROKER = 4
NOW_MS = 1_700_000_000_000
Story = Callable[[Speaker], Awaitable[None]]


@pytest.fixture
def tell(tmp_path: Path) -> Callable[..., None]:
    """Runs a story against a fresh broker."""

    def run(story: Story, **options: object) -> None:
        async def told() -> None:
            async with speaker(tmp_path, **options) as one:
                await story(one)

        asyncio.run(told())

    return run


def test_every_served_verb_is_announced_with_its_versions(tell: Callable[..., None]) -> None:
    """W1: versions are negotiated; Produce is announced from 0 for the sake of older librdkafka."""

    async def story(one: Speaker) -> None:
        answer = await one.ask(ApiVersionsRequest(client_software_name="x"), ApiVersionsResponse)
        ranges = {each.api_key: (each.min_version, each.max_version) for each in answer.api_keys}
        assert ranges[0] == (0, 13)
        assert ranges[1] == (4, 18)
        assert ranges[3] == (0, 13)
        assert set(ranges) >= {0, 1, 2, 3, 18, 19, 20, 21, 22, 23, 32, 33, 35, 37, 44, 60, 61, 75}

    tell(story)


@pytest.mark.parametrize("version", range(14))
def test_metadata_tells_brokers_and_topics_in_every_version(tell: Callable[..., None], version: int) -> None:
    """F1: where a topic's partitions are."""

    async def story(one: Speaker) -> None:
        topic = await one.broker.topics.create("t", 3, {})
        wanted = MetadataRequest(topics=[MetadataRequestTopic(name="t")], allow_auto_topic_creation=False)
        answer = await one.ask(wanted, MetadataResponse, version)
        assert [(b.node_id, b.host, b.port) for b in answer.brokers] == [(1, "broker.example.com", 9092)]
        assert [p.leader_id for p in answer.topics[0].partitions] == [1, 1, 1]
        if version >= 10:
            assert answer.topics[0].topic_id == topic.id
        wanted.topics *= 1000
        assert len((await one.ask(wanted, MetadataResponse, version)).topics) == 1, "asked for many times"
        everything = MetadataRequest(topics=[] if version == 0 else None)
        assert [t.name for t in (await one.ask(everything, MetadataResponse, version)).topics] == ["t"]

    tell(story)


def test_a_topic_is_created_on_first_use_unless_either_side_says_no(tell: Callable[..., None]) -> None:
    """N3: a topic is made on first use, with four partitions."""

    async def story(one: Speaker) -> None:
        asked = MetadataRequest(topics=[MetadataRequestTopic(name="new")], allow_auto_topic_creation=False)
        answer = await one.ask(asked, MetadataResponse)
        assert answer.topics[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        asked.allow_auto_topic_creation = True
        answer = await one.ask(asked, MetadataResponse)
        assert (answer.topics[0].error_code, len(answer.topics[0].partitions)) == (0, 4)
        bad = MetadataRequest(topics=[MetadataRequestTopic(name="../x")])
        assert (await one.ask(bad, MetadataResponse)).topics[
            0
        ].error_code == ErrorCode.INVALID_TOPIC_EXCEPTION

    tell(story)


def test_topics_are_created_with_checks_and_one_result_each(tell: Callable[..., None]) -> None:
    """F1: bad requests get Kafka's codes and a message that says what to do."""

    async def story(one: Speaker) -> None:
        config = CreatableTopicConfig(name="retention.ms", value="5000")
        request = CreateTopicsRequest(
            topics=[
                CreatableTopic(name="plain", num_partitions=2, replication_factor=1, configs=[config]),
                CreatableTopic(name="default"),
                CreatableTopic(name="twice", num_partitions=1),
                CreatableTopic(name="twice", num_partitions=1),
                CreatableTopic(name="copies", num_partitions=1, replication_factor=3),
                CreatableTopic(name="none", num_partitions=0),
                CreatableTopic(
                    name="placed",
                    assignments=[
                        CreatableReplicaAssignment(partition_index=n, broker_ids=[1]) for n in range(3)
                    ],
                ),
                CreatableTopic(
                    name="misplaced",
                    assignments=[CreatableReplicaAssignment(partition_index=0, broker_ids=[9])],
                ),
                CreatableTopic(name="typo", configs=[CreatableTopicConfig(name="retention.mss", value="1")]),
                CreatableTopic(
                    name="keyed", configs=[CreatableTopicConfig(name="cleanup.policy", value="x")]
                ),
            ]
        )
        answer = await one.ask(request, CreateTopicsResponse)
        codes = [ErrorCode(result.error_code).name for result in answer.topics]
        assert codes == [
            "NONE", "NONE", "INVALID_REQUEST", "INVALID_REQUEST", "INVALID_REPLICATION_FACTOR",
            "INVALID_PARTITIONS", "NONE", "INVALID_REPLICA_ASSIGNMENT", "INVALID_CONFIG", "INVALID_CONFIG",
        ]  # fmt: skip
        assert [t.num_partitions for t in answer.topics if t.error_code == 0] == [2, 4, 3]
        assert "did you mean retention.ms" in str(answer.topics[8].error_message)
        values = {c.name: (c.value, c.config_source) for c in answer.topics[0].configs or []}
        assert values["retention.ms"] == ("5000", 1)
        again = await one.ask(
            CreateTopicsRequest(topics=[CreatableTopic(name="plain")]), CreateTopicsResponse
        )
        assert again.topics[0].error_code == ErrorCode.TOPIC_ALREADY_EXISTS
        only = CreateTopicsRequest(topics=[CreatableTopic(name="maybe")], validate_only=True)
        assert (await one.ask(only, CreateTopicsResponse)).topics[0].error_code == 0
        assert one.broker.topics.find("maybe") is None

    tell(story)


def test_topics_are_deleted_by_name_and_by_id(tell: Callable[..., None]) -> None:
    """F1: deletion, with one result per topic asked for."""

    async def story(one: Speaker) -> None:
        by_id = await one.broker.topics.create("by-id", 1, {})
        await one.broker.topics.create("by-name", 1, {})
        request = DeleteTopicsRequest(
            topics=[
                DeleteTopicState(name="by-name"),
                DeleteTopicState(name=None, topic_id=by_id.id),
                DeleteTopicState(name="missing"),
                DeleteTopicState(name=None, topic_id=b"\x01" * 16),
            ]
        )
        answer = await one.ask(request, DeleteTopicsResponse)
        assert [ErrorCode(r.error_code).name for r in answer.responses] == [
            "NONE", "NONE", "UNKNOWN_TOPIC_OR_PARTITION", "UNKNOWN_TOPIC_ID",
        ]  # fmt: skip
        assert list(one.broker.topics) == []

    tell(story)


def test_partitions_are_added_never_taken_away(tell: Callable[..., None]) -> None:
    """F1: a topic grows by CreatePartitions."""

    async def story(one: Speaker) -> None:
        await one.broker.topics.create("t", 2, {})

        async def grow(count: int, assigned: int | None = None, validate_only: bool = False) -> int:
            places = None
            if assigned is not None:
                places = [CreatePartitionsAssignment(broker_ids=[1])] * assigned
            topic = CreatePartitionsTopic(name="t", count=count, assignments=places)
            request = CreatePartitionsRequest(topics=[topic], validate_only=validate_only)
            return (await one.ask(request, CreatePartitionsResponse)).results[0].error_code

        assert await grow(4, validate_only=True) == 0
        assert one.broker.topics.get("t").partition_count == 2
        assert await grow(4) == 0
        assert await grow(3) == ErrorCode.INVALID_PARTITIONS
        assert await grow(6, assigned=1) == ErrorCode.INVALID_REPLICA_ASSIGNMENT
        assert await grow(6, assigned=2) == 0
        assert one.broker.topics.get("t").partition_count == 6

    tell(story)


def test_offsets_are_found_by_name_and_by_time(tell: Callable[..., None]) -> None:
    """C7: earliest, latest, by timestamp, and the newest timestamp."""

    async def story(one: Speaker) -> None:
        partition = (await one.broker.topics.create("t", 1, {})).held[0]
        for number in range(10):
            append(partition, b"x", NOW_MS + number * 1000)

        async def at(timestamp: int) -> tuple[int, int, int]:
            part = ListOffsetsPartition(partition_index=0, timestamp=timestamp)
            request = ListOffsetsRequest(topics=[ListOffsetsTopic(name="t", partitions=[part])])
            found = (await one.ask(request, ListOffsetsResponse)).topics[0].partitions[0]
            return found.error_code, found.offset, found.timestamp

        assert await at(-1) == (0, 10, -1)
        assert await at(-2) == (0, 0, -1)
        assert await at(-3) == (0, 9, NOW_MS + 9000)
        assert await at(NOW_MS + 3500) == (0, 4, NOW_MS + 4000)
        assert await at(NOW_MS + 99_000) == (0, -1, -1)
        assert (await at(-9))[0] == ErrorCode.UNSUPPORTED_VERSION
        missing = ListOffsetsTopic(
            name="no", partitions=[ListOffsetsPartition(partition_index=0, timestamp=-1)]
        )
        answer = await one.ask(ListOffsetsRequest(topics=[missing]), ListOffsetsResponse)
        assert answer.topics[0].partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    tell(story)


def test_records_are_deleted_up_to_an_offset_and_stay_deleted(tmp_path: Path) -> None:
    """L7: DeleteRecords moves the log's start, and a restart does not bring it back."""

    async def delete(one: Speaker, offset: int) -> tuple[int, int]:
        part = DeleteRecordsPartition(partition_index=0, offset=offset)
        request = DeleteRecordsRequest(topics=[DeleteRecordsTopic(name="t", partitions=[part])])
        result = (await one.ask(request, DeleteRecordsResponse)).topics[0].partitions[0]
        return result.error_code, result.low_watermark

    async def run() -> None:
        async with speaker(tmp_path) as one:
            partition = (await one.broker.topics.create("t", 1, {})).held[0]
            for _ in range(10):
                append(partition, b"x", NOW_MS)
            assert await delete(one, 4) == (0, 4)
            assert (await delete(one, 99))[0] == ErrorCode.OFFSET_OUT_OF_RANGE
            assert await delete(one, 2) == (0, 4)
        async with speaker(tmp_path) as one:
            log = one.broker.topics.get("t").held[0].log
            assert (log.start_offset, log.end_offset) == (4, 10)
            assert await delete(one, -1) == (0, 10)

    asyncio.run(run())


def test_the_end_of_a_leader_epoch_is_told(tell: Callable[..., None]) -> None:
    """W1: OffsetForLeaderEpoch, for clients that check for truncation."""

    async def story(one: Speaker) -> None:
        partition = (await one.broker.topics.create("t", 1, {"flush": "async"})).held[0]
        append(partition, b"x", NOW_MS, 5)
        part = OffsetForLeaderPartition(partition=0, leader_epoch=0)
        asked = OffsetForLeaderEpochRequest(topics=[OffsetForLeaderTopic(topic="t", partitions=[part])])
        found = (await one.ask(asked, OffsetForLeaderEpochResponse)).topics[0].partitions[0]
        assert (found.error_code, found.leader_epoch, found.end_offset) == (0, 0, 5)
        part.current_leader_epoch = 3
        found = (await one.ask(asked, OffsetForLeaderEpochResponse)).topics[0].partitions[0]
        assert found.error_code == ErrorCode.UNKNOWN_LEADER_EPOCH

    tell(story)


def test_options_are_described_with_their_sources_and_reasons(tell: Callable[..., None]) -> None:
    """F1: DescribeConfigs of topics and of the broker."""

    async def story(one: Speaker) -> None:
        await one.broker.topics.create("t", 1, {"retention.ms": "1000"})

        async def describe(kind: int, name: str, keys: list[str] | None = None) -> DescribeConfigsResponse:
            resource = DescribeConfigsResource(
                resource_type=kind, resource_name=name, configuration_keys=keys
            )
            request = DescribeConfigsRequest(
                resources=[resource], include_synonyms=True, include_documentation=True
            )
            return await one.ask(request, DescribeConfigsResponse)

        entries = {e.name: e for e in (await describe(TOPIC, "t")).results[0].configs}
        assert (entries["retention.ms"].value, entries["retention.ms"].config_source) == ("1000", 1)
        assert [s.value for s in entries["retention.ms"].synonyms] == ["1000", "604800000"]
        assert (entries["flush"].value, entries["flush"].config_source) == ("async", 4)
        assert entries["segment.bytes"].config_source == 5
        assert entries["segment.bytes"].documentation
        only = (await describe(TOPIC, "t", ["flush"])).results[0].configs
        assert [e.name for e in only] == ["flush"]
        broker = {e.name: e for e in (await describe(BROKER, "1")).results[0].configs}
        assert broker["num.partitions"].value == "4"
        assert not broker["num.partitions"].read_only
        assert broker["log.sync.threads"].read_only
        for kind, name, code in (
            (TOPIC, "no", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
            (BROKER, "7", ErrorCode.INVALID_REQUEST),
            (99, "x", ErrorCode.INVALID_REQUEST),
        ):
            assert (await describe(kind, name)).results[0].error_code == code

    tell(story, flush="async")


def test_options_are_replaced_or_changed_one_by_one(tell: Callable[..., None]) -> None:
    """F1: AlterConfigs replaces all, IncrementalAlterConfigs sets, deletes, appends and subtracts."""

    async def story(one: Speaker) -> None:
        topic = await one.broker.topics.create("t", 1, {"retention.ms": "1000", "segment.bytes": "2048"})

        async def change(*changes: tuple[str, int, str | None], validate_only: bool = False) -> int:
            configs = [IncrementalAlterableConfig(name=n, config_operation=o, value=v) for n, o, v in changes]
            resource = IncrementalAlterConfigsResource(
                resource_type=TOPIC, resource_name="t", configs=configs
            )
            request = IncrementalAlterConfigsRequest(resources=[resource], validate_only=validate_only)
            return (await one.ask(request, IncrementalAlterConfigsResponse)).responses[0].error_code

        assert await change(("retention.ms", 0, "7"), validate_only=True) == 0
        assert topic.config.retention_ms == 1000
        assert await change(("retention.ms", 0, "5000"), ("segment.bytes", 1, None)) == 0
        assert (topic.config.retention_ms, topic.config.segment_bytes) == (5000, 1 << 30)
        assert await change(("cleanup.policy", 2, "delete")) == 0
        assert await change(("retention.ms", 2, "1")) == ErrorCode.INVALID_CONFIG
        assert await change(("retention.ms", 0, "soon")) == ErrorCode.INVALID_CONFIG
        assert await change(("retension.ms", 0, "1")) == ErrorCode.INVALID_CONFIG
        assert await change(("flush", 0, "sync"), ("flush", 0, "async")) == ErrorCode.INVALID_REQUEST
        whole = AlterConfigsResource(
            resource_type=TOPIC, resource_name="t", configs=[AlterableConfig(name="flush", value="async")]
        )
        answer = await one.ask(AlterConfigsRequest(resources=[whole]), AlterConfigsResponse)
        assert answer.responses[0].error_code == 0
        assert dict(topic.record.overrides) == {"flush": "async"}

    tell(story)


def test_producers_get_ids_epochs_and_are_described(tell: Callable[..., None]) -> None:
    """P4: InitProducerId gives ids and bumps epochs; DescribeProducers shows who wrote."""

    async def story(one: Speaker) -> None:
        first = await one.ask(InitProducerIdRequest(transactional_id=None), InitProducerIdResponse)
        second = await one.ask(InitProducerIdRequest(transactional_id=None), InitProducerIdResponse)
        assert first.producer_id != second.producer_id
        bump = InitProducerIdRequest(producer_id=first.producer_id, producer_epoch=0)
        bumped = await one.ask(bump, InitProducerIdResponse)
        assert (bumped.producer_id, bumped.producer_epoch) == (first.producer_id, 1)
        partition = (await one.broker.topics.create("t", 1, {})).held[0]
        batch = build_batch(
            [(None, b"x", [], NOW_MS)] * 3, base_sequence=0, producer_id=first.producer_id, producer_epoch=1
        )
        partition.append_leader(memoryview(batch), NOW_MS, Acks.ALL)
        asked = DescribeProducersRequest(topics=[ProducersOf(name="t", partition_indexes=[0, 5])])
        parts = (await one.ask(asked, DescribeProducersResponse)).topics[0].partitions
        state = parts[0].active_producers[0]
        assert (state.producer_id, state.producer_epoch, state.last_sequence) == (first.producer_id, 1, 2)
        assert parts[1].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    tell(story)


def test_the_cluster_and_its_disk_are_described(tell: Callable[..., None]) -> None:
    """O1: DescribeCluster and DescribeLogDirs."""

    async def story(one: Speaker) -> None:
        partition = (await one.broker.topics.create("t", 2, {})).held[0]
        append(partition, b"x" * 1000, NOW_MS)
        cluster = await one.ask(DescribeClusterRequest(), DescribeClusterResponse)
        assert (cluster.controller_id, [b.broker_id for b in cluster.brokers]) == (1, [1])
        wrong = await one.ask(DescribeClusterRequest(endpoint_type=2), DescribeClusterResponse)
        assert wrong.error_code == ErrorCode.MISMATCHED_ENDPOINT_TYPE
        for request in (
            DescribeLogDirsRequest(topics=None),
            DescribeLogDirsRequest(topics=[DescribableLogDirTopic(topic="t", partitions=[0, 1])]),
        ):
            found = (await one.ask(request, DescribeLogDirsResponse)).results[0]
            sizes = [p.partition_size for p in found.topics[0].partitions]
            assert sizes[0] > 1000
            assert sizes[1] == 0
            assert found.total_bytes > found.usable_bytes > 0

    tell(story)


def test_partitions_are_described_page_by_page(tell: Callable[..., None]) -> None:
    """F1: DescribeTopicPartitions with a cursor, as the Java admin client walks large topics."""

    async def story(one: Speaker) -> None:
        await one.broker.topics.create("a", 3, {})
        await one.broker.topics.create("b", 3, {})
        seen: list[tuple[str | None, int]] = []
        request = DescribeTopicPartitionsRequest(topics=[], response_partition_limit=2)
        for _ in range(10):
            answer = await one.ask(request, DescribeTopicPartitionsResponse)
            seen += [(t.name, p.partition_index) for t in answer.topics for p in t.partitions]
            if answer.next_cursor is None:
                break
            request.cursor = answer.next_cursor
        assert seen == [(name, index) for name in "ab" for index in range(3)]
        missing = DescribeTopicPartitionsRequest(topics=[TopicRequest(name="no")])
        answer = await one.ask(missing, DescribeTopicPartitionsResponse)
        assert answer.topics[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    tell(story)
