"""The Kafka face: which verbs are served in which versions, and what their handlers share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, NamedTuple

from braidmq.broker.broker import Broker
from braidmq.broker.cluster_view import LiveNode
from braidmq.faces.kafka import (
    commits,
    configs,
    consumer_groups,
    coordinators,
    features,
    fetch,
    groups,
    leaders,
    live_clients,
    log_dirs,
    metadata,
    offsets,
    peer_proof,
    produce,
    producers,
    quorum,
    share_acknowledge,
    share_fetch,
    share_groups,
    share_state,
    streams_groups,
    topics,
    transactions,
    txn_markers,
    txn_offsets,
)
from braidmq.faces.kafka.fetch_sessions import FetchSessions
from braidmq.faces.kafka.live_clients import LiveClients
from braidmq.faces.kafka.request_context import RequestContext
from braidmq.faces.kafka.share_sessions import ShareSessions, Waiting
from braidmq.wire.api import Api, request_class
from braidmq.wire.schema import Message

Handler = Callable[[Any, Any, RequestContext], Any | Coroutine[Any, Any, Any]]
"""(face, request, context) to a response, at once or by a coroutine (see `handler_run`)."""


class Verb(NamedTuple):
    """One API as this broker serves it."""

    api: Api
    lowest: int
    highest: int
    handler: Handler
    request: type[Message]


_HANDLERS: dict[Api, Handler] = {
    Api.LIST_OFFSETS: offsets.list_offsets,
    Api.METADATA: metadata.metadata,
    Api.OFFSET_COMMIT: commits.offset_commit,
    Api.OFFSET_FETCH: commits.offset_fetch,
    Api.FIND_COORDINATOR: coordinators.find_coordinator,
    Api.JOIN_GROUP: groups.join_group,
    Api.HEARTBEAT: groups.heartbeat,
    Api.LEAVE_GROUP: groups.leave_group,
    Api.SYNC_GROUP: groups.sync_group,
    Api.DESCRIBE_GROUPS: groups.describe_groups,
    Api.LIST_GROUPS: groups.list_groups,
    Api.DELETE_GROUPS: groups.delete_groups,
    Api.OFFSET_DELETE: commits.offset_delete,
    Api.SASL_HANDSHAKE: peer_proof.sasl_handshake,
    Api.SASL_AUTHENTICATE: peer_proof.sasl_authenticate,
    Api.API_VERSIONS: metadata.api_versions,
    Api.CREATE_TOPICS: topics.create_topics,
    Api.DELETE_TOPICS: topics.delete_topics,
    Api.DELETE_RECORDS: offsets.delete_records,
    Api.INIT_PRODUCER_ID: producers.init_producer_id,
    Api.ADD_PARTITIONS_TO_TXN: transactions.add_partitions_to_txn,
    Api.ADD_OFFSETS_TO_TXN: transactions.add_offsets_to_txn,
    Api.END_TXN: transactions.end_txn,
    Api.WRITE_TXN_MARKERS: txn_markers.write_txn_markers,
    Api.TXN_OFFSET_COMMIT: txn_offsets.txn_offset_commit,
    Api.DESCRIBE_TRANSACTIONS: transactions.describe_transactions,
    Api.LIST_TRANSACTIONS: transactions.list_transactions,
    Api.OFFSET_FOR_LEADER_EPOCH: offsets.offset_for_leader_epoch,
    Api.DESCRIBE_CONFIGS: configs.describe_configs,
    Api.ALTER_CONFIGS: configs.alter_configs,
    Api.DESCRIBE_LOG_DIRS: log_dirs.describe_log_dirs,
    Api.CREATE_PARTITIONS: topics.create_partitions,
    Api.INCREMENTAL_ALTER_CONFIGS: configs.incremental_alter_configs,
    Api.LIST_CONFIG_RESOURCES: configs.list_config_resources,
    Api.ALTER_REPLICA_LOG_DIRS: log_dirs.alter_replica_log_dirs,
    Api.ELECT_LEADERS: leaders.elect_leaders,
    Api.LIST_PARTITION_REASSIGNMENTS: leaders.list_partition_reassignments,
    Api.DESCRIBE_QUORUM: quorum.describe_quorum,
    Api.UPDATE_FEATURES: features.update_features,
    Api.BRAID_DESCRIBE_BROKER: live_clients.describe_broker,
    Api.DESCRIBE_CLUSTER: metadata.describe_cluster,
    Api.DESCRIBE_PRODUCERS: producers.describe_producers,
    Api.CONSUMER_GROUP_HEARTBEAT: consumer_groups.consumer_group_heartbeat,
    Api.CONSUMER_GROUP_DESCRIBE: consumer_groups.consumer_group_describe,
    Api.DESCRIBE_TOPIC_PARTITIONS: metadata.describe_topic_partitions,
    Api.SHARE_GROUP_HEARTBEAT: share_groups.share_group_heartbeat,
    Api.SHARE_GROUP_DESCRIBE: share_groups.share_group_describe,
    Api.SHARE_FETCH: share_fetch.share_fetch,
    Api.SHARE_ACKNOWLEDGE: share_acknowledge.share_acknowledge,
    Api.DESCRIBE_SHARE_GROUP_OFFSETS: share_groups.describe_share_group_offsets,
    Api.ALTER_SHARE_GROUP_OFFSETS: share_groups.alter_share_group_offsets,
    Api.DELETE_SHARE_GROUP_OFFSETS: share_groups.delete_share_group_offsets,
    Api.INITIALIZE_SHARE_GROUP_STATE: share_state.initialize_share_group_state,
    Api.READ_SHARE_GROUP_STATE: share_state.read_share_group_state,
    Api.WRITE_SHARE_GROUP_STATE: share_state.write_share_group_state,
    Api.DELETE_SHARE_GROUP_STATE: share_state.delete_share_group_state,
    Api.READ_SHARE_GROUP_STATE_SUMMARY: share_state.read_share_group_state_summary,
    Api.STREAMS_GROUP_HEARTBEAT: streams_groups.streams_group_heartbeat,
    Api.STREAMS_GROUP_DESCRIBE: streams_groups.streams_group_describe,
}

APIS = (Api.PRODUCE, Api.FETCH, *_HANDLERS)
"""What a broker serves."""


def _no_schema_handler(face: Any, request: Any, context: RequestContext) -> Any:
    raise AssertionError("Produce and Fetch are decoded by hand")


class KafkaFace:
    """What all Kafka connections of a broker have in common."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.host, self.port = "", 0
        self.listening = ("", 0)
        self.altering = asyncio.Lock()
        self.node_id = broker.node_id
        partitions_max = broker.config.fetch_sessions_partitions_max
        self.fetch_sessions = FetchSessions(broker.config.fetch_sessions_max, partitions_max)
        self.share_sessions = ShareSessions(broker.config.group_share_max_share_sessions, partitions_max)
        self.clients = LiveClients(broker.clock)
        self.waiting_fetches: dict[Waiting, None] = {}
        self.refusals = peer_proof.Refusals()
        broker.share_persister.remote = share_state.PeerCoordinators(broker.peers)
        self.draining = False
        self.verbs: dict[int, Verb] = {}
        for api in APIS:
            request = request_class(api)
            handler = _HANDLERS.get(api, _no_schema_handler)
            self.verbs[int(api)] = Verb(api, *request.versions, handler, request)
        self.produce = produce.ProduceHandler(broker)
        self.fetch = fetch.FetchHandler(self)

    def advertise(self, host: str, port: int, listening: tuple[str, int] | None = None) -> None:
        """Sets the address that clients are sent to, and the one that is listened at if it is another."""
        self.host, self.port = host, port
        self.listening = listening or (host, port)

    def nodes(self) -> list[LiveNode]:
        """The brokers that run, this one among them even while it cannot reach the metadata."""
        mine = LiveNode(self.node_id, self.host, self.port, self.broker.metadata.rack)
        others = (one for one in self.broker.view.live_nodes() if one.node_id != self.node_id)
        return sorted((mine, *others))

    def on_closed(self, connection: object) -> None:
        """A client is gone: what it holds of share groups goes to others."""
        for session in self.share_sessions.on_closed(connection):
            share_acknowledge.release(self, session)

    def begin_drain(self) -> None:
        """Answers every waiting fetch with what there is, so that connections can settle."""
        self.draining = True
        for waiting in list(self.waiting_fetches):
            waiting.expire()
