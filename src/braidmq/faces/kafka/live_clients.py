"""Who is connected, as what, and what they read and write; and this broker's view of the cluster.

What a connection does is noted as its requests come by: a few attributes for each request, and one entry of a
dict for each topic that it names. The rest is found out when somebody asks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from itertools import count, islice
from typing import TYPE_CHECKING, Any

from braidmq.cluster.image import BrokerImage
from braidmq.cluster.records import NO_EPOCH
from braidmq.faces.kafka.request_context import RequestContext
from braidmq.platform.clock import Clock
from braidmq.wire.api import Api
from braidmq.wire.messages.live import (
    DescribeBrokerRequest,
    DescribeBrokerResponse,
    KnownBroker,
    LiveClient,
    LiveTopic,
)

if TYPE_CHECKING:
    from braidmq.faces.kafka.face import KafkaFace
    from braidmq.faces.kafka.session import KafkaSession
    from braidmq.net.connection import Connection

TOPICS_MAX = 64
"""Of one connection and direction, those it used last."""
PAGE_MAX = 1000
TEXT_MAX = 200
"""Characters of a text that a client chose."""
EMBEDDED = "file"
NO_MORE = -1

Topics = dict[str | bytes, float]
"""By name or id, when it was last used on the loop's clock."""


class ClientNotes:
    """What is remembered of a connection."""

    __slots__ = (
        "administers", "bytes_in", "client_id", "group", "read", "since_ms", "software", "transactional_id",
        "wrote",
    )  # fmt: skip

    def __init__(self, since_ms: int) -> None:
        self.since_ms = since_ms
        self.client_id: str | None = None
        self.bytes_in = 0
        self.wrote: Topics | None = None
        self.read: Topics | None = None
        self.transactional_id: str | None = None
        self.group: tuple[str, str, str] | None = None
        """Kind of group, its id, and which member this is."""
        self.software: tuple[str, str] | None = None
        self.administers = False


def noted(held: Topics | None, topics: Sequence[tuple[Any, Any, Any]], now: float) -> Topics:
    """Adds topics of a request, by name or id; of too many those used last stay."""
    if held is None:
        held = {}
    elif len(topics) == 1 and len(held) < TOPICS_MAX:
        # Nearly every request of a producer.
        name, topic_id, _ = topics[0]
        held[name or topic_id] = now
        return held
    for name, topic_id, _ in topics if len(topics) <= TOPICS_MAX else topics[:TOPICS_MAX]:
        held[name or topic_id] = now
    if len(held) > TOPICS_MAX:
        held = dict(sorted(held.items(), key=lambda item: item[1])[-TOPICS_MAX:])
    return held


# -- what other requests tell -------------------------------------------------------------------


def _note_software(session: KafkaSession, request: Any) -> None:
    if request.client_software_name:
        name, version = request.client_software_name, request.client_software_version
        session.notes.software = (name[:TEXT_MAX], version[:TEXT_MAX])


def _note_member(kind: str) -> Callable[[KafkaSession, Any], None]:
    def note(session: KafkaSession, request: Any) -> None:
        session.notes.group = (kind, request.group_id, request.member_id or "")

    return note


def _note_heartbeat(kind: str) -> Callable[[KafkaSession, Any], None]:
    def note(session: KafkaSession, request: Any) -> None:
        # A negative epoch says that the member leaves.
        is_member = request.member_epoch >= 0
        session.notes.group = (kind, request.group_id, request.member_id or "") if is_member else None

    return note


def _note_share_fetch(session: KafkaSession, request: Any) -> None:
    notes = session.notes
    notes.group = ("share", request.group_id or "", request.member_id or "")
    if request.topics:
        named = [(None, topic.topic_id, None) for topic in request.topics[:TOPICS_MAX]]
        notes.read = noted(notes.read, named, session.connection.last_active)


def _note_leaving(session: KafkaSession, _: Any) -> None:
    session.notes.group = None


def _note_administration(session: KafkaSession, _: Any) -> None:
    session.notes.administers = True


NOTED: Mapping[Api, Callable[[KafkaSession, Any], None]] = {
    Api.API_VERSIONS: _note_software,
    Api.SYNC_GROUP: _note_member("consumer"),
    Api.HEARTBEAT: _note_member("consumer"),
    Api.LEAVE_GROUP: _note_leaving,
    Api.CONSUMER_GROUP_HEARTBEAT: _note_heartbeat("consumer"),
    Api.SHARE_GROUP_HEARTBEAT: _note_heartbeat("share"),
    Api.STREAMS_GROUP_HEARTBEAT: _note_heartbeat("streams"),
    Api.SHARE_FETCH: _note_share_fetch,
    **dict.fromkeys(
        (
            Api.CREATE_TOPICS, Api.DELETE_TOPICS, Api.CREATE_PARTITIONS, Api.DELETE_RECORDS,
            Api.DESCRIBE_CONFIGS, Api.ALTER_CONFIGS, Api.INCREMENTAL_ALTER_CONFIGS, Api.LIST_GROUPS,
            Api.DESCRIBE_GROUPS, Api.CONSUMER_GROUP_DESCRIBE, Api.DELETE_GROUPS, Api.DESCRIBE_CLUSTER,
            Api.DESCRIBE_LOG_DIRS, Api.LIST_TRANSACTIONS, Api.DESCRIBE_QUORUM, Api.BRAID_DESCRIBE_BROKER,
        ),
        _note_administration,
    ),
}  # fmt: skip


class LiveClients:
    """The connections of a broker, in the order in which they came."""

    def __init__(self, clock: Clock) -> None:
        self.since_ms = clock.wall_ms()
        self._sessions: dict[int, KafkaSession] = {}
        self._numbers = count()

    def __len__(self) -> int:
        return len(self._sessions)

    def add(self, session: KafkaSession) -> int:
        number = next(self._numbers)
        self._sessions[number] = session
        return number

    def remove(self, session: KafkaSession) -> None:
        self._sessions.pop(session.number, None)

    def page(self, after: int, most: int) -> list[KafkaSession]:
        """Up to `most` connections that came after the one with this number."""
        later = (session for number, session in self._sessions.items() if number > after)
        return list(islice(later, most))


# -- answers ------------------------------------------------------------------------------------


def describe_broker(
    face: KafkaFace, request: DescribeBrokerRequest, context: RequestContext
) -> DescribeBrokerResponse:
    broker, metadata = face.broker, face.broker.metadata
    image, membership = metadata.image, metadata.membership
    store = str(getattr(metadata.store, "kind", "other"))
    now_ms = broker.clock.wall_ms()
    most = min(max(request.clients_max, 0), PAGE_MAX)
    sessions = face.clients.page(request.after_client, most)
    loads = image.loads()
    up = {node_id for node_id, known in image.brokers.items() if known.alive is not None}
    controller = image.controller
    controller_id = face.node_id if store == EMBEDDED else NO_MORE
    return DescribeBrokerResponse(
        node_id=face.node_id,
        cluster_id=broker.cluster_id,
        cluster_name=broker.config.cluster_name,
        format_level=image.format_level,
        epoch=membership.epoch,
        isolated=membership.isolated,
        since_ms=face.clients.since_ms,
        wall_ms=now_ms,
        store=store,
        image_revision=image.revision,
        # A store in this process is never further than the image.
        image_age_ms=0 if store == EMBEDDED else int(metadata.feed.age_s * 1000),
        controller_id=controller_id if controller is None else controller.record.node_id,
        controller_epoch=NO_EPOCH if controller is None else controller.create_revision,
        connections=len(face.clients),
        topics=len(image.topics),
        partitions=sum(leaders for leaders, _ in loads.values()),
        leaderless=sum(leaders for node_id, (leaders, _) in loads.items() if node_id not in up),
        brokers=[
            _known(known, loads.get(node_id, (0, 0))) for node_id, known in sorted(image.brokers.items())
        ],
        clients=[_describe(face, session, now_ms) for session in sessions],
        next_client=sessions[-1].number if sessions and len(sessions) == most else NO_MORE,
    )


def _known(known: BrokerImage, load: tuple[int, int]) -> KnownBroker:
    alive = None if known.alive is None else known.alive.record
    node = None if known.node is None else known.node.record
    at = alive.listeners[0] if alive is not None and alive.listeners else None
    return KnownBroker(
        node_id=known.node_id,
        epoch=known.epoch,
        state="down" if alive is None else alive.state.value,
        host="" if at is None else at.host,
        port=0 if at is None else at.port,
        machine="" if node is None else node.host,
        rack=None if node is None else node.rack,
        version="" if alive is None else alive.version,
        uuid="" if node is None else node.uuid,
        leaders=load[0],
        replicas=load[1],
    )


def _describe(face: KafkaFace, session: KafkaSession, now_ms: int) -> LiveClient:
    notes, connection = session.notes, session.connection
    loop_now = asyncio.get_running_loop().time()

    def wall_ms(at: float) -> int:
        return now_ms - int((loop_now - at) * 1000)

    def topics(held: Topics | None) -> list[LiveTopic]:
        found = {_name(face, key): wall_ms(at) for key, at in (held or {}).items()}
        return [LiveTopic(name=name, last_ms=found[name]) for name in sorted(found)]

    software = notes.software or ("", "")
    return LiveClient(
        number=session.number,
        address=_address(connection),
        client_id=(notes.client_id or "")[:TEXT_MAX],
        software_name=software[0],
        software_version=software[1],
        since_ms=notes.since_ms,
        last_ms=wall_ms(connection.last_active),
        bytes_in=notes.bytes_in,
        bytes_out=connection.sent_bytes,
        role=_role(notes) if session.peer is None else f"broker {session.peer.node_id}",
        group_id=None if notes.group is None else notes.group[1],
        member_id=None if notes.group is None else notes.group[2],
        transactional_id=notes.transactional_id,
        writes=topics(notes.wrote),
        reads=topics(notes.read),
    )


def _address(connection: Connection) -> str:
    try:
        host, port = connection.remote()
    except (OSError, ValueError):  # it is gone, or it came over something that has no ports
        return connection.peer
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _role(notes: ClientNotes) -> str:
    roles = ["producer"] if notes.wrote else []
    if notes.group is not None:
        roles.append(notes.group[0])
    elif notes.read:
        roles.append("consumer")
    if notes.administers:
        roles.append("admin")
    return ",".join(roles)


def _name(face: KafkaFace, key: str | bytes) -> str:
    """The topic's name; its id where there is no such topic any more."""
    if isinstance(key, str):
        return key[:TEXT_MAX]
    topic = face.broker.metadata.image.topics.get(key)
    return key.hex() if topic is None else topic.name
