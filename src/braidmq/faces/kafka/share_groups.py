"""Share groups (KIP-932): heartbeats, description, and where a group begins to read each partition."""

from __future__ import annotations

from typing import TYPE_CHECKING

from braidmq.broker.opening import opened
from braidmq.broker.share_records import SharePartitionKey
from braidmq.broker.topic import Topic
from braidmq.faces.kafka.authorized_operations import Securable, authorized_operations
from braidmq.faces.kafka.consumer_groups import described_assignment, heartbeat_assignment
from braidmq.faces.kafka.request_context import RequestContext
from braidmq.group.assignors import NOTHING
from braidmq.group.consumer_member import Heartbeat
from braidmq.group.share_group import ShareGroup, ShareMember
from braidmq.wire.errors import ApiError, ErrorCode
from braidmq.wire.messages.share_groups import (
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsRequestPartition,
    AlterShareGroupOffsetsResponse,
    AlterShareGroupOffsetsResponsePartition,
    AlterShareGroupOffsetsResponseTopic,
    DeleteShareGroupOffsetsRequest,
    DeleteShareGroupOffsetsResponse,
    DeleteShareGroupOffsetsResponseTopic,
    DescribedShareGroup,
    DescribedShareGroupMember,
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsRequestGroup,
    DescribeShareGroupOffsetsResponse,
    DescribeShareGroupOffsetsResponseGroup,
    DescribeShareGroupOffsetsResponsePartition,
    DescribeShareGroupOffsetsResponseTopic,
    ShareGroupDescribeRequest,
    ShareGroupDescribeResponse,
    ShareGroupHeartbeatRequest,
    ShareGroupHeartbeatResponse,
)
from braidmq.wire.primitives import ZERO_UUID

if TYPE_CHECKING:
    from braidmq.faces.kafka.face import KafkaFace

_ASSIGNOR = "simple"
_NOT_READ_YET = -1


# -- membership ---------------------------------------------------------------------------------


async def share_group_heartbeat(
    face: KafkaFace, request: ShareGroupHeartbeatRequest, context: RequestContext
) -> ShareGroupHeartbeatResponse:
    names = request.subscribed_topic_names
    beat = Heartbeat(
        member_id=request.member_id,
        member_epoch=request.member_epoch,
        client_id=context.client_id,
        client_host=f"/{context.host}",
        rack_id=request.rack_id,
        topics=None if names is None else frozenset(names),
    )
    try:
        coordinator = await face.broker.groups.reach(request.group_id)
        answer = await coordinator.share_heartbeat(request.group_id, beat)
    except ApiError as error:
        return ShareGroupHeartbeatResponse(error_code=int(error.code), error_message=error.message)
    return ShareGroupHeartbeatResponse(
        member_id=answer.member_id,
        member_epoch=answer.member_epoch,
        heartbeat_interval_ms=answer.heartbeat_interval_ms,
        assignment=None if answer.assignment is None else heartbeat_assignment(answer.assignment),
    )


def share_group_describe(
    face: KafkaFace, request: ShareGroupDescribeRequest, context: RequestContext
) -> ShareGroupDescribeResponse:
    return ShareGroupDescribeResponse(
        groups=[_describe(face, group_id, request, context) for group_id in request.group_ids]
    )


def _describe(
    face: KafkaFace, group_id: str, request: ShareGroupDescribeRequest, context: RequestContext
) -> DescribedShareGroup:
    try:
        group = _group(face, group_id)
    except ApiError as error:
        return DescribedShareGroup(
            group_id=group_id, error_code=int(error.code), error_message=error.message, group_state="Dead"
        )
    return DescribedShareGroup(
        group_id=group_id,
        group_state=group.state.value,
        group_epoch=group.epoch,
        assignment_epoch=group.target_epoch,
        assignor_name=_ASSIGNOR,
        members=[_member(face, group, member) for member in group.members.values()],
        authorized_operations=authorized_operations(
            Securable.GROUP, group_id, context, wanted=request.include_authorized_operations
        ),
    )


def _member(face: KafkaFace, group: ShareGroup, member: ShareMember) -> DescribedShareGroupMember:
    return DescribedShareGroupMember(
        member_id=member.member_id,
        rack_id=member.rack_id,
        member_epoch=member.epoch,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=sorted(member.topics),
        assignment=described_assignment(face, group.targets.get(member.member_id, NOTHING)),
    )


def _group(face: KafkaFace, group_id: str) -> ShareGroup:
    group = face.broker.groups.find(group_id)
    if not isinstance(group, ShareGroup):
        raise ApiError(ErrorCode.GROUP_ID_NOT_FOUND, f"there is no share group {group_id!r}")
    return group


def _idle_group(face: KafkaFace, group_id: str) -> None:
    """Raises ApiError unless this is a share group whose offsets may be changed."""
    if _group(face, group_id).members:
        raise ApiError(ErrorCode.NON_EMPTY_GROUP, f"share group {group_id!r} has members")


def _check_movable(face: KafkaFace, group_id: str) -> None:
    """Raises ApiError unless this is a share group without members, or nothing at all yet."""
    if not group_id:
        raise ApiError(ErrorCode.INVALID_GROUP_ID, "the group id is empty")
    if face.broker.groups.find(group_id) is not None:
        _idle_group(face, group_id)


# -- where a group is ---------------------------------------------------------------------------


async def describe_share_group_offsets(
    face: KafkaFace, request: DescribeShareGroupOffsetsRequest, context: RequestContext
) -> DescribeShareGroupOffsetsResponse:
    for group in request.groups:
        await opened(part.partition for part in face.broker.share_delivery.of_group(group.group_id))
    return DescribeShareGroupOffsetsResponse(groups=[_offsets(face, each) for each in request.groups])


def _offsets(
    face: KafkaFace, wanted: DescribeShareGroupOffsetsRequestGroup
) -> DescribeShareGroupOffsetsResponseGroup:
    group_id = wanted.group_id
    try:
        _group(face, group_id)
    except ApiError as error:
        return DescribeShareGroupOffsetsResponseGroup(
            group_id=group_id, error_code=int(error.code), error_message=error.message
        )
    if wanted.topics is None:
        asked_for = _all_read(face, group_id)
    else:
        asked_for = {topic.topic_name: topic.partitions for topic in wanted.topics}
    topics = []
    for name, indexes in asked_for.items():
        topic = face.broker.topics.find(name)
        topics.append(
            DescribeShareGroupOffsetsResponseTopic(
                topic_name=name,
                topic_id=ZERO_UUID if topic is None else topic.id,
                partitions=[_offset(face, group_id, topic, index) for index in indexes],
            )
        )
    return DescribeShareGroupOffsetsResponseGroup(group_id=group_id, topics=topics)


def _all_read(face: KafkaFace, group_id: str) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for part in face.broker.share_delivery.of_group(group_id):
        found.setdefault(part.partition.topic, []).append(part.key.partition)
    return {name: sorted(found[name]) for name in sorted(found)}


def _offset(
    face: KafkaFace, group_id: str, topic: Topic | None, index: int
) -> DescribeShareGroupOffsetsResponsePartition:
    if topic is None or not 0 <= index < topic.partition_count:
        return DescribeShareGroupOffsetsResponsePartition(
            partition_index=index,
            start_offset=_NOT_READ_YET,
            error_code=int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
            error_message=f"there is no such partition {index}",
        )
    part = face.broker.share_delivery.find(SharePartitionKey(group_id, topic.id, index))
    if part is None:
        return DescribeShareGroupOffsetsResponsePartition(partition_index=index, start_offset=_NOT_READ_YET)
    try:
        part.follow_log()
        return DescribeShareGroupOffsetsResponsePartition(
            partition_index=index,
            start_offset=part.window.start_offset,
            leader_epoch=part.partition.leader_epoch,
            lag=part.lag,
        )
    except ApiError as error:
        return DescribeShareGroupOffsetsResponsePartition(
            partition_index=index,
            start_offset=_NOT_READ_YET,
            error_code=int(error.code),
            error_message=error.message,
        )


async def alter_share_group_offsets(
    face: KafkaFace, request: AlterShareGroupOffsetsRequest, context: RequestContext
) -> AlterShareGroupOffsetsResponse:
    """Sets where a group without members begins; a group that does not exist yet is created."""
    try:
        _check_movable(face, request.group_id)
    except ApiError as error:
        return AlterShareGroupOffsetsResponse(error_code=int(error.code), error_message=error.message)
    responses = []
    for wanted in request.topics:
        topic = face.broker.topics.find(wanted.topic_name)
        responses.append(
            AlterShareGroupOffsetsResponseTopic(
                topic_name=wanted.topic_name,
                topic_id=ZERO_UUID if topic is None else topic.id,
                partitions=[await _alter(face, request.group_id, topic, each) for each in wanted.partitions],
            )
        )
    return AlterShareGroupOffsetsResponse(responses=responses)


async def _alter(
    face: KafkaFace, group_id: str, topic: Topic | None, wanted: AlterShareGroupOffsetsRequestPartition
) -> AlterShareGroupOffsetsResponsePartition:
    answer = AlterShareGroupOffsetsResponsePartition(partition_index=wanted.partition_index)
    try:
        if topic is None:
            raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "no topic has this name")
        if not 0 <= wanted.partition_index < topic.partition_count:
            raise ApiError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"the topic has no partition {wanted.partition_index}"
            )
        if wanted.start_offset < 0:
            raise ApiError(
                ErrorCode.INVALID_REQUEST, f"{wanted.start_offset} is not an offset; give 0 or more"
            )
        # Again for each partition: somebody may have joined while the one before was written.
        _check_movable(face, group_id)
        await (await face.broker.groups.reach(group_id)).make_share(group_id)
        await face.broker.share_delivery.move(
            SharePartitionKey(group_id, topic.id, wanted.partition_index), wanted.start_offset
        )
        # A group without offsets is forgotten now and then, and this one had none until now.
        await face.broker.groups.of(group_id).make_share(group_id)
    except ApiError as error:
        answer.error_code, answer.error_message = int(error.code), error.message
    return answer


async def delete_share_group_offsets(
    face: KafkaFace, request: DeleteShareGroupOffsetsRequest, context: RequestContext
) -> DeleteShareGroupOffsetsResponse:
    """Forgets where a group without members is; it starts over on these topics."""
    try:
        _idle_group(face, request.group_id)
    except ApiError as error:
        return DeleteShareGroupOffsetsResponse(error_code=int(error.code), error_message=error.message)
    responses = []
    for wanted in request.topics:
        topic = face.broker.topics.find(wanted.topic_name)
        answer = DeleteShareGroupOffsetsResponseTopic(
            topic_name=wanted.topic_name, topic_id=ZERO_UUID if topic is None else topic.id
        )
        try:
            if topic is None:
                raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "no topic has this name")
            parts = face.broker.share_delivery.of_group(request.group_id)
            await face.broker.share_delivery.forget(part for part in parts if part.key.topic_id == topic.id)
        except ApiError as error:
            answer.error_code, answer.error_message = int(error.code), error.message
        responses.append(answer)
    return DeleteShareGroupOffsetsResponse(responses=responses)
