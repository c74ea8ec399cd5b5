"""FindCoordinator: which broker serves a group, a transactional id, or the state of a share partition.

Any broker can say: the partition that a key belongs to follows from the key, and who leads it from the image.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from braidmq.broker.shards import ShardMap
from braidmq.faces.kafka.request_context import RequestContext
from braidmq.wire.errors import ApiError, ErrorCode
from braidmq.wire.messages.groups import Coordinator, FindCoordinatorRequest, FindCoordinatorResponse

if TYPE_CHECKING:
    from braidmq.faces.kafka.face import KafkaFace

_GROUP = 0
_TRANSACTION = 1
_SHARE_PARTITION = 2
_SEVERAL_FROM = 4
_SHARE_KEY = re.compile(r".+:[\w-]{22}:\d{1,10}", re.DOTALL | re.ASCII)


async def find_coordinator(
    face: KafkaFace, request: FindCoordinatorRequest, context: RequestContext
) -> FindCoordinatorResponse:
    """One answer, or from version 4 one for each key."""
    if context.version >= _SEVERAL_FROM:
        return FindCoordinatorResponse(
            coordinators=[await _coordinator(face, key, request.key_type) for key in request.coordinator_keys]
        )
    found = await _coordinator(face, request.key, request.key_type)
    return FindCoordinatorResponse(
        error_code=found.error_code,
        error_message=found.error_message,
        node_id=found.node_id,
        host=found.host,
        port=found.port,
    )


async def _coordinator(face: KafkaFace, key: str, key_type: int) -> Coordinator:
    try:
        node_id = await _leader(face, _map(face, key, key_type), key)
        host, port = _address(face, node_id)
    except ApiError as error:
        return Coordinator(
            key=key, node_id=-1, port=-1, error_code=int(error.code), error_message=error.message
        )
    return Coordinator(key=key, node_id=node_id, host=host, port=port)


def _map(face: KafkaFace, key: str, key_type: int) -> ShardMap:
    """The topic in which the coordinators of this kind keep their state; ApiError for a key that is none."""
    maps: dict[int, ShardMap] = {
        _GROUP: face.broker.groups,
        _TRANSACTION: face.broker.transactions,
        _SHARE_PARTITION: face.broker.share_state,
    }
    if key_type not in maps:
        raise ApiError(ErrorCode.INVALID_REQUEST, f"there is no coordinator of type {key_type}")
    if key_type == _SHARE_PARTITION and not _SHARE_KEY.fullmatch(key):
        raise ApiError(ErrorCode.INVALID_REQUEST, "the key of a share partition is group:topic id:partition")
    if not key:
        code = ErrorCode.INVALID_REQUEST if key_type == _TRANSACTION else ErrorCode.INVALID_GROUP_ID
        raise ApiError(code, "the id is empty")
    return maps[key_type]


async def _leader(face: KafkaFace, shards: ShardMap, key: str) -> int:
    if not shards.exists:
        if not face.broker.in_cluster:
            return face.node_id
        await shards.ensure()
    return shards.leader_of(key)


def _address(face: KafkaFace, node_id: int) -> tuple[str, int]:
    if node_id == face.node_id:
        return face.host, face.port
    address = face.broker.endpoint(node_id)
    if address is None:
        raise ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "the coordinator is not running")
    return address
