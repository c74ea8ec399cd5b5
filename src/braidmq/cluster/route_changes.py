"""Which topics have changed since a revision, for name servers that know the rest. Pure.

The newest changes are remembered by the topic's name. Who knows less than the oldest of them gets all routes.
All brokers number the changes alike, by the revisions of the store: a broker that has just started looks for
the newest revision among the topics, partitions and deletions in its image.
"""

from __future__ import annotations

from collections.abc import Iterator

from braidmq.cluster import records
from braidmq.cluster.image import Delta, Image, TopicImage
from braidmq.cluster.name_server import EVERYTHING, Page, PartitionRoute, TopicRoute

CHANGES_MAX = 10_000
PAGE_PARTITIONS = 10_000
NOT_READABLE = PartitionRoute(records.NO_LEADER, records.NO_EPOCH, (), ())


class RouteChanges:
    """Follows an image from its first snapshot on."""

    def __init__(self, image: Image, internal: frozenset[str] | dict[str, object]) -> None:
        self._image = image
        self._internal = internal
        self.revision = _newest(image)
        self._complete_after = self.revision
        """All changes after this one are remembered."""
        self._changed: dict[str, int] = {}
        """Revisions by names, the oldest first."""

    def follow(self, delta: Delta) -> bool:
        """Takes note of a change of the image; whether routes have changed."""
        names = dict.fromkeys(
            topic.name for pair in delta.topics.values() for topic in pair if topic is not None
        )
        for which in delta.partitions:
            if (topic := self._image.topics.get(which.topic_id)) is not None:
                names[topic.name] = None
        for name in names:
            self._changed.pop(name, None)
            self._changed[name] = delta.revision
        while len(self._changed) > CHANGES_MAX:
            oldest = next(iter(self._changed))
            self._complete_after = self._changed.pop(oldest)
        if names:
            self.revision = delta.revision
        return bool(names)

    def pages(self, after: int) -> Iterator[Page]:
        """What has changed after a revision, or everything; at least one page, the last one marked."""
        image = self._image
        names: list[str]
        if after > EVERYTHING and self._complete_after <= after <= self.revision:
            names = [name for name, revision in self._changed.items() if revision > after]
        else:
            after, names = EVERYTHING, list(image.by_name)
        topics: list[TopicRoute] = []
        removed: list[str] = []
        size, is_first, revision = 0, True, self.revision
        for name in names:
            topic = image.by_name.get(name)
            if topic is None:
                removed.append(name)
                size += 1
            else:
                topics.append(self._route(topic))
                size += 1 + len(topic.partitions)
            if size >= PAGE_PARTITIONS:
                yield Page(after, revision, topics, removed, is_first, is_last=False)
                topics, removed, size, is_first = [], [], 0, False
        yield Page(after, revision, topics, removed, is_first, is_last=True)

    def _route(self, topic: TopicImage) -> TopicRoute:
        partitions = tuple(
            NOT_READABLE
            if held is None
            else PartitionRoute(held.record.leader, held.record.epoch, held.record.replicas, held.record.isr)
            for held in topic.partitions
        )
        return TopicRoute(topic.name, topic.id, topic.name in self._internal, partitions)


def _newest(image: Image) -> int:
    newest = 0
    for topic in image.topics.values():
        newest = max(newest, topic.meta.mod_revision)
        newest = max([newest, *(held.mod_revision for held in topic.partitions if held is not None)])
    for topic_id in image.all_deleted():
        newest = max(newest, image.mod_revision(records.deleted_key(topic_id)))
    return newest
