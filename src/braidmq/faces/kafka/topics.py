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
    count, assigned = _wanted(face, wanted)
    overrides = {each.name: each.value for each in wanted.configs if each.value is not None}
    topics = face.broker.topics
    topics.check_new(wanted.name, count, overrides, assigned)
    topic_id = ZERO_UUID
    if not validate_only:
        topic_id = (await topics.create(wanted.name, count, overrides, assigned)).id
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


def _wanted(face: KafkaFace, wanted: CreatableTopic) -> tuple[int, list[list[int]] | None]:
    """How many partitions a new topic gets, and where each goes if the client says."""
    if wanted.assignments:
        assigned = _assigned(wanted)
        return len(assigned), assigned
    _check_factor(face, wanted.name, wanted.replication_factor)
    if wanted.num_partitions == _DEFAULT:
        return face.broker.topics.default_count(), None
    return wanted.num_partitions, None


def _check_factor(face: KafkaFace, name: str, factor: int) -> None:
    if factor in (_DEFAULT, 1):
        return
    brokers = len(face.nodes())
    if 1 < factor <= brokers:
        why = "partitions are not replicated yet; choose 1, or leave it out"
    elif brokers == 1:
        why = "but there is 1 broker"
    else:
        why = f"but there are {brokers} brokers"
    raise ApiError(
        ErrorCode.INVALID_REPLICATION_FACTOR, f"topic {name!r}: replication factor {factor}, {why}"
    )


def _assigned(wanted: CreatableTopic) -> list[list[int]]:
    if wanted.num_partitions != _DEFAULT or wanted.replication_factor != _DEFAULT:
        raise ApiError(
            ErrorCode.INVALID_REQUEST,
            f"topic {wanted.name!r}: with an assignment, partition count and replication factor must be -1",
        )
    found = sorted((each.partition_index, each.broker_ids) for each in wanted.assignments)
    if [index for index, _ in found] != list(range(len(found))):
        raise ApiError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"topic {wanted.name!r}: assigned partitions are not 0 to n - 1",
        )
    assigned = [broker_ids for _, broker_ids in found]
    _check_single(wanted.name, assigned)
    return assigned


def _check_single(name: str, assigned: list[list[int]]) -> None:
    if any(len(broker_ids) > 1 for broker_ids in assigned):
        raise ApiError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"topic {name!r}: partitions are not replicated yet; assign each to one broker",
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
    assigned = None if wanted.assignments is None else [each.broker_ids for each in wanted.assignments]
    face.broker.topics.check_growth(wanted.name, wanted.count, assigned)
    if assigned is not None:
        _check_single(wanted.name, assigned)
    if not validate_only:
        await face.broker.topics.grow(wanted.name, wanted.count, assigned)
