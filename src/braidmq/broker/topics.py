"""The topics of this broker: what the image of the cluster shows, held here.

A change is a commit to the metadata store (`cluster/changes.py`). What it does here is done by `follow`, when
the image shows it, whoever made it: topics come, go, grow, and get other options. Whoever asked is answered
after that. Changes that are asked for here are made one at a time; reading never waits.

A topic's directory is made when it is created and its partitions' on first use. Deleting one commits a record
of that, and the files are removed later (`broker/deletions.py`). What else is in `topics/` is never removed
(`broker/topic_directories.py`).
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from braidmq.broker.deletions import Deletion, Deletions
from braidmq.broker.metadata import storing
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
from braidmq.cluster.changes import Changes, TopicExists
from braidmq.cluster.image import Delta, Image, PartitionImage, TopicImage
from braidmq.cluster.metadata_store import StoreError, Unknown
from braidmq.config import Config, ConfigError, check_topic_overrides
from braidmq.platform.clock import Clock
from braidmq.platform.disk import Disk
from braidmq.platform.randomness import new_uuid
from braidmq.platform.threads import DiskThreads
from braidmq.wire.errors import ApiError, ErrorCode

PARTITIONS_PER_TOPIC_MAX = 100_000
DESCRIBED_PER_ROUND = 64
REFRESHED_TOGETHER = 500
"""Partitions that take over new options before others have their turn."""

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
        image: Image,
        changes: Changes,
        threads: DiskThreads,
        partitions: PartitionFactory,
        clock: Clock,
    ) -> None:
        self._config = config
        self._root = data / "topics"
        self._deletions = Deletions(image, changes, disk, self._root, threads, clock)
        self._undescribed: deque[Topic] = deque()
        self._disk = disk
        self._image = image
        self._changes = changes
        self._clock = clock
        self._threads = threads
        self._new_partition = partitions
        self._by_name: dict[str, Topic] = {}
        self._by_id: dict[bytes, Topic] = {}
        self._change = asyncio.Lock()
        self._leftovers = True
        """Whether there may be partition keys that belong to no topic."""
        self.partition_count = 0
        self.version = 0
        """Goes up whenever a topic is made, grown or deleted."""

    def load(self) -> None:
        """Takes the topics of the image, and sets directories aside that belong to none."""
        for topic in self._image.topics.values():
            self._take(topic)
        self._deletions.load()
        self._look_at_directories()

    def _look_at_directories(self) -> None:
        by_directory = {topic.path.name: topic.name for topic in self._by_name.values()}
        names = self._disk.listdir(self._root)
        found = survey(names, set(by_directory), self._deletions.directories)
        for name in found.missing:
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
            if topic is not None and which.partition < len(topic.partitions):
                topic.partitions[which.partition].leader_epoch = _epoch(move.after)
        self._deletions.follow(delta)

    def _take(self, shown: TopicImage) -> None:
        """A topic came, grew, or has other options."""
        meta = shown.meta.record
        record = TopicRecord(meta.name, shown.id, meta.partitions, dict(meta.options))
        config = effective_config(self._config, record.name, record.overrides)
        topic = self._by_id.get(shown.id)
        if topic is None:
            topic = Topic(record, config, self._root / record.directory_name)
            self._by_name[record.name] = self._by_id[record.id] = topic
        else:
            topic.record = record
            if config != topic.config:
                topic.config = config
                for partition in topic.partitions:
                    partition.reconfigure(config)
        self._undescribed.append(topic)
        self._fill(topic, shown)

    def _fill(self, topic: Topic, shown: TopicImage) -> None:
        have = len(topic.partitions)
        for index in range(have, len(shown.partitions)):
            partition = self._new_partition(topic, index)
            partition.leader_epoch = _epoch(shown.partitions[index])
            topic.partitions.append(partition)
        self.partition_count += len(topic.partitions) - have
        self.version += 1

    def _drop(self, topic_id: bytes) -> None:
        topic = self._by_id.pop(topic_id, None)
        if topic is None:
            return
        if self._by_name.get(topic.name) is topic:
            del self._by_name[topic.name]
        self.version += 1
        self.partition_count -= len(topic.partitions)
        for partition in topic.partitions:
            partition.discard()

    # -- changes --------------------------------------------------------------------------------

    def check_new(self, name: str, partition_count: int, overrides: Mapping[str, str]) -> None:
        """Raises what creating this topic would raise."""
        check_name(name)
        if name in INTERNAL_TOPICS:
            raise ApiError(
                ErrorCode.INVALID_TOPIC_EXCEPTION,
                f"topic {name!r} is the broker's own, and it creates that itself when it needs it",
            )
        self._check_room(name, partition_count, overrides)

    def _check_room(self, name: str, partition_count: int, overrides: Mapping[str, str]) -> None:
        if name in self._by_name:
            raise ApiError(ErrorCode.TOPIC_ALREADY_EXISTS, f"topic {name!r} already exists")
        self._check_count(name, partition_count, self.partition_count + partition_count)
        self.check_overrides(overrides)

    def check_overrides(self, overrides: Mapping[str, str]) -> None:
        """Raises INVALID_CONFIG unless these are options a topic can have."""
        try:
            check_topic_overrides(overrides)
        except ConfigError as error:
            raise ApiError(ErrorCode.INVALID_CONFIG, str(error)) from None

    async def create(self, name: str, partition_count: int, overrides: Mapping[str, str]) -> Topic:
        async with self._change:
            self.check_new(name, partition_count, overrides)
            return await self._create(name, partition_count, overrides)

    async def create_own(self, name: str, overrides: Mapping[str, str], partition_count: int = 1) -> Topic:
        """A topic that the brokers keep for themselves; the one that is there, if there is."""
        async with self._change:
            found = self._by_name.get(name)
            if found is None:
                self._check_room(name, partition_count, overrides)
                found = await self._create(name, partition_count, overrides)
            return found

    async def _create(self, name: str, partition_count: int, overrides: Mapping[str, str]) -> Topic:
        record = TopicRecord(name, new_uuid(), partition_count, dict(overrides))
        replicas = self._changes.place(partition_count)
        with storing():
            await self._threads.run(lambda: self._make_directory(record))
        try:
            with storing():
                await self._changes.create_topic(name, record.id, replicas, overrides)
        except (ApiError, TopicExists) as error:
            self._leftovers = True
            # If it is not known whether the topic came to be, its directory stays.
            if not isinstance(error.__cause__, Unknown):
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
            return self._by_name.get(name) or await self.create(name, self._config.num_partitions, {})
        except ApiError as error:
            if error.code is ErrorCode.TOPIC_ALREADY_EXISTS:
                return self.get(name)
            raise

    def check_growth(self, name: str, partition_count: int) -> Topic:
        """Raises what growing this topic to `partition_count` would raise."""
        topic = self.get(name)
        now = len(topic.partitions)
        if partition_count <= now:
            raise ApiError(
                ErrorCode.INVALID_PARTITIONS,
                f"topic {name!r} has {now} partitions; the new count must be larger, not {partition_count}",
            )
        self._check_count(name, partition_count, self.partition_count - now + partition_count)
        return topic

    async def grow(self, name: str, partition_count: int) -> None:
        async with self._change:
            have = len(self.check_growth(name, partition_count).partitions)
            replicas = self._changes.place(partition_count - have, have)
            self._leftovers = True
            with storing():
                await self._changes.grow_topic(self._shown(name), replicas)

    async def reconfigure(self, name: str, overrides: Mapping[str, str]) -> None:
        """Replaces the topic's own options."""
        async with self._change:
            self.get(name)
            self.check_overrides(overrides)
            check_pinned(name, overrides)
            with storing():
                await self._changes.reconfigure_topic(self._shown(name), overrides)

    async def refresh_options(self) -> None:
        """The broker's defaults have changed: every topic takes them over where it has no own value."""
        for name in list(self._by_name):
            async with self._change:
                topic = self._by_name.get(name)
                if topic is not None:
                    await self._refresh(topic)
            await asyncio.sleep(0)

    async def _refresh(self, topic: Topic) -> None:
        config = effective_config(self._config, topic.name, topic.record.overrides)
        if config == topic.config:
            return
        topic.config = config
        for count, partition in enumerate(topic.partitions, 1):
            partition.reconfigure(config)
            if count % REFRESHED_TOGETHER == 0:
                await asyncio.sleep(0)

    async def delete(self, name: str, forget: Forget | None = None) -> None:
        """Deletes a topic. `forget` drops what is kept under its name, before it can be created again."""
        async with self._change:
            topic_id = self.get(name).id
            self._leftovers = True
            with storing():
                await self._changes.delete_topic(
                    self._shown(name), self._clock.wall_ms(), self._deletions.outdated()
                )
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
        if self._leftovers:
            async with self._change:
                await self._sweep()
        async with self._change:
            count = min(len(self._undescribed), DESCRIBED_PER_ROUND)
            topics = [self._undescribed.popleft() for _ in range(count)]
            topics = [topic for topic in topics if self._by_id.get(topic.id) is topic]
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
                if self._disk.exists(topic.path) and description(self._disk, topic.path) != topic.record:
                    describe(self._disk, topic.path, topic.record)
            except OSError as error:
                log.warning("topic %s: cannot write its description: %s", topic.name, error)

    # -- details --------------------------------------------------------------------------------

    def _check_count(self, name: str, partition_count: int, total: int) -> None:
        if not 1 <= partition_count <= PARTITIONS_PER_TOPIC_MAX:
            raise ApiError(
                ErrorCode.INVALID_PARTITIONS,
                f"topic {name!r}: {partition_count} partitions, not 1 to {PARTITIONS_PER_TOPIC_MAX:,}",
            )
        if total > self._config.partitions_max:
            raise ApiError(
                ErrorCode.POLICY_VIOLATION,
                f"topic {name!r}: the broker would hold {total:,} partitions;"
                f" partitions.max={self._config.partitions_max:,}",
            )

    def _shown(self, name: str) -> TopicImage:
        shown = self._image.find(name)
        assert shown is not None, f"{name} is held, and the image does not show it"
        return shown

    def _make_directory(self, record: TopicRecord) -> None:
        directory = self._root / record.directory_name
        self._disk.makedirs(directory)
        describe(self._disk, directory, record)
        self._disk.sync_directory(self._root)

    async def _remove_directory(self, record: TopicRecord) -> None:
        """Nobody has written to it. Left there, it would be reported as a topic that was lost."""
        with suppress(OSError):
            await self._threads.run(lambda: self._disk.remove_tree(self._root / record.directory_name))


def _epoch(partition: PartitionImage | None) -> int:
    """The leader epoch of a partition; the first one if its record was never readable."""
    return 0 if partition is None else partition.record.epoch
