"""The two barriers of a classic rebalance, and the clock that limits how long anybody waits at them.

This is the lower half of `ClassicGroup` (see `classic` for the whole picture): it knows states, members,
deadlines and effects, and no requests.
"""

from __future__ import annotations

from enum import StrEnum

from braidmq.group.events import NO_MEMBER, Effect, GroupSnapshot, Joined, Reply, Synced, WriteSnapshot
from braidmq.group.roster import Member, Roster
from braidmq.group.settings import GroupSettings
from braidmq.wire.errors import ErrorCode


class ClassicGroupState(StrEnum):
    """The state of a classic group, in the words ListGroups uses."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


class Rebalancing:
    """A group's members on their way from one generation to the next."""

    def __init__(self, group_id: str, settings: GroupSettings, now_ms: int) -> None:
        self.group_id = group_id
        self.state = ClassicGroupState.EMPTY
        self.state_since_ms = now_ms
        self.generation = 0
        self.protocol_type: str | None = None
        self.protocol_name: str | None = None
        self.roster = Roster()
        self._settings = settings
        self._effects: list[Effect] = []
        self._join_deadline_ms: int | None = None
        self._sync_deadline_ms: int | None = None
        self._initial_left_ms: int | None = None
        """What remains of the time in which a first rebalance waits for more members; None in later ones."""
        self._newcomers = False
        self._earliest_ms: int | None = None

    @property
    def leader(self) -> str | None:
        return self.roster.leader

    def next_deadline(self) -> int | None:
        """When `tick` is to be called. It may find nothing to do then, because sessions are prolonged."""
        return self._earliest_ms

    def tick(self, now_ms: int) -> list[Effect]:
        """Does what is due by now: ends sessions and waits that have lasted too long."""
        members_before = len(self.roster)
        for member_id, deadline_ms in list(self.roster.expected.items()):
            if deadline_ms <= now_ms:
                del self.roster.expected[member_id]
        silent = [
            member
            for member in self.roster.members.values()
            if member.deadline_ms is not None and member.deadline_ms <= now_ms
        ]
        for member in silent:
            self._remove(member)
        self._continue_without(members_before, now_ms)
        if self._sync_deadline_ms is not None and self._sync_deadline_ms <= now_ms:
            self._drop_those_who_did_not_sync(now_ms)
        if self._join_deadline_ms is not None and self._join_deadline_ms <= now_ms:
            self._join_time_is_up(now_ms)
        deadlines = [self._join_deadline_ms, self._sync_deadline_ms, *self.roster.expected.values()]
        deadlines += [member.deadline_ms for member in self.roster.members.values()]
        self._earliest_ms = min((one for one in deadlines if one is not None), default=None)
        return self._take_effects()

    def snapshot(self) -> GroupSnapshot:
        """The group as it is written down."""
        return GroupSnapshot(
            self.group_id,
            self.protocol_type or "",
            self.generation,
            self.protocol_name,
            self.leader,
            tuple(one.snapshot(self.protocol_name) for one in self.roster.members.values()),
        )

    # The first barrier: JoinGroup

    def _rebalance_or_complete(self, now_ms: int) -> None:
        """Somebody has come, gone or changed: begin a rebalance, or see whether the one under way has all."""
        if self.state is ClassicGroupState.PREPARING_REBALANCE:
            if self._initial_left_ms is None and self.roster.all_joined:
                self._complete_join(now_ms)
        elif self.state is not ClassicGroupState.DEAD:
            self._prepare_rebalance(now_ms)

    def _prepare_rebalance(self, now_ms: int) -> None:
        initial = self.state is ClassicGroupState.EMPTY
        if self.state is ClassicGroupState.COMPLETING_REBALANCE:
            for member in self.roster.members.values():
                member.assignment = b""
                if self._answer_sync(member, Synced(ErrorCode.REBALANCE_IN_PROGRESS)):
                    self._extend_session(member, now_ms)
        self._enter(ClassicGroupState.PREPARING_REBALANCE, now_ms)
        self._sync_deadline_ms = None
        timeout_ms = self.roster.rebalance_timeout_ms
        if initial:
            # Consumers that start together should meet in one rebalance, not in one each (KIP-134).
            delay_ms = min(self._settings.group_initial_rebalance_delay_ms, timeout_ms)
            self._initial_left_ms = timeout_ms - delay_ms
            self._newcomers = False
            self._join_by(now_ms + delay_ms)
            if delay_ms == 0:
                self._complete_join(now_ms)
        else:
            self._initial_left_ms = None
            self._join_by(now_ms + timeout_ms)
            if self.roster.all_joined:
                self._complete_join(now_ms)

    def _join_time_is_up(self, now_ms: int) -> None:
        if self._initial_left_ms and self._newcomers:
            delay_ms = min(self._settings.group_initial_rebalance_delay_ms, self._initial_left_ms)
            self._initial_left_ms -= delay_ms
            self._newcomers = False
            self._join_by(now_ms + delay_ms)
        else:
            self._complete_join(now_ms)

    def _complete_join(self, now_ms: int) -> None:
        """Opens the first barrier. Static members that have not come stay: they may be restarting."""
        for member in list(self.roster.members.values()):
            if member.join_token is None and member.instance_id is None:
                self.roster.remove(member)
        self._initial_left_ms = None
        if not len(self.roster):
            self._become_empty(now_ms)
        elif not self.roster.elect():
            # Only absent static members are left; their sessions will end or one of them comes back.
            self._join_by(now_ms + self.roster.rebalance_timeout_ms)
        else:
            self._begin_generation(now_ms)

    def _become_empty(self, now_ms: int) -> None:
        self.generation += 1
        self.protocol_name = None
        self._join_deadline_ms = None
        self._enter(ClassicGroupState.EMPTY, now_ms)
        self._effects.append(WriteSnapshot(self.snapshot()))

    def _begin_generation(self, now_ms: int) -> None:
        self.generation += 1
        self.protocol_name = self.roster.vote()
        self._join_deadline_ms = None
        self._sync_deadline_ms = now_ms + self.roster.rebalance_timeout_ms
        self._wake_by(self._sync_deadline_ms)
        self._enter(ClassicGroupState.COMPLETING_REBALANCE, now_ms)
        for member in self.roster.members.values():
            member.is_new = False
            member.synced = False
            token = self.roster.end_join(member)
            if token is not None:
                self._effects.append(Reply(token, self._joined(member)))
            self._extend_session(member, now_ms)

    def _joined(self, member: Member, skip_assignment: bool = False) -> Joined:
        leads = member.member_id == self.leader
        return Joined(
            ErrorCode.NONE,
            member.member_id,
            self.generation,
            self.protocol_type,
            self.protocol_name,
            self.leader or NO_MEMBER,
            skip_assignment,
            self.roster.described(self.protocol_name) if leads else (),
        )

    # The second barrier: SyncGroup

    def _assign(self, assignments: dict[str, bytes], now_ms: int) -> None:
        """The leader has decided: the group is written down and everybody who waits is answered."""
        for member in self.roster.members.values():
            member.assignment = assignments.get(member.member_id, b"")
        self._enter(ClassicGroupState.STABLE, now_ms)
        self._effects.append(WriteSnapshot(self.snapshot()))
        for member in self.roster.members.values():
            self._answer_sync(member, self._synced(member))
            self._extend_session(member, now_ms)

    def _drop_those_who_did_not_sync(self, now_ms: int) -> None:
        self._sync_deadline_ms = None
        late = [member for member in self.roster.members.values() if not member.synced]
        if late:
            for member in late:
                self._remove(member)
            self._rebalance_or_complete(now_ms)

    def _synced(self, member: Member) -> Synced:
        return Synced(ErrorCode.NONE, member.assignment, self.protocol_type, self.protocol_name)

    def _answer_sync(self, member: Member, answer: Synced) -> bool:
        token, member.sync_token = member.sync_token, None
        if token is None:
            return False
        self._effects.append(Reply(token, answer))
        return True

    # Leaving, by request or by silence

    def _remove(self, member: Member) -> None:
        """Takes a member out; whatever it waits for is answered, so that a client still there tries again."""
        self._answer_waiting(member, ErrorCode.UNKNOWN_MEMBER_ID)
        self.roster.remove(member)

    def _answer_waiting(self, member: Member, code: ErrorCode) -> None:
        token = self.roster.end_join(member)
        if token is not None:
            self._effects.append(Reply(token, Joined(code, member.member_id)))
        self._answer_sync(member, Synced(code))

    def _continue_without(self, members_before: int, now_ms: int) -> None:
        """Once for all who have left together: a rebalance may have waited for any of them."""
        if len(self.roster) < members_before or self.state is ClassicGroupState.PREPARING_REBALANCE:
            self._rebalance_or_complete(now_ms)

    # Time and effects

    def _enter(self, state: ClassicGroupState, now_ms: int) -> None:
        self.state = state
        self.state_since_ms = now_ms

    def _extend_session(self, member: Member, now_ms: int) -> None:
        """Restarts the member's session. While it waits at a barrier the barrier's own limit counts."""
        if member.join_token is None and member.sync_token is None:
            member.deadline_ms = now_ms + member.session_timeout_ms
            self._wake_by(member.deadline_ms)

    def _join_by(self, deadline_ms: int) -> None:
        self._join_deadline_ms = deadline_ms
        self._wake_by(deadline_ms)

    def _wake_by(self, deadline_ms: int) -> None:
        if self._earliest_ms is None or deadline_ms < self._earliest_ms:
            self._earliest_ms = deadline_ms

    def _take_effects(self) -> list[Effect]:
        effects, self._effects = self._effects, []
        return effects
