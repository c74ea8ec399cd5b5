"""What tools of administration ask a broker that is alone: quorum, features, leaders, directories."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from braidmq.wire.errors import ErrorCode
from braidmq.wire.messages.cluster import (
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    AlterReplicaLogDirTopic,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
)
from braidmq.wire.messages.configs import ListConfigResourcesRequest, ListConfigResourcesResponse
from braidmq.wire.messages.leaders import (
    ElectLeadersRequest,
    ElectLeadersResponse,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    ListPartitionReassignmentsTopics,
    TopicPartitions,
)
from braidmq.wire.messages.quorum import (
    DescribeQuorumRequest,
    DescribeQuorumResponse,
    QuorumRequestPartition,
    QuorumRequestTopic,
)
from braidmq.wire.messages.versions import (
    ApiVersionsRequest,
    ApiVersionsResponse,
    FeatureUpdateKey,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)
from unit.embedded import append
from unit.faces.options_client import GROUP, set_options
from unit.faces.spoken import Speaker, speaker

TOPIC, BROKER, LOGGER, CLIENT_METRICS = 2, 4, 8, 16
NOW_MS = 1_700_000_000_000
NOT_NEEDED, UNKNOWN = ErrorCode.ELECTION_NOT_NEEDED, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
Story = Callable[[Speaker], Awaitable[None]]


def tell(data: Path, *stories: Story) -> None:
    """Runs stories one after the other, each on a broker that was started again."""

    async def told() -> None:
        for story in stories:
            async with speaker(data) as one:
                await story(one)

    asyncio.run(told())


@pytest.mark.parametrize("version", [0, 1, 2])
def test_one_node_is_its_own_quorum(tmp_path: Path, version: int) -> None:
    """O1: the only voter leads, and the newest revision of the store is the end of its log."""

    async def story(one: Speaker) -> None:
        async def ask(topic: str, index: int) -> DescribeQuorumResponse:
            part = QuorumRequestPartition(partition_index=index)
            wanted = QuorumRequestTopic(topic_name=topic, partitions=[part])
            return await one.ask(DescribeQuorumRequest(topics=[wanted]), DescribeQuorumResponse, version)

        before = (await ask("__cluster_metadata", 0)).topics[0].partitions[0]
        assert (before.error_code, before.leader_id, before.observers) == (0, 1, [])
        assert [(v.replica_id, v.log_end_offset) for v in before.current_voters] == [
            (1, before.high_watermark)
        ]
        await one.broker.topics.create("t", 1, {})
        answer = await ask("__cluster_metadata", 0)
        assert answer.topics[0].partitions[0].high_watermark > before.high_watermark
        if version == 2:
            listeners = answer.nodes[0].listeners
            assert [(each.host, each.port) for each in listeners] == [("broker.example.com", 9092)]
        for topic, index in (("t", 0), ("__cluster_metadata", 1)):
            assert (await ask(topic, index)).topics[0].partitions[0].error_code == UNKNOWN

    tell(tmp_path, story)


@pytest.mark.parametrize("version", [0, 1, 2])
@pytest.mark.parametrize(
    ("feature", "step", "code"),
    [
        ("share.version", 0, ErrorCode.NONE),
        ("share.version", 1, ErrorCode.INVALID_UPDATE_VERSION),
        ("share.version", -1, ErrorCode.INVALID_UPDATE_VERSION),
        ("metadata.version", 0, ErrorCode.NONE),
        ("metadata.version", -1, ErrorCode.INVALID_UPDATE_VERSION),
        ("kraft.version", 0, ErrorCode.INVALID_UPDATE_VERSION),
    ],
)
def test_features_stay_at_the_levels_that_are_advertised(
    tmp_path: Path, version: int, feature: str, step: int, code: ErrorCode
) -> None:
    """O1: neither levels that are not supported nor downgrades; what is there already is granted."""

    async def story(one: Speaker) -> None:
        advertised = await one.ask(ApiVersionsRequest(client_software_name="x"), ApiVersionsResponse)
        levels = {each.name: each.max_version_level for each in advertised.finalized_features}
        ranges = {each.name: (each.min_version, each.max_version) for each in advertised.supported_features}
        assert ranges == {name: (level, level) for name, level in levels.items()}
        updates = [
            FeatureUpdateKey(feature="group.version", max_version_level=levels["group.version"]),
            FeatureUpdateKey(feature=feature, max_version_level=levels.get(feature, 0) + step),
        ]
        request = UpdateFeaturesRequest(feature_updates=updates, validate_only=version > 0)
        answer = await one.ask(request, UpdateFeaturesResponse, version)
        assert answer.error_code == code
        assert (answer.error_message is None) == (code is ErrorCode.NONE)
        if version < 2 and code is ErrorCode.NONE:
            assert [(each.feature, each.error_code) for each in answer.results] == [
                ("group.version", 0),
                (feature, 0),
            ]

    tell(tmp_path, story)


@pytest.mark.parametrize("version", [0, 1, 2])
def test_no_election_is_needed_where_one_node_leads_all(tmp_path: Path, version: int) -> None:
    """O1: one result for each partition asked for; asked for all, those with a new leader, which are none."""

    async def story(one: Speaker) -> None:
        await one.broker.topics.create("t", 2, {})
        wanted = [
            TopicPartitions(topic="t", partitions=[0, 1, 2]),
            TopicPartitions(topic="no", partitions=[0]),
        ]
        request = ElectLeadersRequest(topic_partitions=wanted)
        answer = await one.ask(request, ElectLeadersResponse, version)
        assert answer.error_code == 0
        codes = {
            each.topic: [part.error_code for part in each.partition_result]
            for each in answer.replica_election_results
        }
        assert codes == {"t": [NOT_NEEDED, NOT_NEEDED, UNKNOWN], "no": [UNKNOWN]}
        everything = await one.ask(ElectLeadersRequest(), ElectLeadersResponse, version)
        assert (everything.error_code, everything.replica_election_results) == (0, [])
        if version >= 1:
            request.election_type = 5
            refused = await one.ask(request, ElectLeadersResponse, version)
            assert refused.error_code == ErrorCode.INVALID_REQUEST

    tell(tmp_path, story)


def test_no_replica_is_being_moved(tmp_path: Path) -> None:
    """O1: ListPartitionReassignments, of all topics and of some."""

    async def story(one: Speaker) -> None:
        await one.broker.topics.create("t", 1, {})
        named = [ListPartitionReassignmentsTopics(name="t", partition_indexes=[0])]
        for topics in (None, named):
            request = ListPartitionReassignmentsRequest(topics=topics)
            answer = await one.ask(request, ListPartitionReassignmentsResponse)
            assert (answer.error_code, answer.topics) == (0, [])

    tell(tmp_path, story)


def test_a_replica_stays_in_the_one_data_directory(tmp_path: Path) -> None:
    """O1: a move to where it is is done; another directory is none of this broker's."""

    async def story(one: Speaker) -> None:
        await one.broker.topics.create("t", 1, {})
        topic = AlterReplicaLogDirTopic(name="t", partitions=[0, 1])
        for path, codes in (
            (str(tmp_path), [ErrorCode.NONE, UNKNOWN]),
            ("/elsewhere", [ErrorCode.LOG_DIR_NOT_FOUND] * 2),
        ):
            request = AlterReplicaLogDirsRequest(dirs=[AlterReplicaLogDir(path=path, topics=[topic])])
            answer = await one.ask(request, AlterReplicaLogDirsResponse)
            assert [part.error_code for part in answer.results[0].partitions] == codes

    tell(tmp_path, story)


def test_partitions_are_measured_without_opening_them(tmp_path: Path) -> None:
    """O1: DescribeLogDirs of a broker that has just started opens no log, and tells the same sizes."""

    async def sizes(one: Speaker) -> list[int]:
        answer = await one.ask(DescribeLogDirsRequest(), DescribeLogDirsResponse)
        return [part.partition_size for topic in answer.results[0].topics for part in topic.partitions]

    told: list[list[int]] = []

    async def before(one: Speaker) -> None:
        partitions = list((await one.broker.topics.create("t", 3, {})).held.values())
        append(partitions[0], b"x" * 1000, NOW_MS)
        append(partitions[1], b"x" * 3000, NOW_MS)
        told.append(await sizes(one))

    async def after(one: Speaker) -> None:
        told.append(await sizes(one))
        assert not any(each.is_open for each in one.broker.topics.get("t").held.values())

    tell(tmp_path, before, after)
    assert told[0] == told[1]
    assert [size > 1000 for size in told[0]] == [True, True, False]


def test_what_has_options_is_listed_by_kind(tmp_path: Path) -> None:
    """F1: version 0 knows client metrics only, of which there are none; from 1 on all kinds."""

    async def story(one: Speaker) -> None:
        await one.broker.topics.create("t", 1, {})
        await set_options(one, GROUP, "g", {"share.delivery.count.limit": "9"})

        async def listed(*kinds: int) -> set[tuple[int, str]]:
            request = ListConfigResourcesRequest(resource_types=list(kinds))
            answer = await one.ask(request, ListConfigResourcesResponse)
            assert answer.error_code == 0
            return {(each.resource_type, each.resource_name) for each in answer.config_resources}

        assert await listed() == {(TOPIC, "t"), (BROKER, "1"), (LOGGER, "1"), (GROUP, "g")}
        assert await listed(GROUP, BROKER) == {(BROKER, "1"), (GROUP, "g")}
        assert await listed(CLIENT_METRICS) == set()
        old = await one.ask(ListConfigResourcesRequest(), ListConfigResourcesResponse, 0)
        assert (old.error_code, old.config_resources) == (0, [])
        strange = ListConfigResourcesRequest(resource_types=[99])
        answer = await one.ask(strange, ListConfigResourcesResponse)
        assert answer.error_code == ErrorCode.UNSUPPORTED_VERSION

    tell(tmp_path, story)
