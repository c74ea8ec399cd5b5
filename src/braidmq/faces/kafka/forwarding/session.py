"""The layer before the handlers: what this broker does not answer itself is asked of those that do.

A request that is all this broker's takes the ordinary way. Any other is cut, asked and joined. While parts of
earlier requests are under way to this broker itself, over the connection that such parts use, later ones take
the same way: a client's order holds for each broker.

What is kept of a client's requests until they are answered counts as what its connection holds, so a client
that sends faster than the others take is not read for a while. So does what its fetches may bring, past the
first: here records are in memory, not in files.
"""

from __future__ import annotations

import logging
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, cast

from braidmq.faces.kafka.forwarding.fetching import Fetching
from braidmq.faces.kafka.forwarding.front import Front, ImagePlaces
from braidmq.faces.kafka.forwarding.lanes import Forwarded, Lanes
from braidmq.faces.kafka.forwarding.parts import cut, join, refusal, without_addresses
from braidmq.faces.kafka.forwarding.routes import By, Route, route_of
from braidmq.faces.kafka.forwarding.sharing import Sharing
from braidmq.faces.kafka.handler_run import HandlerRun
from braidmq.faces.kafka.session import KafkaSession
from braidmq.net.connection import Connection, PendingReply
from braidmq.net.outbox import Parts
from braidmq.net.peer_wire import PeerUnavailable
from braidmq.wire import header as header_wire
from braidmq.wire.api import Api
from braidmq.wire.errors import ErrorCode
from braidmq.wire.header import RequestHeader
from braidmq.wire.messages.fetch import FetchRequest, FetchResponse
from braidmq.wire.messages.produce import ProduceRequest
from braidmq.wire.messages.share_fetch import ShareAcknowledgeRequest, ShareFetchRequest
from braidmq.wire.schema import Message, decoder, encode

if TYPE_CHECKING:
    from braidmq.faces.kafka.face import KafkaFace

PATIENCE_S = 60.0
"""Beyond what a request itself says that it may take."""
GROUP_PATIENCE_S = 660.0
"""Members wait for each other; a client that does not want to wait closes its connection."""
ANSWER_BYTES_MIN = 1024 * 1024
"""What a fetch counts at least: a leader always sends one batch, however little is asked for."""

_SHARED = (Api.SHARE_FETCH, Api.SHARE_ACKNOWLEDGE)

log = logging.getLogger("braid.forward")


class ForwardingSession(KafkaSession):
    """A client's connection at a forwarding listener."""

    __slots__ = ("_fetches", "_fetching", "_front", "_lanes", "_places", "_sharing")

    def __init__(self, face: KafkaFace, connection: Connection, front: Front) -> None:
        super().__init__(face, connection)
        self._front = front
        self._places = ImagePlaces(face.broker)
        self._lanes = Lanes(face.broker.peers, connection.peer)
        self._fetches = 0
        """Under way."""
        self._fetching: Fetching | None = None
        self._sharing: Sharing | None = None

    def on_frame(self, frame: memoryview) -> Parts | PendingReply | None:
        body = frame[4:]
        header = header_wire.parse_request(body)
        route = route_of(header.api_key, header.api_version)
        verb = self._verbs.get(header.api_key)
        if verb is None or not verb.lowest <= header.api_version <= verb.highest:
            return super().on_frame(frame)
        if route is None and header.api_key not in _SHARED:
            return super().on_frame(frame)
        request, _ = decoder(verb.request, header.api_version)(body, header.body_at)
        if route is None:
            return self._on_shared(request, header)
        if isinstance(request, FetchRequest):
            return self._on_fetch(route, request, header)
        parts = cut(route, request, self._places)
        node_id = self._places.node_id
        if len(parts) == 1 and node_id in parts and self._lanes.is_idle(node_id):
            return super().on_frame(frame)
        whole = bytes(body[header.body_at :]) if len(parts) == 1 else None
        return self._forward(route, parts, header, whole)

    def on_closed(self) -> None:
        self._lanes.close()
        if self._sharing is not None:
            self._sharing.close()
        super().on_closed()

    def _encoded(self, api: Api, version: int, correlation_id: int, response: Message) -> bytes:
        self._front.show(response)
        return super()._encoded(api, version, correlation_id, response)

    # -- requests that others answer ------------------------------------------------------------

    def _forward(
        self, route: Route, parts: dict[int, Message], header: RequestHeader, whole: bytes | None
    ) -> PendingReply:
        api, version = Api(header.api_key), header.api_version
        first = next(iter(parts.values()))
        answered = not (isinstance(first, ProduceRequest) and first.acks == 0)
        timeout_s = _patience_s(route, first)
        asked = []
        held_bytes = 0
        # All of it is encoded here: what records point to belongs to the connection.
        for node_id, part in parts.items():
            body = encode(part, version) if whole is None else whole
            held_bytes += len(body)
            content = Forwarded(api, version, header.client_id, body, answered)
            asked.append((_without_records(part), self._lanes.ask(node_id, content, timeout_s)))

        async def gather() -> Message | None:
            answers: list[Message] = []
            for part, answer in asked:
                try:
                    answers.append(without_addresses(cast("Message", await answer)))
                except PeerUnavailable as error:
                    log.debug("%s is not answered: %s", api.name, error)
                    answers.append(refusal(route, part, version, _code(route, error)))
            return join(route, answers)

        return self._run(header, gather() if answered else self._unanswered(asked), held_bytes)

    async def _unanswered(self, asked: list[tuple[Message, Any]]) -> None:
        """Waits until it has left; a producer that wants no answer learns of a failure by its connection."""
        for _, left in asked:
            try:
                await left
            except PeerUnavailable as error:
                self.connection.close(f"a request without an answer could not be forwarded: {error}")

    def _on_fetch(
        self, route: Route, request: FetchRequest, header: RequestHeader
    ) -> Parts | PendingReply | None:
        version = header.api_version
        if self._fetching is None:
            self._fetching = Fetching(route, self._face.broker.config.fetch_bytes_max)
        fetching = self._fetching
        if request.session_id and request.session_epoch > 0:
            lost = FetchResponse(error_code=int(ErrorCode.FETCH_SESSION_ID_NOT_FOUND))
            return [self._encoded(Api.FETCH, version, header.correlation_id, lost)]
        request = fetching.without_session(request)
        parts = cast("dict[int, FetchRequest]", cut(route, request, self._places))
        if len(parts) == 1 and self._places.node_id in parts:
            return super().on_frame(_frame(header, encode(request, version)))
        timeout_s = _patience_s(route, request)

        def ask(at: int, body: bytes) -> Any:
            return self._lanes.ask(at, Forwarded(Api.FETCH, version, header.client_id, body, True), timeout_s)

        return self._run_fetch(header, fetching.fetch(parts, version, ask), request.max_bytes)

    def _on_shared(self, request: Message, header: RequestHeader) -> PendingReply:
        version = header.api_version
        if self._sharing is None:

            def ask(at: int, part: Message) -> Any:
                content = Forwarded(part.api, version, header.client_id, encode(part, version), True)
                return self._lanes.ask(at, content, PATIENCE_S)

            self._sharing = Sharing(self._places, ask, self._face.broker.config.fetch_wait_max_ms)
        if isinstance(request, ShareFetchRequest):
            return self._run_fetch(header, self._sharing.fetch(request, version), request.max_bytes)
        return self._run(
            header, self._sharing.acknowledge(cast("ShareAcknowledgeRequest", request), version), 0
        )

    def _run_fetch(
        self, header: RequestHeader, work: Coroutine[Any, Any, Message], bytes_max: int
    ) -> PendingReply:
        most = self._face.broker.config.fetch_bytes_max
        held_bytes = min(max(bytes_max, ANSWER_BYTES_MIN), most) if self._fetches else 0
        self._fetches += 1

        async def counted() -> Message:
            try:
                return await work
            finally:
                self._fetches -= 1

        return self._run(header, counted(), held_bytes)

    def _run(
        self, header: RequestHeader, work: Coroutine[Any, Any, Message | None], held_bytes: int
    ) -> PendingReply:
        api = Api(header.api_key)
        pending = PendingReply()
        self.connection.hold(held_bytes)

        def answered(answer: Message | None) -> None:
            self.connection.hold(-held_bytes)
            if answer is None:
                pending.complete(None)
            else:
                frame = self._encoded(api, header.api_version, header.correlation_id, answer)
                pending.complete([frame])

        def failed(error: Exception) -> None:
            log.error("forwarding %s failed", api.name, exc_info=error)
            self.connection.close(f"forwarding {api.name} failed")

        HandlerRun(work, answered, failed).step()
        return pending


def _code(route: Route, error: PeerUnavailable) -> ErrorCode:
    if error.sent:
        return route.lost
    return ErrorCode.NOT_LEADER_OR_FOLLOWER if route.by is By.LEADER else ErrorCode.COORDINATOR_NOT_AVAILABLE


def _patience_s(route: Route, request: Message) -> float:
    if route.by in (By.GROUP, By.TRANSACTION):
        return GROUP_PATIENCE_S
    said_ms = max(getattr(request, "timeout_ms", 0), getattr(request, "max_wait_ms", 0), 0)
    return min(PATIENCE_S + said_ms / 1000, GROUP_PATIENCE_S)


def _without_records(part: Message) -> Message:
    """What a refusal needs to know; records are no longer valid then."""
    if isinstance(part, ProduceRequest):
        for topic in part.topic_data:
            for one in topic.partition_data:
                one.records = None
    return part


def _frame(header: RequestHeader, body: bytes) -> memoryview:
    """A request as it would have come from the client."""
    head = header_wire.request(
        Api(header.api_key), header.api_version, header.correlation_id, header.client_id
    )
    return memoryview(bytearray((len(head) + len(body)).to_bytes(4, "big") + head + body))
