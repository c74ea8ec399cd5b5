"""Classic groups: JoinGroup, SyncGroup, Heartbeat, LeaveGroup and administration."""

from __future__ import annotations

from typing import TYPE_CHECKING

from braidmq.faces.kafka.authorized_operations import Securable, authorized_operations
from braidmq.faces.kafka.request_context import RequestContext
from braidmq.group.classic import ClassicGroup
from braidmq.group.events import Join, Leaver, MemberProtocol, Sync
from braidmq.group.group_types import Group
from braidmq.wire.errors import ApiError, ErrorCode
from braidmq.wire.messages.groups import (
    DeletableGroupResult,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DescribedGroup,
    DescribedGroupMember,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    JoinGroupResponseMember,
    LeaveGroupRequest,
    LeaveGroupResponse,
    ListedGroup,
    ListGroupsRequest,
    ListGroupsResponse,
    MemberResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)

if TYPE_CHECKING:
    from braidmq.faces.kafka.face import KafkaFace

_MEMBERS_FROM = 3
_ERROR_FOR_MISSING_FROM = 6
_DEAD = "Dead"
_CLASSIC = "classic"


async def join_group(
    face: KafkaFace, request: JoinGroupRequest, context: RequestContext
) -> JoinGroupResponse:
    join = Join(
        member_id=request.member_id,
        client_id=context.client_id,
        client_host=f"/{context.host}",
        session_timeout_ms=request.session_timeout_ms,
        rebalance_timeout_ms=(
            request.session_timeout_ms if request.rebalance_timeout_ms < 0 else request.rebalance_timeout_ms
        ),
        protocol_type=request.protocol_type,
        protocols=tuple(MemberProtocol(each.name, each.metadata) for each in request.protocols),
        instance_id=request.group_instance_id,
        version=context.version,
    )
    try:
        coordinator = await face.broker.groups.reach(request.group_id)
        joined = await coordinator.join(request.group_id, join)
    except ApiError as error:
        return JoinGroupResponse(error_code=int(error.code), member_id=request.member_id, protocol_name="")
    return JoinGroupResponse(
        error_code=int(joined.code),
        generation_id=joined.generation,
        protocol_type=joined.protocol_type,
        # Before version 7 a response cannot carry a null name.
        protocol_name=joined.protocol_name if context.version >= 7 else joined.protocol_name or "",
        leader=joined.leader,
        skip_assignment=joined.skip_assignment,
        member_id=joined.member_id,
        members=[
            JoinGroupResponseMember(
                member_id=each.member_id, group_instance_id=each.instance_id, metadata=each.metadata
            )
            for each in joined.members
        ],
    )


async def sync_group(
    face: KafkaFace, request: SyncGroupRequest, context: RequestContext
) -> SyncGroupResponse:
    sync = Sync(
        member_id=request.member_id,
        generation=request.generation_id,
        assignments=tuple((each.member_id, each.assignment) for each in request.assignments),
        instance_id=request.group_instance_id,
        protocol_type=request.protocol_type,
        protocol_name=request.protocol_name,
    )
    try:
        coordinator = await face.broker.groups.reach(request.group_id)
        synced = await coordinator.sync(request.group_id, sync)
    except ApiError as error:
        return SyncGroupResponse(error_code=int(error.code))
    return SyncGroupResponse(
        error_code=int(synced.code),
        protocol_type=synced.protocol_type,
        protocol_name=synced.protocol_name,
        assignment=synced.assignment,
    )


def heartbeat(face: KafkaFace, request: HeartbeatRequest, context: RequestContext) -> HeartbeatResponse:
    try:
        code = face.broker.groups.of(request.group_id).heartbeat(
            request.group_id, request.member_id, request.group_instance_id, request.generation_id
        )
    except ApiError as error:
        code = error.code
    return HeartbeatResponse(error_code=int(code))


def leave_group(face: KafkaFace, request: LeaveGroupRequest, context: RequestContext) -> LeaveGroupResponse:
    if context.version >= _MEMBERS_FROM:
        leavers = [Leaver(each.member_id, each.group_instance_id) for each in request.members]
    else:
        leavers = [Leaver(request.member_id)]
    try:
        code, codes = face.broker.groups.of(request.group_id).leave(request.group_id, leavers)
    except ApiError as error:
        code, codes = error.code, []
    if context.version < _MEMBERS_FROM:
        return LeaveGroupResponse(error_code=int(code or (codes[0] if codes else ErrorCode.NONE)))
    return LeaveGroupResponse(
        error_code=int(code),
        members=[
            MemberResponse(
                member_id=leaver.member_id, group_instance_id=leaver.instance_id, error_code=int(each)
            )
            for leaver, each in zip(leavers, codes, strict=False)
        ],
    )


# -- administration -----------------------------------------------------------------------------


def list_groups(face: KafkaFace, request: ListGroupsRequest, context: RequestContext) -> ListGroupsResponse:
    states = {state.lower() for state in request.states_filter}
    types = {kind.lower() for kind in request.types_filter}
    """The groups that this broker coordinates; clients ask every broker."""
    listed = [_listed(group) for group in face.broker.groups.all_groups()]
    return ListGroupsResponse(
        error_code=int(
            ErrorCode.COORDINATOR_LOAD_IN_PROGRESS if face.broker.groups.is_loading else ErrorCode.NONE
        ),
        groups=[
            each
            for each in listed
            if (not states or each.group_state.lower() in states)
            and (not types or each.group_type.lower() in types)
        ],
    )


def _listed(group: Group) -> ListedGroup:
    if isinstance(group, ClassicGroup):
        return ListedGroup(
            group_id=group.group_id,
            protocol_type=group.protocol_type or "",
            group_state=group.state.value,
            group_type=_CLASSIC,
        )
    return ListedGroup(
        group_id=group.group_id,
        protocol_type=group.protocol_type,
        group_state=group.state.value,
        group_type=group.group_type,
    )


def describe_groups(
    face: KafkaFace, request: DescribeGroupsRequest, context: RequestContext
) -> DescribeGroupsResponse:
    """Classic groups; one that does not exist is shown as dead, as in Kafka."""
    return DescribeGroupsResponse(groups=[_describe(face, name, request, context) for name in request.groups])


def _describe(
    face: KafkaFace, group_id: str, request: DescribeGroupsRequest, context: RequestContext
) -> DescribedGroup:
    try:
        group = face.broker.groups.of(group_id).groups.find_classic(group_id)
    except ApiError as error:
        return DescribedGroup(
            group_id=group_id,
            error_code=int(error.code),
            error_message=error.message if context.version >= _ERROR_FOR_MISSING_FROM else None,
        )
    if group is None:
        missing = context.version >= _ERROR_FOR_MISSING_FROM
        return DescribedGroup(
            group_id=group_id,
            group_state=_DEAD,
            error_code=int(ErrorCode.GROUP_ID_NOT_FOUND if missing else ErrorCode.NONE),
            error_message=f"there is no classic group {group_id!r}" if missing else None,
        )
    described = group.describe()
    return DescribedGroup(
        group_id=group_id,
        group_state=described.state,
        protocol_type=described.protocol_type,
        protocol_data=described.protocol_name,
        members=[
            DescribedGroupMember(
                member_id=each.member_id,
                group_instance_id=each.instance_id,
                client_id=each.client_id,
                client_host=each.client_host,
                member_metadata=each.metadata,
                member_assignment=each.assignment,
            )
            for each in described.members
        ],
        authorized_operations=authorized_operations(
            Securable.GROUP, group_id, context, wanted=request.include_authorized_operations
        ),
    )


async def delete_groups(
    face: KafkaFace, request: DeleteGroupsRequest, context: RequestContext
) -> DeleteGroupsResponse:
    results = []
    for name in request.groups_names:
        try:
            code = await face.broker.delete_group(name)
        except ApiError as error:
            code = error.code
        results.append(DeletableGroupResult(group_id=name, error_code=int(code)))
    return DeleteGroupsResponse(results=results)
