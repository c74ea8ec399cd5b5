"""ShareAcknowledge, and the acknowledgements that ride on a ShareFetch: verdicts on records held (KIP-932).

The verdicts on a partition count together or not at all. They are confirmed when they are on disk, those on
several partitions by one write.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from braidmq.broker.share_partition import SharePartition
from braidmq.broker.share_records import SharePartitionKey
from braidmq.delivery.status import Acknowledgement, Verdict
from braidmq.faces.kafka.request_context import RequestContext
from braidmq.faces.kafka.share_sessions import FINAL_EPOCH, INITIAL_EPOCH, Key, ShareSession
from braidmq.group.share_group import ShareGroup
from braidmq.wire.errors import ApiError, ErrorCode
from braidmq.wire.messages.share_fetch import (
    AcknowledgementBatch,
    AcknowledgeTopic,
    LeaderIdAndEpoch,
    ShareAcknowledgePartitionData,
    ShareAcknowledgeRequest,
    ShareAcknowledgeResponse,
    ShareAcknowledgeTopicResponse,
)

if TYPE_CHECKING:
    from braidmq.faces.kafka.face import KafkaFace

_VERDICTS = {int(verdict): verdict for verdict in Verdict}


class Judged(NamedTuple):
    """How acknowledgements fared, partition by partition, and the offset at which they are durable."""

    refused: dict[Key, ApiError | None]
    durable_at: int | None


async def share_acknowledge(
    face: KafkaFace, request: ShareAcknowledgeRequest, context: RequestContext
) -> ShareAcknowledgeResponse:
    try:
        if request.share_session_epoch == INITIAL_EPOCH:
            raise ApiError(ErrorCode.INVALID_SHARE_SESSION_EPOCH, "a share session begins with a ShareFetch")
        check_names(face, request.group_id, request.member_id)
        session = face.share_sessions.go_on(
            request.group_id or "", request.member_id or "", request.share_session_epoch, context.connection
        )
    except ApiError as error:
        return ShareAcknowledgeResponse(error_code=int(error.code), error_message=error.message)
    judged = judge(face, session, request.topics, request.is_renew_ack)
    if request.share_session_epoch == FINAL_EPOCH:
        end_session(face, session)
    await confirm(face, judged)
    topics: dict[bytes, list[ShareAcknowledgePartitionData]] = {}
    for (topic_id, index), refusal in judged.refused.items():
        topics.setdefault(topic_id, []).append(
            ShareAcknowledgePartitionData(
                partition_index=index,
                error_code=int(ErrorCode.NONE if refusal is None else refusal.code),
                error_message=None if refusal is None else refusal.message,
                current_leader=current_leader(face, (topic_id, index)),
            )
        )
    return ShareAcknowledgeResponse(
        acquisition_lock_timeout_ms=lock_ms(face, session.group_id),
        responses=[
            ShareAcknowledgeTopicResponse(topic_id=topic_id, partitions=partitions)
            for topic_id, partitions in topics.items()
        ],
    )


def check_names(face: KafkaFace, group_id: str | None, member_id: str | None) -> None:
    """Raises ApiError unless there is such a share group and somebody asks."""
    if not group_id or not member_id:
        raise ApiError(ErrorCode.INVALID_REQUEST, "a share session needs a group id and a member id")
    if not isinstance(face.broker.groups.find(group_id), ShareGroup):
        raise ApiError(ErrorCode.GROUP_ID_NOT_FOUND, f"there is no share group {group_id!r}")


def lock_ms(face: KafkaFace, group_id: str) -> int:
    return face.broker.group_options.share(group_id).limits.lock_ms


def current_leader(face: KafkaFace, key: Key) -> LeaderIdAndEpoch:
    """Who leads a partition; nobody if there is none."""
    leader = face.broker.leader(*key)
    return LeaderIdAndEpoch(leader_id=leader.node_id, leader_epoch=leader.epoch)


def judge(face: KafkaFace, session: ShareSession, topics: Iterable[AcknowledgeTopic], renews: bool) -> Judged:
    """Takes the verdicts of a request and begins to write what they change."""
    refused: dict[Key, ApiError | None] = {}
    changed: list[SharePartition] = []
    for topic in topics:
        for wanted in topic.partitions:
            if not wanted.acknowledgement_batches:
                continue
            key = (topic.topic_id, wanted.partition_index)
            try:
                part = _find(face, session, key)
                given = [_read(batch, renews) for batch in wanted.acknowledgement_batches]
                face.broker.share_delivery.acknowledge(part, session.member_id, given)
                changed.append(part)
                refused[key] = None
            except ApiError as error:
                refused[key] = error
    try:
        return Judged(refused, face.broker.share_delivery.append(changed))
    except ApiError as error:
        return Judged({key: refusal or error for key, refusal in refused.items()}, None)


async def confirm(face: KafkaFace, judged: Judged) -> None:
    """Waits until verdicts are on disk; those that do not get there are refused."""
    if judged.durable_at is None:
        return
    try:
        await face.broker.share_delivery.durable(judged.durable_at)
    except ApiError as error:
        for key, refusal in judged.refused.items():
            judged.refused[key] = refusal or error


def end_session(face: KafkaFace, session: ShareSession) -> None:
    """Ends a session and gives back what its member holds."""
    face.share_sessions.end(session)
    release(face, session)


def release(face: KafkaFace, session: ShareSession) -> None:
    held = [
        part
        for part in face.broker.share_delivery.of_group(session.group_id)
        if part.window.in_flight  # a member may hold records of partitions it has forgotten since
    ]
    face.broker.share_delivery.release(session.member_id, held)


def _find(face: KafkaFace, session: ShareSession, key: Key) -> SharePartition:
    part = face.broker.share_delivery.find(SharePartitionKey(session.group_id, *key))
    if part is not None:
        return part
    if face.broker.topics.find_by_id(key[0]) is None:
        raise ApiError(ErrorCode.UNKNOWN_TOPIC_ID, "no topic has this id")
    raise ApiError(
        ErrorCode.INVALID_RECORD_STATE, f"no record of partition {key[1]} was handed out to this group"
    )


def _read(batch: AcknowledgementBatch, renews: bool) -> Acknowledgement:
    verdicts = tuple(_VERDICTS.get(kind) for kind in batch.acknowledge_types)
    known = tuple(
        verdict for verdict in verdicts if verdict is not None and (renews or verdict is not Verdict.RENEW)
    )
    if len(known) < len(verdicts):
        raise ApiError(ErrorCode.INVALID_REQUEST, "unknown acknowledge type")
    return Acknowledgement(batch.first_offset, batch.last_offset, known)
