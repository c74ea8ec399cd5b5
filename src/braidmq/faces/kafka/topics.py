"""CreateTopics, DeleteTopics, CreatePartitions. One result per item, always: librdkafka relies on it."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from braidmq.config import TOPIC
from braidmq.faces.kafka.option_owners import topic_levels
from braidmq.faces.kafka.request_context import RequestContext
from braidmq.wire.errors import ApiError, ErrorCode
from braidmq.wire.messages.topics import (
    CreatableTopic,
    CreatableTopicConfigs,
    CreatableTopicResult,
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
    CreatePartitionsTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)
from braidmq.wire.primitives import ZERO_UUID

if TYPE_CHECKING:
    from braidmq.faces.kafka.face import KafkaFace

_DEFAULT = -1


async def create_topics(
    face: KafkaFace, request: CreateTopicsRequest, context: RequestContext
) -> CreateTopicsResponse:
    repeated = {name for name, count in Counter(topic.name for topic in request.topics).items() if count > 1}
    results = []
    for wanted in request.topics:
        try:
            if wanted.name in repeated:
                raise ApiError(
                    ErrorCode.INVALID_REQUEST, f"topic {wanted.name!r} appears twice in the request"
                )
            results.append(await _create_one(face, wanted, request.validate_only))
        except ApiError as error:
            results.append(
                CreatableTopicResult(
                    name=wanted.name, error_code=int(error.code), error_message=error.message
                )
            )
    return CreateTopicsResponse(topics=results)


async def _create_one(face: KafkaFace, wanted: CreatableTopic, validate_only: bool) -> CreatableTopicResult:
    count = _partition_count(face, wanted)
    overrides = {each.name: each.value for each in wanted.configs if each.value is not None}
    topics = face.broker.topics
    topics.check_new(wanted.name, count, overrides)
    topic_id = ZERO_UUID
    if not validate_only:
        topic_id = (await topics.create(wanted.name, count, overrides)).id
    config = face.broker.config.topic(overrides)
    return CreatableTopicResult(
        name=wanted.name,
        topic_id=topic_id,
        num_partitions=count,
        replication_factor=1,
        configs=[
            CreatableTopicConfigs(
                name=option.name,
                value=option.text(getattr(config, option.attribute)),
                config_source=int(topic_levels(face, option, overrides)[0].source),
            )
            for option in TOPIC
        ],
    )


def _partition_count(face: KafkaFace, wanted: CreatableTopic) -> int:
    if wanted.assignments:
        return _assigned_count(face, wanted)
    if wanted.replication_factor not in (_DEFAULT, 1):
        raise ApiError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"topic {wanted.name!r}: replication factor {wanted.replication_factor}, but there is 1 broker",
        )
    return face.broker.config.num_partitions if wanted.num_partitions == _DEFAULT else wanted.num_partitions


def _assigned_count(face: KafkaFace, wanted: CreatableTopic) -> int:
    if wanted.num_partitions != _DEFAULT or wanted.replication_factor != _DEFAULT:
        raise ApiError(
            ErrorCode.INVALID_REQUEST,
            f"topic {wanted.name!r}: with an assignment, partition count and replication factor must be -1",
        )
    indexes = sorted(each.partition_index for each in wanted.assignments)
    if indexes != list(range(len(indexes))):
        raise ApiError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"topic {wanted.name!r}: assigned partitions are not 0 to n - 1",
        )
    _check_assignment(face, wanted.name, [each.broker_ids for each in wanted.assignments])
    return len(indexes)


def _check_assignment(face: KafkaFace, name: str, assigned: list[list[int]]) -> None:
    if any(broker_ids != [face.node_id] for broker_ids in assigned):
        raise ApiError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"topic {name!r}: every partition must be assigned to broker {face.node_id} alone, the only one",
        )


async def delete_topics(
    face: KafkaFace, request: DeleteTopicsRequest, context: RequestContext
) -> DeleteTopicsResponse:
    wanted = request.topics or [DeleteTopicState(name=name) for name in request.topic_names]
    return DeleteTopicsResponse(responses=[await _delete_one(face, each) for each in wanted])


async def _delete_one(face: KafkaFace, wanted: DeleteTopicState) -> DeletableTopicResult:
    topics = face.broker.topics
    name = wanted.name
    try:
        if name is None:
            topic = topics.find_by_id(wanted.topic_id)
            if topic is None:
                raise ApiError(ErrorCode.UNKNOWN_TOPIC_ID, "no topic has this id")
            name = topic.name
        topic_id = topics.get(name).id
        await face.broker.delete_topic(name)
    except ApiError as error:
        return DeletableTopicResult(
            name=wanted.name,
            topic_id=wanted.topic_id,
            error_code=int(error.code),
            error_message=error.message,
        )
    return DeletableTopicResult(name=name, topic_id=topic_id)


async def create_partitions(
    face: KafkaFace, request: CreatePartitionsRequest, context: RequestContext
) -> CreatePartitionsResponse:
    results = []
    for wanted in request.topics:
        try:
            await _grow_one(face, wanted, request.validate_only)
            results.append(CreatePartitionsTopicResult(name=wanted.name))
        except ApiError as error:
            results.append(
                CreatePartitionsTopicResult(
                    name=wanted.name, error_code=int(error.code), error_message=error.message
                )
            )
    return CreatePartitionsResponse(results=results)


async def _grow_one(face: KafkaFace, wanted: CreatePartitionsTopic, validate_only: bool) -> None:
    topic = face.broker.topics.check_growth(wanted.name, wanted.count)
    if wanted.assignments is not None:
        if len(wanted.assignments) != wanted.count - topic.partition_count:
            raise ApiError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"topic {wanted.name!r}: {wanted.count - topic.partition_count} new partitions need as many"
                f" assignments, not {len(wanted.assignments)}",
            )
        _check_assignment(face, wanted.name, [each.broker_ids for each in wanted.assignments])
    if not validate_only:
        await face.broker.topics.grow(wanted.name, wanted.count)
