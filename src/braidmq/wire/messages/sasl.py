"""Saying who one is: the mechanism is agreed on first, then its own messages travel as plain bytes."""

from __future__ import annotations

from braidmq.wire.api import Api
from braidmq.wire.schema import NEVER, Message, array, data, int16, int64, string


class SaslHandshakeRequest(Message, api=Api.SASL_HANDSHAKE, versions=(0, 1), flexible=NEVER):
    mechanism: str = string()


class SaslHandshakeResponse(Message, api=Api.SASL_HANDSHAKE, versions=(0, 1), flexible=NEVER):
    error_code: int = int16()
    mechanisms: list[str] = array(string)


class SaslAuthenticateRequest(Message, api=Api.SASL_AUTHENTICATE, versions=(0, 2), flexible=2):
    auth_bytes: bytes = data()


class SaslAuthenticateResponse(Message, api=Api.SASL_AUTHENTICATE, versions=(0, 2), flexible=2):
    error_code: int = int16()
    error_message: str | None = string(nullable=0)
    auth_bytes: bytes = data()
    session_lifetime_ms: int = int64(since=1)
