"""SaslHandshake and SaslAuthenticate, by which other brokers of the cluster prove themselves (`BRAID-PEER`).

Clients need no SASL: a handshake for any other mechanism is answered as Kafka does on a listener without it.
A connection has one attempt. After a refusal it is closed with the next request, and the caller pauses before
it connects again.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, cast

from braidmq.faces.kafka.request_context import RequestContext
from braidmq.net.peer_proof import (
    MECHANISM,
    CalledProof,
    PeerIdentity,
    ProofRefused,
    Purpose,
    is_stale,
)
from braidmq.wire.errors import ApiError, ErrorCode, ProtocolError
from braidmq.wire.messages.sasl import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)

if TYPE_CHECKING:
    from braidmq.faces.kafka.face import KafkaFace
    from braidmq.faces.kafka.session import KafkaSession

REFUSALS_TOLD_S = 1.0

log = logging.getLogger("braid.peer")


class Refusals:
    """Says who was refused, in one line a second at most."""

    __slots__ = ("_since", "_untold")

    def __init__(self) -> None:
        self._since = float("-inf")
        self._untold = 0

    def tell(self, host: str, reason: str, now_s: float) -> None:
        if now_s - self._since < REFUSALS_TOLD_S:
            self._untold += 1
            return
        more = f" ({self._untold} others were refused before)" if self._untold else ""
        log.warning("%s is refused as a broker of this cluster: %s%s", host, reason, more)
        self._since, self._untold = now_s, 0


class Proving:
    """A connection between its SaslHandshake and its end: the proof under way, or its outcome."""

    __slots__ = ("peer", "proof", "refused")

    def __init__(self, proof: CalledProof) -> None:
        self.proof = proof
        self.peer: PeerIdentity | None = None
        self.refused = False


def sasl_handshake(
    face: KafkaFace, request: SaslHandshakeRequest, context: RequestContext
) -> SaslHandshakeResponse:
    """Begins a broker's proof; there is no other mechanism."""
    session = cast("KafkaSession", context.connection)
    if session.proving is not None:
        raise ProtocolError("a second SaslHandshake on one connection")
    if request.mechanism != MECHANISM:
        return SaslHandshakeResponse(error_code=int(ErrorCode.ILLEGAL_SASL_STATE))
    session.proving = Proving(CalledProof(face.broker.peers.directory))
    return SaslHandshakeResponse(mechanisms=[MECHANISM])


def sasl_authenticate(
    face: KafkaFace, request: SaslAuthenticateRequest, context: RequestContext
) -> SaslAuthenticateResponse:
    """The two rounds of a broker's proof."""
    session = cast("KafkaSession", context.connection)
    proving = session.proving
    if proving is None:
        return SaslAuthenticateResponse(
            error_code=int(ErrorCode.ILLEGAL_SASL_STATE), error_message="SaslHandshake comes first"
        )
    if proving.refused or proving.peer is not None:
        raise ProtocolError("SaslAuthenticate after the proof had ended")
    try:
        if not proving.proof.greeted:
            return SaslAuthenticateResponse(auth_bytes=proving.proof.challenge(request.auth_bytes))
        proving.peer = proving.proof.verify(request.auth_bytes)
    except ProofRefused as error:
        proving.refused = True
        face.refusals.tell(context.host, str(error), face.broker.clock.monotonic())
        return SaslAuthenticateResponse(
            error_code=int(ErrorCode.SASL_AUTHENTICATION_FAILED), error_message=str(error)
        )
    if proving.peer.purpose is Purpose.FORWARD:
        session.host = proving.peer.client_host
    return SaslAuthenticateResponse()


def require_peer(face: KafkaFace, context: RequestContext) -> PeerIdentity:
    """The broker that asks; `ApiError` if it is not one, or if another run has taken its place."""
    proving = getattr(context.connection, "proving", None)
    peer: PeerIdentity | None = None if proving is None else proving.peer
    if peer is None or peer.purpose is Purpose.FORWARD:
        raise ApiError(
            ErrorCode.CLUSTER_AUTHORIZATION_FAILED, "only brokers of this cluster may ask for this"
        )
    if is_stale(face.broker.peers.directory, peer):
        raise ApiError(
            ErrorCode.STALE_BROKER_EPOCH,
            f"broker {peer.node_id} has registered again since epoch {peer.epoch}",
        )
    return peer


def is_peer(face: KafkaFace, context: RequestContext) -> bool:
    """Whether another broker asks, for what clients may ask for, too."""
    try:
        require_peer(face, context)
    except ApiError:
        return False
    return True
