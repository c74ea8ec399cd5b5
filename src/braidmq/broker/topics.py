"""The topics of this broker: created, grown, reconfigured, deleted, and found again after a restart.

Every change is committed to the metadata store before it shows. Changes are made one at a time; reading
never waits. A topic's directory is made when it is created and its partitions' on first use, so creating
ten thousand partitions is one small write.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from braidmq.broker.group_commit import DiskThreads
from braidmq.broker.partition import Partition
from braidmq.broker.topic import Topic, TopicRecord, check_name
from braidmq.cluster.store import Conflict, Store
from braidmq.config import Config, ConfigError, check_topic_overrides
from braidmq.platform.disk import Disk
from braidmq.platform.randomness import new_uuid
from braidmq.wire.errors import ApiError, ErrorCode

PREFIX = "topics/"
TRASH_SUFFIX = ".deleted"
PARTITIONS_PER_TOPIC_MAX = 100_000
REFRESHED_TOGETHER = 500
"""Partitions that take over new options before others have their turn."""

PartitionFactory = Callable[[Topic, int], Partition]


class Topics:
    """All topics by name and by id."""

    def __init__(
        self,
        config: Config,
        data: Path,
        disk: Disk,
        store: Store,
        threads: DiskThreads,
        partitions: PartitionFactory,
    ) -> None:
        self._config = config
        self._root = data / "topics"
        self._disk = disk
        self._store = store
        self._threads = threads
        self._new_partition = partitions
        self._by_name: dict[str, Topic] = {}
        self._by_id: dict[bytes, Topic] = {}
        self._change = asyncio.Lock()
        self.partition_count = 0
        self.version = 0
        """Goes up whenever a topic is made, grown or deleted."""

    def load(self) -> None:
        """Finds the topics of the store, and clears away what deleted ones left behind."""
        self._disk.makedirs(self._root)
        for key, value in self._store.items(PREFIX):
            self._install(TopicRecord.from_json(key.removeprefix(PREFIX), value))
        known = {topic.path.name for topic in self._by_name.values()}
        for name in self._disk.listdir(self._root):
            if name not in known:
                self._remove_tree(self._root / name)

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

    # -- changes --------------------------------------------------------------------------------

    def check_new(self, name: str, partition_count: int, overrides: Mapping[str, str]) -> None:
        """Raises what creating this topic would raise."""
        check_name(name)
        if name in self._by_name:
            raise ApiError(ErrorCode.TOPIC_ALREADY_EXISTS, f"topic {name!r} exists already")
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
            record = TopicRecord(name, new_uuid(), partition_count, dict(overrides))

            def make() -> None:
                self._disk.makedirs(self._root / record.directory_name)
                self._disk.sync_directory(self._root)
                self._put(record)

            await self._commit(make)
            return self._install(record)

    async def find_or_create(self, name: str) -> Topic:
        """The topic, made with the default partition count if it is not there (auto-creation)."""
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
            topic = self.check_growth(name, partition_count)
            record = TopicRecord(name, topic.id, partition_count, topic.record.overrides)
            await self._commit(lambda: self._put(record))
            topic.record = record
            self._fill(topic)

    async def reconfigure(self, name: str, overrides: Mapping[str, str]) -> None:
        """Replaces the topic's own options."""
        async with self._change:
            topic = self.get(name)
            self.check_overrides(overrides)
            record = TopicRecord(name, topic.id, len(topic.partitions), dict(overrides))
            await self._commit(lambda: self._put(record))
            topic.record = record
            topic.config = self._config.topic(overrides)
            for partition in topic.partitions:
                partition.reconfigure(topic.config)

    async def refresh_options(self) -> None:
        """The broker's defaults have changed: every topic takes them over where it has no own value."""
        for name in list(self._by_name):
            async with self._change:
                topic = self._by_name.get(name)
                if topic is not None:
                    await self._refresh(topic)
            await asyncio.sleep(0)

    async def _refresh(self, topic: Topic) -> None:
        config = self._config.topic(topic.record.overrides)
        if config == topic.config:
            return
        topic.config = config
        for count, partition in enumerate(topic.partitions, 1):
            partition.reconfigure(config)
            if count % REFRESHED_TOGETHER == 0:
                await asyncio.sleep(0)

    async def delete(self, name: str) -> None:
        async with self._change:
            topic = self.get(name)
            await self._commit(lambda: self._store.commit({}, deletes=[PREFIX + name]))
            del self._by_name[name]
            del self._by_id[topic.id]
            self.version += 1
            self.partition_count -= len(topic.partitions)
            for partition in topic.partitions:
                partition.discard()
            # The store has forgotten it; if this does not finish, the next start clears it away.
            await self._threads.run(lambda: self._remove_tree(topic.path))

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

    def _put(self, record: TopicRecord) -> None:
        self._store.commit({PREFIX + record.name: record.to_json()})

    async def _commit(self, work: Callable[[], None]) -> None:
        try:
            await self._threads.run(work)
        except (OSError, Conflict) as error:
            raise ApiError(
                ErrorCode.KAFKA_STORAGE_ERROR, f"the change could not be stored: {error}"
            ) from error

    def _install(self, record: TopicRecord) -> Topic:
        topic = Topic(record, self._config.topic(record.overrides), self._root / record.directory_name)
        self._by_name[record.name] = topic
        self._by_id[record.id] = topic
        self._fill(topic)
        return topic

    def _fill(self, topic: Topic) -> None:
        have = len(topic.partitions)
        topic.partitions.extend(
            self._new_partition(topic, index) for index in range(have, topic.record.partition_count)
        )
        self.partition_count += len(topic.partitions) - have
        self.version += 1

    def _remove_tree(self, path: Path) -> None:
        trash = path if path.name.endswith(TRASH_SUFFIX) else path.with_name(path.name + TRASH_SUFFIX)
        if trash != path:
            self._disk.rename(path, trash)
        self._disk.remove_tree(trash)
