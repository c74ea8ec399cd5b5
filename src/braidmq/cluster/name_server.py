"""What a name server knows: which brokers are alive, and who leads which partition. Pure.

Everything comes from the brokers' heartbeats, so a name server that was restarted knows everything again
after a few seconds, and name servers need nothing of each other. A broker that was silent for ten seconds is
forgotten.

A heartbeat carries no topics, only the revision that last changed one. If that is newer than what is known
here, the broker is asked for what has changed since; one broker at a time, another one if it does not answer.
If all brokers know less than is known here, the metadata was restored from a backup: everything is asked for
again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

FORGET_AFTER_S = 10.0
ASK_AGAIN_AFTER_S = 5.0
EVERYTHING = 0
NOTHING = -1
BROKERS_MAX = 10_000
ENTRIES_MAX = 2_000_000
"""Topics and their partitions, known ones and those of the answer under way."""


class TooMany(Exception):
    """More than a name server takes."""


class Beat(NamedTuple):
    """What a broker says of itself."""

    node_id: int
    epoch: int
    host: str
    port: int
    rack: str | None
    controller_id: int
    led_partitions: int
    draining: bool
    routes_revision: int


class PartitionRoute(NamedTuple):
    leader_id: int
    leader_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]


class TopicRoute(NamedTuple):
    name: str
    topic_id: bytes
    is_internal: bool
    partitions: tuple[PartitionRoute, ...]


class Page(NamedTuple):
    """A part of an answer to the question for routes."""

    after: int
    revision: int
    topics: Sequence[TopicRoute]
    removed: Sequence[str]
    is_first: bool
    is_last: bool


class _Asked(NamedTuple):
    node_id: int
    at: float


class NameServer:
    """Brokers and routes."""

    def __init__(self) -> None:
        self.brokers: dict[int, Beat] = {}
        self.topics: dict[str, TopicRoute] = {}
        self.by_id: dict[bytes, TopicRoute] = {}
        self.revision = EVERYTHING
        """Up to which the routes are known."""
        self._heard_at: dict[int, float] = {}
        self._entries = 0
        self._asked: _Asked | None = None
        self._pages: list[Page] = []
        """Of the answer under way."""
        self._entries_under_way = 0

    @property
    def controller_id(self) -> int:
        """The controller as the broker with the newest routes knows it; -1 if it is not alive."""
        newest = max(self.brokers.values(), key=lambda beat: beat.routes_revision, default=None)
        known = newest is not None and newest.controller_id in self.brokers
        return newest.controller_id if newest is not None and known else -1

    def epoch_of(self, node_id: int) -> int:
        found = self.brokers.get(node_id)
        return -1 if found is None else found.epoch

    def heartbeat(self, beat: Beat, now: float) -> int:
        """Takes note of a broker; after which revision it should send routes, -1 for none."""
        if beat.node_id not in self.brokers and len(self.brokers) >= BROKERS_MAX:
            raise TooMany(f"{BROKERS_MAX} brokers are registered already")
        self.brokers[beat.node_id] = beat
        self._heard_at[beat.node_id] = now
        newest = max(each.routes_revision for each in self.brokers.values())
        if newest < self.revision:
            self.revision = EVERYTHING
        if beat.routes_revision <= self.revision:
            return NOTHING
        if self._asked is not None and now - self._asked.at < ASK_AGAIN_AFTER_S:
            return NOTHING
        self._asked = _Asked(beat.node_id, now)
        return self.revision

    def take(self, node_id: int, page: Page, now: float) -> None:
        """Routes from the broker that was asked; from any other they are too late and not looked at."""
        if self._asked is None or self._asked.node_id != node_id:
            return
        self._asked = _Asked(node_id, now)
        if page.is_first:
            self._pages, self._entries_under_way = [], 0
        self._pages.append(page)
        self._entries_under_way += len(page.removed) + sum(map(_entries, page.topics))
        if self._entries + self._entries_under_way > ENTRIES_MAX:
            self._pages, self._asked = [], None
            raise TooMany(f"more than {ENTRIES_MAX} topics and partitions")
        if page.is_last:
            pages, self._pages, self._asked = self._pages, [], None
            if page.after in (EVERYTHING, self.revision):
                self._apply(pages)

    def _apply(self, pages: Sequence[Page]) -> None:
        if pages[-1].after == EVERYTHING:
            self.topics, self.by_id, self._entries = {}, {}, 0
        for page in pages:
            for name in page.removed:
                self._remove(name)
            for topic in page.topics:
                self._remove(topic.name)
                self.topics[topic.name] = self.by_id[topic.topic_id] = topic
                self._entries += _entries(topic)
        self.revision = pages[-1].revision

    def _remove(self, name: str) -> None:
        gone = self.topics.pop(name, None)
        if gone is not None:
            self.by_id.pop(gone.topic_id, None)
            self._entries -= _entries(gone)

    def forget(self, node_id: int) -> None:
        """A broker says goodbye, or was silent for too long."""
        self.brokers.pop(node_id, None)
        self._heard_at.pop(node_id, None)
        if self._asked is not None and self._asked.node_id == node_id:
            self._asked, self._pages = None, []

    def scan(self, now: float) -> list[int]:
        """Forgets the brokers that were silent for too long."""
        silent = [one for one, at in self._heard_at.items() if now - at > FORGET_AFTER_S]
        for node_id in silent:
            self.forget(node_id)
        return silent

    def leader(self, topic_name: str, index: int) -> Beat | None:
        """The living leader of a partition."""
        topic = self.topics.get(topic_name)
        if topic is None or not 0 <= index < len(topic.partitions):
            return None
        return self.brokers.get(topic.partitions[index].leader_id)


def _entries(topic: TopicRoute) -> int:
    return 1 + len(topic.partitions)
