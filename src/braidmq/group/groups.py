"""Every group a broker coordinates: who is asked when a request names a group, and what a missing one means.

Groups come into being when somebody joins them or commits to them, and go when they are deleted or have
neither members nor offsets left. Their number is limited. The caller sets one timer for `next_deadline` and
calls `tick` when it fires, however many groups there are.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from braidmq.group.classic import ClassicGroup
from braidmq.group.events import (
    NO_MEMBER,
    Description,
    Effect,
    Join,
    Joined,
    Leaver,
    Reply,
    Sync,
    Synced,
    Token,
)
from braidmq.group.offsets import OffsetTable, Place
from braidmq.group.rebalance import State
from braidmq.group.records import StoredGroup, StoredOffset
from braidmq.group.settings import GroupSettings
from braidmq.group.subscription import CONSUMER_PROTOCOL_TYPE
from braidmq.wire.errors import ApiError, ErrorCode


class Outcome(NamedTuple):
    """What one group wants done. Effects of several groups are independent of each other."""

    group_id: str
    effects: list[Effect]


class Expired(NamedTuple):
    """Offsets to forget, and whether the group goes with them; to be done once the tombstones are written."""

    group_id: str
    places: list[Place]
    group_too: bool


class Groups:
    """The classic groups of a broker and the committed offsets of all its groups."""

    def __init__(self, settings: GroupSettings, new_id: Callable[[], str]) -> None:
        self.settings = settings
        self._new_id = new_id
        self._groups: dict[str, ClassicGroup] = {}
        self._offsets: dict[str, OffsetTable] = {}
        self._alarms: list[tuple[int, str]] = []
        self._alarm_of: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._groups)

    def __iter__(self) -> Iterator[ClassicGroup]:
        return iter(self._groups.values())

    def find(self, group_id: str) -> ClassicGroup | None:
        return self._groups.get(group_id)

    # Membership

    def join(self, group_id: str, request: Join, token: Token, now_ms: int) -> list[Effect]:
        try:
            group = self._group_to_join(group_id, request, now_ms)
        except ApiError as error:
            return [Reply(token, Joined(error.code, request.member_id))]
        effects = group.join(request, token, now_ms)
        self._set_alarm(group)
        return effects

    def _group_to_join(self, group_id: str, request: Join, now_ms: int) -> ClassicGroup:
        if not group_id:
            raise ApiError(ErrorCode.INVALID_GROUP_ID, "a group to join needs an id")
        group = self._groups.get(group_id)
        if group is None:
            if request.member_id != NO_MEMBER:
                raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID, f"there is no group {group_id!r}")
            self._check_room()
            group = self._create(group_id, now_ms)
        return group

    def sync(self, group_id: str, request: Sync, token: Token, now_ms: int) -> list[Effect]:
        group = self._groups.get(group_id)
        if group is None:
            return [Reply(token, Synced(_missing(group_id)))]
        effects = group.sync(request, token, now_ms)
        self._set_alarm(group)
        return effects

    def heartbeat(
        self, group_id: str, member_id: str, instance_id: str | None, generation: int, now_ms: int
    ) -> ErrorCode:
        group = self._groups.get(group_id)
        if group is None:
            return _missing(group_id)
        return group.heartbeat(member_id, instance_id, generation, now_ms)

    def leave(
        self, group_id: str, leavers: Sequence[Leaver], now_ms: int
    ) -> tuple[ErrorCode, list[ErrorCode], list[Effect]]:
        """The code of the whole, the codes of the leavers, and what follows for the others."""
        group = self._groups.get(group_id)
        if group is None:
            return _missing(group_id), [], []
        codes, effects = group.leave(leavers, now_ms)
        self._set_alarm(group)
        return ErrorCode.NONE, codes, effects

    def store_failed(self, group_id: str, now_ms: int) -> list[Effect]:
        """A `Store` of this group could not be written."""
        group = self._groups.get(group_id)
        if group is None:
            return []
        effects = group.store_failed(now_ms)
        self._set_alarm(group)
        return effects

    # Time

    def next_deadline(self) -> int | None:
        """When `tick` is to be called; ask again after every call that may have set an earlier one."""
        return self._alarms[0][0] if self._alarms else None

    def tick(self, now_ms: int) -> list[Outcome]:
        """Lets every group do what is due by now."""
        outcomes = []
        while self._alarms and self._alarms[0][0] <= now_ms:
            due_ms, group_id = heapq.heappop(self._alarms)
            if self._alarm_of.get(group_id) != due_ms:
                continue
            del self._alarm_of[group_id]
            group = self._groups[group_id]
            if effects := group.tick(now_ms):
                outcomes.append(Outcome(group_id, effects))
            self._set_alarm(group)
        return outcomes

    def _set_alarm(self, group: ClassicGroup) -> None:
        due_ms = group.next_deadline()
        set_ms = self._alarm_of.get(group.group_id)
        if due_ms is not None and (set_ms is None or due_ms < set_ms):
            self._alarm_of[group.group_id] = due_ms
            heapq.heappush(self._alarms, (due_ms, group.group_id))

    # Offsets

    def check_commit(
        self,
        group_id: str,
        member_id: str,
        instance_id: str | None,
        generation: int,
        now_ms: int,
        transactional: bool = False,
    ) -> None:
        """Raises the ApiError with which a commit is to be refused; a first commit makes the group."""
        group = self._groups.get(group_id)
        if group is None:
            if generation >= 0:
                raise ApiError(ErrorCode.ILLEGAL_GENERATION, f"there is no group {group_id!r}")
            self._check_room()
            group = self._create(group_id, now_ms)
        group.check_commit(member_id, instance_id, generation, now_ms, transactional)

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

    def check_offset_delete(self, group_id: str) -> frozenset[str] | None:
        """Topics whose offsets may not be deleted, None for all of them; ApiError where nothing may be."""
        group = self._groups.get(group_id)
        if group is None or group.state is State.DEAD:
            raise ApiError(ErrorCode.GROUP_ID_NOT_FOUND, f"there is no group {group_id!r}")
        if group.state is not State.EMPTY and group.protocol_type != CONSUMER_PROTOCOL_TYPE:
            raise ApiError(ErrorCode.NON_EMPTY_GROUP, f"group {group_id!r} has members")
        return group.subscribed()

    def expired(self, now_ms: int, wall_ms: int) -> list[Expired]:
        """Offsets past their time and groups with nothing left, for their tombstones to be written."""
        found = []
        for group in self._groups.values():
            table = self.offsets(group.group_id)
            expirable = group.expirable(now_ms)
            places: list[Place] = []
            if expirable is not None:
                places = table.expired(wall_ms, self.settings.offsets_retention_ms, expirable)
            deserted = group.state is State.EMPTY and not group.roster.expected
            group_too = deserted and not table.has_more_than(places)
            if places or group_too:
                found.append(Expired(group.group_id, places, group_too))
        return found

    def forget(self, expired: Expired) -> None:
        """Does what was found expired, now that it is written; a group that came to life meanwhile stays."""
        table = self.offsets(expired.group_id)
        table.forget(expired.places)
        group = self._groups.get(expired.group_id)
        alive = group is not None and (group.state is not State.EMPTY or bool(group.roster.expected))
        if expired.group_too and not alive and not table.in_use:
            self._drop(expired.group_id)

    # Administration

    def describe(self, group_id: str) -> Description | None:
        group = self._groups.get(group_id)
        return None if group is None else group.describe()

    def delete(self, group_id: str) -> ErrorCode:
        """DeleteGroups: the group and its offsets, if nobody is in it. The caller writes the tombstones."""
        if not group_id:
            return ErrorCode.INVALID_GROUP_ID
        group = self._groups.get(group_id)
        if group is None:
            return ErrorCode.GROUP_ID_NOT_FOUND
        code = group.delete()
        if code is ErrorCode.NONE:
            self._drop(group_id)
        return code

    # Loading

    def load(self, records: Iterable[StoredOffset | StoredGroup], now_ms: int, wall_ms: int) -> None:
        """Becomes what the records of the internal topic say, read in order: a later one goes before."""
        stored: dict[str, StoredGroup] = {}
        for record in records:
            if isinstance(record, StoredGroup):
                stored[record.group_id] = record
            else:
                self._load_offset(record)
        for group_id, record in stored.items():
            if record.snapshot is not None:
                idle_ms = 0 if record.stored_ms is None else wall_ms - record.stored_ms
                group = self._create(group_id, now_ms)
                group.restore(record.snapshot, now_ms, idle_ms)
                self._set_alarm(group)
        for group_id, table in list(self._offsets.items()):
            if not table.in_use:
                del self._offsets[group_id]
            elif group_id not in self._groups:
                self._create(group_id, now_ms)

    def _load_offset(self, record: StoredOffset) -> None:
        table = self._offsets.setdefault(record.group_id, OffsetTable())
        if record.committed is None:
            table.forget([(record.topic, record.partition)])
        else:
            table.commit(record.topic, record.partition, record.committed)

    def _check_room(self) -> None:
        most = self.settings.groups_max
        if len(self._groups) >= most:
            raise ApiError(
                ErrorCode.POLICY_VIOLATION, f"there are {most} groups, and groups.max allows no more"
            )

    def _create(self, group_id: str, now_ms: int) -> ClassicGroup:
        group = self._groups[group_id] = ClassicGroup(group_id, self.settings, self._new_id, now_ms)
        return group

    def _drop(self, group_id: str) -> None:
        self._groups.pop(group_id, None)
        self._offsets.pop(group_id, None)
        self._alarm_of.pop(group_id, None)


def _missing(group_id: str) -> ErrorCode:
    return ErrorCode.UNKNOWN_MEMBER_ID if group_id else ErrorCode.INVALID_GROUP_ID
