"""Registers this broker with name servers, and keeps it registered by heartbeats.

Each name server of the option `nameservers` has a task of its own, so that one that does not answer delays no
other. A heartbeat is sent every three seconds, and at once when a topic or a partition changes. It carries no
topics: if the name server lacks some, its answer says since when, and the broker sends those. The option may
change while the broker runs.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable

from braidmq.address import Address, parse_address
from braidmq.broker.topic import INTERNAL_TOPICS
from braidmq.cluster.image import Delta, Image
from braidmq.cluster.image_feed import ImageFeed
from braidmq.cluster.name_server import Page, TopicRoute
from braidmq.cluster.records import NO_EPOCH, NO_LEADER
from braidmq.cluster.route_changes import RouteChanges
from braidmq.config import Config
from braidmq.net.peer import Peers, PeerUnavailable
from braidmq.net.peer_proof import PeerDirectory
from braidmq.platform.network import Network
from braidmq.wire.errors import ErrorCode
from braidmq.wire.messages.name_server import (
    NOTHING_WANTED,
    NameServerHeartbeatRequest,
    NameServerHeartbeatResponse,
    NameServerRoutesRequest,
    NameServerRoutesResponse,
    RoutePartition,
    RouteTopic,
)

NAME_SERVER = -3
"""What every name server calls itself in a proof; no broker has such an id."""
BEAT_S = 3.0
GAP_S = 0.1
"""Between heartbeats, however many changes there are."""
ANSWER_S_MAX = 3.0
GOODBYE_S_MAX = 0.5

log = logging.getLogger("braid.nameserver")


class Towards:
    """A broker's directory with a single name server in it."""

    def __init__(self, mine: PeerDirectory, address: Address) -> None:
        self.node_id = mine.node_id
        self._mine = mine
        self._address = address

    @property
    def epoch(self) -> int:
        return self._mine.epoch

    @property
    def cluster_id(self) -> str:
        return self._mine.cluster_id

    @property
    def secret(self) -> bytes:
        return self._mine.secret

    def epoch_of(self, node_id: int) -> int:
        return NO_EPOCH if node_id == NAME_SERVER else self._mine.epoch_of(node_id)

    def address_of(self, node_id: int) -> tuple[str, int] | None:
        return self._address if node_id == NAME_SERVER else None


class NameServers:
    """The name servers that know of this broker."""

    def __init__(
        self, config: Config, network: Network, directory: PeerDirectory, image: Image, feed: ImageFeed
    ) -> None:
        self._config = config
        self._network = network
        self._directory = directory
        self._image = image
        self._feed = feed
        self._address = Address("", 0)
        self._changes: RouteChanges | None = None
        self._reports: dict[Address, _Report] = {}
        self._ending: dict[asyncio.Task[None], None] = {}

    def start(self, host: str, port: int) -> None:
        """Begins to register; clients are accepted at this address."""
        self._address = Address(host, port)
        self._changes = RouteChanges(self._image, INTERNAL_TOPICS)
        self._feed.listen(self._follow)
        self.reload()

    async def stop(self) -> None:
        """Says goodbye to those who listen."""
        self._changes = None
        for address in list(self._reports):
            self._end(address)
        if self._ending:
            await asyncio.wait(list(self._ending))

    def _follow(self, delta: Delta) -> None:
        if self._changes is None:
            return
        if delta.options:
            # The broker's options listen to the same feed, and have before this does.
            self.reload()
        if self._changes.follow(delta) or delta.controller:
            for report in self._reports.values():
                report.hasten()

    def reload(self) -> None:
        """Follows the option, which may have changed."""
        if self._changes is None:
            return
        wanted = dict.fromkeys(parse_address(text) for text in self._config.nameservers)
        for address in wanted:
            if address not in self._reports:
                peers = Peers(self._network, Towards(self._directory, address))
                self._reports[address] = _Report(address, peers, self._beat, self._pages)
        for address in [each for each in self._reports if each not in wanted]:
            self._end(address)

    def _end(self, address: Address) -> None:
        ending = asyncio.get_running_loop().create_task(self._reports.pop(address).end())
        self._ending[ending] = None
        ending.add_done_callback(lambda done: self._ending.pop(done, None))
        ending.add_done_callback(_say_why)

    def _beat(self) -> NameServerHeartbeatRequest:
        node_id, controller = self._directory.node_id, self._image.controller
        mine = self._image.brokers.get(node_id)
        return NameServerHeartbeatRequest(
            cluster_name=self._config.cluster_name,
            host=self._address.host,
            port=self._address.port,
            rack=None if mine is None or mine.node is None else mine.node.record.rack,
            controller_id=NO_LEADER if controller is None else controller.record.node_id,
            led_partitions=sum(
                each.leaders for each in self._image.candidates(node_id) if each.node_id == node_id
            ),
            routes_revision=0 if self._changes is None else self._changes.revision,
        )

    def _pages(self, after: int) -> list[Page]:
        return [] if self._changes is None else list(self._changes.pages(after))


class _Report:
    """What one name server is sent."""

    def __init__(
        self,
        address: Address,
        peers: Peers,
        beat: Callable[[], NameServerHeartbeatRequest],
        pages: Callable[[int], list[Page]],
    ) -> None:
        self._address = address
        self._peers = peers
        self._beat = beat
        self._pages = pages
        self._news = asyncio.Event()
        self._trouble = ""
        """Why the last heartbeat failed; told once."""
        self._task = asyncio.get_running_loop().create_task(self._run(), name=f"name-server {address}")
        self._task.add_done_callback(_say_why)

    def hasten(self) -> None:
        self._news.set()

    async def end(self) -> None:
        self._task.cancel()
        await asyncio.wait([self._task])
        if not self._trouble:
            goodbye = self._beat()
            goodbye.draining = True
            with contextlib.suppress(PeerUnavailable):
                await self._peers.call(NAME_SERVER, goodbye, timeout_s=GOODBYE_S_MAX)
        await self._peers.close()

    async def _run(self) -> None:
        while True:
            self._news.clear()
            try:
                await self._send()
                self._note("")
            except PeerUnavailable as error:
                self._note(str(error))
            except Exception:
                log.exception("the name server at %s did not get a heartbeat", self._address)
            await asyncio.sleep(GAP_S)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(BEAT_S - GAP_S):
                    await self._news.wait()

    async def _send(self) -> None:
        answer = await self._peers.call(NAME_SERVER, self._beat(), timeout_s=ANSWER_S_MAX)
        assert isinstance(answer, NameServerHeartbeatResponse)
        if answer.error_code != ErrorCode.NONE:
            raise PeerUnavailable(answer.error_message or "it refused a heartbeat", sent=True)
        if answer.routes_after == NOTHING_WANTED:
            return
        for page in self._pages(answer.routes_after):
            taken = await self._peers.call(NAME_SERVER, _message(page), timeout_s=ANSWER_S_MAX)
            assert isinstance(taken, NameServerRoutesResponse)
            if taken.error_code != ErrorCode.NONE:
                raise PeerUnavailable(taken.error_message or "it refused routes", sent=True)

    def _note(self, trouble: str) -> None:
        if trouble and not self._trouble:
            log.warning("the name server at %s does not know this broker: %s", self._address, trouble)
        elif self._trouble and not trouble:
            log.info("the name server at %s knows this broker again", self._address)
        self._trouble = trouble


def _message(page: Page) -> NameServerRoutesRequest:
    return NameServerRoutesRequest(
        after=page.after,
        revision=page.revision,
        topics=[_topic(topic) for topic in page.topics],
        removed=list(page.removed),
        is_first=page.is_first,
        is_last=page.is_last,
    )


def _topic(topic: TopicRoute) -> RouteTopic:
    return RouteTopic(
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=topic.is_internal,
        partitions=[
            RoutePartition(
                leader_id=one.leader_id,
                leader_epoch=one.leader_epoch,
                replicas=list(one.replicas),
                isr=list(one.isr),
            )
            for one in topic.partitions
        ],
    )


def _say_why(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        log.error("heartbeats to name servers have ended", exc_info=error)
