"""The other brokers of the cluster, to be asked: `await peers.call(node_id, request)`.

There is one connection (`net/peer_link.py`) to each broker for each purpose, made when it is first needed.
Questions are pipelined on it. A large answer delays what comes after it on the same connection, so what moves
records says `Purpose.BULK`, and does not stand before a transaction's marker.
"""

from __future__ import annotations

import asyncio
from typing import cast

from braidmq.net.peer_link import PeerLink, Target
from braidmq.net.peer_proof import PeerDirectory, Purpose
from braidmq.net.peer_wire import RECEIVE_BYTES, MessageContent, PeerUnavailable
from braidmq.platform.network import Network
from braidmq.wire.schema import Message

TIMEOUT_S = 5.0

__all__ = ["PeerUnavailable", "Peers", "Purpose"]


class Peers:
    """Connections to other brokers, owned by this one."""

    def __init__(self, network: Network, directory: PeerDirectory) -> None:
        self.network = network
        self.directory = directory
        self.scratch = memoryview(bytearray(RECEIVE_BYTES))
        """What connections receive into, all of them: a client's forwarded requests need several."""
        self._links: dict[tuple[int, Purpose], PeerLink] = {}
        self._lent: dict[PeerLink, None] = {}
        self._ending: dict[asyncio.Task[None], None] = {}
        self._closed = False

    async def call(
        self,
        node_id: int,
        request: Message,
        *,
        timeout_s: float = TIMEOUT_S,
        purpose: Purpose = Purpose.CONTROL,
        newest: int | None = None,
    ) -> Message:
        """The answer of broker `node_id`, in the newest version both speak, at most `newest`.

        `PeerUnavailable` if the request could not be sent, or its answer was lost: see its `sent`. Awaits
        futures alone, so a handler may call it (see `faces/kafka/handler_run.py`).
        """
        if self._closed:
            raise PeerUnavailable("this broker is stopping", sent=False)
        link = self._links.get((node_id, purpose))
        if link is None:
            link = PeerLink(self.network, self.directory, Target(node_id, purpose), self.scratch)
            self._links[node_id, purpose] = link
        return cast("Message", await link.ask(MessageContent(request, newest), timeout_s))

    def adopt(self, link: PeerLink) -> PeerLink:
        """Takes a connection of somebody else's among those that end with this broker."""
        if self._closed:
            link.close("this broker is stopping")
        self._lent[link] = None
        return link

    def release(self, link: PeerLink, reason: str) -> None:
        """Closes a connection that was adopted."""
        self._lent.pop(link, None)
        ending = link.close(reason)
        if ending is not None:
            self._ending[ending] = None
            ending.add_done_callback(lambda task: self._ending.pop(task, None))

    async def close(self) -> None:
        """Fails what is under way and closes every connection."""
        self._closed = True
        for link in [*self._links.values(), *self._lent]:
            self.release(link, "this broker is stopping")
        self._links.clear()
        if self._ending:
            await asyncio.wait(list(self._ending))
