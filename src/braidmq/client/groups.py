"""Looking after consumer groups: who is in them, how far they are behind, and where they go on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from braidmq.client import share_groups
from braidmq.client.cluster import Cluster, TopicPartition
from braidmq.client.consumer import Start
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

# From version 10 on topics are named by id only; names are what people ask with.
COMMIT_VERSION_MAX = 9
FETCH_VERSION_MAX = 9
DESCRIBE_VERSION_MAX = 5
SHARE = "share"


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


class Groups:
    """Administration of consumer groups."""

    def __init__(self, cluster: Cluster | str) -> None:
        self._owns_cluster = isinstance(cluster, str)
        self._cluster = Cluster(cluster) if isinstance(cluster, str) else cluster

    def all(self) -> list[ListedGroup]:
        answer = self._cluster.call(ListGroupsRequest(), ListGroupsResponse)
        _raise_for(answer.error_code, "groups")
        return sorted(answer.groups, key=lambda group: group.group_id)

    def describe(self, group_id: str) -> GroupDescription:
        """State, members and positions; ApiError GROUP_ID_NOT_FOUND where there is no such group."""
        listed = self._find(group_id)
        if listed is None:
            raise ApiError(
                ErrorCode.GROUP_ID_NOT_FOUND, f"there is no group {group_id!r}; braid group list shows them"
            )
        if listed.group_type == SHARE:
            members = self._shared(group_id)
        elif listed.group_type == "consumer":
            members = self._server_assigned(group_id)
        else:
            members = self._classic(group_id)
        return GroupDescription(
            group_id, listed.group_state, listed.group_type, tuple(members), tuple(self.positions(group_id))
        )

    def _find(self, group_id: str) -> ListedGroup | None:
        return next((group for group in self.all() if group.group_id == group_id), None)

    def _is_shared(self, group_id: str) -> bool:
        listed = self._find(group_id)
        return listed is not None and listed.group_type == SHARE

    def positions(self, group_id: str) -> list[Position]:
        """Committed offsets, each with the end of its partition."""
        if self._is_shared(group_id):
            return self._shared_positions(group_id)
        committed = self.committed(group_id)
        ends = list_offsets(self._cluster, dict.fromkeys(committed, int(Start.LATEST)))
        return [
            Position(at.topic, at.partition, offset, ends[at].offset)
            for at, offset in sorted(committed.items())
        ]

    def _shared_positions(self, group_id: str) -> list[Position]:
        starts = share_groups.starts(self._cluster, group_id)
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

    def committed(self, group_id: str) -> dict[TopicPartition, int]:
        """Where the group goes on, for the partitions it has read."""
        if self._is_shared(group_id):
            return {at: start.offset for at, start in share_groups.starts(self._cluster, group_id).items()}
        request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=group_id, topics=None)])
        group = self._cluster.call(request, OffsetFetchResponse, FETCH_VERSION_MAX).groups[0]
        _raise_for(group.error_code, f"group {group_id}")
        return {
            TopicPartition(topic.name, part.partition_index): part.committed_offset
            for topic in group.topics
            for part in topic.partitions
            if part.committed_offset >= 0
        }

    def commit(self, group_id: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Sets where a group without members goes on."""
        if self._is_shared(group_id):
            share_groups.move(self._cluster, group_id, offsets)
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
        answer = self._cluster.call(request, OffsetCommitResponse, COMMIT_VERSION_MAX)
        for topic_answer in answer.topics:
            for part in topic_answer.partitions:
                if part.error_code == ErrorCode.UNKNOWN_MEMBER_ID:
                    raise ApiError(
                        ErrorCode.NON_EMPTY_GROUP,
                        f"group {group_id} has members; stop them before its offsets are changed",
                    )
                _raise_for(part.error_code, f"{topic_answer.name}-{part.partition_index}")

    def delete(self, group_id: str) -> None:
        answer = self._cluster.call(DeleteGroupsRequest(groups_names=[group_id]), DeleteGroupsResponse)
        _raise_for(answer.results[0].error_code, f"group {group_id}")

    def _classic(self, group_id: str) -> Iterable[GroupMember]:
        request = DescribeGroupsRequest(groups=[group_id])
        group = self._cluster.call(request, DescribeGroupsResponse, DESCRIBE_VERSION_MAX).groups[0]
        _raise_for(group.error_code, f"group {group_id}")
        return [
            GroupMember(each.member_id, each.client_id, each.client_host, each.group_instance_id)
            for each in group.members
        ]

    def _shared(self, group_id: str) -> Iterable[GroupMember]:
        return [
            GroupMember(each.member_id, each.client_id, each.client_host, None)
            for each in share_groups.members(self._cluster, group_id)
        ]

    def _server_assigned(self, group_id: str) -> Iterable[GroupMember]:
        request = ConsumerGroupDescribeRequest(group_ids=[group_id])
        group = self._cluster.call(request, ConsumerGroupDescribeResponse).groups[0]
        _raise_for(group.error_code, f"group {group_id}")
        return [
            GroupMember(each.member_id, each.client_id, each.client_host, each.instance_id)
            for each in group.members
        ]

    def close(self) -> None:
        if self._owns_cluster:
            self._cluster.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _raise_for(code_number: int, about: str) -> None:
    code = ErrorCode(code_number)
    if code is not ErrorCode.NONE:
        raise ApiError(code, f"{about}: {code.name.lower().replace('_', ' ')}")
