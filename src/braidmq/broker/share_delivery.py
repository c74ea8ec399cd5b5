"""Delivery to share groups: every (group, partition) that is read in one has a window, kept durable here.

A window's changes go to the internal topic `__share_group_state` (`share_records`): its start before the
first record is handed out, verdicts before they are confirmed, and what came back by time-out as it happens.
That a record was handed out is written with the next of these: a crash in between may cost a delivery count,
never an acknowledgement. On start the windows are read back, and nobody holds anything.

One timer serves all windows: it is set to the earliest time at which a lock ends.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from braidmq.broker.alarm import Alarm
from braidmq.broker.archived_summary import ArchivedSummary
from braidmq.broker.internal_topic import InternalTopic
from braidmq.broker.opening import opened
from braidmq.broker.outcomes import Isolation
from braidmq.broker.replica import Replica
from braidmq.broker.share_partition import AnswerLimits, Delivered, SharePartition
from braidmq.broker.share_records import (
    STATE_TOPIC,
    SharePartitionKey,
    StoredWindow,
    StoredWindows,
    tombstones,
)
from braidmq.broker.topics import Topics
from braidmq.deadlines import Deadlines
from braidmq.delivery.status import Acknowledgement, DeliveryLimits
from braidmq.delivery.window import DeliveryWindow
from braidmq.delivery.window_codec import BadState
from braidmq.platform.clock import Clock
from braidmq.reset import Reset, ResetKind
from braidmq.wire.errors import ApiError, ErrorCode

log = logging.getLogger("braid.share")

TOPIC_OPTIONS = {"cleanup.policy": "compact", "segment.bytes": "16777216"}


class ShareOptions(NamedTuple):
    """What a group may set about its delivery."""

    limits: DeliveryLimits
    reset: Reset
    """Where a group begins on a partition that it has not read yet."""
    committed: bool
    """Whether it gets records of transactions only when they are committed."""


class ShareDelivery:
    """All windows of this broker."""

    def __init__(self, topics: Topics, clock: Clock, options_of: Callable[[str], ShareOptions]) -> None:
        self._topics = topics
        self._clock = clock
        self._options_of = options_of
        self._state = InternalTopic(topics, clock, STATE_TOPIC, TOPIC_OPTIONS)
        self._parts: dict[SharePartitionKey, SharePartition] = {}
        self._opening = asyncio.Lock()
        self._deadlines: Deadlines[SharePartitionKey] = Deadlines()
        self._alarm = Alarm(clock, self._on_due)
        self._archived = ArchivedSummary(asyncio.get_running_loop())

    def __iter__(self) -> Iterator[SharePartition]:
        return iter(self._parts.values())

    def now_ms(self) -> int:
        """The time locks live in; it never goes back."""
        return int(self._clock.monotonic() * 1000)

    # -- start and end --------------------------------------------------------------------------

    def load(self) -> frozenset[str]:
        """Reads the windows of an earlier run, before clients are accepted; the groups that have some."""
        found = StoredWindows()
        for record_key, value in self._state.stored():
            found.record(record_key, value)
        if found.unreadable:
            log.warning("cannot read %d records of %s; they are skipped", found.unreadable, STATE_TOPIC)
        for key, stored in found.windows.items():
            partition = self._partition(key)
            if partition is None:
                # The broker went down between deleting the topic and forgetting what was kept for it.
                # Without a record of that the topic may be set aside, and come back.
                if self._topics.was_deleted(key.topic_id):
                    self._state.append(tombstones(key))
            else:
                committed = self._options_of(key.group_id).committed
                window = self._restore(key, stored)
                part = self._parts[key] = SharePartition(key, partition, window, committed)
                self._set_deadline(part)
        return frozenset(key.group_id for key in self._parts)

    def _restore(self, key: SharePartitionKey, stored: StoredWindow) -> DeliveryWindow:
        limits = self._options_of(key.group_id).limits
        try:
            return DeliveryWindow.restore(stored.snapshot, stored.deltas, limits, self.now_ms())
        except BadState as error:
            # Batches have checksums, so this is a mistake of ours; a group that reads again loses nothing.
            log.error("group %s: cannot read its delivery state, starting over: %s", key.group_id, error)
            return DeliveryWindow(0, limits)

    def stop(self) -> None:
        """Takes nothing back any more; after the next start nobody holds anything."""
        self._alarm.stop()
        self._archived.write()

    # -- windows --------------------------------------------------------------------------------

    def find(self, key: SharePartitionKey) -> SharePartition | None:
        """The window, unless there is none or the topic is being deleted."""
        part = self._parts.get(key)
        return part if part is not None and self._partition(key) is part.partition else None

    def of_group(self, group_id: str) -> list[SharePartition]:
        return [part for part in self._parts.values() if part.key.group_id == group_id]

    async def open(self, keys: Iterable[SharePartitionKey]) -> None:
        """Opens the partitions, and makes the windows that are not there yet; those are on disk on return."""
        keys = list(keys)
        await opened(found for key in keys if (found := self._partition(key)) is not None)
        missing = [key for key in keys if key not in self._parts]
        if not missing:
            return
        await self._state.open()
        async with self._opening:
            made = []
            for key in missing:
                partition = self._partition(key)
                if key not in self._parts and partition is not None:
                    made.append(await self._begin(key, partition))
            await self.save(made)
            for part in made:
                if self._partition(part.key) is not None:
                    self._parts[part.key] = part

    async def _begin(self, key: SharePartitionKey, partition: Replica) -> SharePartition:
        first_offset = await self._first_offset(partition, self._options_of(key.group_id).reset)
        options = self._options_of(key.group_id)
        window = DeliveryWindow(first_offset, options.limits)
        return SharePartition(key, partition, window, options.committed)

    async def _first_offset(self, partition: Replica, reset: Reset) -> int:
        if reset.kind is ResetKind.EARLIEST:
            return partition.start_offset
        if reset.kind is ResetKind.BY_DURATION:
            since_ms = max(0, self._clock.wall_ms() - reset.age_ms)
            found = await partition.list_offset(since_ms, Isolation.UNCOMMITTED)
            if found.offset >= 0:
                return min(found.offset, partition.high_watermark)
        return partition.high_watermark

    async def move(self, key: SharePartitionKey, offset: int) -> None:
        """Lets the group begin at `offset`, whatever it has settled."""
        partition = self._partition(key)
        if partition is None:
            raise ApiError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"the topic has no partition {key.partition}"
            )
        options = self._options_of(key.group_id)
        await self._state.open()
        part = SharePartition(key, partition, DeliveryWindow(offset, options.limits), options.committed)
        await self.save([part])
        self._parts[key] = part

    def _partition(self, key: SharePartitionKey) -> Replica | None:
        topic = self._topics.find_by_id(key.topic_id)
        return None if topic is None else topic.held.get(key.partition)

    def relimit(self, group_id: str) -> None:
        """The group's options have changed."""
        options = self._options_of(group_id)
        for part in self.of_group(group_id):
            part.window.limits = options.limits
            part.committed = options.committed
            part.notify()

    # -- delivery -------------------------------------------------------------------------------

    def acquire(self, part: SharePartition, member_id: str, limits: AnswerLimits) -> Delivered:
        delivered = part.acquire(member_id, self.now_ms(), limits)
        self._after(part)
        return delivered

    def acknowledge(self, part: SharePartition, member_id: str, given: list[Acknowledgement]) -> None:
        """Takes verdicts, all or none and ApiError; to be confirmed once `save` has returned."""
        part.acknowledge(member_id, self.now_ms(), given)
        self._after(part)
        part.notify()

    def release(self, member_id: str, parts: Iterable[SharePartition]) -> None:
        """Takes back what a member holds, because it is gone; written, but not waited for."""
        released = list(parts)
        for part in released:
            part.window.release_consumer(member_id, self.now_ms())
            self._after(part)
            part.notify()
        self._write_or_log(released)

    def append(self, parts: Iterable[SharePartition]) -> int | None:
        """Writes what has changed; the offset at which it is durable, None if nothing was written."""
        taken = [(part, record) for part in parts if (record := part.take_record()) is not None]
        if not taken:
            return None
        try:
            return self._state.append([record for _, record in taken])
        except ApiError:
            for part, _ in taken:
                part.rewrite()
            raise

    async def save(self, parts: Iterable[SharePartition]) -> None:
        """Writes what has changed and returns when it is on disk."""
        durable_at = self.append(parts)
        if durable_at is not None:
            await self.durable(durable_at)

    async def durable(self, offset: int) -> None:
        await self._state.durable(offset)

    def _write_or_log(self, parts: list[SharePartition]) -> None:
        try:
            self.append(parts)
        except ApiError as error:
            log.error("cannot write delivery state, trying again: %s", error)

    def _after(self, part: SharePartition) -> None:
        for archived in part.take_archived():
            self._archived.note(part.key.group_id, part.partition, archived)
        self._set_deadline(part)

    # -- forgetting -----------------------------------------------------------------------------

    async def forget(self, parts: Iterable[SharePartition]) -> None:
        """Drops windows for good; on disk on return."""
        gone = list(parts)
        for part in gone:
            self._parts.pop(part.key, None)
            self._deadlines.drop(part.key)
            part.notify()
        if gone:
            await self.durable(self._state.append([r for part in gone for r in tombstones(part.key)]))

    async def forget_topic(self, topic_id: bytes) -> None:
        await self.forget([part for part in self._parts.values() if part.key.topic_id == topic_id])

    async def forget_group(self, group_id: str) -> None:
        await self.forget(self.of_group(group_id))

    # -- time -----------------------------------------------------------------------------------

    def _set_deadline(self, part: SharePartition) -> None:
        self._deadlines.set(part.key, part.window.next_deadline_ms)
        self._alarm.set(self._deadlines.next_ms())

    def _on_due(self) -> None:
        """Takes back what was held for too long, where it was."""
        now_ms = self.now_ms()
        ticked = []
        for key in self._deadlines.pop_due(now_ms):
            part = self._parts.get(key)
            if part is not None:
                part.window.tick(now_ms)
                self._after(part)
                part.notify()
                ticked.append(part)
        self._write_or_log(ticked)
        self._alarm.set(self._deadlines.next_ms())
