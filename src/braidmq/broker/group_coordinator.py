"""The coordinator of some groups: pure group logic on one side, a partition and a timer on the other.

`braidmq.group` decides; this module writes down what it decides, and answers when that is durable. Records
go to one partition of the internal, compacted topic `__consumer_offsets` in Kafka's own format; the broker
that begins to lead the partition reads them back in order. A reply is sent once everything that its group has
written before is on disk, no matter which member caused it: a follower does not get an assignment that a
crash could take back, though its leader brought it.

Offsets of a transaction are decided when its marker is committed in the partition, whichever broker had it
appended.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from braidmq.broker.alarm import Alarm
from braidmq.broker.group_context import GroupContext
from braidmq.broker.internal_partition import InternalPartition
from braidmq.broker.topic import INTERNAL_TOPICS
from braidmq.group.consumer_group import Beat, ConsumerGroup
from braidmq.group.consumer_member import Heartbeat, SteadyBeat
from braidmq.group.events import (
    Effect,
    Join,
    Joined,
    KeyValue,
    Leaver,
    Reply,
    Sync,
    Synced,
    WriteRecords,
    WriteSnapshot,
)
from braidmq.group.groups import Groups
from braidmq.group.loading import GroupLoader
from braidmq.group.offsets import Commit, TopicPartition
from braidmq.group.records import group_record, offset_record
from braidmq.group.streams_group import StreamsBeat
from braidmq.group.streams_member import StreamsHeartbeat
from braidmq.group.streams_topology import ApplicationTopic, StatusCode, TopologyStatus
from braidmq.log.transactions import EndMarker, Guard, MarkerType, parse_end_marker
from braidmq.platform.randomness import new_uuid
from braidmq.wire.errors import ApiError, ErrorCode
from braidmq.wire.records import BatchHeader, parse_header, records

if TYPE_CHECKING:
    from braidmq.broker.partition import CommittedCallback
    from braidmq.broker.replica import Replica
    from braidmq.broker.txn_gate import TxnProducer

log = logging.getLogger("braid.groups")

TOPIC_OPTIONS = {"cleanup.policy": "compact", "segment.bytes": "104857600"}
TOMBSTONES_PER_BATCH = 1000


class Committer(NamedTuple):
    """Who commits offsets, by the standards of the OffsetCommit version it speaks."""

    member_id: str
    instance_id: str | None
    generation: int
    version: int


class GroupCoordinator:
    """Coordinates the groups of one partition. Without a partition there are none."""

    def __init__(self, partition: InternalPartition | None, context: GroupContext) -> None:
        self._at = partition
        self._context = context
        self._topics = context.topics
        self._clock = context.clock
        self._catalog = context.catalog
        self._loop = asyncio.get_running_loop()
        self._alarm = Alarm(context.clock, self._on_due)
        self.now_ms = self._alarm.now_ms
        self._committing: Counter[str] = Counter()
        """Commits per group that are being written and do not show yet."""
        self.groups = Groups(
            context.settings,
            lambda: new_uuid().hex(),
            lambda: context.catalog,
            context.streams_options,
            context.limits,
        )
        self._written_to: dict[str, int] = {}
        """Groups with changes on their way to disk, and where they end; oldest first."""
        self._waiting: dict[asyncio.Future[Any], Joined | Synced] = {}
        """Who waits for an answer of its group, and what it gets if this broker resigns."""
        self._forgetting: dict[str, asyncio.Future[None]] = {}
        """Deleted topics whose offsets are being forgotten."""
        self._ended: list[tuple[EndMarker, int]] | None = []
        """Ends of transactions that were committed while the partition was read; None after that."""

    @property
    def _partition(self) -> InternalPartition:
        assert self._at is not None, "a group is coordinated where its partition is"
        return self._at

    # -- leading the partition ------------------------------------------------------------------

    async def load(self) -> None:
        """Reads the groups of the partition."""
        loading = GroupLoader()

        def take(header: BatchHeader, batch: memoryview) -> None:
            if (marker := parse_end_marker(batch)) is not None:
                loading.marker(marker.producer_id, marker.outcome is MarkerType.COMMIT)
                return
            producer_id = header.producer_id if header.is_transactional else None
            for record in records(batch):
                if record.key is not None:
                    loading.record(record.key, record.value, producer_id)

        self._partition.watch_markers(self._on_marker)
        end = await self._partition.read(take)
        self.groups.load(loading, self.now_ms(), self._clock.wall_ms())
        if loading.unreadable:
            log.warning("%s: cannot read %d records; they are skipped", self._at, loading.unreadable)
        ended, self._ended = self._ended or [], None
        for marker, marker_end in ended:
            if marker_end > end:
                self._decide(marker)
        await self._forget_deleted()
        self._set_timer()

    async def _forget_deleted(self) -> None:
        """Drops the offsets of topics that were deleted while another broker, or none, led the partition."""
        try:
            while gone := self._topics_with_offsets() & set(self._context.deleted_topics()):
                for topic in sorted(gone):
                    await self.forget_topic(topic)
        except ApiError as error:
            log.error("%s: cannot remove the offsets of deleted topics: %s", self._at, error)

    def _topics_with_offsets(self) -> set[str]:
        tables = (self.groups.offsets(group.group_id) for group in self.groups)
        return {topic for table in tables for topic, _ in table.partitions()}

    def resign(self) -> None:
        """Another broker coordinates these groups from now on, or this one after reading them again."""
        self._alarm.stop()
        self._context.limits.remove(self.groups)
        for waiting, refusal in list(self._waiting.items()):
            if not waiting.done():
                waiting.set_result(refusal)

    def stop(self) -> None:
        self._alarm.stop()

    def _on_marker(self, marker: EndMarker, end: int) -> None:
        """A transaction ends in this partition: its offsets count, or are dropped, when that is committed."""

        def committed(code: ErrorCode) -> None:
            if code is not ErrorCode.NONE:
                return
            if self._ended is None:
                self._decide(marker)
            else:
                self._ended.append((marker, end))

        self._partition.when_durable(end, committed)

    def _decide(self, marker: EndMarker) -> None:
        self.groups.decide(marker.producer_id, marker.outcome is MarkerType.COMMIT)

    # -- classic membership ---------------------------------------------------------------------

    async def join(self, group_id: str, request: Join) -> Joined:
        answer: asyncio.Future[Joined] = self._loop.create_future()
        self._waiting[answer] = Joined(ErrorCode.NOT_COORDINATOR, request.member_id)
        try:
            self._carry_out(group_id, self.groups.join(group_id, request, answer, self.now_ms()))
            return await answer
        finally:
            del self._waiting[answer]

    async def sync(self, group_id: str, request: Sync) -> Synced:
        answer: asyncio.Future[Synced] = self._loop.create_future()
        self._waiting[answer] = Synced(ErrorCode.NOT_COORDINATOR)
        try:
            self._carry_out(group_id, self.groups.sync(group_id, request, answer, self.now_ms()))
            return await answer
        finally:
            del self._waiting[answer]

    def heartbeat(self, group_id: str, member_id: str, instance_id: str | None, generation: int) -> ErrorCode:
        code = self.groups.heartbeat(group_id, member_id, instance_id, generation, self.now_ms())
        self._set_timer()
        return code

    def leave(self, group_id: str, leavers: Sequence[Leaver]) -> tuple[ErrorCode, list[ErrorCode]]:
        code, codes, effects = self.groups.leave(group_id, leavers, self.now_ms())
        self._carry_out(group_id, effects)
        return code, codes

    # -- server-assigned membership -------------------------------------------------------------

    def steady_heartbeat(self, group_id: str, beat: SteadyBeat) -> int | None:
        """In how many ms the member is to report again; None if `consumer_heartbeat` has to look at it."""
        now_ms = self.now_ms()
        group = self.groups.find(group_id)
        if isinstance(group, ConsumerGroup) and group.is_steady(beat, self._catalog.version, now_ms):
            return self.groups.interval.ms_of(group_id, now_ms)
        return None

    async def consumer_heartbeat(self, group_id: str, beat: Heartbeat) -> Beat:
        """The answer to a member, once what it changed is on disk. ApiError when the group refuses."""
        answer, effects = self.groups.consumer_heartbeat(group_id, beat, self.now_ms())
        await self._write_first(group_id, effects)
        return answer

    async def streams_heartbeat(self, group_id: str, beat: StreamsHeartbeat) -> StreamsBeat:
        """The answer to a member of a streams group, once what it changed is on disk; as above.

        Internal topics of the application that are missing are created before the member is answered.
        """
        answer, effects = self.groups.streams_heartbeat(group_id, beat, self.now_ms())
        await self._write_first(group_id, effects)
        failures = [error for topic in answer.to_create if (error := await self._create(topic)) is not None]
        if not failures:
            return answer
        log.warning("group %s: cannot create internal topics: %s", group_id, "; ".join(failures))
        failed = TopologyStatus(StatusCode.MISSING_INTERNAL_TOPICS, "; ".join(failures))
        others = (one for one in answer.statuses if one.code is not StatusCode.MISSING_INTERNAL_TOPICS)
        return answer._replace(statuses=(*others, failed))

    async def _create(self, topic: ApplicationTopic) -> str | None:
        """Creates a topic of an application; says why it cannot be. Another member may have been first."""
        if topic.name in INTERNAL_TOPICS:
            return f"{topic.name}: belongs to the broker"
        try:
            await self._topics.create(topic.name, topic.partitions, dict(topic.options))
        except ApiError as error:
            if error.code is not ErrorCode.TOPIC_ALREADY_EXISTS:
                return f"{topic.name}: {error.message}"
        return None

    async def _write_first(self, group_id: str, effects: Sequence[Effect]) -> None:
        """Carries effects out and waits until they are on disk; the group hears if they cannot be."""
        try:
            durable_at = self._perform(group_id, effects)
            if durable_at is not None:
                await self._partition.durable(durable_at)
        except ApiError as error:
            if error.code is not ErrorCode.NOT_COORDINATOR:
                self._carry_out(group_id, self.groups.write_failed(group_id, self.now_ms()))
            raise

    async def share_heartbeat(self, group_id: str, beat: Heartbeat) -> Beat:
        """The answer to a member of a share group, of which little is written. ApiError when it refuses."""
        answer, effects = self.groups.share_heartbeat(group_id, beat, self.now_ms())
        if effects:
            await self._write_first(group_id, effects)
        else:
            self._set_timer()
        return answer

    async def make_share(self, group_id: str) -> None:
        """A share group whose offsets are set before its first member joins; the one that is there, too."""
        await self._write_first(group_id, self.groups.make_share(group_id))

    # -- offsets --------------------------------------------------------------------------------

    async def commit(self, group_id: str, member: Committer, entries: Sequence[Commit]) -> None:
        """Stores offsets; on disk and visible on return. ApiError when the group refuses."""
        if self._forgetting:
            await self._forgotten({topic for (topic, _), _ in entries})
        self.groups.check_commit(
            group_id, member.member_id, member.instance_id, member.generation, self.now_ms(), member.version,
            (topic_partition for topic_partition, _ in entries),
        )  # fmt: skip
        self.groups.check_offsets(group_id, entries, self.now_ms())
        self._set_timer()
        changes = [
            offset_record(group_id, *topic_partition, committed) for topic_partition, committed in entries
        ]
        if changes:
            self._committing[group_id] += 1
            try:
                await self._partition.written(changes)
            finally:
                self._committing[group_id] -= 1
        table = self.groups.offsets_to_change(group_id, self.now_ms())
        table.commit_all(entries)

    async def begin_commit_in_transaction(
        self,
        group_id: str,
        member: Committer,
        producer: TxnProducer,
        entries: Sequence[Commit],
    ) -> tuple[Replica, bytearray]:
        """The batch of offsets that count when the producer's transaction commits, and where it belongs.

        ApiError when the group refuses.
        """
        self.groups.check_commit(
            group_id, member.member_id, member.instance_id, member.generation, self.now_ms(), member.version,
            (topic_partition for topic_partition, _ in entries), transactional=True,
        )  # fmt: skip
        self.groups.check_offsets(group_id, entries, self.now_ms())
        self._set_timer()
        changes = [
            offset_record(group_id, *topic_partition, committed) for topic_partition, committed in entries
        ]
        batch = self._partition.transactional_batch(changes, producer.producer_id, producer.producer_epoch)
        return self._partition.replica, batch

    def commit_in_transaction(
        self,
        group_id: str,
        batch: bytearray,
        guard: Guard | None,
        entries: Sequence[Commit],
        then: CommittedCallback,
    ) -> None:
        """Appends what `begin_commit_in_transaction` gave. ApiError if the transaction does not take it.

        The offsets are entered when they are on disk, and before whatever was written after them, such as
        the marker that ends the transaction; then `then` is called.
        """
        producer_id = parse_header(batch).producer_id
        end = self._partition.append_batch(batch, guard)

        def enter(code: ErrorCode) -> None:
            if code is ErrorCode.NONE:
                for topic_partition, committed in entries:
                    self.groups.commit_undecided(
                        group_id, producer_id, *topic_partition, committed, self.now_ms()
                    )
            then(code)

        self._partition.when_durable(end, enter)

    async def delete_offsets(self, group_id: str, partitions: Sequence[TopicPartition]) -> None:
        await self._write([offset_record(group_id, *topic_partition, None) for topic_partition in partitions])
        self.groups.offsets(group_id).forget(partitions)

    async def delete_group(self, group_id: str) -> ErrorCode:
        code, tombstones = self.groups.delete(group_id)
        if tombstones:
            await self._write(tombstones)
        return code

    async def forget_topic(self, topic: str) -> None:
        """Drops the offsets of a topic that was deleted.

        Commits that were begun while it was there come first, or they would show up afterwards. Commits for
        a recreated topic of this name wait until it is done.
        """
        if topic in self._forgetting:
            await self._forgotten({topic})
            return
        done = self._forgetting[topic] = self._loop.create_future()
        try:
            await self._partition.settled()
            await self._forget(topic)
        finally:
            del self._forgetting[topic]
            done.set_result(None)

    async def _forgotten(self, topics: set[str]) -> None:
        """Returns when none of these topics is being forgotten."""
        while under_way := [done for topic, done in self._forgetting.items() if topic in topics]:
            await under_way[0]

    async def _forget(self, topic: str) -> None:
        of_group = {
            group.group_id: partitions
            for group in self.groups
            if (partitions := self.groups.offsets(group.group_id).of_topic(topic))
        }
        changes = [
            offset_record(name, *topic_partition, None)
            for name, partitions in of_group.items()
            for topic_partition in partitions
        ]
        durable_at = None
        for at in range(0, len(changes), TOMBSTONES_PER_BATCH):
            durable_at = self._partition.append(changes[at : at + TOMBSTONES_PER_BATCH])
        if durable_at is not None:
            await self._partition.durable(durable_at)
        for group_id, partitions in of_group.items():
            self.groups.offsets(group_id).forget(partitions)

    async def expire(self) -> None:
        """Forgets offsets past their retention, and groups that have nothing left.

        What of a group goes is decided in the moment its tombstones are appended. A commit that was appended
        before and does not show yet would be undone by them, so such a group waits for the next round.
        """
        for expired in self.groups.expired(self.now_ms(), self._clock.wall_ms()):
            if not self._committing[expired.group_id]:
                await self._write(expired.records)
                self.groups.forget(expired)
        self._committing = +self._committing

    # -- effects --------------------------------------------------------------------------------

    def _carry_out(self, group_id: str, effects: Sequence[Effect]) -> None:
        """Performs effects; a group whose change could not be written hears of it and answers its members."""
        try:
            self._perform(group_id, effects)
        except ApiError as error:
            log.error("group %s: cannot write a change: %s", group_id, error.message)
            for effect in self.groups.write_failed(group_id, self.now_ms()):
                if isinstance(effect, Reply):
                    _settle(effect, ErrorCode.NONE)

    def _perform(self, group_id: str, effects: Sequence[Effect]) -> int | None:
        """Does what a group asked for, in order: a reply waits for the group's writes before it.

        Returns the offset at which all of it is durable, None where that is so already. ApiError if it could
        not be: those who waited have their answer, and the caller reports it with `write_failed`.
        """
        durable_at = self._not_durable_before(group_id)
        failure: ApiError | None = None
        for effect in effects:
            if isinstance(effect, Reply):
                self._reply(group_id, effect, durable_at, failure)
                continue
            try:
                durable_at = self._partition.append(self._changes(effect))
                self._written_to.pop(group_id, None)
                self._written_to[group_id] = durable_at
            except ApiError as error:
                failure = error
        self._set_timer()
        if failure is not None:
            raise failure
        return durable_at

    def _not_durable_before(self, group_id: str) -> int | None:
        """The offset at which the group's last change is on disk; None if it is."""
        written_to = self._written_to
        while written_to and self._partition.is_durable(next(iter(written_to.values()))):
            del written_to[next(iter(written_to))]
        return written_to.get(group_id)

    def _changes(self, effect: WriteSnapshot | WriteRecords) -> Sequence[KeyValue]:
        if isinstance(effect, WriteRecords):
            return effect.records
        return (group_record(effect.snapshot, self._clock.wall_ms()),)

    def _reply(self, group_id: str, reply: Reply, durable_at: int | None, failure: ApiError | None) -> None:
        if failure is not None:
            _settle(reply, failure.code)
        elif durable_at is None:
            _settle(reply, ErrorCode.NONE)
        else:

            def on_durable(code: ErrorCode) -> None:
                _settle(reply, code)
                if code not in (ErrorCode.NONE, ErrorCode.NOT_COORDINATOR):
                    self._carry_out(group_id, self.groups.write_failed(group_id, self.now_ms()))

            self._partition.when_durable(durable_at, on_durable)

    async def _write(self, changes: Sequence[KeyValue]) -> None:
        """Appends records and waits until they are on disk."""
        if changes:
            await self._partition.durable(self._partition.append(changes))

    # -- time -----------------------------------------------------------------------------------

    def _set_timer(self) -> None:
        self._alarm.set(self.groups.next_deadline())

    def _on_due(self) -> None:
        for outcome in self.groups.tick(self.now_ms()):
            self._carry_out(outcome.group_id, outcome.effects)
        self._set_timer()


def _settle(reply: Reply, code: ErrorCode) -> None:
    """Answers the request that waits, unless its connection is gone."""
    future = reply.token
    assert isinstance(future, asyncio.Future)
    if not future.done():
        future.set_result(reply.answer if code is ErrorCode.NONE else replace(reply.answer, code=code))
