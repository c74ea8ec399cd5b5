"""The groups of one shard: which one serves a request, and what a missing one means.

Groups come into being when somebody joins them or commits to them, and go when they are deleted or have
neither members nor offsets left. Their number is limited. A group is of the protocol its members speak; one
without members changes over when somebody joins with the other protocol, and its offsets stay. The caller
sets one timer for `next_deadline` and calls `tick` when it fires, however many groups there are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

from braidmq.deadlines import Deadlines
from braidmq.group import consumer_commits, consumer_records, group_types, migration
from braidmq.group.catalog import Catalog
from braidmq.group.classic import ClassicGroup
from braidmq.group.consumer_group import Beat, ConsumerGroup
from braidmq.group.consumer_member import JOINING_EPOCH, LEAVING_EPOCH, Heartbeat
from braidmq.group.events import (
    NO_MEMBER,
    Effect,
    GroupEffects,
    Join,
    Joined,
    KeyValue,
    Leaver,
    Reply,
    Sync,
    Synced,
    Token,
    WriteRecords,
)
from braidmq.group.group_types import EMPTY_STATES, Expired, Group, deserted, written
from braidmq.group.loading import GroupLoader
from braidmq.group.offsets import Commit, Committed, OffsetTable, TopicPartition
from braidmq.group.rebalance import ClassicGroupState
from braidmq.group.records import NO_TIME, group_record
from braidmq.group.settings import GroupSettings
from braidmq.group.share_group import ShareGroup
from braidmq.group.shared_limits import SharedLimits
from braidmq.group.streams_group import StreamsBeat, StreamsGroup, StreamsOptions
from braidmq.group.streams_member import StreamsHeartbeat
from braidmq.group.subscription import CONSUMER_PROTOCOL_TYPE
from braidmq.wire.errors import ApiError, ErrorCode


class Groups:
    """Groups and the offsets they have committed."""

    def __init__(
        self,
        settings: GroupSettings,
        new_id: Callable[[], str],
        catalog: Callable[[], Catalog],
        streams_options: Callable[[str], StreamsOptions] = lambda _: StreamsOptions(),
        limits: SharedLimits | None = None,
    ) -> None:
        self.settings = settings
        self._new_id = new_id
        self._catalog = catalog
        self._streams_options = streams_options
        self._groups: dict[str, Group] = {}
        self._offsets: dict[str, OffsetTable] = {}
        self._groups_of_producer: dict[int, set[str]] = {}
        """Where transactions that have not ended hold offsets."""
        self._limits = limits or SharedLimits(settings)
        self._limits.add(self)
        self._admission = self._limits.admission
        self.interval = self._limits.interval
        self._deadlines: Deadlines[str] = Deadlines()

    def __len__(self) -> int:
        return len(self._groups)

    def __iter__(self) -> Iterator[Group]:
        return iter(self._groups.values())

    def find(self, group_id: str) -> Group | None:
        return self._groups.get(group_id)

    def find_classic(self, group_id: str) -> ClassicGroup | None:
        group = self._groups.get(group_id)
        return group if isinstance(group, ClassicGroup) else None

    def weigh_members(self) -> int:
        """About what the members of all groups take in memory."""
        return sum(group.weight_bytes() for group in self)

    def weigh_offsets(self) -> int:
        """About what the offsets of all groups take in memory."""
        return sum(table.weight_bytes() for table in self._offsets.values())

    # Classic membership

    def join(self, group_id: str, request: Join, token: Token, now_ms: int) -> list[Effect]:
        effects: list[Effect] = []
        try:
            self._admission.check_join(group_id, request, now_ms)
            found = self._groups.get(group_id)
            if isinstance(found, ConsumerGroup) and self._goes_back(found, request):
                found.remove(found.members[found.static[request.instance_id or ""]])
                effects += self._after_leaving(found, now_ms)
                found = self._groups[group_id]
            if isinstance(found, ConsumerGroup) and found.members:
                return effects + self._join_mixed(found, request, token, now_ms)
            group = self._group_to_join(group_id, request, now_ms, effects)
        except ApiError as error:
            return [Reply(token, Joined(error.code, request.member_id))]
        effects += group.join(request, token, now_ms)
        self._set_deadline(group)
        return effects

    def _group_to_join(
        self, group_id: str, request: Join, now_ms: int, effects: list[Effect]
    ) -> ClassicGroup:
        if not group_id:
            raise ApiError(ErrorCode.INVALID_GROUP_ID, "the group id is empty")
        group = self._groups.get(group_id)
        if isinstance(group, ClassicGroup):
            return group
        if isinstance(group, ShareGroup) or (isinstance(group, StreamsGroup) and group.members):
            raise ApiError(
                ErrorCode.INCONSISTENT_GROUP_PROTOCOL, f"{group_id!r} is a {group.group_type} group"
            )
        if request.member_id != NO_MEMBER:
            raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID, f"there is no classic group {group_id!r}")
        if group is None:
            self._limits.check_room()
        else:
            effects.append(WriteRecords(group_types.ending(group)))
        return self._create(group_id, now_ms)

    def _goes_back(self, group: ConsumerGroup, request: Join) -> bool:
        """Whether the last member of the new protocol returns with the classic one."""
        returns = request.member_id == NO_MEMBER and migration.is_last_of_new(group, request.instance_id)
        return returns and self.settings.group_consumer_migration_policy.downgrades

    def _join_mixed(self, group: ConsumerGroup, request: Join, token: Token, now_ms: int) -> list[Effect]:
        self.settings.check_session(request.session_timeout_ms)
        new_id = f"{request.instance_id or request.client_id}-{self._new_id()}"
        answer = migration.join(group, request, new_id, self._catalog(), now_ms)
        self._set_deadline(group)
        return [*written(group), Reply(token, answer)]

    def sync(self, group_id: str, request: Sync, token: Token, now_ms: int) -> list[Effect]:
        group = self._groups.get(group_id)
        if group is None or isinstance(group, ShareGroup | StreamsGroup):
            return [Reply(token, Synced(_missing(group_id)))]
        if isinstance(group, ConsumerGroup):
            try:
                return [Reply(token, migration.sync(group, request, self._catalog(), now_ms))]
            except ApiError as error:
                return [Reply(token, Synced(error.code))]
        try:
            self._admission.check_sync(request, now_ms)
        except ApiError as error:
            return [Reply(token, Synced(error.code))]
        effects = group.sync(request, token, now_ms)
        self._set_deadline(group)
        return effects

    def heartbeat(
        self, group_id: str, member_id: str, instance_id: str | None, generation: int, now_ms: int
    ) -> ErrorCode:
        group = self._groups.get(group_id)
        if group is None or isinstance(group, ShareGroup | StreamsGroup):
            return _missing(group_id)
        if isinstance(group, ConsumerGroup):
            code = migration.heartbeat(group, member_id, instance_id, generation, now_ms)
            self._set_deadline(group)
            return code
        return group.heartbeat(member_id, instance_id, generation, now_ms)

    def leave(
        self, group_id: str, leavers: Sequence[Leaver], now_ms: int
    ) -> tuple[ErrorCode, list[ErrorCode], list[Effect]]:
        """The code of the whole, the codes of the leavers, and what follows for the others."""
        group = self._groups.get(group_id)
        if group is None or isinstance(group, ShareGroup | StreamsGroup):
            return _missing(group_id), [], []
        if isinstance(group, ConsumerGroup):
            codes = migration.leave(group, leavers, now_ms)
            return ErrorCode.NONE, codes, self._after_leaving(group, now_ms)
        codes, effects = group.leave(leavers, now_ms)
        self._set_deadline(group)
        return ErrorCode.NONE, codes, effects

    def write_failed(self, group_id: str, now_ms: int) -> list[Effect]:
        """A `WriteSnapshot` or `WriteRecords` of this group could not be written."""
        group = self._groups.get(group_id)
        if isinstance(group, ConsumerGroup | StreamsGroup):
            group.rewrite_all()
        if isinstance(group, ShareGroup):
            group.noted = False
        if not isinstance(group, ClassicGroup):
            return []
        effects = group.write_failed(now_ms)
        self._set_deadline(group)
        return effects

    # Server-assigned membership

    def consumer_heartbeat(self, group_id: str, beat: Heartbeat, now_ms: int) -> tuple[Beat, list[Effect]]:
        """The answer, and what has to be written before it is sent. Raises ApiError."""
        if not group_id:
            raise ApiError(ErrorCode.INVALID_REQUEST, "the group id is empty")
        self._admission.check_beat(group_id, beat, now_ms)
        before = self._groups.get(group_id)
        if isinstance(before, ShareGroup | StreamsGroup):
            raise ApiError(ErrorCode.GROUP_ID_NOT_FOUND, f"{group_id!r} is a {before.group_type} group")
        if isinstance(before, ConsumerGroup) and beat.member_epoch == LEAVING_EPOCH:
            return before.heartbeat(beat, self._catalog(), now_ms), self._after_leaving(before, now_ms)
        if isinstance(before, ConsumerGroup):
            group = before
        else:
            group = self._change_over(group_id, before, beat, now_ms)
        answer = group.heartbeat(beat, self._catalog(), now_ms, self.interval.ms_of(group_id, now_ms))
        effects = written(group)
        if isinstance(before, ClassicGroup):
            effects = [group_types.after_classic(group_id, effects), *migration.dismiss(before)]
        self._groups[group_id] = group
        self._set_deadline(group)
        return answer, effects

    def _change_over(
        self, group_id: str, before: ClassicGroup | None, beat: Heartbeat, now_ms: int
    ) -> ConsumerGroup:
        """A new group, with the members of the classic one that was there."""
        made = ConsumerGroup(group_id, self.settings, self._new_id, now_ms)
        if beat.member_epoch != JOINING_EPOCH:
            raise ApiError(ErrorCode.GROUP_ID_NOT_FOUND, f"{group_id!r} is not a server-assigned group")
        if before is None:
            self._limits.check_room()
        elif before.state is ClassicGroupState.EMPTY or self._may_upgrade(before):
            migration.upgrade(before, made, self._catalog(), now_ms)
        else:
            raise ApiError(
                ErrorCode.GROUP_ID_NOT_FOUND, f"{group_id!r} is a classic group that may not change over"
            )
        return made

    def _may_upgrade(self, group: ClassicGroup) -> bool:
        return self.settings.group_consumer_migration_policy.upgrades and migration.can_upgrade(group)

    def _after_leaving(self, group: ConsumerGroup, now_ms: int) -> list[Effect]:
        """What follows when members have gone: if only classic ones are left, the group is classic again."""
        snapshot = None
        if self.settings.group_consumer_migration_policy.downgrades:
            snapshot = migration.downgraded(group, self._catalog())
        if snapshot is None:
            return written(group)
        # In one batch, and as the generation that follows: should the broker die before they have gathered,
        # the members will find theirs outdated and gather then.
        stored = replace(snapshot, generation=snapshot.generation + 1)
        records = (*consumer_records.ending(group), group_record(stored, NO_TIME))
        made = self._create(group.group_id, now_ms)
        made.restore(snapshot, now_ms)
        effects = made.gather(now_ms)
        self._set_deadline(made)
        return [WriteRecords(records), *effects]

    def streams_heartbeat(
        self, group_id: str, beat: StreamsHeartbeat, now_ms: int
    ) -> tuple[StreamsBeat, list[Effect]]:
        """The answer to a member of a streams group, and what is to be written first. Raises ApiError."""
        if not group_id:
            raise ApiError(ErrorCode.INVALID_REQUEST, "the group id is empty")
        self._admission.check_streams_beat(group_id, beat, now_ms)
        before = group = self._groups.get(group_id)
        if group is None or (isinstance(group, ClassicGroup) and deserted(group)):
            if beat.member_epoch != JOINING_EPOCH:
                raise ApiError(ErrorCode.GROUP_ID_NOT_FOUND, f"{group_id!r} is not a streams group")
            if group is None:
                self._limits.check_room()
            group = StreamsGroup(group_id, self.settings, self._streams_options, now_ms)
        if not isinstance(group, StreamsGroup):
            raise ApiError(ErrorCode.GROUP_ID_NOT_FOUND, f"{group_id!r} is not a streams group")
        answer = group.heartbeat(beat, self._catalog(), now_ms, self.interval.ms_of(group_id, now_ms))
        effects = written(group)
        if isinstance(before, ClassicGroup):
            effects = [group_types.after_classic(group_id, effects)]
        self._groups[group_id] = group
        self._set_deadline(group)
        return answer, effects

    def share_heartbeat(self, group_id: str, beat: Heartbeat, now_ms: int) -> tuple[Beat, list[Effect]]:
        """The answer to a member of a share group, and what is to be written first. Raises ApiError."""
        if not group_id:
            raise ApiError(ErrorCode.INVALID_REQUEST, "the group id is empty")
        self._admission.check_beat(group_id, beat, now_ms)
        group = self._groups.get(group_id)
        if group is None and beat.member_epoch == JOINING_EPOCH:
            self._limits.check_room()
            group = ShareGroup(group_id, self.settings)
        if not isinstance(group, ShareGroup):
            raise ApiError(ErrorCode.GROUP_ID_NOT_FOUND, f"{group_id!r} is not a share group")
        answer = group.heartbeat(beat, self._catalog(), now_ms)
        self._groups[group_id] = group
        self._set_deadline(group)
        return answer, group_types.noted(group)

    def add_share(self, group_id: str) -> None:
        """A share group is known from its delivery state; it has no members yet."""
        self._groups.setdefault(group_id, ShareGroup(group_id, self.settings))

    def make_share(self, group_id: str) -> list[Effect]:
        """A share group whose offsets are set before a member joins; what is to be written. ApiError."""
        if group_id not in self._groups:
            self._limits.check_room()
            self.add_share(group_id)
        group = self._groups[group_id]
        return group_types.noted(group) if isinstance(group, ShareGroup) else []

    # Time

    def next_deadline(self) -> int | None:
        """When `tick` is to be called; ask again after every call that may have set an earlier one."""
        return self._deadlines.next_ms()

    def tick(self, now_ms: int) -> list[GroupEffects]:
        """Lets every group do what is due by now."""
        due = []
        for group_id in self._deadlines.pop_due(now_ms):
            if effects := self._tick(self._groups[group_id], now_ms):
                due.append(GroupEffects(group_id, effects))
            self._set_deadline(self._groups[group_id])
        return due

    def _tick(self, group: Group, now_ms: int) -> list[Effect]:
        if isinstance(group, ClassicGroup):
            return group.tick(now_ms)
        removed = group.tick(now_ms)
        if isinstance(group, ShareGroup):
            return []
        if isinstance(group, ConsumerGroup) and removed:
            return self._after_leaving(group, now_ms)
        return written(group)

    def _set_deadline(self, group: Group) -> None:
        self._deadlines.set(group.group_id, group.next_deadline())

    # Offsets

    def check_commit(
        self,
        group_id: str,
        member_id: str,
        instance_id: str | None,
        generation: int,
        now_ms: int,
        version: int,
        partitions: Iterable[TopicPartition] = (),
        transactional: bool = False,
    ) -> None:
        """Raises the ApiError with which a commit is to be refused; a first commit makes the group."""
        if transactional and not group_id:
            raise ApiError(ErrorCode.INVALID_GROUP_ID, "the group id is empty")
        group = self._groups.get(group_id)
        if isinstance(group, StreamsGroup) and transactional and generation < 0 and not member_id:
            return
        if isinstance(group, ConsumerGroup | StreamsGroup):
            consumer_commits.check_commit(group, member_id, generation, version, partitions, transactional)
            return
        if isinstance(group, ShareGroup):
            raise ApiError(ErrorCode.GROUP_ID_NOT_FOUND, f"{group_id!r} is a share group")
        if group is None:
            if generation >= 0:
                raise ApiError(ErrorCode.ILLEGAL_GENERATION, f"there is no group {group_id!r}")
            self._admission.check_group(group_id)
            self._limits.check_room()
            group = self._create(group_id, now_ms)
        group.check_commit(member_id, instance_id, generation, now_ms, transactional)

    def check_offsets(self, group_id: str, commits: Sequence[Commit], now_ms: int) -> None:
        """Raises ApiError if a commit that the group does not refuse brings too much."""
        self._admission.check_offsets(self._offsets.get(group_id), commits, now_ms)

    def check_fetch(self, group_id: str, member_id: str | None, epoch: int) -> None:
        """Raises the ApiError with which an OffsetFetch is to be refused."""
        group = self._groups.get(group_id)
        if isinstance(group, ConsumerGroup | StreamsGroup):
            consumer_commits.check_fetch(group, member_id, epoch)

    def offsets(self, group_id: str) -> OffsetTable:
        """The committed offsets of a group; an empty table for one that has none."""
        table = self._offsets.get(group_id)
        return OffsetTable() if table is None else table

    def offsets_to_change(self, group_id: str, now_ms: int) -> OffsetTable:
        """The table into which a group's commits are entered once they are durable."""
        if group_id not in self._groups:
            # It was empty and forgotten while the commit was being written.
            self._create(group_id, now_ms)
        return self._offsets.setdefault(group_id, OffsetTable())

    def commit_undecided(
        self, group_id: str, producer_id: int, topic: str, partition: int, committed: Committed, now_ms: int
    ) -> None:
        """Enters an offset that is durable and counts if the producer's transaction commits."""
        self.offsets_to_change(group_id, now_ms).commit_undecided(producer_id, topic, partition, committed)
        self._groups_of_producer.setdefault(producer_id, set()).add(group_id)

    def decide(self, producer_id: int, committed: bool) -> None:
        """A producer's transaction has ended: its marker is in the internal topic."""
        for group_id in self._groups_of_producer.pop(producer_id, ()):
            self.offsets(group_id).decide(producer_id, committed)

    def check_offset_delete(self, group_id: str) -> frozenset[str] | None:
        """Topics whose offsets may not be deleted, None for all of them; ApiError where nothing may be."""
        group = self._groups.get(group_id)
        if group is None or isinstance(group, ShareGroup):
            raise ApiError(ErrorCode.GROUP_ID_NOT_FOUND, f"there is no group {group_id!r} with offsets")
        if isinstance(group, ConsumerGroup | StreamsGroup):
            return group.subscribed()
        if group.state is not ClassicGroupState.EMPTY and group.protocol_type != CONSUMER_PROTOCOL_TYPE:
            raise ApiError(ErrorCode.NON_EMPTY_GROUP, f"group {group_id!r} has members")
        return group.subscribed()

    def expired(self, now_ms: int, wall_ms: int) -> Iterator[Expired]:
        """Offsets past their time and groups with nothing left, for their tombstones to be written.

        A group is looked at when it is asked for, and holds good for that moment: write its tombstones in it.
        """
        for group in list(self._groups.values()):
            if self._groups.get(group.group_id) is not group or isinstance(group, ShareGroup):
                continue  # it is gone by now, or its delivery state is not ours to expire
            table = self.offsets(group.group_id)
            expirable = group.expirable(now_ms)
            partitions: list[TopicPartition] = []
            if expirable is not None:
                partitions = table.expired(wall_ms, self.settings.offsets_retention_ms, expirable)
            group_too = deserted(group) and not table.has_more_than(partitions)
            if partitions or group_too:
                records = group_types.tombstones(group, partitions, group_too)
                yield Expired(group.group_id, partitions, group_too, records)

    def forget(self, expired: Expired) -> None:
        """Does what was found expired, now that it is written; a group that came to life meanwhile stays."""
        table = self.offsets(expired.group_id)
        table.forget(expired.partitions)
        group = self._groups.get(expired.group_id)
        if expired.group_too and group is not None and deserted(group) and not table.in_use:
            self._drop(expired.group_id)

    def delete(self, group_id: str) -> tuple[ErrorCode, tuple[KeyValue, ...]]:
        """DeleteGroups: a group without members and its offsets; what has to be written before the answer."""
        group = self._groups.get(group_id)
        if group is None:
            return ErrorCode.GROUP_ID_NOT_FOUND, ()
        if group.state not in EMPTY_STATES:
            return ErrorCode.NON_EMPTY_GROUP, ()
        records = group_types.tombstones(group, self.offsets(group_id).partitions(), True)
        self._drop(group_id)
        return ErrorCode.NONE, records

    # Loading

    def load(self, loading: GroupLoader, now_ms: int, wall_ms: int) -> None:
        """Becomes what was read from the internal topic."""
        assert not self._groups, "groups are loaded once"
        for group_id, record in loading.classic.items():
            if record.snapshot is not None:
                idle_ms = 0 if record.stored_ms is None else wall_ms - record.stored_ms
                self._create(group_id, now_ms).restore(record.snapshot, now_ms, idle_ms)
        for group_id, stored in loading.consumer().items():
            group = self._groups[group_id] = ConsumerGroup(group_id, self.settings, self._new_id, now_ms)
            group.restore(stored, now_ms)
        for group_id, kept in loading.streams().items():
            made = StreamsGroup(group_id, self.settings, self._streams_options, now_ms)
            made.restore(kept, now_ms)
            self._groups[group_id] = made
        for group_id, table in loading.offsets.items():
            if table.in_use:
                self._offsets[group_id] = table
                for producer_id in table.producers():
                    self._groups_of_producer.setdefault(producer_id, set()).add(group_id)
                if group_id not in self._groups:
                    self._create(group_id, now_ms)
        for group_id in loading.share.epochs:
            if group_id not in self._groups:
                self._groups[group_id] = ShareGroup(group_id, self.settings, noted=True)
        for each in self._groups.values():
            self._set_deadline(each)
        self._admission.loaded(self.weigh_members(), self.weigh_offsets())

    def _create(self, group_id: str, now_ms: int) -> ClassicGroup:
        group = self._groups[group_id] = ClassicGroup(group_id, self.settings, self._new_id, now_ms)
        return group

    def _drop(self, group_id: str) -> None:
        del self._groups[group_id]
        self._offsets.pop(group_id, None)
        self._deadlines.drop(group_id)


def _missing(group_id: str) -> ErrorCode:
    return ErrorCode.UNKNOWN_MEMBER_ID if group_id else ErrorCode.INVALID_GROUP_ID
