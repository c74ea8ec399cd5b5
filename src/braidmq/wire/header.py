"""What comes before a message: which API and version it is, and which request an answer belongs to.

A request header has two forms. Version 1 is api key, api version, correlation id and client id; version 2
adds tagged fields and comes with the flexible versions of an API. The client id keeps its classic length in
both. A response header is the correlation id, and in flexible versions tagged fields; ApiVersions answers
without them always, because the client does not know yet what the broker speaks (KIP-511).
"""

from __future__ import annotations

from struct import Struct, error
from typing import NamedTuple

import braidmq.wire.messages  # noqa: F401 — enters every message into REQUESTS
from braidmq.wire.api import REQUESTS, Api
from braidmq.wire.errors import ProtocolError
from braidmq.wire.primitives import View, skip_tagged_fields
from braidmq.wire.schema import NEVER

_FLEXIBLE_FROM: dict[int, int] = {int(api): cls.flexible_from for api, cls in REQUESTS.items()}
_FIXED = Struct(">hhih")
_unpack_fixed = _FIXED.unpack_from
_pack_fixed = _FIXED.pack
_pack_int32 = Struct(">i").pack
_pack_response = Struct(">ii").pack
_pack_flexible_response = Struct(">iib").pack
_new = tuple.__new__


class RequestHeader(NamedTuple):
    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None
    body_at: int
    """Where the body of the request begins."""


def parse_request(view: View) -> RequestHeader:
    """The header of a request without its size prefix; of an unknown API only what version 1 has is read."""
    try:
        api_key, api_version, correlation_id, length = _unpack_fixed(view, 0)
        if length >= 0:
            at = 10 + length
            client_id = str(view[10:at], "utf-8")
        elif length == -1:
            at = 10
            client_id = None
        else:
            raise ProtocolError(f"request header: a client id of length {length}")
        if api_version >= _FLEXIBLE_FROM.get(api_key, NEVER):
            tags = view[at]
            at += 1
            if tags:
                at = skip_tagged_fields(view, at, tags)
    except (error, IndexError, UnicodeDecodeError) as reason:
        raise ProtocolError(f"request header: {reason}") from None
    if at > len(view):
        raise ProtocolError("request header: it ends before its last field does")
    # Straight to tuple: the NamedTuple's own constructor costs twice as much, on every request.
    return _new(RequestHeader, (api_key, api_version, correlation_id, client_id, at))


def request(api: Api, version: int, correlation_id: int, client_id: str | None) -> bytes:
    """The header a client puts before a request's body, without the size prefix."""
    name = b"" if client_id is None else client_id.encode()
    length = -1 if client_id is None else len(name)
    tags = b"\0" if version >= _FLEXIBLE_FROM.get(api, NEVER) else b""
    return _pack_fixed(api, version, correlation_id, length) + name + tags


def response(api: Api, version: int, correlation_id: int) -> bytes:
    """The header a broker puts before a response's body, without the size prefix."""
    return _pack_int32(correlation_id) + (b"\0" if has_response_tags(api, version) else b"")


def response_frame(api: Api, version: int, correlation_id: int, body: bytes) -> bytes:
    """A whole response as it goes out: size prefix, header and body."""
    if has_response_tags(api, version):
        return _pack_flexible_response(len(body) + 5, correlation_id, 0) + body
    return _pack_response(len(body) + 4, correlation_id) + body


def has_response_tags(api: Api, version: int) -> bool:
    """Whether the header of this response has tagged fields: its body begins after five bytes, not four."""
    return version >= _FLEXIBLE_FROM.get(api, NEVER) and api != Api.API_VERSIONS
