"""What a handler may want to know about a request besides its content."""

from __future__ import annotations

from typing import NamedTuple


class RequestContext(NamedTuple):
    """The version a client speaks, what it calls itself, where it is, and the connection it uses."""

    version: int
    client_id: str
    host: str
    connection: object = None
