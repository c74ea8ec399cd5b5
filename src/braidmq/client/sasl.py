"""The client's half of SASL, without I/O: each mechanism is a generator of messages that is sent the answers.

PLAIN (RFC 4616), SCRAM (RFC 5802, 7677) and OAUTHBEARER (RFC 7628). In SCRAM the server proves that it knows
the password too; a server that cannot is refused, as are nonces that are not ours and iteration counts that
would only burn time.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import unicodedata
from collections.abc import Generator

from braidmq.client.security import Credentials, Mechanism
from braidmq.platform.randomness import random_bytes

ITERATIONS_MIN = 4096
ITERATIONS_MAX = 1_000_000
NONCE_BYTES = 24
GS2_HEADER = "n,,"

Exchange = Generator[bytes, bytes, None]


class SaslFailed(Exception):
    """The exchange cannot succeed; the message says why."""


def exchange(credentials: Credentials) -> Exchange:
    """The messages of the client, in turn with those of the server."""
    if credentials.mechanism is Mechanism.PLAIN:
        return _plain(credentials)
    if credentials.mechanism is Mechanism.OAUTHBEARER:
        return _oauthbearer(credentials)
    return _scram(credentials)


def _plain(credentials: Credentials) -> Exchange:
    yield b"\0".join((b"", credentials.username.encode(), credentials.password.encode()))


def _oauthbearer(credentials: Credentials) -> Exchange:
    refusal = yield f"{GS2_HEADER}\x01auth=Bearer {credentials.token}\x01\x01".encode()
    if refusal:
        raise SaslFailed(f"the broker refused the token: {refusal.decode(errors='replace')}")


def _scram(credentials: Credentials) -> Exchange:
    digest = "sha256" if credentials.mechanism is Mechanism.SCRAM_SHA_256 else "sha512"
    nonce = base64.b64encode(random_bytes(NONCE_BYTES)).decode()
    username = credentials.username.replace("=", "=3D").replace(",", "=2C")
    client_first = f"n={username},r={nonce}"
    server_first = (yield (GS2_HEADER + client_first).encode()).decode()
    fields = _fields(server_first)
    if "e" in fields:
        raise SaslFailed(f"the broker refused {credentials.username}: {fields['e']}")
    salt, iterations = _salt(fields, nonce)
    bound = base64.b64encode(GS2_HEADER.encode()).decode()
    client_final = f"c={bound},r={fields['r']}"
    signed = ",".join((client_first, server_first, client_final)).encode()

    password = unicodedata.normalize("NFKC", credentials.password).encode()
    salted = hashlib.pbkdf2_hmac(digest, password, salt, iterations)
    client_key = hmac.digest(salted, b"Client Key", digest)
    signature = hmac.digest(hashlib.new(digest, client_key).digest(), signed, digest)
    proof = bytes(left ^ right for left, right in zip(client_key, signature, strict=True))
    server_final = (yield f"{client_final},p={base64.b64encode(proof).decode()}".encode()).decode()

    server_signature = hmac.digest(hmac.digest(salted, b"Server Key", digest), signed, digest)
    if "e" in (final := _fields(server_final)):
        raise SaslFailed(f"the broker refused {credentials.username}: {final['e']}")
    if not hmac.compare_digest(final.get("v", ""), base64.b64encode(server_signature).decode()):
        raise SaslFailed("the broker does not know the password either: it may be an impostor")


def _fields(message: str) -> dict[str, str]:
    return {part[0]: part[2:] for part in message.split(",") if part[1:2] == "="}


def _salt(fields: dict[str, str], nonce: str) -> tuple[bytes, int]:
    try:
        salt, iterations = base64.b64decode(fields["s"]), int(fields["i"])
        answered = fields["r"]
    except (KeyError, ValueError):
        raise SaslFailed("the broker's SCRAM message cannot be read") from None
    if not answered.startswith(nonce) or len(answered) == len(nonce):
        raise SaslFailed("the broker answered with a nonce that is not ours")
    if not ITERATIONS_MIN <= iterations <= ITERATIONS_MAX:
        raise SaslFailed(f"the broker asks for {iterations} iterations, which is not reasonable")
    return salt, iterations
