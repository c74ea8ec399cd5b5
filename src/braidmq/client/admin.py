"""Looking after topics: create, list, describe, reconfigure, grow, trim, delete."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from braidmq.client.cluster import Cluster, TopicPartition, topic_error
from braidmq.client.consumer import Start
from braidmq.client.offsets import list_offsets
from braidmq.wire.errors import ApiError, ErrorCode
from braidmq.wire.messages.configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
    IncrementalAlterableConfig,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
    IncrementalAlterConfigsResponse,
)
from braidmq.wire.messages.metadata import MetadataResponseTopic
from braidmq.wire.messages.offsets import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopic,
)
from braidmq.wire.messages.topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)

TOPIC_RESOURCE = 2
SET, DELETE = 0, 1
SOURCE_TOPIC = 1


@dataclass(frozen=True, slots=True)
class PartitionDescription:
    """One partition: who leads it, who has copies, and which offsets it holds.

    Leader and offsets are -1 while the broker that has it is not running.
    """

    index: int
    leader: int
    replicas: tuple[int, ...]
    in_sync: tuple[int, ...]
    start_offset: int
    end_offset: int


@dataclass(frozen=True, slots=True)
class TopicDescription:
    name: str
    topic_id: bytes
    internal: bool
    partitions: tuple[PartitionDescription, ...]

    @property
    def records(self) -> int:
        """Offsets between start and end, over all partitions."""
        return sum(partition.end_offset - partition.start_offset for partition in self.partitions)


@dataclass(frozen=True, slots=True)
class ConfigEntry:
    """One option of a topic, and whether the topic itself sets it."""

    name: str
    value: str
    overridden: bool
    documentation: str


class Admin:
    """Administration of the cluster behind a bootstrap list."""

    def __init__(self, cluster: Cluster | str) -> None:
        self._owns_cluster = isinstance(cluster, str)
        self._cluster = Cluster(cluster) if isinstance(cluster, str) else cluster

    def create_topic(
        self,
        name: str,
        partitions: int = -1,
        replication_factor: int = -1,
        configs: Mapping[str, str] | None = None,
        assignment: Sequence[Sequence[int]] = (),
    ) -> None:
        """Creates a topic; -1 leaves a number to the broker's defaults.

        `assignment` has the node ids of each partition, and the numbers stay -1 then.
        """
        rows = [CreatableTopicConfig(name=key, value=value) for key, value in (configs or {}).items()]
        topic = CreatableTopic(
            name=name,
            num_partitions=partitions,
            replication_factor=replication_factor,
            assignments=[
                CreatableReplicaAssignment(partition_index=index, broker_ids=list(node_ids))
                for index, node_ids in enumerate(assignment)
            ],
            configs=rows,
        )
        answer = self._cluster.call(
            CreateTopicsRequest(topics=[topic], timeout_ms=self._timeout_ms), CreateTopicsResponse
        )
        _raise_for(answer.topics[0].error_code, answer.topics[0].error_message, f"topic {name}")
        self._cluster.forget(name)

    def delete_topic(self, name: str) -> None:
        # Versions up to 5 carry the name in one field, later ones in the other.
        request = DeleteTopicsRequest(
            topics=[DeleteTopicState(name=name)], topic_names=[name], timeout_ms=self._timeout_ms
        )
        answer = self._cluster.call(request, DeleteTopicsResponse).responses[0]
        _raise_for(answer.error_code, answer.error_message, f"topic {name}")
        self._cluster.forget(name)

    def add_partitions(self, name: str, total: int) -> None:
        """Grows a topic to `total` partitions."""
        topic = CreatePartitionsTopic(name=name, count=total, assignments=None)
        request = CreatePartitionsRequest(topics=[topic], timeout_ms=self._timeout_ms)
        answer = self._cluster.call(request, CreatePartitionsResponse).results[0]
        _raise_for(answer.error_code, answer.error_message, f"topic {name}")
        self._cluster.forget(name)

    def delete_records(self, offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Drops what lies before these offsets (-1: everything readable); the new start offsets."""
        starts = {}
        for connection, group in self._cluster.by_leader(offsets):
            topics: dict[str, DeleteRecordsTopic] = {}
            for at in group:
                topic = topics.setdefault(at.topic, DeleteRecordsTopic(name=at.topic, partitions=[]))
                row = DeleteRecordsPartition(partition_index=at.partition, offset=offsets[at])
                topic.partitions.append(row)
            request = DeleteRecordsRequest(topics=list(topics.values()), timeout_ms=self._timeout_ms)
            for answer in connection.call(request, DeleteRecordsResponse).topics:
                for result in answer.partitions:
                    at = TopicPartition(answer.name, result.partition_index)
                    _raise_for(result.error_code, None, str(at))
                    starts[at] = result.low_watermark
        return starts

    def list_topics(self) -> list[str]:
        answer = self._cluster.refresh(None)
        return sorted(topic.name or "" for topic in answer.topics)

    def partition_indexes(self, name: str) -> list[int]:
        """The partitions of a topic that exists; unlike a client that sends, asking does not create it."""
        topic = self._cluster.refresh([name]).topics[0]
        _raise_for_topic(topic.error_code, name)
        return sorted(partition.partition_index for partition in topic.partitions)

    def describe_topics(self, names: Iterable[str] | None = None) -> list[TopicDescription]:
        """Partitions and offsets of these topics (None: all), by name."""
        answer = self._cluster.refresh(None if names is None else list(names))
        for topic in answer.topics:
            _raise_for_topic(topic.error_code, topic.name or "")
        everything = [
            TopicPartition(topic.name or "", partition.partition_index)
            for topic in answer.topics
            for partition in topic.partitions
            if partition.leader_id >= 0
        ]
        starts = self._offsets(everything, Start.EARLIEST)
        ends = self._offsets(everything, Start.LATEST)
        described = [_describe(topic, starts, ends) for topic in answer.topics]
        return sorted(described, key=lambda topic: topic.name)

    def topic_configs(self, name: str) -> list[ConfigEntry]:
        """Every option of a topic with the value in force."""
        resource = DescribeConfigsResource(
            resource_type=TOPIC_RESOURCE, resource_name=name, configuration_keys=None
        )
        request = DescribeConfigsRequest(resources=[resource], include_documentation=True)
        result = self._cluster.call(request, DescribeConfigsResponse).results[0]
        _raise_for(result.error_code, result.error_message, f"topic {name}")
        return [
            ConfigEntry(row.name, row.value or "", row.config_source == SOURCE_TOPIC, row.documentation or "")
            for row in result.configs
        ]

    def alter_topic_configs(self, name: str, changes: Mapping[str, str], resets: Iterable[str] = ()) -> None:
        """Sets options of a topic, and resets others to the broker's default."""
        wanted = [(key, SET, text) for key, text in changes.items()] + [(key, DELETE, None) for key in resets]
        rows = [
            IncrementalAlterableConfig(name=key, config_operation=op, value=text) for key, op, text in wanted
        ]
        request = IncrementalAlterConfigsRequest(
            resources=[
                IncrementalAlterConfigsResource(
                    resource_type=TOPIC_RESOURCE, resource_name=name, configs=rows
                )
            ]
        )
        answer = self._cluster.call(request, IncrementalAlterConfigsResponse).responses[0]
        _raise_for(answer.error_code, answer.error_message, f"topic {name}")

    def close(self) -> None:
        if self._owns_cluster:
            self._cluster.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def _timeout_ms(self) -> int:
        return int(self._cluster.timeout_s * 1000)

    def _offsets(self, partitions: Iterable[TopicPartition], start: Start) -> dict[TopicPartition, int]:
        found = list_offsets(self._cluster, dict.fromkeys(partitions, int(start)))
        return {at: spot.offset for at, spot in found.items()}


def _describe(
    topic: MetadataResponseTopic, starts: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]
) -> TopicDescription:
    name = topic.name or ""
    partitions = tuple(
        PartitionDescription(
            index=row.partition_index,
            leader=row.leader_id,
            replicas=tuple(row.replica_nodes),
            in_sync=tuple(row.isr_nodes),
            start_offset=starts.get(TopicPartition(name, row.partition_index), -1),
            end_offset=ends.get(TopicPartition(name, row.partition_index), -1),
        )
        for row in sorted(topic.partitions, key=lambda row: row.partition_index)
    )
    return TopicDescription(name, topic.topic_id, topic.is_internal, partitions)


def _raise_for_topic(code_number: int, name: str) -> None:
    code = ErrorCode(code_number)
    if code is not ErrorCode.NONE:
        raise topic_error(code, name)


def _raise_for(code_number: int, message: str | None, about: str) -> None:
    code = ErrorCode(code_number)
    if code is not ErrorCode.NONE:
        raise ApiError(code, message or f"{about}: {code.name.lower().replace('_', ' ')}")
