"""What a served metadata store and its clients say to each other.

A frame is its length, four bytes, big-endian, and a JSON object. A length is believed only up to a maximum,
which is small until both sides have proved themselves.

A conversation begins with the server's greeting, which names the versions it speaks, the store's identity
and a nonce. The client answers with a version, a nonce of its own, and where there is a token, an HMAC over
both nonces with it; the server answers with its own. So the token is never on the wire, and neither side
talks to one that does not have it. What follows is not encrypted.

Then the client asks: `{"id": 1, "do": "commit", …}`. An answer has the `id` of its question and either
`ok`, or `error` with `text`. A snapshot is answered in pages (`page`, then `ok`), a watch in changes
(`change`) until it is cancelled or lost.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import struct
from collections.abc import Mapping
from typing import Any

from braidmq.cluster.metadata_store import (
    Conflict,
    Expired,
    Lost,
    Refused,
    StoreError,
    StoreFull,
    Unavailable,
    Unknown,
)
from braidmq.cluster.store_json import number, string

VERSION = 1
FRAME_BYTES_MAX = 16 * 1024 * 1024
"""The largest commit, of bytes that take six characters each, fits."""
GREETING_BYTES_MAX = 4096
PING_EVERY_S = 2.0
SILENCE_S_MAX = 6.0
"""A peer that has sent nothing for this long is gone."""
TOKEN_BYTES_MIN = 16

_LENGTH = struct.Struct(">I")
_ERRORS: Mapping[str, type[StoreError]] = {
    "conflict": Conflict,
    "expired": Expired,
    "full": StoreFull,
    "refused": Refused,
    "unavailable": Unavailable,
    "unknown": Unknown,
}

Frame = dict[str, Any]


class BadFrame(Exception):
    """The peer sent what cannot be understood: it is no metadata store, or not one of ours."""


def encode_frame(frame: Mapping[str, Any]) -> bytes:
    body = json.dumps(frame, separators=(",", ":")).encode()
    if len(body) > FRAME_BYTES_MAX:
        raise BadFrame(f"a frame of {len(body):,} bytes; at most {FRAME_BYTES_MAX:,} are allowed")
    return _LENGTH.pack(len(body)) + body


async def read_frame(reader: asyncio.StreamReader, bytes_max: int = FRAME_BYTES_MAX) -> Frame:
    """The next frame; `ConnectionError` at the end of the stream."""
    try:
        (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
        if not 0 < length <= bytes_max:
            raise BadFrame(f"a frame of {length:,} bytes; at most {bytes_max:,} are allowed")
        body = await reader.readexactly(length)
    except asyncio.IncompleteReadError as error:
        raise ConnectionError("the connection was closed") from error
    try:
        frame = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise BadFrame("a frame that is no JSON") from error
    if not isinstance(frame, dict):
        raise BadFrame("a frame that is no JSON object")
    return frame


def proof(token: bytes, side: str, server_nonce: str, client_nonce: str) -> str:
    """What only a holder of the token can say about these nonces; each side says something else."""
    message = f"braid-store {VERSION} {side} {server_nonce} {client_nonce}".encode()
    return hmac.new(token, message, hashlib.sha256).hexdigest()


def is_proof(token: bytes, side: str, server_nonce: str, client_nonce: str, said: object) -> bool:
    expected = proof(token, side, server_nonce, client_nonce)
    return isinstance(said, str) and hmac.compare_digest(expected.encode(), said.encode("utf-8", "replace"))


def error_to_frame(error: StoreError) -> Frame:
    if isinstance(error, Lost):
        return {"error": "lost", "revision": error.compact_revision}
    for name, kind in _ERRORS.items():
        if type(error) is kind:
            return {"error": name, "text": str(error)}
    return {"error": "unavailable", "text": str(error)}


def error_from_frame(frame: Frame) -> StoreError:
    try:
        if frame["error"] == "lost":
            return Lost(number(frame["revision"]))
        return _ERRORS[frame["error"]](string(frame["text"]))
    except (KeyError, TypeError, ValueError) as error:
        raise BadFrame("an error that cannot be understood") from error
