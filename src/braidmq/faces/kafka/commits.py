"""OffsetCommit, OffsetFetch and OffsetDelete: where groups have got to."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from braidmq.broker.group_coordinator import Committer
from braidmq.broker.topic import Topic
from braidmq.faces.kafka.request_context import RequestContext
from braidmq.group.offsets import Commit, Committed, OffsetTable, checked_metadata
from braidmq.wire.errors import ApiError, ErrorCode
from braidmq.wire.messages.commits import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopic,
    OffsetFetchResponseTopics,
)
from braidmq.wire.messages.transactions import TxnOffsetCommitRequestPartition
from braidmq.wire.primitives import ZERO_UUID

if TYPE_CHECKING:
    from braidmq.faces.kafka.face import KafkaFace

_IDS_FROM = 10
_GROUPS_FROM = 8
_NO_OFFSET = -1
_NO_RETENTION = -1
ANSWERS_KEPT = 1024
ANSWER_PARTITIONS_MAX = 64


async def offset_commit(
    face: KafkaFace, request: OffsetCommitRequest, context: RequestContext
) -> OffsetCommitResponse:
    """Stores what can be stored; each partition gets its own result."""
    try:
        # First of all: nothing is awaited between looking at a topic and committing for it.
        coordinator = await face.broker.groups.reach(request.group_id)
    except ApiError as error:
        return _answered(request, error.code, {})
    refused: dict[tuple[int, int], ErrorCode] = {}
    entries: list[Commit] = []
    now_ms = face.broker.clock.wall_ms()
    for number, topic in enumerate(request.topics):
        try:
            found = _topic(face, topic.name, topic.topic_id, context.version)
        except ApiError as error:
            refused |= {(number, part.partition_index): error.code for part in topic.partitions}
            continue
        for part in topic.partitions:
            try:
                entries.append(entry(face, found, part, now_ms, request.retention_time_ms))
            except ApiError as error:
                refused[number, part.partition_index] = error.code
    code = ErrorCode.NONE
    member = Committer(
        request.member_id, request.group_instance_id, request.generation_id_or_member_epoch, context.version
    )
    try:
        await coordinator.commit(request.group_id, member, entries)
    except ApiError as error:
        code = error.code
    if code is ErrorCode.NONE and not refused and len(entries) <= ANSWER_PARTITIONS_MAX:
        return _all_committed(
            tuple(
                (topic.name, topic.topic_id, tuple([part.partition_index for part in topic.partitions]))
                for topic in request.topics
            )
        )
    return _answered(request, code, refused)


def _answered(
    request: OffsetCommitRequest, code: ErrorCode, refused: dict[tuple[int, int], ErrorCode]
) -> OffsetCommitResponse:
    return OffsetCommitResponse(
        topics=[
            OffsetCommitResponseTopic(
                name=topic.name,
                topic_id=topic.topic_id,
                partitions=[
                    OffsetCommitResponsePartition(
                        partition_index=part.partition_index,
                        error_code=int(code or refused.get((number, part.partition_index), ErrorCode.NONE)),
                    )
                    for part in topic.partitions
                ],
            )
            for number, topic in enumerate(request.topics)
        ]
    )


@lru_cache(maxsize=ANSWERS_KEPT)
def _all_committed(topics: tuple[tuple[str, bytes, tuple[int, ...]], ...]) -> OffsetCommitResponse:
    """The answer a consumer gets nearly every time; it commits the same partitions again and again."""
    return OffsetCommitResponse(
        topics=[
            OffsetCommitResponseTopic(
                name=name,
                topic_id=topic_id,
                partitions=[OffsetCommitResponsePartition(partition_index=index) for index in indexes],
            )
            for name, topic_id, indexes in topics
        ]
    )


def entry(
    face: KafkaFace,
    found: Topic,
    part: OffsetCommitRequestPartition | TxnOffsetCommitRequestPartition,
    now_ms: int,
    retention_ms: int = _NO_RETENTION,
) -> Commit:
    """One offset as it is stored; ApiError if there is no such partition, or too much is attached."""
    if not 0 <= part.partition_index < found.partition_count:
        raise ApiError(
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{found.name!r} has no partition {part.partition_index}"
        )
    settings = face.broker.groups.settings
    expire_ms = now_ms + retention_ms if retention_ms >= 0 else None
    committed = Committed(
        part.committed_offset,
        part.committed_leader_epoch,
        checked_metadata(part.committed_metadata, settings.offset_metadata_max_bytes),
        now_ms,
        expire_ms,
    )
    return (found.name, part.partition_index), committed


def _topic(face: KafkaFace, name: str, topic_id: bytes, version: int) -> Topic:
    if version < _IDS_FROM:
        return face.broker.topics.get(name)
    found = face.broker.topics.find_by_id(topic_id)
    if found is None:
        raise ApiError(ErrorCode.UNKNOWN_TOPIC_ID, "no topic has this id")
    return found


def offset_fetch(
    face: KafkaFace, request: OffsetFetchRequest, context: RequestContext
) -> OffsetFetchResponse:
    """Committed offsets of one group, or from version 8 of several."""
    if context.version >= _GROUPS_FROM:
        return OffsetFetchResponse(
            groups=[
                _fetch_group(face, group, request.require_stable, context.version) for group in request.groups
            ]
        )
    topics = None
    if request.topics is not None:
        topics = [
            OffsetFetchRequestTopics(name=each.name, partition_indexes=each.partition_indexes)
            for each in request.topics
        ]
    group = OffsetFetchRequestGroup(group_id=request.group_id, topics=topics)
    found = _fetch_group(face, group, request.require_stable, context.version)
    return OffsetFetchResponse(
        error_code=found.error_code,
        topics=[
            OffsetFetchResponseTopic(
                name=topic.name,
                partitions=[
                    OffsetFetchResponsePartition(
                        partition_index=part.partition_index,
                        committed_offset=part.committed_offset,
                        committed_leader_epoch=part.committed_leader_epoch,
                        metadata=part.metadata,
                        error_code=part.error_code,
                    )
                    for part in topic.partitions
                ],
            )
            for topic in found.topics
        ],
    )


def _fetch_group(
    face: KafkaFace, group: OffsetFetchRequestGroup, stable_only: bool, version: int
) -> OffsetFetchResponseGroup:
    try:
        groups = face.broker.groups.of(group.group_id).groups
        groups.check_fetch(group.group_id, group.member_id, group.member_epoch)
    except ApiError as error:
        return OffsetFetchResponseGroup(group_id=group.group_id, error_code=int(error.code))
    wanted = group.topics
    if wanted is None:
        wanted = [
            _known(face, name, parts) for name, parts in groups.offsets(group.group_id).topics().items()
        ]
    table = groups.offsets(group.group_id)
    return OffsetFetchResponseGroup(
        group_id=group.group_id,
        topics=[_fetch_topic(face, table, each, stable_only, version) for each in wanted],
    )


def _known(face: KafkaFace, name: str, partitions: list[int]) -> OffsetFetchRequestTopics:
    topic = face.broker.topics.find(name)
    topic_id = ZERO_UUID if topic is None else topic.id
    return OffsetFetchRequestTopics(name=name, topic_id=topic_id, partition_indexes=partitions)


def _fetch_topic(
    face: KafkaFace, table: OffsetTable, wanted: OffsetFetchRequestTopics, stable_only: bool, version: int
) -> OffsetFetchResponseTopics:
    name, code = wanted.name, ErrorCode.NONE
    if version >= _IDS_FROM:
        found = face.broker.topics.find_by_id(wanted.topic_id)
        name, code = ("", ErrorCode.UNKNOWN_TOPIC_ID) if found is None else (found.name, ErrorCode.NONE)
    return OffsetFetchResponseTopics(
        name=name,
        topic_id=wanted.topic_id,
        partitions=[_fetch_one(table, name, index, code, stable_only) for index in wanted.partition_indexes],
    )


def _fetch_one(
    table: OffsetTable, topic: str, index: int, code: ErrorCode, stable_only: bool
) -> OffsetFetchResponsePartitions:
    if code is ErrorCode.NONE and stable_only and table.is_undecided(topic, index):
        code = ErrorCode.UNSTABLE_OFFSET_COMMIT
    found = table.find(topic, index) if code is ErrorCode.NONE else None
    if found is None:
        return OffsetFetchResponsePartitions(
            partition_index=index, committed_offset=_NO_OFFSET, metadata="", error_code=int(code)
        )
    return OffsetFetchResponsePartitions(
        partition_index=index,
        committed_offset=found.offset,
        committed_leader_epoch=found.leader_epoch,
        metadata=found.metadata,
    )


async def offset_delete(
    face: KafkaFace, request: OffsetDeleteRequest, context: RequestContext
) -> OffsetDeleteResponse:
    """Forgets offsets of topics that no member reads."""
    try:
        coordinator = face.broker.groups.of(request.group_id)
        in_use = coordinator.groups.check_offset_delete(request.group_id)
    except ApiError as error:
        return OffsetDeleteResponse(error_code=int(error.code))
    free = [
        (topic.name, part.partition_index)
        for topic in request.topics
        if in_use is not None and topic.name not in in_use
        for part in topic.partitions
    ]
    try:
        await coordinator.delete_offsets(request.group_id, free)
    except ApiError as error:
        return OffsetDeleteResponse(error_code=int(error.code))
    return OffsetDeleteResponse(
        topics=[
            OffsetDeleteResponseTopic(
                name=topic.name,
                partitions=[
                    OffsetDeleteResponsePartition(
                        partition_index=part.partition_index,
                        error_code=int(
                            ErrorCode.NONE
                            if (topic.name, part.partition_index) in free
                            else ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
                        ),
                    )
                    for part in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )
