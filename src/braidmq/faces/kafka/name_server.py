"""A name server's face: Kafka's verbs by which clients find their brokers, and the verbs of brokers.

Anybody may ask where brokers are. Only a broker that has proved to know the cluster's secret (`BRAID-PEER`)
may say where it is: a stranger cannot put a false address in. What it serves for clients is enough to
bootstrap; for everything else they go to the brokers they learn of here.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

from braidmq.broker.shards import partition_of
from braidmq.broker.topic import INTERNAL_TOPICS
from braidmq.cluster.cluster_key import ClusterKey
from braidmq.cluster.name_server import Beat, NameServer, Page, PartitionRoute, TooMany, TopicRoute
from braidmq.cluster.name_server_config import BadEntry, NameServerConfig
from braidmq.config import Config
from braidmq.faces.kafka import peer_proof
from braidmq.faces.kafka.face import APIS, Verb
from braidmq.faces.kafka.live_clients import LiveClients
from braidmq.faces.kafka.request_context import RequestContext
from braidmq.net.peer_proof import PeerDirectory, PeerIdentity
from braidmq.platform.clock import Clock
from braidmq.wire.api import Api, request_class
from braidmq.wire.errors import ApiError, ErrorCode
from braidmq.wire.messages.cluster import (
    DescribeClusterBroker,
    DescribeClusterRequest,
    DescribeClusterResponse,
)
from braidmq.wire.messages.groups import Coordinator, FindCoordinatorRequest, FindCoordinatorResponse
from braidmq.wire.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from braidmq.wire.messages.name_server import (
    ConfigEntry,
    NameServerConfigRequest,
    NameServerConfigResponse,
    NameServerHeartbeatRequest,
    NameServerHeartbeatResponse,
    NameServerRoutesRequest,
    NameServerRoutesResponse,
    RouteTopic,
)
from braidmq.wire.messages.versions import ApiVersion, ApiVersionsRequest, ApiVersionsResponse
from braidmq.wire.primitives import ZERO_UUID

GET, PUT, DELETE = 0, 1, 2
_BROKERS = 1
_SEVERAL_FROM = 4
_BELIEVE_THE_FIRST = ("", "kafka-python")
"""Clients that never ask a second broker which versions it serves, and old ones that do not say who they
are. All others must not be told of verbs that are not served here: librdkafka would ask for a producer id."""
_COORDINATED_BY = {0: "__consumer_offsets", 1: "__transaction_state", 2: "__share_group_state"}

log = logging.getLogger("braid.nameserver")


@dataclass(slots=True)
class Directory:
    """Which brokers there are, as their heartbeats say; see `net.peer_proof.PeerDirectory`."""

    known: NameServer
    key: ClusterKey
    node_id: int
    epoch: int = 0

    @property
    def cluster_id(self) -> str:
        return self.key.cluster_id

    @property
    def secret(self) -> bytes:
        return self.key.secret

    def epoch_of(self, node_id: int) -> int:
        return self.known.epoch_of(node_id)

    def address_of(self, node_id: int) -> tuple[str, int] | None:
        found = self.known.brokers.get(node_id)
        return None if found is None else (found.host, found.port)


@dataclass(frozen=True, slots=True)
class _Peers:
    directory: PeerDirectory


@dataclass(frozen=True, slots=True)
class _Server:
    """What a session and a proof ask of the broker they belong to."""

    config: Config
    clock: Clock
    peers: _Peers


class NameServerFace:
    """What all connections to a name server have in common."""

    def __init__(
        self, config: Config, clock: Clock, known: NameServer, directory: Directory, entries: NameServerConfig
    ) -> None:
        self.broker = _Server(config, clock, _Peers(directory))
        self.known = known
        self.directory = directory
        self.entries = entries
        self.clients = LiveClients(clock)
        self.refusals = peer_proof.Refusals()
        self.clients = LiveClients(clock)
        self.verbs: dict[int, Verb] = {}
        for api, handler in _HANDLERS.items():
            request = request_class(api)
            self.verbs[int(api)] = Verb(api, *request.versions, handler, request)

    def on_closed(self, connection: object) -> None:
        """A connection that ends says nothing about its broker: it may come back on another."""

    def forget_silent(self) -> None:
        for node_id in self.known.scan(self.broker.clock.monotonic()):
            log.warning("broker %d was silent for too long and is forgotten", node_id)


# -- clients ------------------------------------------------------------------------------------


def api_versions(
    face: NameServerFace, request: ApiVersionsRequest | None, context: RequestContext
) -> ApiVersionsResponse:
    """What is served here; to clients that take it for what all brokers serve, what brokers do."""
    served = {api: request_class(Api(api)).versions for api in face.verbs}
    if request is not None and request.client_software_name in _BELIEVE_THE_FIRST:
        served |= {int(api): request_class(api).versions for api in APIS}
    return ApiVersionsResponse(
        api_keys=[
            ApiVersion(api_key=api, min_version=lowest, max_version=highest)
            for api, (lowest, highest) in sorted(served.items())
        ]
    )


def metadata(face: NameServerFace, request: MetadataRequest, context: RequestContext) -> MetadataResponse:
    """Brokers and topics, as far as they are known. Topics are created by brokers alone."""
    known = face.known
    if request.topics is None or (context.version == 0 and not request.topics):
        topics = [_describe(known, topic) for topic in known.topics.values()]
    else:
        # Each once: otherwise a short request for one topic many times would have an answer without bounds.
        asked = {(wanted.name, wanted.topic_id): wanted for wanted in request.topics}
        topics = [_look_up(known, wanted) for wanted in asked.values()]
    return MetadataResponse(
        brokers=[
            MetadataResponseBroker(node_id=one.node_id, host=one.host, port=one.port, rack=one.rack)
            for one in known.brokers.values()
        ],
        cluster_id=face.directory.cluster_id or None,
        controller_id=known.controller_id,
        topics=topics,
    )


def _look_up(known: NameServer, wanted: MetadataRequestTopic) -> MetadataResponseTopic:
    topic = known.by_id.get(wanted.topic_id) if wanted.name is None else known.topics.get(wanted.name)
    if topic is not None:
        return _describe(known, topic)
    by_id = wanted.name is None
    code = ErrorCode.UNKNOWN_TOPIC_ID if by_id else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    topic_id = wanted.topic_id if by_id else ZERO_UUID
    return MetadataResponseTopic(error_code=int(code), name=wanted.name, topic_id=topic_id)


def _describe(known: NameServer, topic: TopicRoute) -> MetadataResponseTopic:
    return MetadataResponseTopic(
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=topic.is_internal,
        partitions=[_partition(known, index, route) for index, route in enumerate(topic.partitions)],
    )


def _partition(known: NameServer, index: int, route: PartitionRoute) -> MetadataResponsePartition:
    lives = route.leader_id in known.brokers
    return MetadataResponsePartition(
        error_code=int(ErrorCode.NONE if lives else ErrorCode.LEADER_NOT_AVAILABLE),
        partition_index=index,
        leader_id=route.leader_id if lives else -1,
        leader_epoch=route.leader_epoch,
        replica_nodes=list(route.replicas),
        isr_nodes=list(route.isr),
        offline_replicas=[one for one in route.replicas if one not in known.brokers],
    )


def describe_cluster(
    face: NameServerFace, request: DescribeClusterRequest, context: RequestContext
) -> DescribeClusterResponse:
    if request.endpoint_type != _BROKERS:
        return DescribeClusterResponse(
            error_code=int(ErrorCode.MISMATCHED_ENDPOINT_TYPE),
            error_message="a name server knows brokers alone; ask for brokers",
            endpoint_type=_BROKERS,
            cluster_id=face.directory.cluster_id,
        )
    return DescribeClusterResponse(
        endpoint_type=_BROKERS,
        cluster_id=face.directory.cluster_id,
        controller_id=face.known.controller_id,
        brokers=[
            DescribeClusterBroker(broker_id=one.node_id, host=one.host, port=one.port, rack=one.rack)
            for one in face.known.brokers.values()
        ],
    )


def find_coordinator(
    face: NameServerFace, request: FindCoordinatorRequest, context: RequestContext
) -> FindCoordinatorResponse:
    if context.version >= _SEVERAL_FROM:
        found = [_coordinator(face.known, key, request.key_type) for key in request.coordinator_keys]
        return FindCoordinatorResponse(coordinators=found)
    one = _coordinator(face.known, request.key, request.key_type)
    return FindCoordinatorResponse(
        error_code=one.error_code,
        error_message=one.error_message,
        node_id=one.node_id,
        host=one.host,
        port=one.port,
    )


def _coordinator(known: NameServer, key: str, key_type: int) -> Coordinator:
    topic = known.topics.get(_COORDINATED_BY.get(key_type, ""))
    count = 0 if topic is None else len(topic.partitions)
    leader = known.leader(topic.name, partition_of(key, count)) if topic is not None and count else None
    if leader is None:
        return Coordinator(
            key=key,
            node_id=-1,
            port=-1,
            error_code=int(ErrorCode.COORDINATOR_NOT_AVAILABLE),
            error_message="no coordinator is known here; ask a broker",
        )
    return Coordinator(key=key, node_id=leader.node_id, host=leader.host, port=leader.port)


# -- brokers ------------------------------------------------------------------------------------


def heartbeat(
    face: NameServerFace, request: NameServerHeartbeatRequest, context: RequestContext
) -> NameServerHeartbeatResponse:
    """A broker is alive; the answer says whether it should send routes."""
    try:
        peer = _require_broker(face, context)
        beat = Beat(
            peer.node_id, peer.epoch, request.host, request.port, request.rack,
            request.controller_id, request.led_partitions, request.draining, request.routes_revision,
        )  # fmt: skip
        if request.draining:
            face.known.forget(peer.node_id)
            log.info("broker %d is leaving", peer.node_id)
            return NameServerHeartbeatResponse()
        if peer.node_id not in face.known.brokers:
            log.info("broker %d is at %s:%d", peer.node_id, request.host, request.port)
        wanted = face.known.heartbeat(beat, face.broker.clock.monotonic())
        return NameServerHeartbeatResponse(routes_after=wanted)
    except ApiError as error:
        return NameServerHeartbeatResponse(error_code=int(error.code), error_message=error.message)
    except TooMany as error:
        code = int(ErrorCode.POLICY_VIOLATION)
        return NameServerHeartbeatResponse(error_code=code, error_message=str(error))


def routes(
    face: NameServerFace, request: NameServerRoutesRequest, context: RequestContext
) -> NameServerRoutesResponse:
    """Routes from the broker that was asked for them."""
    try:
        peer = _require_broker(face, context)
        topics = [_route(topic) for topic in request.topics]
        page = Page(
            request.after, request.revision, topics, request.removed, request.is_first, request.is_last
        )
        face.known.take(peer.node_id, page, face.broker.clock.monotonic())
        return NameServerRoutesResponse()
    except ApiError as error:
        return NameServerRoutesResponse(error_code=int(error.code), error_message=error.message)
    except TooMany as error:
        code = int(ErrorCode.POLICY_VIOLATION)
        return NameServerRoutesResponse(error_code=code, error_message=str(error))


def _route(topic: RouteTopic) -> TopicRoute:
    partitions = tuple(
        PartitionRoute(one.leader_id, one.leader_epoch, tuple(one.replicas), tuple(one.isr))
        for one in topic.partitions
    )
    return TopicRoute(topic.name, topic.topic_id, topic.name in INTERNAL_TOPICS, partitions)


def _require_broker(face: NameServerFace, context: RequestContext) -> PeerIdentity:
    peer = peer_proof.require_peer(face, context)  # type: ignore[arg-type]
    if peer.node_id < 0:
        raise ApiError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, "only brokers may ask for this")
    return peer


# -- people -------------------------------------------------------------------------------------


def config_entries(
    face: NameServerFace, request: NameServerConfigRequest, context: RequestContext
) -> NameServerConfigResponse:
    """Reads are open like those of routes; a change needs the cluster's key."""
    entries = face.entries
    try:
        if request.operation != GET:
            peer_proof.require_peer(face, context)  # type: ignore[arg-type]
        if request.operation == PUT:
            entries.put(request.key or "", request.value or "")
            return NameServerConfigResponse()
        if request.operation == DELETE:
            entries.delete(request.key or "")
            return NameServerConfigResponse()
        found = entries.all() if request.key is None else entries.get(request.key)
        return NameServerConfigResponse(
            entries=[ConfigEntry(key=key, value=value) for key, value in found.items()]
        )
    except ApiError as error:
        return NameServerConfigResponse(error_code=int(error.code), error_message=error.message)
    except BadEntry as error:
        code = int(ErrorCode.INVALID_CONFIG)
        return NameServerConfigResponse(error_code=code, error_message=str(error))
    except OSError as error:
        code = int(ErrorCode.KAFKA_STORAGE_ERROR)
        return NameServerConfigResponse(error_code=code, error_message=f"cannot keep it: {error}")


_HANDLERS: dict[Api, Any] = {
    Api.API_VERSIONS: api_versions,
    Api.METADATA: metadata,
    Api.DESCRIBE_CLUSTER: describe_cluster,
    Api.FIND_COORDINATOR: find_coordinator,
    Api.SASL_HANDSHAKE: peer_proof.sasl_handshake,
    Api.SASL_AUTHENTICATE: peer_proof.sasl_authenticate,
    Api.BRAID_NAME_SERVER_HEARTBEAT: heartbeat,
    Api.BRAID_NAME_SERVER_ROUTES: routes,
    Api.BRAID_NAME_SERVER_CONFIG: config_entries,
}
