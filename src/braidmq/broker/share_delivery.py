"""Delivery to share groups: a window for every (group, partition) that is led here and read in the group.

A window lives with the leader of its partition; its state is kept by the share coordinator, on this broker or
another (`share_persister`). The window is made when the partition is first read: from what the coordinator
has, or, if that is nothing, where `share.auto.offset.reset` says. The leader makes that first state, because
it alone knows the log; the coordinator takes it only if there still is none. No group coordinator takes part.

Where a window begins is written before the first record is handed out, verdicts before they are confirmed,
and what came back by time-out as it happens. That a record was handed out is written with the next of these:
a crash in between may cost a delivery count, never an acknowledgement. After a restart nobody holds anything.

A write that the coordinator refuses as fenced drops the window: another broker leads the partition, or
somebody has moved the group. The next read of the partition reads the state again. As a share session begins
the state's epoch is asked for, too: a window with nothing to hand out writes nothing and would not find out.

One timer serves all windows: it is set to the earliest time at which a lock ends.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from braidmq.broker.alarm import Alarm
from braidmq.broker.archived_summary import ArchivedSummary
from braidmq.broker.opening import opened
from braidmq.broker.outcomes import Isolation
from braidmq.broker.replica import Replica
from braidmq.broker.share_partition import AnswerLimits, Delivered, SharePartition
from braidmq.broker.share_persister import Saving, SharePersister
from braidmq.broker.share_records import SharePartitionKey, StoredWindow
from braidmq.broker.topics import Topics
from braidmq.cluster.image import Delta
from braidmq.deadlines import Deadlines
from braidmq.delivery.status import Acknowledgement, DeliveryLimits
from braidmq.platform.clock import Clock
from braidmq.reset import Reset, ResetKind
from braidmq.wire.errors import ApiError, ErrorCode

log = logging.getLogger("braid.share")

Failures = dict[SharePartitionKey, ApiError]


class ShareOptions(NamedTuple):
    """What a group may set about its delivery."""

    limits: DeliveryLimits
    reset: Reset
    """Where a group begins on a partition that it has not read yet."""
    committed: bool
    """Whether it gets records of transactions only when they are committed."""


class ShareDelivery:
    """All windows of this broker."""

    def __init__(
        self,
        topics: Topics,
        clock: Clock,
        options_of: Callable[[str], ShareOptions],
        persister: SharePersister,
    ) -> None:
        self._topics = topics
        self._clock = clock
        self._options_of = options_of
        self._persister = persister
        persister.on_fenced = self._on_fenced
        self._parts: dict[SharePartitionKey, SharePartition] = {}
        self._loading: dict[SharePartitionKey, asyncio.Task[Failures]] = {}
        self._deadlines: Deadlines[SharePartitionKey] = Deadlines()
        self._alarm = Alarm(clock, self._on_due)
        self._loop = asyncio.get_running_loop()
        self._archived = ArchivedSummary(self._loop)

    def __iter__(self) -> Iterator[SharePartition]:
        return iter(self._parts.values())

    def now_ms(self) -> int:
        """The time locks live in; it never goes back."""
        return int(self._clock.monotonic() * 1000)

    def stop(self) -> None:
        """Takes nothing back any more; after the next start nobody holds anything."""
        self._alarm.stop()
        self._archived.write()
        for task in dict.fromkeys(self._loading.values()):
            task.cancel()

    # -- windows --------------------------------------------------------------------------------

    def find(self, key: SharePartitionKey) -> SharePartition | None:
        """The window, unless there is none, the topic is being deleted, or another broker leads it."""
        part = self._parts.get(key)
        return part if part is not None and self._holds(part) else None

    def of_group(self, group_id: str) -> list[SharePartition]:
        return [part for part in self._parts.values() if part.key.group_id == group_id]

    async def open(self, keys: Iterable[SharePartitionKey], again: bool = False) -> Failures:
        """Opens the partitions that are led here, and makes the windows that are not there yet.

        Where they begin is on disk on return. Those that could not be made are answered with why. `again`
        asks the coordinator also for windows that are there, whether they still count.
        """
        keys = list(keys)
        await opened(found for key in keys if (found := self._partition(key)) is not None)
        wanted = [
            key for key in keys if (again or key not in self._parts) and self._partition(key) is not None
        ]
        if not wanted:
            return {}
        await self._persister.ensure()
        begun = [key for key in wanted if key not in self._loading]
        if begun:
            task = self._loop.create_task(self._load(begun), name="share-windows")
            self._loading.update(dict.fromkeys(begun, task))
        loading = dict.fromkeys(self._loading[key] for key in wanted if key in self._loading)
        await asyncio.wait(loading)
        failures: Failures = {}
        for task in loading:
            failures.update(_failures(task, wanted))
        return failures

    async def _load(self, keys: list[SharePartitionKey]) -> Failures:
        try:
            held = {key: replica for key in keys if (replica := self._partition(key)) is not None}
            found = await self._persister.read({key: one.leader_epoch for key, one in held.items()})
            starts = {
                key: await self._first_offset(held[key], self._options_of(key.group_id).reset)
                for key, stored in found.items()
                if stored is None
            }
            if starts:
                begun = await self._persister.begin(starts)
                found.update({key: error for key, error in begun.items() if error is not None})
                again = {key: held[key].leader_epoch for key, error in begun.items() if error is None}
                found.update(await self._persister.read(again))
            failures: Failures = {}
            for key, stored in found.items():
                if isinstance(stored, StoredWindow):
                    self._take(key, stored)
                else:
                    self._drop(self._parts.get(key))
                    failures[key] = stored or ApiError(
                        ErrorCode.COORDINATOR_NOT_AVAILABLE, "the delivery state was deleted; ask again"
                    )
            return failures
        finally:
            for key in keys:
                self._loading.pop(key, None)

    def _take(self, key: SharePartitionKey, stored: StoredWindow) -> None:
        """Makes the window of a state that was read, unless it is there."""
        part, partition = self._parts.get(key), self._partition(key)
        if part is not None and part.state_epoch == stored.state_epoch and self._holds(part):
            return
        self._drop(part)
        if partition is not None:
            options = self._options_of(key.group_id)
            made = SharePartition(key, partition, stored, options.limits, self.now_ms(), options.committed)
            self._parts[key] = made
            self._set_deadline(made)

    def _holds(self, part: SharePartition) -> bool:
        return self._partition(part.key) is part.partition and part.is_led

    def _drop(self, part: SharePartition | None) -> None:
        """Forgets a window, but not its state; who waits for its records asks again."""
        if part is not None and self._parts.get(part.key) is part:
            del self._parts[part.key]
            self._deadlines.drop(part.key)
            part.notify()

    def _on_fenced(self, part: SharePartition) -> None:
        log.info("group %s, %s: the delivery state was taken over", part.key.group_id, part.partition)
        self._drop(part)

    def follow(self, delta: Delta) -> None:
        """Lets go of windows whose partition another broker leads, or nobody any more."""
        if delta.partitions or delta.topics:
            for part in [part for part in self._parts.values() if not self._holds(part)]:
                self._drop(part)

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
        """Lets the group begin at `offset`, whatever it has settled, wherever the partition is led."""
        await self._persister.ensure()
        await self._persister.move(key, offset)
        self._drop(self._parts.get(key))

    def _partition(self, key: SharePartitionKey) -> Replica | None:
        topic = self._topics.find_by_id(key.topic_id)
        replica = None if topic is None else topic.held.get(key.partition)
        return replica if replica is not None and replica.leads else None

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

    def append(self, parts: Iterable[SharePartition]) -> Saving | None:
        """Begins to write what has changed; None if nothing has. ApiError if it cannot be written."""
        saving = self._persister.write(parts)
        return None if saving.is_empty else saving

    async def save(self, parts: Iterable[SharePartition]) -> None:
        """Writes what has changed and returns when it is on disk."""
        saving = self.append(parts)
        if saving is not None:
            for error in (await saving.settled()).values():
                raise error

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

    async def forget(self, keys: Iterable[SharePartitionKey]) -> None:
        """Drops windows and their states for good, wherever they are kept; on disk on return."""
        gone = list(keys)
        for error in (await self._persister.delete(gone)).values():
            if error is not None:
                raise error
        for key in gone:
            self._drop(self._parts.get(key))

    async def forget_topic(self, topic_id: bytes) -> None:
        """Drops the windows of a topic that was deleted, and the states that are kept on this broker.

        Other brokers forget theirs when they see the deletion.
        """
        for part in [part for part in self._parts.values() if part.key.topic_id == topic_id]:
            self._drop(part)
        await self._persister.forget_topic(topic_id)

    async def forget_group(self, group_id: str) -> None:
        await self.forget(await self._persister.of_group(group_id))
        for part in self.of_group(group_id):
            self._drop(part)

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


def _failures(task: asyncio.Task[Failures], wanted: list[SharePartitionKey]) -> Failures:
    """What kept a task from loading windows."""
    if task.cancelled():
        stopping = ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "the broker is stopping")
        return dict.fromkeys(wanted, stopping)
    return {key: error for key, error in task.result().items() if key in wanted}
