"""What clients see of the proof between brokers: nothing they would take for SASL of theirs."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from braidmq.faces.kafka.peer_proof import require_peer
from braidmq.faces.kafka.request_context import RequestContext
from braidmq.net.peer_proof import CallerProof, Purpose
from braidmq.wire.errors import ApiError, ErrorCode, ProtocolError
from braidmq.wire.messages.sasl import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)
from unit.faces.spoken import Speaker, speaker
from unit.net.peers import Directory


async def prove(client: Speaker, purpose: Purpose) -> Directory:
    """Proves to be broker 2."""
    ours, theirs = Directory(2), Directory(client.broker.config.node_id)
    client.broker.peers.directory = theirs
    await client.ask(SaslHandshakeRequest(mechanism="BRAID-PEER"), SaslHandshakeResponse, 1)
    proof = CallerProof(ours, theirs.node_id, purpose)
    message = proof.hello
    for _ in range(2):
        said = await client.ask(SaslAuthenticateRequest(auth_bytes=message), SaslAuthenticateResponse, 2)
        assert said.error_code == ErrorCode.NONE, said.error_message
        if said.auth_bytes:
            message = proof.answer(said.auth_bytes)
    return theirs


def test_a_client_that_wants_sasl_is_refused_as_by_kafka(tmp_path: Path) -> None:
    """N4: on a listener without SASL, a handshake is out of place, whatever its mechanism."""

    async def run() -> None:
        async with speaker(tmp_path) as client:
            for mechanism in ("PLAIN", "SCRAM-SHA-256"):
                answer = await client.ask(SaslHandshakeRequest(mechanism=mechanism), SaslHandshakeResponse, 1)
                assert answer.error_code == ErrorCode.ILLEGAL_SASL_STATE
                assert answer.mechanisms == []
            said = await client.ask(
                SaslAuthenticateRequest(auth_bytes=b"\0a\0b"), SaslAuthenticateResponse, 2
            )
            assert said.error_code == ErrorCode.ILLEGAL_SASL_STATE

    asyncio.run(run())


def test_only_a_broker_that_has_proved_itself_is_a_peer(tmp_path: Path) -> None:
    """N4: no client is one, nor a connection that forwards a client's requests, nor a replaced run."""

    async def run() -> None:
        async with speaker(tmp_path) as client:
            context = RequestContext(0, "", "", client.session)
            with pytest.raises(ApiError) as refused:
                require_peer(client.face, context)
            assert refused.value.code is ErrorCode.CLUSTER_AUTHORIZATION_FAILED
            theirs = await prove(client, Purpose.CONTROL)
            assert require_peer(client.face, context).node_id == 2
            theirs.epochs[2] = 8
            with pytest.raises(ApiError) as stale:
                require_peer(client.face, context)
            assert stale.value.code is ErrorCode.STALE_BROKER_EPOCH
        async with speaker(tmp_path) as client:
            await prove(client, Purpose.FORWARD)
            with pytest.raises(ApiError):
                require_peer(client.face, RequestContext(0, "", "", client.session))

    asyncio.run(run())


def test_a_connection_has_one_attempt(tmp_path: Path) -> None:
    """N4: after a refusal the connection is of no use any more."""

    async def run() -> None:
        async with speaker(tmp_path) as client:
            await client.ask(SaslHandshakeRequest(mechanism="BRAID-PEER"), SaslHandshakeResponse, 1)
            wrong = SaslAuthenticateRequest(auth_bytes=b"guess")
            said = await client.ask(wrong, SaslAuthenticateResponse, 2)
            assert said.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
            with pytest.raises(ProtocolError):
                await client.ask(wrong, SaslAuthenticateResponse, 2)

    asyncio.run(run())
