"""One client's connections to the brokers that answer for it, its own one among them.

Each broker sees the requests in the client's order, on a connection that ends with the client's: what is held
for a connection (a share session) is held for this client. It has no more rights there than a client has.
Fetches have a connection of their own, as a leader may keep one that the client no longer waits for.
"""

from __future__ import annotations

import asyncio

from braidmq.net.peer import Peers
from braidmq.net.peer_link import PeerLink, Target
from braidmq.net.peer_proof import Purpose
from braidmq.net.peer_wire import PeerUnavailable, Versions
from braidmq.wire import header, schema
from braidmq.wire.api import Api, response_class
from braidmq.wire.primitives import skip_tagged_fields
from braidmq.wire.schema import Message


class Forwarded:
    """A client's request as it came, or a part of it, in the version the client speaks."""

    __slots__ = ("_body", "_client_id", "_version", "answered", "api")

    def __init__(self, api: Api, version: int, client_id: str | None, body: bytes, answered: bool) -> None:
        self.api = api
        self._version = version
        self._client_id = client_id
        self._body = body
        self.answered = answered

    def frame(self, versions: Versions, correlation_id: int, client_id: str) -> list[bytes | memoryview]:  # noqa: ARG002
        lowest, highest = versions.get(self.api, (0, -1))
        if not lowest <= self._version <= highest:
            what = f"{self.api.name} version {self._version}"
            raise PeerUnavailable(f"it does not serve {what}", sent=False)
        return [header.request(self.api, self._version, correlation_id, self._client_id), self._body]

    def read(self, answer: memoryview) -> Message:
        at = 4
        if header.has_response_tags(self.api, self._version):
            at = skip_tagged_fields(answer, at + 1, answer[at])
        return schema.decode(response_class(self.api), self._version, answer[at:])


class Lanes:
    """The connections of one client, made as they are needed."""

    def __init__(self, peers: Peers, client_host: str) -> None:
        self._peers = peers
        self._client_host = client_host
        self._links: dict[tuple[int, bool], PeerLink] = {}
        self.closed = False

    def ask(self, node_id: int, content: Forwarded, timeout_s: float) -> asyncio.Future[object]:
        """The answer to come; it fails as `PeerUnavailable`."""
        if self.closed:
            gone: asyncio.Future[object] = asyncio.get_running_loop().create_future()
            gone.set_exception(PeerUnavailable("the client is gone", sent=False))
            return gone
        key = (node_id, content.api is Api.FETCH)
        link = self._links.get(key)
        if link is None:
            target = Target(node_id, Purpose.FORWARD, self._client_host)
            # What is queued is bounded by what the client's own connection may hold.
            peers = self._peers
            link = PeerLink(peers.network, peers.directory, target, peers.scratch, queued_bytes_max=None)
            self._links[key] = self._peers.adopt(link)
        return link.ask(content, timeout_s)

    def is_idle(self, node_id: int) -> bool:
        """Whether nothing but fetches is under way there."""
        link = self._links.get((node_id, False))
        return link is None or link.idle

    def close(self) -> None:
        """The client is gone: nothing more is asked."""
        self.closed = True
        for link in self._links.values():
            self._peers.release(link, "the client is gone")
        self._links.clear()
