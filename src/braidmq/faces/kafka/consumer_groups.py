"""ConsumerGroupHeartbeat and ConsumerGroupDescribe: groups whose members the server assigns (KIP-848)."""

from __future__ import annotations

from collections.abc import Coroutine, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from braidmq.faces.kafka.authorized_operations import Securable, authorized_operations
from braidmq.faces.kafka.request_context import RequestContext
from braidmq.group.assignors import NOTHING, Partitions
from braidmq.group.consumer_group import ConsumerGroup
from braidmq.group.consumer_member import ConsumerMember, Heartbeat, SteadyBeat
from braidmq.wire.errors import ApiError, ErrorCode
from braidmq.wire.messages.consumer_groups import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    DescribedAssignment,
    DescribedConsumerGroup,
    DescribedConsumerGroupMember,
    DescribedTopicPartitions,
    HeartbeatAssignment,
    HeartbeatTopicPartitions,
)

if TYPE_CHECKING:
    from braidmq.faces.kafka.face import KafkaFace

_CONSUMER_MEMBER = 1
_OWN_ID_FROM = 1
"""The version from which on members make their ids themselves (KIP-1082)."""


def consumer_group_heartbeat(
    face: KafkaFace, request: ConsumerGroupHeartbeatRequest, context: RequestContext
) -> ConsumerGroupHeartbeatResponse | Coroutine[Any, Any, ConsumerGroupHeartbeatResponse]:
    """Answered at once if neither side has anything new to say."""
    if _says_nothing(request):
        beat = SteadyBeat(request.member_id, request.member_epoch, context.client_id, f"/{context.host}")
        interval_ms = None
        with suppress(ApiError):
            interval_ms = face.broker.groups.of(request.group_id).steady_heartbeat(request.group_id, beat)
        if interval_ms is not None:
            return ConsumerGroupHeartbeatResponse(
                member_id=request.member_id,
                member_epoch=request.member_epoch,
                heartbeat_interval_ms=interval_ms,
            )
    return _heartbeat(face, request, context)


def _says_nothing(request: ConsumerGroupHeartbeatRequest) -> bool:
    return (
        request.topic_partitions is None
        and request.subscribed_topic_names is None
        and request.subscribed_topic_regex is None
        and request.instance_id is None
        and request.rack_id is None
        and request.server_assignor is None
        and request.rebalance_timeout_ms < 0
    )


async def _heartbeat(
    face: KafkaFace, request: ConsumerGroupHeartbeatRequest, context: RequestContext
) -> ConsumerGroupHeartbeatResponse:
    if context.version >= _OWN_ID_FROM and not request.member_id:
        return ConsumerGroupHeartbeatResponse(
            error_code=int(ErrorCode.INVALID_REQUEST), error_message="a member makes its id itself"
        )
    names = request.subscribed_topic_names
    beat = Heartbeat(
        member_id=request.member_id,
        member_epoch=request.member_epoch,
        client_id=context.client_id,
        client_host=f"/{context.host}",
        instance_id=request.instance_id,
        rack_id=request.rack_id,
        rebalance_timeout_ms=request.rebalance_timeout_ms,
        topics=None if names is None else frozenset(names),
        pattern=request.subscribed_topic_regex,
        assignor=request.server_assignor,
        owned=None if request.topic_partitions is None else _partitions(request.topic_partitions),
    )
    try:
        coordinator = await face.broker.groups.reach(request.group_id)
        answer = await coordinator.consumer_heartbeat(request.group_id, beat)
    except ApiError as error:
        return ConsumerGroupHeartbeatResponse(error_code=int(error.code), error_message=error.message)
    return ConsumerGroupHeartbeatResponse(
        member_id=answer.member_id,
        member_epoch=answer.member_epoch,
        heartbeat_interval_ms=answer.heartbeat_interval_ms,
        assignment=None if answer.assignment is None else heartbeat_assignment(answer.assignment),
    )


def heartbeat_assignment(partitions: Partitions) -> HeartbeatAssignment:
    return HeartbeatAssignment(
        topic_partitions=[
            HeartbeatTopicPartitions(topic_id=topic_id, partitions=indexes)
            for topic_id, indexes in _by_topic(partitions)
        ]
    )


def _partitions(topics: Iterable[HeartbeatTopicPartitions]) -> Partitions:
    return frozenset((topic.topic_id, index) for topic in topics for index in topic.partitions)


def _by_topic(partitions: Partitions) -> list[tuple[bytes, list[int]]]:
    topics: dict[bytes, list[int]] = {}
    for topic_id, index in sorted(partitions):
        topics.setdefault(topic_id, []).append(index)
    return list(topics.items())


def consumer_group_describe(
    face: KafkaFace, request: ConsumerGroupDescribeRequest, context: RequestContext
) -> ConsumerGroupDescribeResponse:
    """One result per group asked for; clients ask DescribeGroups about those that are not of this kind."""
    return ConsumerGroupDescribeResponse(
        groups=[_describe(face, group_id, request, context) for group_id in request.group_ids]
    )


def _describe(
    face: KafkaFace, group_id: str, request: ConsumerGroupDescribeRequest, context: RequestContext
) -> DescribedConsumerGroup:
    try:
        group = face.broker.groups.find(group_id)
        if not isinstance(group, ConsumerGroup):
            raise ApiError(ErrorCode.GROUP_ID_NOT_FOUND, f"there is no server-assigned group {group_id!r}")
    except ApiError as error:
        return DescribedConsumerGroup(
            group_id=group_id, error_code=int(error.code), error_message=error.message
        )
    return DescribedConsumerGroup(
        group_id=group_id,
        group_state=group.state.value,
        group_epoch=group.epoch,
        assignment_epoch=group.target_epoch,
        assignor_name=group.assignor,
        members=[_member(face, group, member) for member in group.members.values()],
        authorized_operations=authorized_operations(
            Securable.GROUP, group_id, context, wanted=request.include_authorized_operations
        ),
    )


def _member(face: KafkaFace, group: ConsumerGroup, member: ConsumerMember) -> DescribedConsumerGroupMember:
    return DescribedConsumerGroupMember(
        member_id=member.member_id,
        instance_id=member.instance_id,
        rack_id=member.rack_id,
        member_epoch=member.epoch,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=sorted(member.topics),
        subscribed_topic_regex=member.pattern or None,
        assignment=described_assignment(face, member.assigned),
        target_assignment=described_assignment(face, group.targets.get(member.member_id, NOTHING)),
        member_type=_CONSUMER_MEMBER,
    )


def described_assignment(face: KafkaFace, partitions: Partitions) -> DescribedAssignment:
    described = []
    for topic_id, indexes in _by_topic(partitions):
        topic = face.broker.topics.find_by_id(topic_id)
        if topic is not None:
            described.append(
                DescribedTopicPartitions(topic_id=topic_id, topic_name=topic.name, partitions=indexes)
            )
    return DescribedAssignment(topic_partitions=described)
