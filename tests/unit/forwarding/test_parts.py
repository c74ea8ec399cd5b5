"""Requests cut by who answers them, answers joined, and refusals: for every verb of the table."""

from __future__ import annotations

from typing import Any

import pytest

from braidmq.faces.kafka.forwarding.parts import cut, join, refusal, without_addresses
from braidmq.faces.kafka.forwarding.routes import By, route_of
from braidmq.faces.kafka.forwarding.sharing import ROUTE as SHARED
from braidmq.wire.api import Api, request_class, response_class
from braidmq.wire.errors import ErrorCode
from braidmq.wire.messages.commits import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from braidmq.wire.messages.fetch import FetchableTopicResponse, FetchResponse, PartitionData
from braidmq.wire.messages.groups import DescribeGroupsRequest, JoinGroupRequest, ListGroupsRequest
from braidmq.wire.messages.offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
    ListOffsetsTopicResponse,
)
from braidmq.wire.messages.produce import (
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from braidmq.wire.messages.transactions import AddPartitionsToTxnRequest, AddPartitionsToTxnTopic
from braidmq.wire.schema import FieldKind, Message, decode, encode

CODE = ErrorCode.NOT_LEADER_OR_FOLLOWER


class Modulo:
    """Partition n is led by broker n mod 3, a key coordinated by its length mod 3."""

    node_id = 0

    def leader(self, topic: str | bytes, index: int) -> int:
        assert topic
        return index % 3

    def coordinator(self, by: By, key: str) -> int:
        assert by in (By.GROUP, By.TRANSACTION)
        return len(key) % 3

    def every(self) -> list[int]:
        return [0, 1, 2]


def routed(request: Message, version: int | None = None) -> Any:
    found = route_of(request.api, request.versions[1] if version is None else version)
    assert found is not None
    return found


def test_partitions_go_to_their_leaders_and_come_back_under_their_topic() -> None:
    """N5: a request is cut by leader; the joined answer has each topic once, with all its partitions."""
    request = ListOffsetsRequest(
        topics=[
            ListOffsetsTopic(
                name=name, partitions=[ListOffsetsPartition(partition_index=at) for at in range(4)]
            )
            for name in ("a", "b")
        ]
    )
    route = routed(request)
    parts = cut(route, request, Modulo())
    asked = {
        node_id: [(t.name, p.partition_index) for t in part.topics for p in t.partitions]  # type: ignore[attr-defined]
        for node_id, part in parts.items()
    }
    assert asked == {
        0: [("a", 0), ("a", 3), ("b", 0), ("b", 3)],
        1: [("a", 1), ("b", 1)],
        2: [("a", 2), ("b", 2)],
    }
    answers: list[Message] = [
        ListOffsetsResponse(
            throttle_time_ms=node_id,
            topics=[
                ListOffsetsTopicResponse(
                    name=t.name,
                    partitions=[
                        ListOffsetsPartitionResponse(partition_index=p.partition_index) for p in t.partitions
                    ],
                )
                for t in part.topics  # type: ignore[attr-defined]
            ],
        )
        for node_id, part in parts.items()
    ]
    whole: Any = join(route, answers)
    assert [t.name for t in whole.topics] == ["a", "b"]
    assert [sorted(p.partition_index for p in t.partitions) for t in whole.topics] == [[0, 1, 2, 3]] * 2
    assert whole.throttle_time_ms == 2


def test_what_one_broker_answers_is_not_cut() -> None:
    """N5: a request for one broker stays the object it is."""
    produce = ProduceRequest(
        topic_data=[TopicProduceData(topic_id=b"t" * 16, partition_data=[PartitionProduceData(index=4)])]
    )
    assert cut(routed(produce), produce, Modulo()) == {1: produce}
    joining = JoinGroupRequest(group_id="four")
    assert cut(routed(joining), joining, Modulo()) == {1: joining}
    assert cut(routed(ProduceRequest()), empty := ProduceRequest(), Modulo()) == {0: empty}


def test_keys_go_to_their_coordinators_and_lists_to_everybody() -> None:
    """N5: several groups are asked of several coordinators; what is listed is listed by all."""
    request = DescribeGroupsRequest(groups=["a", "bb", "ccc", "d"])
    parts: Any = cut(routed(request), request, Modulo())
    assert {node_id: part.groups for node_id, part in parts.items()} == {1: ["a", "d"], 2: ["bb"], 0: ["ccc"]}
    assert list(cut(routed(ListGroupsRequest()), ListGroupsRequest(), Modulo())) == [0, 1, 2]


def test_a_refusal_names_everything_that_was_asked() -> None:
    """N5: where no answer comes, each partition, group or topic has its error code."""
    commit = OffsetCommitRequest(
        topics=[
            OffsetCommitRequestTopic(name="t", partitions=[OffsetCommitRequestPartition(partition_index=5)])
        ]
    )
    told: Any = refusal(routed(commit, 9), commit, 9, CODE)
    assert [(t.name, p.partition_index, p.error_code) for t in told.topics for p in t.partitions] == [
        ("t", 5, CODE)
    ]
    groups = OffsetFetchRequest(
        groups=[
            OffsetFetchRequestGroup(
                group_id="g", topics=[OffsetFetchRequestTopics(name="t", partition_indexes=[2])]
            ),
            OffsetFetchRequestGroup(group_id="h"),
        ]
    )
    told = refusal(routed(groups, 9), groups, 9, CODE)
    assert [(one.group_id, one.error_code) for one in told.groups] == [("g", CODE), ("h", CODE)]
    adding = AddPartitionsToTxnRequest(
        v3_and_below_topics=[AddPartitionsToTxnTopic(name="t", partitions=[7])]
    )
    told = refusal(routed(adding, 3), adding, 3, CODE)
    topic = told.results_by_topic_v3_and_below[0]
    assert (topic.name, topic.results_by_partition[0].partition_index) == ("t", 7)
    assert topic.results_by_partition[0].partition_error_code == CODE


def test_addresses_of_others_are_taken_out() -> None:
    """N5: what a leader says about who leads now would send the client where it cannot go."""
    answer = FetchResponse(
        responses=[
            FetchableTopicResponse(
                partitions=[
                    PartitionData(error_code=6, current_leader=LeaderIdAndEpoch(leader_id=2, leader_epoch=4))
                ]
            )
        ],
        node_endpoints=[NodeEndpoint(node_id=2, host="elsewhere", port=1)],
    )
    without_addresses(answer)
    assert answer.node_endpoints == []
    leader = answer.responses[0].partitions[0].current_leader
    assert leader is not None
    assert (leader.leader_id, leader.leader_epoch) == (-1, -1)


def filled(kind: type[Message], version: int) -> Any:
    """A message in which every list has one element, so that a refusal has something to name."""
    made: Any = kind()
    for field in kind.fields:
        if not field.present(version):
            continue
        if field.kind is FieldKind.ARRAY:
            if isinstance(field.element, type):
                setattr(made, field.name, [filled(field.element, version)])
            else:
                assert field.element is not None
                setattr(made, field.name, ["x" if field.element.kind is FieldKind.STRING else 1])
        elif field.kind is FieldKind.STRING:
            setattr(made, field.name, "x")
        elif field.kind is FieldKind.UUID:
            setattr(made, field.name, b"u" * 16)
    return made


def codes(message: Any) -> list[int]:
    found = []
    for field in message.fields:
        value = getattr(message, field.name)
        if field.name in ("error_code", "partition_error_code"):
            found.append(value)
        elif field.kind is FieldKind.ARRAY and isinstance(field.element, type):
            found += [code for element in value or () for code in codes(element)]
    return found


def forwarded_verbs() -> list[tuple[Api, int]]:
    found = []
    for api in Api:
        try:
            oldest, newest = request_class(api).versions
        except KeyError:
            continue
        found += [(api, version) for version in range(oldest, newest + 1) if route_of(api, version)]
    return found


@pytest.mark.parametrize("api", [Api.SHARE_FETCH, Api.SHARE_ACKNOWLEDGE])
def test_what_is_shared_can_be_refused(api: Api) -> None:
    """N5: a leader that does not answer is an error of its partitions, which can be sent."""
    oldest, newest = request_class(api).versions
    for version in range(oldest, newest + 1):
        request = filled(request_class(api), version)
        told = refusal(SHARED, request, version, CODE)
        assert CODE in codes(decode(response_class(api), version, encode(told, version)))


@pytest.mark.parametrize(
    ("api", "version"), forwarded_verbs(), ids=lambda value: str(getattr(value, "name", value))
)
def test_every_verb_can_be_cut_refused_and_joined(api: Api, version: int) -> None:
    """N5: in all its versions; the answer can be sent, and says everywhere that it failed."""
    route = route_of(api, version)
    assert route is not None
    request = filled(request_class(api), version)
    parts = cut(route, request, Modulo())
    told = join(route, [refusal(route, part, version, CODE) for part in parts.values()])
    read = decode(response_class(api), version, encode(told, version))
    assert CODE in codes(read), "somebody must learn of it"
