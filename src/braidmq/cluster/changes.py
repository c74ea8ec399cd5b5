"""Changes of a cluster's metadata: what is written in which order, so that a crash in between harms nobody.

A topic comes with its key in `topics/` and the one in `names/`, which are one commit; the keys of its
partitions are written before that, and deleted after the topic is gone. So partition keys without a topic are
what a crash may leave. They count for nothing until `sweep` deletes them.

Every key that a change writes or deletes must be as the image shows it, else the change is a `Conflict`:
somebody else was faster. A change returns when the image of this broker shows it, and with that everything
that follows the image. What became of a commit whose answer is lost is found out (`cluster/settlement.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from typing import NamedTuple, TypeVar

from braidmq.cluster import placement, records
from braidmq.cluster.image import TopicImage
from braidmq.cluster.image_feed import ImageFeed
from braidmq.cluster.metadata_store import (
    OPERATIONS_MAX,
    Compare,
    Conflict,
    MetadataStore,
    ModRevision,
    Put,
    StoreError,
    Unknown,
)
from braidmq.cluster.outage import Outage
from braidmq.cluster.placement import Candidate, Replicas
from braidmq.cluster.records import (
    DeletedTopic,
    NextProducerId,
    Options,
    PartitionMeta,
    Record,
    TopicMeta,
    TopicName,
    decode,
    encode,
)
from braidmq.cluster.settlement import SETTLE_S_MAX, Writer, commit_settled

REPLICATION_FACTOR = 1
CHUNK = OPERATIONS_MAX - 1
TRIES_MAX = 20
GONE_LOOKS = 100
GONE_PAUSE_S = 0.02

Each = TypeVar("Each")


class TopicExists(Exception):
    """The name is taken."""


class _Seen(NamedTuple):
    """What a change was decided from: keys as they were, and when."""

    revision: int
    compares: list[Compare]


class Changes:
    """Changes the metadata in the name of one broker."""

    def __init__(
        self,
        store: MetadataStore,
        feed: ImageFeed,
        node_id: int,
        writer: Writer,
        outage: Outage | None = None,
    ) -> None:
        self._store = store
        self._feed = feed
        self._image = feed.image
        self._node_id = node_id
        self._writer = writer
        self.outage = outage or Outage()

    # -- topics ---------------------------------------------------------------------------------

    def candidates(self) -> list[Candidate]:
        """The brokers that may take partitions, with what they hold; values of their own."""
        return self._image.candidates(self._node_id)

    def place(self, count: int, first: int = 0) -> list[Replicas]:
        """Where new partitions go, the first of which has the number `first`."""
        return placement.spread(self.candidates(), count, REPLICATION_FACTOR, first)

    async def retried(self, key: str, attempt: Callable[[], Awaitable[None]]) -> None:
        """Makes a change of `key`; again if somebody else was faster, from what the image shows then."""
        conflict: Conflict | None = None
        for _ in range(TRIES_MAX):
            try:
                await attempt()
                return
            except Conflict as error:
                conflict = error
                await self._caught_up(key)
        assert conflict is not None
        raise conflict

    async def _caught_up(self, key: str) -> None:
        """Returns when the image shows what the store holds under a key now, or after a while."""
        item = await self._store.get(self._image.key(key))
        if item is not None:
            await self._feed.reached(item.mod_revision)
            return
        # A deletion has no revision that could be asked for.
        for _ in range(GONE_LOOKS):
            if not self._image.mod_revision(key):
                return
            await asyncio.sleep(GONE_PAUSE_S)

    async def create_topic(
        self, name: str, topic_id: bytes, replicas: Sequence[Replicas], options: Mapping[str, str]
    ) -> None:
        """Creates a topic; `TopicExists` if there is one of that name."""
        if self._image.find(name) is not None:
            raise TopicExists(name)
        try:
            await self.replace_topic(name, topic_id, replicas, options)
        except Conflict:
            with suppress(StoreError):
                await self._caught_up(records.name_key(name))
            raise TopicExists(name) from None

    async def replace_topic(
        self, name: str, topic_id: bytes, replicas: Sequence[Replicas], options: Mapping[str, str]
    ) -> None:
        """Creates a topic in the place of the one that has the name, if there is one. That is not deleted."""
        replaced = self._image.find(name)
        meta = TopicMeta(name=name, partitions=len(replicas), options=dict(options))
        named = TopicName(topic_id=topic_id.hex())
        puts = {records.topic_key(topic_id): meta, records.name_key(name): named}
        deletes = [] if replaced is None else [records.topic_key(replaced.id)]
        # Now: another broker that takes the name while the partitions are written was faster, and so was a
        # controller that has swept them away and left the record of a deletion (`decisions.py`).
        seen = self._see((*puts, *deletes, records.deleted_key(topic_id)))
        await self._put_partitions(topic_id, 0, replicas)
        await self._commit(puts, deletes, seen)

    async def grow_topic(self, topic: TopicImage, replicas: Sequence[Replicas]) -> None:
        """Adds partitions with these replicas."""
        first = len(topic.partitions)
        if self._image.topics.get(topic.id) is not topic:
            # Somebody has changed it meanwhile: what `grown` would keep of it is no longer true.
            raise Conflict(f"topic {topic.name} was changed meanwhile")
        grown = {
            records.topic_key(topic.id): replace(topic.meta.record, partitions=first + len(replicas)),
        }
        seen = self._see(grown)
        revision = await self._put_partitions(topic.id, first, replicas, seen.compares)
        try:
            await self._commit(grown, (), seen)
        except Conflict:
            # Another attempt compares the partitions that this one has put.
            with suppress(StoreError):
                await self._feed.reached(revision)
            raise

    async def reconfigure_topic(self, topic: TopicImage, options: Mapping[str, str]) -> None:
        """Replaces a topic's own options."""
        await self._commit({records.topic_key(topic.id): replace(topic.meta.record, options=dict(options))})

    async def delete_topic(self, topic: TopicImage, at_ms: int, outdated: Sequence[bytes]) -> None:
        """Deletes a topic, and the records of some deletions of long ago."""
        deletes = [records.topic_key(topic.id), records.name_key(topic.name)]
        deletes += map(records.deleted_key, outdated)
        await self._commit(
            {records.deleted_key(topic.id): DeletedTopic(name=topic.name, at_ms=at_ms)}, deletes
        )

    async def finish_deletions(self, topic_ids: Sequence[bytes]) -> None:
        """Records that nothing is left of these topics."""
        done: dict[str, Record] = {}
        for topic_id in topic_ids:
            record = self._image.deleted(topic_id)
            if record is not None:
                done[records.deleted_key(topic_id)] = replace(record, done=True)
        for chunk in _chunks(list(done), OPERATIONS_MAX):
            await self._commit({key: done[key] for key in chunk})

    async def sweep(self) -> None:
        """Deletes keys of partitions that belong to no topic. Nobody may be creating one meanwhile."""
        leftovers = [records.partition_key(*which) for which in self._image.leftovers()]
        await _all(self._delete(chunk) for chunk in _chunks(leftovers, OPERATIONS_MAX))

    async def _put_partitions(
        self, topic_id: bytes, first: int, replicas: Sequence[Replicas], guard: Sequence[Compare] = ()
    ) -> int:
        """Writes keys that count for nothing yet; the revision that has them all.

        `guard` says so of a topic that is there already: somebody else may have added the same partitions
        meanwhile, and records may be in them.
        """
        by = self._writer.sign()
        values: dict[Replicas, bytes] = {}
        for one in replicas:
            if one not in values:
                values[one] = encode(PartitionMeta(leader=one[0], epoch=0, replicas=one, isr=one), by)
        puts = [
            (records.partition_key(topic_id, index), values[one]) for index, one in enumerate(replicas, first)
        ]
        chunks = [dict(chunk) for chunk in _chunks(puts, CHUNK)]
        commits = (self._commit_values(chunk, (), self._see(chunk, guard)) for chunk in chunks)
        return max(await _all(commits), default=0)

    # -- options and ids ------------------------------------------------------------------------

    async def set_options(self, kind: str, name: str, options: Mapping[str, str]) -> None:
        """Replaces the options of a broker or a group."""
        key = records.config_key(kind, name)
        held = self._image.options(kind, name)
        if options:
            before = Options() if held is None else held.record
            await self._commit({key: replace(before, options=dict(options))})
        elif held is not None:
            await self._feed.reached(await self._delete([key]))

    async def reserve_producer_ids(self, least: int, count: int) -> int:
        """The first of `count` ids that nobody else gets, none of them below `least`."""
        key = self._image.key(records.PRODUCER_IDS)
        for _ in range(TRIES_MAX):
            item = await self._store.get(key)
            record = NextProducerId(next=0) if item is None else decode(NextProducerId, key, item.value)
            start = max(record.next, least)
            seen = self._image.revision if item is None else item.mod_revision
            value = encode(replace(record, next=start + count), self._writer.sign())
            try:
                compare = ModRevision(key, 0 if item is None else item.mod_revision)
                await commit_settled(self._store, seen, [compare], [Put(key, value)])
            except Conflict:
                continue
            return start
        raise Conflict(f"{key} is being changed by others all the time")

    # -- details --------------------------------------------------------------------------------

    async def _commit(
        self, puts: Mapping[str, Record], deletes: Sequence[str] = (), seen: _Seen | None = None
    ) -> None:
        """Makes a change of keys, the first of which is new or written, and waits until it shows."""
        by = self._writer.sign()
        values = {key: encode(record, by) for key, record in puts.items()}
        await self._feed.reached(await self._commit_values(values, deletes, seen))

    async def _commit_values(
        self, values: Mapping[str, bytes], deletes: Sequence[str] = (), seen: _Seen | None = None
    ) -> int:
        seen = seen or self._see((*values, *deletes))
        return await commit_settled(
            self._store,
            seen.revision,
            seen.compares,
            [Put(self._image.key(key), value) for key, value in values.items()],
            [self._image.key(key) for key in deletes],
        )

    async def _delete(self, keys: Sequence[str]) -> int:
        """Deletes keys; a revision at which they are gone."""
        stored = [self._image.key(key) for key in keys]
        compares = self._as_seen(keys)
        unknown: Unknown | None = None
        until_s = asyncio.get_running_loop().time() + SETTLE_S_MAX
        for _ in range(TRIES_MAX):
            if unknown is not None and asyncio.get_running_loop().time() >= until_s:
                break
            try:
                return await self._store.commit(compares, deletes=stored)
            except Unknown as error:
                unknown = error
            except Conflict:
                # Nothing signs a deletion, so it may be our own. Gone is gone, whoever did it.
                found = await self._store.snapshot(self._image.key(""))
                if {item.key for item in found.items}.isdisjoint(stored):
                    return found.revision
                raise
        assert unknown is not None
        raise unknown

    def _see(self, keys: Iterable[str], more: Sequence[Compare] = ()) -> _Seen:
        return _Seen(self._image.revision, [*self._as_seen(list(keys)), *more])

    def _as_seen(self, keys: Sequence[str]) -> list[ModRevision]:
        return [ModRevision(self._image.key(key), self._image.mod_revision(key)) for key in keys]


def _chunks(found: Sequence[Each], size: int) -> Iterator[list[Each]]:
    left = iter(found)
    while chunk := list(islice(left, size)):
        yield chunk


async def _all(commits: Iterable[Awaitable[Each]]) -> list[Each]:
    """Makes commits at the same time, so that the store syncs them together; none is under way afterwards."""
    found: list[Each] = []
    for outcome in await asyncio.gather(*commits, return_exceptions=True):
        if isinstance(outcome, BaseException):
            raise outcome
        found.append(outcome)
    return found
