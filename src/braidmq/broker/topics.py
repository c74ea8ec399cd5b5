"""The topics of this broker: what the image of the cluster shows, held here.

A change is a commit to the metadata store (`cluster/changes.py`). What it does here is done by `follow`, when
the image shows it, whoever made it: topics come, go, grow, and get other options. Whoever asked is answered
after that. Changes that are asked for here are made one at a time; reading never waits.

A broker alone makes a topic's directory when it creates the topic. In a cluster each broker that holds a part
of it makes its own, once the image shows that. Partitions' directories are made on first use. Deleting one
commits a record of that, and the files are removed later (`broker/deletions.py`). What else is in `topics/`
is never removed (`broker/topic_directories.py`).
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from braidmq.broker.deletions import Deletion, Deletions
from braidmq.broker.metadata import Metadata, storing
from braidmq.broker.replica import Replica
from braidmq.broker.topic import (
    INTERNAL_TOPICS,
    Topic,
    TopicRecord,
    check_name,
    check_pinned,
    effective_config,
)
from braidmq.broker.topic_directories import (
    SET_ASIDE_SUFFIX,
    describe,
    description,
    set_right,
    survey,
)
from braidmq.cluster.changes import REPLICATION_FACTOR, TopicExists
from braidmq.cluster.image import Delta, PartitionImage, TopicImage
from braidmq.cluster.metadata_store import StoreError, Unknown
from braidmq.cluster.placement import BadPlacement, Replicas, by_hand, spread
from braidmq.cluster.records import topic_key
from braidmq.config import Config, ConfigError, TopicConfig, check_topic_overrides
from braidmq.platform.clock import Clock
from braidmq.platform.disk import Disk
from braidmq.platform.randomness import new_uuid
from braidmq.platform.threads import DiskThreads
from braidmq.wire.errors import ApiError, ErrorCode

PARTITIONS_PER_TOPIC_MAX = 100_000
DESCRIBED_PER_ROUND = 64
REFRESHED_TOGETHER = 500
"""Partitions that take over new options before others have their turn."""

Assigned = Sequence[Sequence[int]] | None
"""The brokers of each new partition, as somebody has chosen them; None to have them spread."""
PartitionFactory = Callable[[Topic, int], Replica]
Forget = Callable[[], Awaitable[None]]

log = logging.getLogger("braid.topics")


class Topics:
    """All topics by name and by id."""

    def __init__(
        self,
        config: Config,
        data: Path,
        disk: Disk,
        metadata: Metadata,
        threads: DiskThreads,
        partitions: PartitionFactory,
        clock: Clock,
    ) -> None:
        self._config = config
        self._root = data / "topics"
        self._node_id = metadata.node_id
        self._shared = metadata.shared
        self._image = metadata.image
        self._changes = metadata.changes
        self._deletions = Deletions(metadata, disk, self._root, threads, clock)
        self._undescribed: deque[Topic] = deque()
        self._disk = disk
        self._clock = clock
        self._threads = threads
        self._new_partition = partitions
        self._by_name: dict[str, Topic] = {}
        self._by_id: dict[bytes, Topic] = {}
        self._change = asyncio.Lock()
        self._leftovers = True
        """Whether there may be partition keys that belong to no topic."""
        self.partition_count = 0
        """How many this broker holds."""
        self.version = 0
        """Goes up whenever a topic is made, grown or deleted."""

    def load(self) -> None:
        """Takes the topics of the image, and sets directories aside that belong to none."""
        for topic in self._image.topics.values():
            self._take(topic)
            for index, partition in enumerate(topic.partitions):
                self._hold(self._by_id[topic.id], index, partition)
        self._deletions.load()
        self._look_at_directories()

    def _look_at_directories(self) -> None:
        by_directory = {topic.path.name: topic.name for topic in self._by_name.values()}
        held = {topic.path.name for topic in self._by_name.values() if topic.held}
        names = self._disk.listdir(self._root)
        found = survey(names, set(by_directory), self._deletions.directories)
        for name in filter(held.__contains__, found.missing):
            log.warning(
                "topic %s: its directory %s is missing, the topic is empty; if the metadata was restored from"
                " a backup, the topic had been deleted since: delete it again", by_directory[name], name,
            )  # fmt: skip
        for name in found.returned:
            log.warning(
                "topic %s: its directory %s had been set aside and is back in use", by_directory[name], name
            )
        for name in (*found.unknown, *(name.removesuffix(SET_ASIDE_SUFFIX) for name in found.set_aside)):
            log.warning(
                "the metadata does not know the directory topics/%s: it is set aside as %s and kept;"
                " braid doctor DIR --adopt %s brings its topic back", name, name + SET_ASIDE_SUFFIX, name,
            )  # fmt: skip
        for complaint in set_right(self._disk, self._root, found):
            log.error("topics/%s", complaint)
        self._deletions.found_again(found.trash)

    def __iter__(self) -> Iterator[Topic]:
        return iter(self._by_name.values())

    def find(self, name: str) -> Topic | None:
        return self._by_name.get(name)

    def find_by_id(self, topic_id: bytes) -> Topic | None:
        return self._by_id.get(topic_id)

    def get(self, name: str) -> Topic:
        topic = self._by_name.get(name)
        if topic is None:
            raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {name[:60]!r}")
        return topic

    # -- following the image --------------------------------------------------------------------

    def follow(self, delta: Delta) -> None:
        """Does here what has changed in the cluster."""
        for topic_id, (_, now) in delta.topics.items():
            if now is None:
                self._drop(topic_id)
            else:
                self._take(now)
        for which, move in delta.partitions.items():
            topic = self._by_id.get(which.topic_id)
            if topic is not None and which.partition < topic.partition_count:
                self._hold(topic, which.partition, move.after)
        self._deletions.follow(delta)

    def _take(self, shown: TopicImage) -> None:
        """A topic came, grew, or has other options."""
        meta = shown.meta.record
        record = TopicRecord(meta.name, shown.id, meta.partitions, dict(meta.options))
        config = self._effective(record)
        topic = self._by_id.get(shown.id)
        if topic is None:
            topic = Topic(record, config, self._root / record.directory_name)
            self._by_name[record.name] = self._by_id[record.id] = topic
        else:
            topic.record = record
            if config != topic.config:
                topic.config = config
                for partition in topic.held.values():
                    partition.reconfigure(config)
        self._undescribed.append(topic)
        self.version += 1

    def _hold(self, topic: Topic, index: int, shown: PartitionImage | None) -> None:
        """Takes a partition that the image gives to this broker; lets go of one that it does not."""
        held = topic.held.get(index)
        if shown is None and (held is not None or self._shared):
            return  # not readable now, or never: it stays as it was
        if shown is not None and self._node_id not in shown.record.replicas:
            if held is not None:
                log.warning("%s now belongs to other brokers; its files stay in %s", held, topic.path)
                del topic.held[index]
                self.partition_count -= 1
                held.discard()
            return
        if held is None:
            held = topic.held[index] = self._new_partition(topic, index)
            self.partition_count += 1
        if shown is not None:
            held.leader_epoch = shown.record.epoch
            held.leads = shown.record.leader == self._node_id

    def _drop(self, topic_id: bytes) -> None:
        topic = self._by_id.pop(topic_id, None)
        if topic is None:
            return
        if self._by_name.get(topic.name) is topic:
            del self._by_name[topic.name]
        self.version += 1
        self.partition_count -= len(topic.held)
        for partition in topic.held.values():
            partition.discard()

    # -- changes --------------------------------------------------------------------------------

    def default_count(self) -> int:
        """The partitions of a topic whose creator does not say; in a cluster so many per broker."""
        if not self._shared or "num.partitions" in self._config.given:
            return self._config.num_partitions
        return self._config.num_partitions * max(1, len(self._changes.candidates()))

    def check_new(
        self, name: str, partition_count: int, overrides: Mapping[str, str], assigned: Assigned = None
    ) -> list[Replicas]:
        """Where the partitions of a new topic would go. Raises what creating it would raise."""
        check_name(name)
        if name in INTERNAL_TOPICS:
            raise ApiError(
                ErrorCode.INVALID_TOPIC_EXCEPTION,
                f"topic {name!r} is the broker's own, and it creates that itself when it needs it",
            )
        return self._check_room(name, partition_count, overrides, assigned)

    def _check_room(
        self, name: str, partition_count: int, overrides: Mapping[str, str], assigned: Assigned = None
    ) -> list[Replicas]:
        if name in self._by_name:
            raise ApiError(ErrorCode.TOPIC_ALREADY_EXISTS, f"topic {name!r} already exists")
        self.check_overrides(overrides)
        return self._place(name, partition_count, 0, assigned)

    def _place(self, name: str, count: int, first: int, assigned: Assigned) -> list[Replicas]:
        """Where partitions from `first` to `count` go; ApiError if there is no room for them."""
        if not 1 <= count <= PARTITIONS_PER_TOPIC_MAX:
            raise ApiError(
                ErrorCode.INVALID_PARTITIONS,
                f"topic {name!r}: {count} partitions, not 1 to {PARTITIONS_PER_TOPIC_MAX:,}",
            )
        candidates = self._changes.candidates()
        total = sum(one.replicas for one in candidates) + count - first
        if total > self._config.partitions_max * len(candidates):
            raise _too_many(name, total, self._config.partitions_max, len(candidates))
        try:
            if assigned is None:
                return spread(candidates, count - first, REPLICATION_FACTOR, first)
            return by_hand(candidates, assigned)
        except BadPlacement as error:
            raise ApiError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"topic {name!r}: {error}") from None

    def check_overrides(self, overrides: Mapping[str, str]) -> None:
        """Raises INVALID_CONFIG unless these are options a topic can have."""
        try:
            check_topic_overrides(overrides)
        except ConfigError as error:
            raise ApiError(ErrorCode.INVALID_CONFIG, str(error)) from None

    async def create(
        self, name: str, partition_count: int, overrides: Mapping[str, str], assigned: Assigned = None
    ) -> Topic:
        """Creates a topic; `assigned` says which brokers get each partition."""
        async with self._change:
            replicas = self.check_new(name, partition_count, overrides, assigned)
            return await self._create(name, replicas, overrides)

    async def create_own(self, name: str, overrides: Mapping[str, str], partition_count: int = 1) -> Topic:
        """A topic that brokers keep for themselves; the one that is there, if there is."""
        async with self._change:
            found = self._by_name.get(name)
            if found is None:
                replicas = self._check_room(name, partition_count, overrides)
                try:
                    found = await self._create(name, replicas, overrides)
                except ApiError as error:
                    if error.code is not ErrorCode.TOPIC_ALREADY_EXISTS:
                        raise
                    found = self.get(name)
            return found

    async def _create(self, name: str, replicas: Sequence[Replicas], overrides: Mapping[str, str]) -> Topic:
        record = TopicRecord(name, new_uuid(), len(replicas), dict(overrides))
        if not self._shared:
            with storing():
                await self._threads.run(lambda: self._make_directory(record))
        try:
            with storing(self._changes.outage):
                await self._changes.create_topic(name, record.id, replicas, overrides)
        except (ApiError, TopicExists) as error:
            self._leftovers = True
            # If it is not known whether the topic came to be, its directory stays.
            if not self._shared and not isinstance(error.__cause__, Unknown):
                await self._remove_directory(record)
            if isinstance(error, TopicExists):
                raise ApiError(ErrorCode.TOPIC_ALREADY_EXISTS, f"topic {name!r} already exists") from None
            raise
        return self.get(name)

    async def find_or_create(self, name: str) -> Topic:
        """The topic, made with the default partition count if it is not there (auto-creation)."""
        if name in INTERNAL_TOPICS:
            return self.get(name)
        try:
            return self._by_name.get(name) or await self.create(name, self.default_count(), {})
        except ApiError as error:
            if error.code is ErrorCode.TOPIC_ALREADY_EXISTS:
                return self.get(name)
            raise

    def check_growth(self, name: str, partition_count: int, assigned: Assigned = None) -> list[Replicas]:
        """Where the new partitions of a topic would go. Raises what growing it would raise."""
        topic = self.get(name)
        now = topic.partition_count
        if partition_count <= now:
            raise ApiError(
                ErrorCode.INVALID_PARTITIONS,
                f"topic {name!r} has {now} partitions; the new count must be larger, not {partition_count}",
            )
        if assigned is not None and len(assigned) != partition_count - now:
            raise ApiError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"topic {name!r}: {partition_count - now} new partitions need as many assignments, not"
                f" {len(assigned)}",
            )
        return self._place(name, partition_count, now, assigned)

    async def grow(self, name: str, partition_count: int, assigned: Assigned = None) -> None:
        """Adds partitions to a topic, up to `partition_count`."""

        async def attempt() -> None:
            replicas = self.check_growth(name, partition_count, assigned)
            await self._changes.grow_topic(self._shown(name), replicas)

        async with self._change:
            self._leftovers = True
            with storing(self._changes.outage):
                await self._changes.retried(topic_key(self.get(name).id), attempt)

    async def reconfigure(self, name: str, overrides: Mapping[str, str]) -> None:
        """Replaces the topic's own options."""

        async def attempt() -> None:
            self.get(name)
            await self._changes.reconfigure_topic(self._shown(name), overrides)

        async with self._change:
            topic_id = self.get(name).id
            self.check_overrides(overrides)
            check_pinned(name, overrides)
            with storing(self._changes.outage):
                await self._changes.retried(topic_key(topic_id), attempt)

    async def refresh_options(self) -> None:
        """The broker's defaults have changed: every topic takes them over where it has no own value."""
        for name in list(self._by_name):
            async with self._change:
                topic = self._by_name.get(name)
                if topic is not None:
                    await self._refresh(topic)
            await asyncio.sleep(0)

    async def _refresh(self, topic: Topic) -> None:
        config = self._effective(topic.record)
        if config == topic.config:
            return
        topic.config = config
        for count, partition in enumerate(list(topic.held.values()), 1):
            partition.reconfigure(config)
            if count % REFRESHED_TOGETHER == 0:
                await asyncio.sleep(0)

    async def delete(self, name: str, forget: Forget | None = None) -> None:
        """Deletes a topic. `forget` drops what is kept under its name, before it can be created again."""

        async def attempt() -> None:
            if self.get(name).id != topic_id:
                raise ApiError(
                    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"topic {name!r} was recreated meanwhile"
                )
            await self._changes.delete_topic(
                self._shown(name), self._clock.wall_ms(), self._deletions.outdated()
            )

        async with self._change:
            topic_id = self.get(name).id
            self._leftovers = True
            with storing(self._changes.outage):
                await self._changes.retried(topic_key(topic_id), attempt)
            if forget is not None:
                await forget()
            self._deletions.forgotten(topic_id)

    # -- what is left of changes ----------------------------------------------------------------

    def unfinished_deletions(self) -> list[Deletion]:
        """Deletions of earlier runs after which something may be kept under the topic's name."""
        return self._deletions.unfinished

    def was_deleted(self, topic_id: bytes) -> bool:
        """Whether a topic that is not there was deleted; else it may be set aside."""
        return self._deletions.holds(topic_id)

    async def tidy(self) -> None:
        """One round of the work that no client waits for: removes files and keys, describes topics."""
        await self._deletions.remove()
        if self._leftovers and not self._shared:
            # In a cluster the controller does: it knows what others are about to create.
            async with self._change:
                await self._sweep()
        async with self._change:
            count = min(len(self._undescribed), DESCRIBED_PER_ROUND)
            topics = [self._undescribed.popleft() for _ in range(count)]
            topics = [topic for topic in topics if self._by_id.get(topic.id) is topic and topic.held]
            if topics:
                await self._threads.run(lambda: self._describe(topics))

    async def _sweep(self) -> None:
        try:
            await self._changes.sweep()
            self._leftovers = False
        except StoreError as error:
            log.warning("keys of partitions without a topic stay in the metadata for now: %s", error)

    def _describe(self, topics: list[Topic]) -> None:
        for topic in topics:
            try:
                there = self._disk.exists(topic.path)
                if self._shared and not there:
                    self._make_directory(topic.record)
                elif there and description(self._disk, topic.path) != topic.record:
                    describe(self._disk, topic.path, topic.record)
            except OSError as error:
                log.warning("topic %s: cannot write its description: %s", topic.name, error)

    # -- details --------------------------------------------------------------------------------

    def _shown(self, name: str) -> TopicImage:
        shown = self._image.find(name)
        assert shown is not None, f"{name} is held, and the image does not show it"
        return shown

    def _effective(self, record: TopicRecord) -> TopicConfig:
        """A topic's options, without those that a newer broker may have set and this one cannot take."""
        try:
            return effective_config(self._config, record.name, record.overrides)
        except ConfigError as error:
            log.warning("topic %s: ignoring a stored option: %s", record.name, error)
        usable = {}
        for each, text in record.overrides.items():
            with suppress(ConfigError):
                self._config.topic({each: text})
                usable[each] = text
        return effective_config(self._config, record.name, usable)

    def _make_directory(self, record: TopicRecord) -> None:
        directory = self._root / record.directory_name
        self._disk.makedirs(directory)
        describe(self._disk, directory, record)
        self._disk.sync_directory(self._root)

    async def _remove_directory(self, record: TopicRecord) -> None:
        """Nobody has written to it. Left there, it would be reported as a topic that was lost."""
        with suppress(OSError):
            await self._threads.run(lambda: self._disk.remove_tree(self._root / record.directory_name))


def _too_many(name: str, total: int, most: int, brokers: int) -> ApiError:
    who = "the broker" if brokers == 1 else f"the {brokers} brokers"
    return ApiError(
        ErrorCode.POLICY_VIOLATION,
        f"topic {name!r}: {who} would hold {total:,} partitions; partitions.max={most:,}",
    )
