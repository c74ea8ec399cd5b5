"""The groups of this broker: a coordinator for each partition of `__consumer_offsets` that it leads.

A broker with its own store is the coordinator of every group. Then the topic is made when something is first
written to it, and until that there are no groups: nothing that only asks has to wait for a topic.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator

from braidmq.broker.group_context import GroupContext
from braidmq.broker.group_coordinator import TOPIC_OPTIONS, GroupCoordinator
from braidmq.broker.internal_partition import InternalPartition
from braidmq.broker.shards import Shards
from braidmq.broker.topics import Topics
from braidmq.cluster.image import Delta, Image
from braidmq.group.catalog import Catalog
from braidmq.group.group_types import Group
from braidmq.group.records import OFFSETS_TOPIC
from braidmq.group.settings import GroupSettings
from braidmq.group.shared_limits import SharedLimits
from braidmq.group.streams_group import StreamsOptions
from braidmq.platform.clock import Clock
from braidmq.wire.errors import ApiError, ErrorCode

log = logging.getLogger("braid.groups")


class GroupShards(Shards[GroupCoordinator]):
    """Which coordinator serves a group, and what concerns all of them."""

    def __init__(
        self,
        image: Image,
        topics: Topics,
        node_id: int,
        clock: Clock,
        settings: GroupSettings,
        catalog: Catalog,
        streams_options: Callable[[str], StreamsOptions],
        new_count: Callable[[], int],
        in_cluster: Callable[[], bool],
    ) -> None:
        super().__init__(
            image, topics, node_id, OFFSETS_TOPIC, new_count, TOPIC_OPTIONS, self._new_coordinator, clock
        )
        self.settings = settings
        self._in_cluster = in_cluster
        self._context = GroupContext(
            topics, clock, settings, catalog, streams_options, SharedLimits(settings), self._deleted_topics
        )
        self._nothing = GroupCoordinator(None, self._context)
        self._forgetting: dict[str, asyncio.Task[None]] = {}

    def _new_coordinator(self, partition: InternalPartition) -> GroupCoordinator:
        return GroupCoordinator(partition, self._context)

    def of(self, key: str) -> GroupCoordinator:
        """The coordinator of a group; ApiError where that is not this broker, or not yet.

        A broker alone has loaded what there is before it accepts clients. A topic that it creates afterwards
        has no groups until it is loaded for the first time.
        """
        if not self._in_cluster() and (not self.exists or self.index_of(key) not in self._once_loaded):
            return self._nothing
        return super().of(key)

    async def reach(self, key: str) -> GroupCoordinator:
        """As `of`; makes the topic if it is not there. A broker alone has nobody to send a client to."""
        if self.exists and self.is_loading and not self._in_cluster():
            await self.loaded()
        return await super().reach(key)

    def find(self, group_id: str) -> Group | None:
        """A group of this broker; ApiError as above."""
        return self.of(group_id).groups.find(group_id)

    def all_groups(self) -> Iterator[Group]:
        """The groups of the shards that are loaded."""
        for shard in self:
            yield from shard.groups

    async def expire(self) -> None:
        """Forgets offsets past their retention, and groups that have nothing left."""
        for shard in self:
            try:
                await shard.expire()
            except ApiError as error:
                # It is led elsewhere now, or its disk has failed: the others have nothing to do with that.
                log.error("groups cannot forget what has expired: %s", error)

    def stop(self) -> None:
        super().stop()
        for task in list(self._forgetting.values()):
            task.cancel()

    # -- deleted topics -------------------------------------------------------------------------

    def follow(self, delta: Delta) -> None:
        super().follow(delta)
        for topic_id, (before, after) in delta.topics.items():
            if before is not None and after is None and self._image.was_deleted(topic_id):
                self._forget_soon(before.name)

    def _forget_soon(self, topic: str) -> None:
        """Has every shard forget what was committed for a topic that is gone."""
        if self._stopped:
            return
        task = asyncio.get_running_loop().create_task(self._forget(topic, list(self)), name=f"forget-{topic}")
        self._forgetting[topic] = task
        task.add_done_callback(lambda _: self._on_forgotten(topic, task))

    async def _forget(self, topic: str, shards: list[GroupCoordinator]) -> None:
        await asyncio.gather(*(shard.forget_topic(topic) for shard in shards))

    def _on_forgotten(self, topic: str, task: asyncio.Task[None]) -> None:
        if self._forgetting.get(topic) is task:
            del self._forgetting[topic]
        error = None if task.cancelled() else task.exception()
        if isinstance(error, ApiError) and error.code is ErrorCode.NOT_COORDINATOR:
            return  # the broker that leads the partition now sees to it
        if error is not None:
            log.error("cannot remove the offsets of the deleted topic %s: %s", topic, error)

    async def forgotten(self, topic: str) -> None:
        """Returns when the shards here keep nothing for a topic whose deletion the image shows.

        ApiError if it could not be written down; it is tried again when the shards are next loaded.
        """
        task = self._forgetting.get(topic)
        if task is not None:
            await asyncio.wait([task])
            if task.cancelled():
                raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, "the broker is stopping")
            task.result()

    def _deleted_topics(self) -> list[str]:
        """Recorded deletions of topics that were not created again."""
        names = [
            record.name
            for topic_id in self._image.all_deleted()
            if (record := self._image.deleted(topic_id)) is not None
        ]
        return [name for name in names if self._image.find(name) is None]
