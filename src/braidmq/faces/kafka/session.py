"""One Kafka connection: frames in, the right handler called, its answer encoded.

Produce and Fetch take a hand-written path; every other verb is decoded and encoded from the message tables.
A handler that must wait is a coroutine: its answer becomes a `PendingReply`, and the connection keeps the
order.
"""

from __future__ import annotations

import logging
from struct import Struct
from typing import TYPE_CHECKING, Protocol

from braidmq.faces.kafka.handler_run import HandlerRun
from braidmq.faces.kafka.live_clients import NOTED, ClientNotes, noted
from braidmq.faces.kafka.request_context import RequestContext
from braidmq.net.connection import Connection, PendingReply
from braidmq.net.outbox import Parts
from braidmq.net.peer_proof import PeerIdentity
from braidmq.wire import fetch as fetch_wire
from braidmq.wire import header as header_wire
from braidmq.wire import produce as produce_wire
from braidmq.wire.api import Api
from braidmq.wire.errors import ErrorCode, ProtocolError
from braidmq.wire.header import RequestHeader
from braidmq.wire.messages.versions import ApiVersionsResponse
from braidmq.wire.schema import Message, decoder, encode

if TYPE_CHECKING:
    from braidmq.faces.kafka.face import KafkaFace, Verb
    from braidmq.faces.kafka.peer_proof import Proving

log = logging.getLogger("braid.kafka")

_SIZE = Struct(">i")
_API_KEY = Struct(">h")
_API_KEY_END = 6
_PRODUCE = int(Api.PRODUCE)
_FETCH = int(Api.FETCH)
_API_VERSIONS = int(Api.API_VERSIONS)
FRAME_BYTES_MIN = 8


class Encodable(Protocol):
    """An answer that is not made by the message tables."""

    def encode(self, correlation_id: int) -> Parts: ...


class KafkaSession:
    """The protocol's side of one connection."""

    __slots__ = (
        "_face", "_frame_bytes_max", "_request_bytes_max", "_verbs", "connection", "host", "notes", "number",
        "proving",
    )  # fmt: skip

    def __init__(self, face: KafkaFace, connection: Connection) -> None:
        self._face = face
        self._verbs = face.verbs
        self.connection = connection
        self.notes = ClientNotes(face.broker.clock.wall_ms())
        self.number = face.clients.add(self)
        self.host = connection.peer
        """Where the client is; another place than the connection's if a broker forwards for it."""
        self.proving: Proving | None = None
        """Of a broker that proves itself, or has."""
        self._frame_bytes_max = face.broker.config.net_frame_bytes_max
        self._request_bytes_max = face.broker.config.net_request_bytes_max

    def frame_bytes(self, view: memoryview, at: int, filled: int) -> int:
        if filled - at < 4:
            return 0
        size: int = _SIZE.unpack_from(view, at)[0]
        if size < FRAME_BYTES_MIN or size > self._frame_bytes_max:
            raise ProtocolError(self._bad_size(size))
        if size > self._request_bytes_max and filled - at >= _API_KEY_END:
            api_key: int = _API_KEY.unpack_from(view, at + 4)[0]
            if api_key != _PRODUCE:
                raise ProtocolError(
                    f"a request of {size} bytes with api key {api_key}; net.request.bytes.max is"
                    f" {self._request_bytes_max}"
                )
        return size + 4

    def _bad_size(self, size: int) -> str:
        text = f"a frame of {size} bytes is outside of {FRAME_BYTES_MIN} to {self._frame_bytes_max}"
        start = _SIZE.pack(size)
        if start[:2] == b"\x16\x03":
            return text + "; this looks like TLS on a plain port"
        if start in (b"GET ", b"POST", b"HEAD", b"PUT ", b"HTTP"):
            return text + "; this looks like HTTP"
        return text

    def on_frame(self, frame: memoryview) -> Parts | PendingReply | None:
        body = frame[4:]
        header = header_wire.parse_request(body)
        api_key, version, correlation_id = header.api_key, header.api_version, header.correlation_id
        notes = self.notes
        notes.client_id = header.client_id
        notes.bytes_in += len(frame)
        verb = self._verbs.get(api_key)
        if verb is None or not verb.lowest <= version <= verb.highest:
            return self._refuse_version(api_key, version, correlation_id)
        if api_key == _PRODUCE:
            request = produce_wire.decode(body, header.body_at, version)
            notes.wrote = noted(notes.wrote, request.topics, self.connection.last_active)
            notes.transactional_id = request.transactional_id
            return self._face.produce.handle(request, version, correlation_id, self.connection)
        if api_key == _FETCH:
            wanted = fetch_wire.decode(body, header.body_at, version)
            if wanted.topics:
                notes.read = noted(notes.read, wanted.topics, self.connection.last_active)
            return self._face.fetch.handle(wanted, version, correlation_id)
        return self._dispatch(verb, body, header)

    def _dispatch(self, verb: Verb, body: memoryview, header: RequestHeader) -> Parts | PendingReply:
        _, version, correlation_id, client_id, at = header
        # What is left over is not looked at, as in Kafka: librdkafka 2.16 sends three bytes too many when it
        # asks for the metadata of all topics.
        request, _ = decoder(verb.request, version)(body, at)
        if (note := NOTED.get(verb.api)) is not None:
            note(self, request)
        context = RequestContext(version, client_id or "", self.host, self)
        result = verb.handler(self._face, request, context)
        if isinstance(result, Message):
            return [self._encoded(verb.api, version, correlation_id, result)]
        pending = PendingReply()

        def answered(answer: Message | Encodable) -> None:
            if isinstance(answer, Message):
                pending.complete([self._encoded(verb.api, version, correlation_id, answer)])
            else:
                pending.complete(answer.encode(correlation_id))

        def failed(error: Exception) -> None:
            log.error("%s failed", verb.api.name, exc_info=error)
            # Without an answer the client would wait for ever on an ordered connection.
            self.connection.close(f"{verb.api.name} failed")

        HandlerRun(result, answered, failed).step()
        return pending

    def _refuse_version(self, api_key: int, version: int, correlation_id: int) -> Parts:
        if api_key == _API_VERSIONS:
            # KIP-511: a client that is too new learns from a v0 answer what it may speak.
            verb = self._verbs[_API_VERSIONS]
            response = verb.handler(self._face, None, RequestContext(0, "", self.connection.peer))
            assert isinstance(response, ApiVersionsResponse)
            response.error_code = int(ErrorCode.UNSUPPORTED_VERSION)
            return [self._encoded(Api.API_VERSIONS, 0, correlation_id, response)]
        raise ProtocolError(f"api key {api_key} version {version} is not served; ask ApiVersions first")

    def _encoded(self, api: Api, version: int, correlation_id: int, response: Message) -> bytes:
        return header_wire.response_frame(api, version, correlation_id, encode(response, version))

    @property
    def peer(self) -> PeerIdentity | None:
        """The broker at the other end, if it has proved to be one."""
        return None if self.proving is None else self.proving.peer

    def on_closed(self) -> None:
        self._face.clients.remove(self)
        self._face.on_closed(self)
