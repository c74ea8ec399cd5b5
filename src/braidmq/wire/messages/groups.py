"""Consumer groups of the classic protocol: finding the coordinator, membership, and administration."""

from __future__ import annotations

from braidmq.wire.api import Api
from braidmq.wire.messages.metadata import OPERATIONS_NOT_ASKED_FOR
from braidmq.wire.schema import Message, array, boolean, data, int8, int16, int32, string


class FindCoordinatorRequest(Message, api=Api.FIND_COORDINATOR, versions=(0, 6), flexible=3):
    """One `key` up to version 3, several `coordinator_keys` from version 4."""

    key: str = string(until=3)
    key_type: int = int8(since=1)
    coordinator_keys: list[str] = array(string, since=4)


class Coordinator(Message):
    key: str = string()
    node_id: int = int32()
    host: str = string()
    port: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable=4)


class FindCoordinatorResponse(Message, api=Api.FIND_COORDINATOR, versions=(0, 6), flexible=3):
    throttle_time_ms: int = int32(since=1)
    error_code: int = int16(until=3)
    error_message: str | None = string(since=1, until=3, nullable=1)
    node_id: int = int32(until=3)
    host: str = string(until=3)
    port: int = int32(until=3)
    coordinators: list[Coordinator] = array(Coordinator, since=4)


class JoinGroupRequestProtocol(Message):
    name: str = string()
    metadata: bytes = data()


class JoinGroupRequest(Message, api=Api.JOIN_GROUP, versions=(0, 9), flexible=6):
    group_id: str = string()
    session_timeout_ms: int = int32()
    rebalance_timeout_ms: int = int32(since=1, default=-1)
    member_id: str = string()
    group_instance_id: str | None = string(since=5, nullable=5)
    protocol_type: str = string()
    protocols: list[JoinGroupRequestProtocol] = array(JoinGroupRequestProtocol)
    reason: str | None = string(since=8, nullable=8)


class JoinGroupResponseMember(Message):
    member_id: str = string()
    group_instance_id: str | None = string(since=5, nullable=5)
    metadata: bytes = data()


class JoinGroupResponse(Message, api=Api.JOIN_GROUP, versions=(0, 9), flexible=6):
    throttle_time_ms: int = int32(since=2)
    error_code: int = int16()
    generation_id: int = int32(default=-1)
    protocol_type: str | None = string(since=7, nullable=7)
    protocol_name: str | None = string(nullable=7)
    leader: str = string()
    skip_assignment: bool = boolean(since=9)
    member_id: str = string()
    members: list[JoinGroupResponseMember] = array(JoinGroupResponseMember)


class SyncGroupRequestAssignment(Message):
    member_id: str = string()
    assignment: bytes = data()


class SyncGroupRequest(Message, api=Api.SYNC_GROUP, versions=(0, 5), flexible=4):
    group_id: str = string()
    generation_id: int = int32()
    member_id: str = string()
    group_instance_id: str | None = string(since=3, nullable=3)
    protocol_type: str | None = string(since=5, nullable=5)
    protocol_name: str | None = string(since=5, nullable=5)
    assignments: list[SyncGroupRequestAssignment] = array(SyncGroupRequestAssignment)


class SyncGroupResponse(Message, api=Api.SYNC_GROUP, versions=(0, 5), flexible=4):
    throttle_time_ms: int = int32(since=1)
    error_code: int = int16()
    protocol_type: str | None = string(since=5, nullable=5)
    protocol_name: str | None = string(since=5, nullable=5)
    assignment: bytes = data()


class HeartbeatRequest(Message, api=Api.HEARTBEAT, versions=(0, 4), flexible=4):
    group_id: str = string()
    generation_id: int = int32()
    member_id: str = string()
    group_instance_id: str | None = string(since=3, nullable=3)


class HeartbeatResponse(Message, api=Api.HEARTBEAT, versions=(0, 4), flexible=4):
    throttle_time_ms: int = int32(since=1)
    error_code: int = int16()


class MemberIdentity(Message):
    member_id: str = string()
    group_instance_id: str | None = string(nullable=3)
    reason: str | None = string(since=5, nullable=5)


class LeaveGroupRequest(Message, api=Api.LEAVE_GROUP, versions=(0, 5), flexible=4):
    """One `member_id` up to version 2, several `members` from version 3."""

    group_id: str = string()
    member_id: str = string(until=2)
    members: list[MemberIdentity] = array(MemberIdentity, since=3)


class MemberResponse(Message):
    member_id: str = string()
    group_instance_id: str | None = string(nullable=3)
    error_code: int = int16()


class LeaveGroupResponse(Message, api=Api.LEAVE_GROUP, versions=(0, 5), flexible=4):
    throttle_time_ms: int = int32(since=1)
    error_code: int = int16()
    members: list[MemberResponse] = array(MemberResponse, since=3)


class ListGroupsRequest(Message, api=Api.LIST_GROUPS, versions=(0, 5), flexible=3):
    states_filter: list[str] = array(string, since=4)
    types_filter: list[str] = array(string, since=5)


class ListedGroup(Message):
    group_id: str = string()
    protocol_type: str = string()
    group_state: str = string(since=4)
    group_type: str = string(since=5)


class ListGroupsResponse(Message, api=Api.LIST_GROUPS, versions=(0, 5), flexible=3):
    throttle_time_ms: int = int32(since=1)
    error_code: int = int16()
    groups: list[ListedGroup] = array(ListedGroup)


class DescribeGroupsRequest(Message, api=Api.DESCRIBE_GROUPS, versions=(0, 6), flexible=5):
    groups: list[str] = array(string)
    include_authorized_operations: bool = boolean(since=3)


class DescribedGroupMember(Message):
    member_id: str = string()
    group_instance_id: str | None = string(since=4, nullable=4)
    client_id: str = string()
    client_host: str = string()
    member_metadata: bytes = data()
    member_assignment: bytes = data()


class DescribedGroup(Message):
    error_code: int = int16()
    error_message: str | None = string(since=6, nullable=6)
    group_id: str = string()
    group_state: str = string()
    protocol_type: str = string()
    protocol_data: str = string()
    members: list[DescribedGroupMember] = array(DescribedGroupMember)
    authorized_operations: int = int32(since=3, default=OPERATIONS_NOT_ASKED_FOR)


class DescribeGroupsResponse(Message, api=Api.DESCRIBE_GROUPS, versions=(0, 6), flexible=5):
    throttle_time_ms: int = int32(since=1)
    groups: list[DescribedGroup] = array(DescribedGroup)


class DeleteGroupsRequest(Message, api=Api.DELETE_GROUPS, versions=(0, 2), flexible=2):
    groups_names: list[str] = array(string)


class DeletableGroupResult(Message):
    group_id: str = string()
    error_code: int = int16()


class DeleteGroupsResponse(Message, api=Api.DELETE_GROUPS, versions=(0, 2), flexible=2):
    throttle_time_ms: int = int32()
    results: list[DeletableGroupResult] = array(DeletableGroupResult)
