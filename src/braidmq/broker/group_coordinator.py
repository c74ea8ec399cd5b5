"""The group coordinator: pure group logic on one side, an internal topic and a timer on the other.

`braidmq.group` decides; this module writes down what it decides, and answers when that is durable. Records
go to the internal, compacted topic `__consumer_offsets` in Kafka's own format; on start they are read back
in order. A reply is sent once everything that its group has written before is on disk, no matter which member
caused it: a follower does not get an assignment that a crash could take back, though its leader brought it.

The internal topic is made when the first group appears, so a broker without groups never has it.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from braidmq.broker.alarm import Alarm
from braidmq.broker.internal_topic import InternalTopic
from braidmq.broker.topic import INTERNAL_TOPICS
from braidmq.group.catalog import Catalog
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
from braidmq.group.records import OFFSETS_TOPIC, group_record, offset_record
from braidmq.group.settings import GroupSettings
from braidmq.group.streams_group import StreamsBeat, StreamsOptions
from braidmq.group.streams_member import StreamsHeartbeat
from braidmq.group.streams_topology import ApplicationTopic, StatusCode, TopologyStatus
from braidmq.log.transactions import Guard, MarkerType, parse_end_marker
from braidmq.platform.clock import Clock
from braidmq.platform.randomness import new_uuid
from braidmq.wire.errors import ApiError, ErrorCode
from braidmq.wire.records import parse_header, records

if TYPE_CHECKING:
    from braidmq.broker.partition import CommittedCallback
    from braidmq.broker.replica import Replica
    from braidmq.broker.topics import Topics
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
    """Coordinates every group of this broker."""

    def __init__(
        self,
        topics: Topics,
        clock: Clock,
        settings: GroupSettings,
        catalog: Catalog,
        streams_options: Callable[[str], StreamsOptions],
    ) -> None:
        self._topics = topics
        self._topic = InternalTopic(topics, clock, OFFSETS_TOPIC, TOPIC_OPTIONS)
        self._clock = clock
        self._catalog = catalog
        self._loop = asyncio.get_running_loop()
        self._alarm = Alarm(clock, self._on_due)
        self.now_ms = self._alarm.now_ms
        self._committing: Counter[str] = Counter()
        """Commits per group that are being written and do not show yet."""
        self.groups = Groups(settings, lambda: new_uuid().hex(), lambda: catalog, streams_options)
        self._written_to: dict[str, int] = {}
        """Groups with changes on their way to disk, and where they end; oldest first."""

    # -- the internal topic ---------------------------------------------------------------------

    def load(self) -> None:
        """Reads the groups of an earlier run; blocks, before clients are accepted."""
        loading = GroupLoader()
        for header, batch in self._topic.batches():
            if (marker := parse_end_marker(batch)) is not None:
                loading.marker(marker.producer_id, marker.outcome is MarkerType.COMMIT)
                continue
            producer_id = header.producer_id if header.is_transactional else None
            for record in records(batch):
                if record.key is not None:
                    loading.record(record.key, record.value, producer_id)
        self.groups.load(loading, self.now_ms(), self._clock.wall_ms())
        if loading.unreadable:
            log.warning("cannot read %d records of %s; they are skipped", loading.unreadable, OFFSETS_TOPIC)
        self._set_timer()

    async def open(self) -> None:
        """Makes the internal topic if this is the first group ever."""
        await self._topic.open()

    def stop(self) -> None:
        self._alarm.stop()

    # -- classic membership ---------------------------------------------------------------------

    async def join(self, group_id: str, request: Join) -> Joined:
        await self.open()
        answer: asyncio.Future[Joined] = self._loop.create_future()
        self._carry_out(group_id, self.groups.join(group_id, request, answer, self.now_ms()))
        return await answer

    async def sync(self, group_id: str, request: Sync) -> Synced:
        await self.open()
        answer: asyncio.Future[Synced] = self._loop.create_future()
        self._carry_out(group_id, self.groups.sync(group_id, request, answer, self.now_ms()))
        return await answer

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
        await self.open()
        answer, effects = self.groups.consumer_heartbeat(group_id, beat, self.now_ms())
        await self._write_first(group_id, effects)
        return answer

    async def streams_heartbeat(self, group_id: str, beat: StreamsHeartbeat) -> StreamsBeat:
        """The answer to a member of a streams group, once what it changed is on disk; as above.

        Internal topics of the application that are missing are created before the member is answered.
        """
        await self.open()
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
                await self._topic.durable(durable_at)
        except ApiError:
            self._carry_out(group_id, self.groups.write_failed(group_id, self.now_ms()))
            raise

    def share_heartbeat(self, group_id: str, beat: Heartbeat) -> Beat:
        """The answer to a member of a share group, of which nothing is written. ApiError when it refuses."""
        answer = self.groups.share_heartbeat(group_id, beat, self.now_ms())
        self._set_timer()
        return answer

    # -- offsets --------------------------------------------------------------------------------

    async def commit(self, group_id: str, member: Committer, entries: Sequence[Commit]) -> None:
        """Stores offsets; on disk and visible on return. ApiError when the group refuses."""
        await self.open()
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
                await self._topic.written(changes)
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
        await self.open()
        self.groups.check_commit(
            group_id, member.member_id, member.instance_id, member.generation, self.now_ms(), member.version,
            (topic_partition for topic_partition, _ in entries), transactional=True,
        )  # fmt: skip
        self.groups.check_offsets(group_id, entries, self.now_ms())
        self._set_timer()
        changes = [
            offset_record(group_id, *topic_partition, committed) for topic_partition, committed in entries
        ]
        batch = self._topic.transactional_batch(changes, producer.producer_id, producer.producer_epoch)
        return self._topic.partition, batch

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
        end = self._topic.partition.append_own(memoryview(batch), guard)

        def enter(code: ErrorCode) -> None:
            if code is ErrorCode.NONE:
                for topic_partition, committed in entries:
                    self.groups.commit_undecided(
                        group_id, producer_id, *topic_partition, committed, self.now_ms()
                    )
            then(code)

        self._topic.when_durable(end, enter)

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

        Commits that were begun while it was there come first, or they would show up afterwards. Then the
        tombstones of all groups are appended in one go: offsets that somebody commits for a recreated topic
        of this name come after them.
        """
        await self._topic.settled()
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
            durable_at = self._topic.append(changes[at : at + TOMBSTONES_PER_BATCH])
        if durable_at is not None:
            await self._topic.durable(durable_at)
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
                durable_at = self._topic.append(self._changes(effect))
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
        while written_to and self._topic.is_durable(next(iter(written_to.values()))):
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
                if code is not ErrorCode.NONE:
                    self._carry_out(group_id, self.groups.write_failed(group_id, self.now_ms()))

            self._topic.when_durable(durable_at, on_durable)

    async def _write(self, changes: Sequence[KeyValue]) -> None:
        """Appends records and waits until they are on disk."""
        if changes:
            await self._topic.durable(self._topic.append(changes))

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
