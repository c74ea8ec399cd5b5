"""ApiVersions, Metadata, DescribeCluster and DescribeTopicPartitions: what is served here, and where."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TYPE_CHECKING

from braidmq.broker.cluster_view import PartitionView
from braidmq.broker.topic import Topic, check_name
from braidmq.faces.kafka.authorized_operations import Securable, authorized_operations
from braidmq.faces.kafka.request_context import RequestContext
from braidmq.wire.api import BETWEEN_BROKERS, PRIVATE_FROM, Api
from braidmq.wire.errors import ApiError, ErrorCode
from braidmq.wire.messages.cluster import (
    DescribeClusterBroker,
    DescribeClusterRequest,
    DescribeClusterResponse,
)
from braidmq.wire.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from braidmq.wire.messages.topics import (
    Cursor,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    DescribeTopicPartitionsResponsePartition,
    DescribeTopicPartitionsResponseTopic,
)
from braidmq.wire.messages.versions import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
    FinalizedFeatureKey,
    SupportedFeatureKey,
)
from braidmq.wire.primitives import ZERO_UUID

if TYPE_CHECKING:
    from braidmq.faces.kafka.face import KafkaFace

_OK = int(ErrorCode.NONE)
_NO_LEADER = int(ErrorCode.LEADER_NOT_AVAILABLE)
_BROKERS = 1
_CONTROLLERS = 2
_NULL_NAMES_FROM = 12
FEATURES = {
    "group.version": 1,
    "metadata.version": 30,
    "share.version": 1,
    "streams.version": 1,
    "transaction.version": 2,
}
"""What clients look at before they use server-assigned groups, share groups, streams groups, and KIP-890's
transactions; of metadata the level is that of the Kafka release whose protocol is served, 4.3."""


def api_versions(
    face: KafkaFace, request: ApiVersionsRequest | None, context: RequestContext
) -> ApiVersionsResponse:
    """Which verbs this broker serves. `request` is None when the client's version was too new to read."""
    asked_by_peer = getattr(context.connection, "peer", None) is not None
    return ApiVersionsResponse(
        api_keys=[
            # Older librdkafka stops compressing when Produce does not begin at 0; from 3 on it is really
            # served.
            ApiVersion(
                api_key=int(verb.api),
                min_version=0 if verb.api is Api.PRODUCE else verb.lowest,
                max_version=verb.highest,
            )
            for verb in sorted(face.verbs.values())
            if verb.api < PRIVATE_FROM and (asked_by_peer or verb.api not in BETWEEN_BROKERS)
        ],
        supported_features=[
            SupportedFeatureKey(name=name, min_version=level, max_version=level)
            for name, level in FEATURES.items()
        ],
        finalized_features_epoch=0,
        finalized_features=[
            FinalizedFeatureKey(name=name, min_version_level=level, max_version_level=level)
            for name, level in FEATURES.items()
        ],
    )


def metadata(
    face: KafkaFace, request: MetadataRequest, context: RequestContext
) -> MetadataResponse | Awaitable[MetadataResponse]:
    """Brokers and topics; a topic asked for by name may be created on the way."""
    if request.topics is None or (context.version == 0 and not request.topics):
        every = [_describe(face, topic, request, context) for topic in face.broker.topics]
        return _metadata_response(face, every, request, context)
    if context.version < _NULL_NAMES_FROM:
        # Such a version cannot carry a null name back; an empty one is refused like any unusable name.
        for wanted in request.topics:
            wanted.name = wanted.name or ""
    # Each once: otherwise a short request for one topic many times would have an answer without bounds.
    request.topics = list({(wanted.name, wanted.topic_id): wanted for wanted in request.topics}.values())
    missing = [
        wanted.name
        for wanted in request.topics
        if wanted.name and face.broker.topics.find(wanted.name) is None
    ]
    may_create = request.allow_auto_topic_creation and face.broker.config.auto_create_topics_enable
    if missing and may_create:
        return _metadata_creating(face, request, missing, context)
    found = [_look_up(face, wanted, request, context) for wanted in request.topics]
    return _metadata_response(face, found, request, context)


async def _metadata_creating(
    face: KafkaFace, request: MetadataRequest, missing: list[str], context: RequestContext
) -> MetadataResponse:
    refused: dict[str, ApiError] = {}
    for name in missing:
        try:
            await face.broker.topics.find_or_create(name)
        except ApiError as error:
            refused[name] = error
    topics = [
        _failed(each, refused[each.name]) if each.name in refused else _look_up(face, each, request, context)
        for each in request.topics or ()
    ]
    return _metadata_response(face, topics, request, context)


def _look_up(
    face: KafkaFace, wanted: MetadataRequestTopic, request: MetadataRequest, context: RequestContext
) -> MetadataResponseTopic:
    if wanted.name is None:
        topic = face.broker.topics.find_by_id(wanted.topic_id)
        error = ApiError(ErrorCode.UNKNOWN_TOPIC_ID, "no topic has this id")
    else:
        topic = face.broker.topics.find(wanted.name)
        error = _unknown(wanted.name)
    return _failed(wanted, error) if topic is None else _describe(face, topic, request, context)


def _unknown(name: str) -> ApiError:
    try:
        check_name(name)
    except ApiError as error:
        return error
    return ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {name!r}")


def _failed(wanted: MetadataRequestTopic, error: ApiError) -> MetadataResponseTopic:
    return MetadataResponseTopic(
        error_code=int(error.code),
        name=wanted.name,
        topic_id=wanted.topic_id if wanted.name is None else ZERO_UUID,
    )


def _describe(
    face: KafkaFace, topic: Topic, request: MetadataRequest, context: RequestContext
) -> MetadataResponseTopic:
    return MetadataResponseTopic(
        name=topic.name,
        topic_id=topic.id,
        is_internal=topic.internal,
        partitions=[
            MetadataResponsePartition(
                error_code=_OK if one.leader.node_id >= 0 else _NO_LEADER,
                partition_index=index,
                leader_id=one.leader.node_id,
                leader_epoch=one.leader.epoch,
                replica_nodes=one.replicas,
                isr_nodes=one.in_sync,
                offline_replicas=one.offline,
            )
            for index, one in face.broker.view.partitions(topic)
        ],
        topic_authorized_operations=authorized_operations(
            Securable.TOPIC, topic.name, context, wanted=request.include_topic_authorized_operations
        ),
    )


def _metadata_response(
    face: KafkaFace, topics: list[MetadataResponseTopic], request: MetadataRequest, context: RequestContext
) -> MetadataResponse:
    return MetadataResponse(
        brokers=[
            MetadataResponseBroker(node_id=one.node_id, host=one.host, port=one.port, rack=one.rack)
            for one in face.nodes()
        ],
        cluster_id=face.broker.cluster_id,
        controller_id=face.broker.view.controller_id,
        topics=topics,
        cluster_authorized_operations=authorized_operations(
            Securable.CLUSTER,
            face.broker.cluster_id,
            context,
            wanted=request.include_cluster_authorized_operations,
        ),
    )


def describe_cluster(
    face: KafkaFace, request: DescribeClusterRequest, context: RequestContext
) -> DescribeClusterResponse:
    """The brokers; asked for controllers, an error, as from Kafka's brokers."""
    if request.endpoint_type != _BROKERS:
        return DescribeClusterResponse(
            error_code=int(ErrorCode.MISMATCHED_ENDPOINT_TYPE),
            error_message="this is a broker's address; ask for brokers",
            endpoint_type=_BROKERS,
            cluster_id=face.broker.cluster_id,
        )
    return DescribeClusterResponse(
        endpoint_type=_BROKERS,
        cluster_id=face.broker.cluster_id,
        controller_id=face.broker.view.controller_id,
        brokers=[
            DescribeClusterBroker(broker_id=one.node_id, host=one.host, port=one.port, rack=one.rack)
            for one in face.nodes()
        ],
        cluster_authorized_operations=authorized_operations(
            Securable.CLUSTER,
            face.broker.cluster_id,
            context,
            wanted=request.include_cluster_authorized_operations,
        ),
    )


def describe_topic_partitions(
    face: KafkaFace, request: DescribeTopicPartitionsRequest, context: RequestContext
) -> DescribeTopicPartitionsResponse:
    """Partitions of some topics, or of all, a page at a time; the cursor says where the next page begins."""
    names = sorted({topic.name for topic in request.topics} or {topic.name for topic in face.broker.topics})
    first, from_index = (
        (request.cursor.topic_name, request.cursor.partition_index) if request.cursor else ("", 0)
    )
    left = max(1, min(request.response_partition_limit, 2000))
    answers: list[DescribeTopicPartitionsResponseTopic] = []
    for name in names:
        if name < first:
            continue
        if left == 0:
            return DescribeTopicPartitionsResponse(
                topics=answers, next_cursor=Cursor(topic_name=name, partition_index=0)
            )
        topic = face.broker.topics.find(name)
        if topic is None:
            answers.append(
                DescribeTopicPartitionsResponseTopic(name=name, error_code=int(_unknown(name).code))
            )
            continue
        start = from_index if name == first else 0
        page = list(face.broker.view.partitions(topic, start, start + left))
        left -= len(page)
        answers.append(_describe_page(topic, page, context))
        if start + len(page) < topic.partition_count:
            rest = Cursor(topic_name=name, partition_index=start + len(page))
            return DescribeTopicPartitionsResponse(topics=answers, next_cursor=rest)
    return DescribeTopicPartitionsResponse(topics=answers)


def _describe_page(
    topic: Topic, page: list[tuple[int, PartitionView]], context: RequestContext
) -> DescribeTopicPartitionsResponseTopic:
    return DescribeTopicPartitionsResponseTopic(
        name=topic.name,
        topic_id=topic.id,
        is_internal=topic.internal,
        partitions=[
            DescribeTopicPartitionsResponsePartition(
                error_code=_OK if one.leader.node_id >= 0 else _NO_LEADER,
                partition_index=index,
                leader_id=one.leader.node_id,
                leader_epoch=one.leader.epoch,
                replica_nodes=one.replicas,
                isr_nodes=one.in_sync,
                # The Java client fails on a null here, though the protocol allows it.
                eligible_leader_replicas=one.eligible,
                last_known_elr=[one.last_leader] if one.last_leader >= 0 else [],
                offline_replicas=one.offline,
            )
            for index, one in page
        ],
        # The request has no flag for it: Kafka always answers it here.
        topic_authorized_operations=authorized_operations(Securable.TOPIC, topic.name, context, wanted=True),
    )
