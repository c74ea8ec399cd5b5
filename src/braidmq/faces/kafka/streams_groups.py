"""StreamsGroupHeartbeat and StreamsGroupDescribe: groups of Kafka Streams applications (KIP-1071)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from braidmq.faces.kafka.request_context import RequestContext
from braidmq.group.streams_group import Located, StreamsBeat, StreamsGroup
from braidmq.group.streams_member import Endpoint, StreamsHeartbeat, StreamsMember
from braidmq.group.streams_records import flat, task_ids, topic_message, topology
from braidmq.group.streams_tasks import NO_TASKS, Role, Tasks
from braidmq.group.streams_topology import ApplicationTopic, Subtopology, Topology
from braidmq.wire import messages
from braidmq.wire.errors import ApiError, ErrorCode, ProtocolError
from braidmq.wire.messages.streams_groups import (
    DescribedStreamsGroup,
    DescribedStreamsGroupMember,
    DescribedSubtopology,
    DescribedTasks,
    DescribedTopology,
    EndpointToPartitions,
    HeartbeatTopology,
    KeyValue,
    Status,
    StreamsGroupDescribeRequest,
    StreamsGroupDescribeResponse,
    StreamsGroupHeartbeatRequest,
    StreamsGroupHeartbeatResponse,
    TopicInfo,
    TopicPartition,
)

if TYPE_CHECKING:
    from braidmq.faces.kafka.face import KafkaFace


async def streams_group_heartbeat(
    face: KafkaFace, request: StreamsGroupHeartbeatRequest, context: RequestContext
) -> StreamsGroupHeartbeatResponse:
    """Answered when what it changed is on disk and internal topics it needs are there."""
    try:
        beat = _beat(request, context)
        coordinator = await face.broker.groups.reach(request.group_id)
        answer = await coordinator.streams_heartbeat(request.group_id, beat)
    except ApiError as error:
        return StreamsGroupHeartbeatResponse(
            error_code=int(error.code), error_message=error.message, status=[]
        )
    return _answered(answer)


def _beat(request: StreamsGroupHeartbeatRequest, context: RequestContext) -> StreamsHeartbeat:
    _check_supported(request)
    endpoint, tags = request.user_endpoint, request.client_tags
    return StreamsHeartbeat(
        member_id=request.member_id,
        member_epoch=request.member_epoch,
        client_id=context.client_id,
        client_host=f"/{context.host}",
        rack_id=request.rack_id,
        rebalance_timeout_ms=request.rebalance_timeout_ms,
        topology=None if request.topology is None else _topology(request.topology),
        owned=_owned(request),
        process_id=request.process_id,
        endpoint=None if endpoint is None else Endpoint(endpoint.host, endpoint.port),
        tags=None if tags is None else tuple(sorted((one.key, one.value) for one in tags)),
        endpoint_epoch=request.endpoint_information_epoch,
        ends_application=request.shutdown_application,
    )


def _check_supported(request: StreamsGroupHeartbeatRequest) -> None:
    """The message has room for more than Kafka's clients send and its servers take."""
    if request.instance_id is not None:
        raise ApiError(ErrorCode.INVALID_REQUEST, "streams groups have no static members")
    if request.task_offsets is not None or request.task_end_offsets is not None or request.warmup_tasks:
        raise ApiError(ErrorCode.INVALID_REQUEST, "streams groups have no warm-up tasks")
    topology = request.topology
    if topology is not None and any(part.source_topic_regex for part in topology.subtopologies):
        raise ApiError(ErrorCode.INVALID_REQUEST, "source topics of streams groups are given by name")


def _topology(message: HeartbeatTopology) -> Topology:
    try:
        return topology(message.epoch, message.subtopologies)
    except ProtocolError as error:
        raise ApiError(ErrorCode.STREAMS_INVALID_TOPOLOGY, str(error)) from None


def _owned(request: StreamsGroupHeartbeatRequest) -> Tasks | None:
    active, standby, warmup = request.active_tasks, request.standby_tasks, request.warmup_tasks
    if active is None and standby is None and warmup is None:
        return None
    if active is None or standby is None or warmup is None:
        raise ApiError(ErrorCode.INVALID_REQUEST, "a member gives its tasks of all roles or of none")
    return frozenset((*flat(Role.ACTIVE, active), *flat(Role.STANDBY, standby)))


def _answered(answer: StreamsBeat) -> StreamsGroupHeartbeatResponse:
    response = StreamsGroupHeartbeatResponse(
        member_id=answer.member_id,
        member_epoch=answer.member_epoch,
        heartbeat_interval_ms=answer.heartbeat_interval_ms,
        status=[Status(status_code=int(one.code), status_detail=one.detail) for one in answer.statuses],
        endpoint_information_epoch=answer.endpoint_epoch,
    )
    if answer.tasks is not None:
        response.active_tasks = task_ids(answer.tasks, Role.ACTIVE)
        response.standby_tasks = task_ids(answer.tasks, Role.STANDBY)
        response.warmup_tasks = task_ids(answer.tasks, Role.WARMUP)
    if answer.located is not None:
        response.partitions_by_user_endpoint = [_located(one) for one in answer.located]
    return response


def _located(one: Located) -> EndpointToPartitions:
    return EndpointToPartitions(
        user_endpoint=_endpoint(one.endpoint),
        active_partitions=[TopicPartition(topic=name, partitions=parts) for name, parts in one.active],
        standby_partitions=[TopicPartition(topic=name, partitions=parts) for name, parts in one.standby],
    )


def _endpoint(endpoint: Endpoint) -> messages.streams_groups.Endpoint:
    return messages.streams_groups.Endpoint(host=endpoint.host, port=endpoint.port)


def streams_group_describe(
    face: KafkaFace, request: StreamsGroupDescribeRequest, context: RequestContext
) -> StreamsGroupDescribeResponse:
    """One result per group asked for."""
    return StreamsGroupDescribeResponse(groups=[_describe(face, group_id) for group_id in request.group_ids])


def _describe(face: KafkaFace, group_id: str) -> DescribedStreamsGroup:
    try:
        group = face.broker.groups.find(group_id)
        if not isinstance(group, StreamsGroup):
            raise ApiError(ErrorCode.GROUP_ID_NOT_FOUND, f"there is no streams group {group_id!r}")
    except ApiError as error:
        return DescribedStreamsGroup(
            group_id=group_id, error_code=int(error.code), error_message=error.message
        )
    return DescribedStreamsGroup(
        group_id=group_id,
        group_state=group.state.value,
        group_epoch=group.epoch,
        assignment_epoch=group.target_epoch,
        topology=DescribedTopology(
            epoch=group.topology.epoch,
            subtopologies=[_subtopology(group, part) for part in group.topology.subtopologies],
        ),
        members=[_member(group, member) for member in group.members.values()],
    )


def _subtopology(group: StreamsGroup, part: Subtopology) -> DescribedSubtopology:
    return DescribedSubtopology(
        subtopology_id=part.subtopology_id,
        source_topics=sorted(part.sources),
        repartition_sink_topics=sorted(part.repartition_sinks),
        state_changelog_topics=[_topic(group, topic) for topic in sorted(part.changelogs)],
        repartition_source_topics=[_topic(group, topic) for topic in sorted(part.repartition_sources)],
    )


def _topic(group: StreamsGroup, topic: ApplicationTopic) -> TopicInfo:
    """With the number of partitions that was decided, as far as one was."""
    decided = group.configured.partitions.get(topic.name, topic.partitions)
    return topic_message(topic._replace(partitions=decided))


def _member(group: StreamsGroup, member: StreamsMember) -> DescribedStreamsGroupMember:
    return DescribedStreamsGroupMember(
        member_id=member.member_id,
        member_epoch=member.epoch,
        rack_id=member.rack_id,
        client_id=member.client_id,
        client_host=member.client_host,
        topology_epoch=member.topology_epoch,
        process_id=member.process_id,
        user_endpoint=None if member.endpoint is None else _endpoint(member.endpoint),
        client_tags=[KeyValue(key=key, value=text) for key, text in member.tags],
        assignment=_tasks(member.assigned),
        target_assignment=_tasks(group.targets.get(member.member_id, NO_TASKS)),
    )


def _tasks(tasks: Tasks) -> DescribedTasks:
    return DescribedTasks(
        active_tasks=task_ids(tasks, Role.ACTIVE),
        standby_tasks=task_ids(tasks, Role.STANDBY),
        warmup_tasks=task_ids(tasks, Role.WARMUP),
    )
