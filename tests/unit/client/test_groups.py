"""Groups in a cluster of several brokers: each is asked for what it alone can tell."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from braidmq.address import Address
from braidmq.client import Unreachable
from braidmq.client.cluster import Attempt, Cluster, TopicPartition
from braidmq.client.groups import GroupAdmin
from braidmq.wire.errors import ApiError, ErrorCode
from braidmq.wire.messages.commits import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
    OffsetFetchRequest,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopics,
)
from braidmq.wire.messages.groups import (
    Coordinator,
    DeletableGroupResult,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    ListedGroup,
    ListGroupsRequest,
    ListGroupsResponse,
)
from braidmq.wire.schema import Message

AT = TopicPartition("orders", 0)
NOT_COORDINATOR = ErrorCode.NOT_COORDINATOR


class Broker:
    """One of the three. It answers for the groups it coordinates and refuses the others."""

    def __init__(self, cluster: ThreeBrokers, node_id: int) -> None:
        self._cluster = cluster
        self._node_id = node_id

    def call(self, request: Message, *_: object) -> Message:
        self._cluster.asked.append((self._node_id, type(request).__name__.removesuffix("Request")))
        if self._node_id in self._cluster.down:
            raise Unreachable("no")
        if isinstance(request, ListGroupsRequest):
            mine = [name for name, node in self._cluster.coordinates.items() if node == self._node_id]
            return ListGroupsResponse(groups=[ListedGroup(group_id=name) for name in mine])
        code = self._code(_group_of(request))
        if isinstance(request, OffsetFetchRequest):
            part = OffsetFetchResponsePartitions(partition_index=0, committed_offset=7)
            topics = [OffsetFetchResponseTopics(name="orders", partitions=[part])]
            group = OffsetFetchResponseGroup(error_code=code, topics=[] if code else topics)
            return OffsetFetchResponse(groups=[group])
        if isinstance(request, OffsetCommitRequest):
            row = OffsetCommitResponsePartition(partition_index=0, error_code=code)
            return OffsetCommitResponse(topics=[OffsetCommitResponseTopic(name="orders", partitions=[row])])
        assert isinstance(request, DeleteGroupsRequest)
        return DeleteGroupsResponse(results=[DeletableGroupResult(error_code=code)])

    def _code(self, group: str) -> ErrorCode:
        if self._cluster.coordinates[group] != self._node_id:
            return NOT_COORDINATOR
        return self._cluster.excuses.pop(0) if self._cluster.excuses else ErrorCode.NONE


def _group_of(request: Message) -> str:
    match request:
        case OffsetFetchRequest():
            return request.groups[0].group_id
        case OffsetCommitRequest():
            return request.group_id
        case DeleteGroupsRequest():
            return request.groups_names[0]
    raise AssertionError(request)


class ThreeBrokers(Cluster):
    """Brokers 1 to 3, of which any may be asked who coordinates a group."""

    def __init__(self, coordinates: dict[str, int]) -> None:
        super().__init__("127.0.0.1:1")
        self.brokers = {node_id: Address("127.0.0.1", node_id) for node_id in (1, 2, 3)}
        self.coordinates = coordinates
        self.believed = dict(coordinates)
        self.excuses: list[ErrorCode] = []
        self.down: set[int] = set()
        self.asked: list[tuple[int, str]] = []

    def attempts(self, *_: object) -> Iterator[Attempt]:
        """Five tries, without a pause."""
        for number in range(5):
            attempt = Attempt()
            yield attempt
            if attempt.error is None:
                return
            if not attempt.retriable or number == 4:
                raise attempt.error

    def call(self, request: Message, *_: object) -> Message:  # type: ignore[override]
        assert isinstance(request, FindCoordinatorRequest)
        found = Coordinator(key=request.key, node_id=self.believed[request.key])
        self.believed[request.key] = self.coordinates[request.key]
        return FindCoordinatorResponse(coordinators=[found])

    def refresh(self, *_: object) -> None:  # type: ignore[override]
        pass

    def connection(self, node_id: int) -> Broker:  # type: ignore[override]
        return Broker(self, node_id)


@pytest.fixture
def cluster() -> ThreeBrokers:
    return ThreeBrokers({"billing": 2, "kitchen": 3})


VERBS: list[Callable[[GroupAdmin], object]] = [
    lambda groups: groups.committed("kitchen"),
    lambda groups: groups.commit("kitchen", {AT: 7}),
    lambda groups: groups.delete("kitchen"),
]


def test_groups_are_gathered_from_every_broker(cluster: ThreeBrokers) -> None:
    """C9: each broker lists what it coordinates, and no more."""
    assert [group.group_id for group in GroupAdmin(cluster).all()] == ["billing", "kitchen"]
    assert cluster.asked == [(1, "ListGroups"), (2, "ListGroups"), (3, "ListGroups")]


@pytest.mark.parametrize("verb", VERBS)
def test_a_group_is_asked_about_at_its_coordinator(
    cluster: ThreeBrokers, verb: Callable[[GroupAdmin], object]
) -> None:
    """C9: nobody else can answer."""
    verb(GroupAdmin(cluster))
    assert cluster.asked[-1][0] == 3
    assert {node for node, what in cluster.asked if what != "ListGroups"} == {3}


@pytest.mark.parametrize("verb", VERBS)
def test_a_coordinator_that_has_moved_is_looked_for_again(
    cluster: ThreeBrokers, verb: Callable[[GroupAdmin], object]
) -> None:
    """C9: the first one found says that it is another."""
    cluster.believed["kitchen"] = 1
    verb(GroupAdmin(cluster))
    assert [node for node, what in cluster.asked if what != "ListGroups"] == [1, 3]


@pytest.mark.parametrize(
    "excuse", [ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.COORDINATOR_NOT_AVAILABLE]
)
@pytest.mark.parametrize("verb", VERBS)
def test_a_coordinator_that_is_not_ready_is_asked_again(
    cluster: ThreeBrokers, verb: Callable[[GroupAdmin], object], excuse: ErrorCode
) -> None:
    """C9: as long as the time-out allows, and then its own word is what is raised."""
    cluster.excuses = [excuse] * 3
    verb(GroupAdmin(cluster))
    cluster.excuses = [excuse] * 9
    with pytest.raises(ApiError) as refused:
        verb(GroupAdmin(cluster))
    assert refused.value.code is excuse


def test_what_cannot_pass_is_not_tried_again(cluster: ThreeBrokers) -> None:
    """C9: members that are still there, and a topic that is not."""
    for code, told in (
        (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.NON_EMPTY_GROUP),
        (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ):
        cluster.excuses = [code]
        with pytest.raises(ApiError) as refused:
            GroupAdmin(cluster).commit("kitchen", {AT: 7})
        assert refused.value.code is told


def test_a_broker_that_does_not_answer_is_not_passed_over(cluster: ThreeBrokers) -> None:
    """C9: its groups would seem not to exist."""
    cluster.down = {2}
    with pytest.raises(Unreachable):
        GroupAdmin(cluster).all()
