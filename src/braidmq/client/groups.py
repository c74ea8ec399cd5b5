"""Looking after consumer groups: their members, their lag, and where they continue.

Each group has a coordinator, the one broker that answers for it. Which groups there are is therefore asked of
every broker, and everything about one of them of its coordinator, again where that has just moved.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Self, TypeVar

from braidmq.client import share_groups
from braidmq.client.cluster import Cluster, TopicPartition
from braidmq.client.connection import Connection
from braidmq.client.consumer import Start
from braidmq.client.coordinators import CoordinatorKind, Coordinators
from braidmq.client.errors import TimedOut, Unreachable
from braidmq.client.offsets import list_offsets
from braidmq.wire.errors import ApiError, ErrorCode
from braidmq.wire.messages.commits import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchResponse,
)
from braidmq.wire.messages.consumer_groups import ConsumerGroupDescribeRequest, ConsumerGroupDescribeResponse
from braidmq.wire.messages.groups import (
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    ListedGroup,
    ListGroupsRequest,
    ListGroupsResponse,
)
from braidmq.wire.messages.streams_groups import (
    DescribedTasks,
    StreamsGroupDescribeRequest,
    StreamsGroupDescribeResponse,
)

# From version 10 on topics are named by id only; names are what people ask with.
COMMIT_VERSION_MAX = 9
FETCH_VERSION_MAX = 9
DESCRIBE_VERSION_MAX = 5
SHARE, CONSUMER, STREAMS = "share", "consumer", "streams"
MISSING = frozenset({ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID})
"""Retriable for those who wait for a topic to be made. Here nobody does."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Position:
    """Where a group is in one partition; `committed` is None where it has never committed.

    A share group has settled everything before `committed`, and `settled` records after it.
    """

    topic: str
    partition: int
    committed: int | None
    end: int
    settled: int = 0

    @property
    def lag(self) -> int | None:
        return None if self.committed is None else max(self.end - self.committed - self.settled, 0)


@dataclass(frozen=True, slots=True)
class GroupMember:
    member_id: str
    client_id: str
    host: str
    instance_id: str | None
    tasks: tuple[str, ...] = ()
    """Of a Kafka Streams application: subtopology_partition, standbys in brackets."""


@dataclass(frozen=True, slots=True)
class GroupDescription:
    group_id: str
    state: str
    kind: str
    members: tuple[GroupMember, ...]
    positions: tuple[Position, ...]

    @property
    def lag(self) -> int:
        """Records the group has yet to read, over all partitions it has committed."""
        return sum(position.lag or 0 for position in self.positions)


class GroupAdmin:
    """Administration of consumer groups.

    Where a method takes `kind`, it is the type that `all` gave; without it the brokers are asked.
    """

    def __init__(self, cluster: Cluster | str) -> None:
        self._owns_cluster = isinstance(cluster, str)
        self._cluster = Cluster(cluster) if isinstance(cluster, str) else cluster
        self._coordinators = Coordinators(self._cluster)

    def all(self) -> list[ListedGroup]:
        """Every group, over all brokers: each lists those it coordinates."""
        found: dict[str, ListedGroup] = {}
        for attempt in self._cluster.attempts():
            self._cluster.refresh([])
            try:
                for node_id in sorted(self._cluster.brokers):
                    found |= {group.group_id: group for group in self._listed_by(node_id)}
            except (ApiError, Unreachable, TimedOut) as error:
                attempt.failed(error, retriable=isinstance(error, Unreachable) or _may_pass(error))
        return [found[name] for name in sorted(found)]

    def _listed_by(self, node_id: int) -> list[ListedGroup]:
        answer = self._cluster.connection(node_id).call(ListGroupsRequest(), ListGroupsResponse)
        _raise_for(answer.error_code, f"groups of broker {node_id}")
        return answer.groups

    def describe(self, group_id: str) -> GroupDescription:
        """State, members and positions; ApiError GROUP_ID_NOT_FOUND where there is no such group."""
        listed = self._find(group_id)
        if listed is None:
            raise ApiError(
                ErrorCode.GROUP_ID_NOT_FOUND, f"there is no group {group_id!r}; braid group list shows them"
            )
        kind = listed.group_type.lower()
        read = {SHARE: _shared, CONSUMER: _server_assigned, STREAMS: _streams}.get(kind, _classic)
        members = self._ask(group_id, lambda connection: read(connection, group_id))
        return GroupDescription(
            group_id, listed.group_state, kind, tuple(members), tuple(self.positions(group_id, kind))
        )

    def _find(self, group_id: str) -> ListedGroup | None:
        return next((group for group in self.all() if group.group_id == group_id), None)

    def _is_shared(self, group_id: str, kind: str | None = None) -> bool:
        if kind is None:
            listed = self._find(group_id)
            kind = listed.group_type if listed is not None else ""
        return kind.lower() == SHARE

    def positions(self, group_id: str, kind: str | None = None) -> list[Position]:
        """Committed offsets, each with the end of its partition."""
        if self._is_shared(group_id, kind):
            return self._shared_positions(group_id)
        committed = self._committed(group_id)
        ends = list_offsets(self._cluster, dict.fromkeys(committed, int(Start.LATEST)))
        return [
            Position(at.topic, at.partition, offset, ends[at].offset)
            for at, offset in sorted(committed.items())
        ]

    def _shared_positions(self, group_id: str) -> list[Position]:
        starts = self._ask(group_id, lambda connection: share_groups.starts(connection, group_id))
        ends = list_offsets(self._cluster, dict.fromkeys(starts, int(Start.LATEST)))
        return [
            Position(
                at.topic,
                at.partition,
                start.offset,
                ends[at].offset,
                max(0, ends[at].offset - start.offset - start.lag),
            )
            for at, start in sorted(starts.items())
        ]

    def committed(self, group_id: str, kind: str | None = None) -> dict[TopicPartition, int]:
        """Where the group continues, for the partitions it has read."""
        if self._is_shared(group_id, kind):
            starts = self._ask(group_id, lambda connection: share_groups.starts(connection, group_id))
            return {at: start.offset for at, start in starts.items()}
        return self._committed(group_id)

    def texts(self, group_id: str, kind: str | None = None) -> dict[TopicPartition, str]:
        """What was committed beside the offsets of a group, which most clients leave empty."""
        if self._is_shared(group_id, kind):
            return {}
        return {at: text for at, (_, text) in self._fetched(group_id).items()}

    def _committed(self, group_id: str) -> dict[TopicPartition, int]:
        return {at: offset for at, (offset, _) in self._fetched(group_id).items()}

    def _fetched(self, group_id: str) -> dict[TopicPartition, tuple[int, str]]:
        # Up to version 7 the group is in one field, from 8 on in the other; so is the answer.
        groups = [OffsetFetchRequestGroup(group_id=group_id, topics=None)]
        request = OffsetFetchRequest(group_id=group_id, topics=None, groups=groups)

        def ask(connection: Connection) -> dict[TopicPartition, tuple[int, str]]:
            answer = connection.call(request, OffsetFetchResponse, FETCH_VERSION_MAX)
            group = answer.groups[0] if answer.groups else answer
            _raise_for(group.error_code, f"group {group_id}")
            return {
                TopicPartition(topic.name, part.partition_index): (part.committed_offset, part.metadata or "")
                for topic in group.topics
                for part in topic.partitions
                if part.committed_offset >= 0
            }

        return self._ask(group_id, ask)

    def commit(self, group_id: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Sets where a group without members continues."""
        if self._is_shared(group_id):
            self._ask(group_id, lambda connection: share_groups.move(connection, group_id, offsets))
            return
        topics: dict[str, OffsetCommitRequestTopic] = {}
        for at, offset in offsets.items():
            topic = topics.setdefault(at.topic, OffsetCommitRequestTopic(name=at.topic, partitions=[]))
            topic.partitions.append(
                OffsetCommitRequestPartition(
                    partition_index=at.partition, committed_offset=offset, committed_metadata=""
                )
            )
        request = OffsetCommitRequest(group_id=group_id, topics=list(topics.values()))

        def ask(connection: Connection) -> None:
            answer = connection.call(request, OffsetCommitResponse, COMMIT_VERSION_MAX)
            for topic in answer.topics:
                for part in topic.partitions:
                    if part.error_code == ErrorCode.UNKNOWN_MEMBER_ID:
                        raise ApiError(
                            ErrorCode.NON_EMPTY_GROUP,
                            f"group {group_id} has members; stop them before its offsets are changed",
                        )
                    _raise_for(part.error_code, f"{topic.name}-{part.partition_index}")

        self._ask(group_id, ask)

    def delete(self, group_id: str) -> None:
        def ask(connection: Connection) -> None:
            answer = connection.call(DeleteGroupsRequest(groups_names=[group_id]), DeleteGroupsResponse)
            _raise_for(answer.results[0].error_code, f"group {group_id}")

        self._ask(group_id, ask)

    def _ask(self, group_id: str, question: Callable[[Connection], T]) -> T:
        def ask(connection: Connection) -> T | ApiError:
            try:
                return question(connection)
            except ApiError as error:
                if error.code in MISSING:
                    return error
                raise

        answer = self._coordinators.ask(CoordinatorKind.GROUP, group_id, ask)
        if isinstance(answer, ApiError):
            raise answer
        return answer

    def close(self) -> None:
        if self._owns_cluster:
            self._cluster.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _classic(connection: Connection, group_id: str) -> list[GroupMember]:
    request = DescribeGroupsRequest(groups=[group_id])
    group = connection.call(request, DescribeGroupsResponse, DESCRIBE_VERSION_MAX).groups[0]
    _raise_for(group.error_code, f"group {group_id}")
    return [
        GroupMember(each.member_id, each.client_id, each.client_host, each.group_instance_id)
        for each in group.members
    ]


def _shared(connection: Connection, group_id: str) -> list[GroupMember]:
    return [
        GroupMember(each.member_id, each.client_id, each.client_host, None)
        for each in share_groups.members(connection, group_id)
    ]


def _server_assigned(connection: Connection, group_id: str) -> list[GroupMember]:
    request = ConsumerGroupDescribeRequest(group_ids=[group_id])
    group = connection.call(request, ConsumerGroupDescribeResponse).groups[0]
    _raise_for(group.error_code, f"group {group_id}")
    return [
        GroupMember(each.member_id, each.client_id, each.client_host, each.instance_id)
        for each in group.members
    ]


def _streams(connection: Connection, group_id: str) -> list[GroupMember]:
    request = StreamsGroupDescribeRequest(group_ids=[group_id])
    group = connection.call(request, StreamsGroupDescribeResponse).groups[0]
    _raise_for(group.error_code, f"group {group_id}")
    return [
        GroupMember(
            each.member_id, each.client_id, each.client_host, each.instance_id, _tasks(each.assignment)
        )
        for each in group.members
    ]


def _tasks(has: DescribedTasks) -> tuple[str, ...]:
    active = [f"{one.subtopology_id}_{number}" for one in has.active_tasks for number in one.partitions]
    standbys = [f"({one.subtopology_id}_{number})" for one in has.standby_tasks for number in one.partitions]
    return (*active, *standbys)


def _may_pass(error: ApiError | TimedOut) -> bool:
    return isinstance(error, ApiError) and error.code.retriable


def _raise_for(code_number: int, about: str) -> None:
    code = ErrorCode(code_number)
    if code is not ErrorCode.NONE:
        raise ApiError(code, f"{about}: {code.name.lower().replace('_', ' ')}")
