"""A consumer group of the classic protocol, in which a client, the leader, decides who reads what.

                    a member joins                 all have joined, or time is up
        Empty ───────────────────► PreparingRebalance ─────────────────► CompletingRebalance
          ▲                          │        ▲     ▲                            │
          │      nobody has joined   │        │     │  somebody comes, goes      │ the leader
          └──────────────────────────┘        │     │  or changes its mind       │ has assigned
                                              │     └────────────────────────────┤
                                              └─────────────── Stable ◄──────────┘

A rebalance has two barriers. The first gathers: every member sends JoinGroup and waits until all are there or
the rebalance timeout is over; those who have not come are dropped (static ones stay), the generation goes up,
the protocol is voted for and each member is answered; the leader's answer lists all of them. The second
hands out: every member sends SyncGroup and waits until the leader's own brings the assignments.

The group never looks at a clock and never sends anything. Each call gets the time, and says in a list of
effects what has to be written down and who is to be answered. Between the calls it only waits:
`next_deadline` says until when, and `tick` is to be called then. A join or a sync is answered exactly once.

Codes and rules are Kafka's, those of KIP-394 (an id is required), KIP-345 (static members) and KIP-814 (a
static leader that returns skips the assignment) included.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from braidmq.group.admission import MEMBER_BYTES, weight_of_protocols
from braidmq.group.events import (
    NO_MEMBER,
    DescribedGroup,
    DescribedMember,
    Effect,
    GroupSnapshot,
    Join,
    Joined,
    Leaver,
    Reply,
    Sync,
    Synced,
    Token,
    WriteSnapshot,
)
from braidmq.group.offsets import Expirable
from braidmq.group.rebalance import ClassicGroupState, Rebalancing
from braidmq.group.roster import Member
from braidmq.group.settings import GroupSettings
from braidmq.group.subscription import CONSUMER_PROTOCOL_TYPE, subscribed_topics
from braidmq.wire.errors import ApiError, ErrorCode

KEEPS_ID_SINCE = 4
"""From this version on JoinGroup is first answered with an id, with which the member then joins (KIP-394)."""
SKIPS_ASSIGNMENT_SINCE = 9
"""From this version on the answer to JoinGroup can tell a leader not to assign (KIP-814)."""


class ClassicGroup(Rebalancing):
    """Membership and generations of one group."""

    group_type = "classic"
    """What ListGroups calls this kind."""

    def __init__(
        self, group_id: str, settings: GroupSettings, new_id: Callable[[], str], now_ms: int
    ) -> None:
        super().__init__(group_id, settings, now_ms)
        self._new_id = new_id

    # Requests

    def join(self, request: Join, token: Token, now_ms: int) -> list[Effect]:
        """JoinGroup: answered at once, or when the rebalance it takes part in has gathered everybody."""
        try:
            self._check_join(request, now_ms)
            if request.member_id == NO_MEMBER:
                self._join_unknown(request, token, now_ms)
            else:
                self._join_known(request, token, now_ms)
        except ApiError as error:
            refused = NO_MEMBER if error.code is ErrorCode.GROUP_MAX_SIZE_REACHED else request.member_id
            self._effects.append(Reply(token, Joined(error.code, refused)))
        return self._take_effects()

    def sync(self, request: Sync, token: Token, now_ms: int) -> list[Effect]:
        """SyncGroup: answered at once, or when the leader has sent the assignments."""
        try:
            member = self._check_sync(request)
        except ApiError as error:
            self._effects.append(Reply(token, Synced(error.code)))
            return self._take_effects()
        member.synced = True
        if self.state is ClassicGroupState.STABLE:
            self._extend_session(member, now_ms)
            self._effects.append(Reply(token, self._synced(member)))
        else:
            self._answer_sync(member, Synced(ErrorCode.REBALANCE_IN_PROGRESS))
            member.sync_token = token
            member.deadline_ms = None
            if member.member_id == self.leader:
                self._assign(dict(request.assignments), now_ms)
        return self._take_effects()

    def heartbeat(self, member_id: str, instance_id: str | None, generation: int, now_ms: int) -> ErrorCode:
        """Heartbeat: whether the member may continue as it is."""
        try:
            member = self._check_generation(member_id, instance_id, generation)
        except ApiError as error:
            return error.code
        self._extend_session(member, now_ms)
        if self.state is ClassicGroupState.PREPARING_REBALANCE:
            return ErrorCode.REBALANCE_IN_PROGRESS
        return ErrorCode.NONE

    def leave(self, leavers: Sequence[Leaver], now_ms: int) -> tuple[list[ErrorCode], list[Effect]]:
        """LeaveGroup: one code for each leaver, in their order."""
        members_before = len(self.roster)
        codes = []
        for leaver in leavers:
            try:
                self._leave(leaver)
                codes.append(ErrorCode.NONE)
            except ApiError as error:
                codes.append(error.code)
        self._continue_without(members_before, now_ms)
        return codes, self._take_effects()

    def check_commit(
        self,
        member_id: str,
        instance_id: str | None,
        generation: int,
        now_ms: int,
        transactional: bool = False,
    ) -> None:
        """Raises the ApiError with which an OffsetCommit (or TxnOffsetCommit) is to be refused."""
        if self.state is ClassicGroupState.DEAD:
            raise ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"group {self.group_id!r} was deleted")
        if generation < 0 and self.state is ClassicGroupState.EMPTY:
            return
        if generation >= 0 or member_id != NO_MEMBER or instance_id is not None:
            member = self._check_generation(member_id, instance_id, generation)
            self._extend_session(member, now_ms)
        elif not transactional:
            raise ApiError(
                ErrorCode.UNKNOWN_MEMBER_ID, "the group has members, so only they may commit its offsets"
            )
        if self.state is ClassicGroupState.COMPLETING_REBALANCE and not transactional:
            raise ApiError(ErrorCode.REBALANCE_IN_PROGRESS, "the group waits for its leader's assignment")

    def delete(self) -> ErrorCode:
        """DeleteGroups: possible when nobody is in it."""
        if self.state is ClassicGroupState.DEAD:
            return ErrorCode.GROUP_ID_NOT_FOUND
        if self.state is not ClassicGroupState.EMPTY:
            return ErrorCode.NON_EMPTY_GROUP
        self.state = ClassicGroupState.DEAD
        return ErrorCode.NONE

    # Storage

    def write_failed(self, now_ms: int) -> list[Effect]:
        """A `WriteSnapshot` failed: what rested on it is taken back, and the members gather again."""
        if self.state is ClassicGroupState.STABLE:
            for member in self.roster.members.values():
                member.assignment = b""
            self._prepare_rebalance(now_ms)
        return self._take_effects()

    def gather(self, now_ms: int) -> list[Effect]:
        """Lets the members of a stable group join again."""
        self._prepare_rebalance(now_ms)
        return self._take_effects()

    def restore(self, stored: GroupSnapshot, now_ms: int, idle_ms: int = 0) -> None:
        """Becomes the group that was written down `idle_ms` ago; its members have a session to come back."""
        assert not self.roster.members, "only a new group can be restored"
        self.generation = stored.generation
        self.protocol_type = stored.protocol_type or None
        self.protocol_name = stored.protocol_name
        self.state_since_ms = now_ms - max(idle_ms, 0)
        for one in stored.members:
            member = Member.restored(one, stored.protocol_name or "")
            self.roster.add(member)
            self._extend_session(member, now_ms)
        if stored.members:
            self.roster.leader = stored.leader
            self.state = ClassicGroupState.STABLE

    # What administrators see, and what it costs

    def weight_bytes(self) -> int:
        """What is kept for its members, and for those whose ids were given out."""
        members = self.roster.members.values()
        said = sum(weight_of_protocols(one.protocols) + len(one.assignment) for one in members)
        return said + MEMBER_BYTES * len(self.roster.expected)

    def describe(self) -> DescribedGroup:
        """The group as DescribeGroups shows it: what members say only counts once they have agreed."""
        stable = self.state is ClassicGroupState.STABLE
        return DescribedGroup(
            self.group_id,
            self.state.value,
            self.protocol_type or "",
            (self.protocol_name or "") if stable else "",
            tuple(
                DescribedMember(
                    one.member_id,
                    one.instance_id,
                    one.client_id,
                    one.client_host,
                    one.metadata(self.protocol_name) if stable else b"",
                    one.assignment if stable else b"",
                )
                for one in self.roster.members.values()
            ),
        )

    def expirable(self, now_ms: int) -> Expirable | None:
        """Which offsets may expire: all of a group without members, else those of topics nobody reads."""
        if self.state is ClassicGroupState.EMPTY:
            grouped = self.protocol_type is not None
            return Expirable(frozenset(), now_ms - self.state_since_ms if grouped else None)
        in_use = self.subscribed()
        return None if in_use is None else Expirable(in_use, None)

    def subscribed(self) -> frozenset[str] | None:
        """The topics its members read; None where that cannot be known."""
        if self.protocol_type != CONSUMER_PROTOCOL_TYPE or self.state is not ClassicGroupState.STABLE:
            return frozenset() if self.state in (ClassicGroupState.EMPTY, ClassicGroupState.DEAD) else None
        topics: set[str] = set()
        for member in self.roster.members.values():
            found = subscribed_topics(member.metadata(self.protocol_name))
            if found is None:
                return None
            topics |= found
        return frozenset(topics)

    # Joining

    def _check_join(self, request: Join, now_ms: int) -> None:
        self._settings.check_session(request.session_timeout_ms)
        if self.state is ClassicGroupState.DEAD:
            raise ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"group {self.group_id!r} was deleted")
        if not self._has_room(request):
            if (member := self.roster.members.get(request.member_id)) is not None:
                self._remove(member)
                self._rebalance_or_complete(now_ms)
            raise ApiError(
                ErrorCode.GROUP_MAX_SIZE_REACHED,
                f"the group is full: it may have {self._settings.group_max_size} members",
            )
        if self.state is ClassicGroupState.EMPTY:
            supported = bool(request.protocol_type and request.protocols)
        else:
            supported = request.protocol_type == self.protocol_type
            supported = supported and self.roster.offers_shared(request.protocols)
        if not supported:
            raise ApiError(
                ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
                f"the group speaks {self.protocol_type!r} and shares no protocol with the member",
            )

    def _has_room(self, request: Join) -> bool:
        most = self._settings.group_max_size
        member = self.roster.members.get(request.member_id)
        if self.state is ClassicGroupState.PREPARING_REBALANCE:
            waits = member is not None and member.join_token is not None
            return waits or self.roster.waiting < most
        return member is not None or len(self.roster) < most

    def _join_unknown(self, request: Join, token: Token, now_ms: int) -> None:
        member_id = f"{request.instance_id or request.client_id}-{self._new_id()}"
        if request.instance_id is not None:
            holder = self.roster.static.get(request.instance_id)
            if holder is None:
                self._add(member_id, request, token, now_ms)
            else:
                self._replace_static(self.roster.members[holder], member_id, request, token, now_ms)
        elif request.version >= KEEPS_ID_SINCE:
            self._expect(member_id, request, now_ms)
            self._effects.append(Reply(token, Joined(ErrorCode.MEMBER_ID_REQUIRED, member_id)))
        else:
            self._add(member_id, request, token, now_ms)

    def _expect(self, member_id: str, request: Join, now_ms: int) -> None:
        if len(self.roster.expected) >= self._settings.group_max_size:
            raise ApiError(
                ErrorCode.GROUP_MAX_SIZE_REACHED,
                "too many member ids were given out and not used; try again later",
            )
        deadline_ms = now_ms + request.session_timeout_ms
        self.roster.expected[member_id] = deadline_ms
        self._wake_by(deadline_ms)

    def _join_known(self, request: Join, token: Token, now_ms: int) -> None:
        if request.member_id in self.roster.expected:
            self._add(request.member_id, request, token, now_ms)
            return
        member = self.roster.check(request.member_id, request.instance_id)
        same = member.protocols == request.protocols
        completing = self.state is ClassicGroupState.COMPLETING_REBALANCE
        stable = self.state is ClassicGroupState.STABLE and member.member_id != self.leader
        if same and (completing or stable):
            # The answer to its JoinGroup was lost, or it asks for nothing new: it gets what holds.
            self._extend_session(member, now_ms)
            self._effects.append(Reply(token, self._joined(member)))
            return
        self.roster.update(member, request)
        self._wait_to_join(member, token, now_ms)
        self._rebalance_or_complete(now_ms)

    def _add(self, member_id: str, request: Join, token: Token, now_ms: int) -> None:
        if not len(self.roster):
            self.protocol_type = request.protocol_type
        member = Member(member_id, request)
        self.roster.add(member)
        self._wait_to_join(member, token, now_ms)
        self._newcomers = self.generation == 0
        self._rebalance_or_complete(now_ms)

    def _wait_to_join(self, member: Member, token: Token, now_ms: int) -> None:
        superseded = self.roster.begin_join(member, token)
        if superseded is not None:
            self._effects.append(Reply(superseded, Joined(ErrorCode.REBALANCE_IN_PROGRESS, member.member_id)))
        member.deadline_ms = None
        if member.is_new:
            member.deadline_ms = now_ms + self._settings.new_member_join_timeout_ms
            self._wake_by(member.deadline_ms)

    def _replace_static(
        self, member: Member, member_id: str, request: Join, token: Token, now_ms: int
    ) -> None:
        """A static member is back under a new id. Whoever still uses the old one is fenced."""
        leader_before = self.leader
        self._answer_waiting(member, ErrorCode.FENCED_INSTANCE_ID)
        self.roster.rename(member, member_id)
        self.roster.update(member, request)
        member.client_id, member.client_host = request.client_id, request.client_host
        if self.state is ClassicGroupState.STABLE and self.roster.vote() == self.protocol_name:
            # It takes up its old assignment, so nobody else has to notice (KIP-345).
            self._extend_session(member, now_ms)
            self._effects.append(WriteSnapshot(self.snapshot()))
            self._effects.append(Reply(token, self._rejoined(member, leader_before, request.version)))
            return
        self._wait_to_join(member, token, now_ms)
        self._rebalance_or_complete(now_ms)

    def _rejoined(self, member: Member, leader_before: str | None, version: int) -> Joined:
        if version >= SKIPS_ASSIGNMENT_SINCE:
            return self._joined(member, skip_assignment=member.member_id == self.leader)
        # An older client would assign again if it heard that it leads; its former id keeps it a follower.
        return Joined(
            ErrorCode.NONE,
            member.member_id,
            self.generation,
            self.protocol_type,
            self.protocol_name,
            leader_before or NO_MEMBER,
        )

    # Syncing and leaving

    def _check_sync(self, request: Sync) -> Member:
        member = self._check_generation(request.member_id, request.instance_id, request.generation)
        if self.state is ClassicGroupState.PREPARING_REBALANCE:
            raise ApiError(ErrorCode.REBALANCE_IN_PROGRESS, "the group is rebalancing; join again")
        type_differs = request.protocol_type is not None and request.protocol_type != self.protocol_type
        name_differs = request.protocol_name is not None and request.protocol_name != self.protocol_name
        if type_differs or name_differs:
            raise ApiError(
                ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
                f"the group has settled on {self.protocol_type!r} {self.protocol_name!r}",
            )
        return member

    def _check_generation(self, member_id: str, instance_id: str | None, generation: int) -> Member:
        if self.state is ClassicGroupState.DEAD:
            raise ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"group {self.group_id!r} was deleted")
        member = self.roster.check(member_id, instance_id)
        if generation != self.generation:
            raise ApiError(
                ErrorCode.ILLEGAL_GENERATION, f"generation {generation} is not the group's {self.generation}"
            )
        return member

    def _leave(self, leaver: Leaver) -> None:
        if self.state is ClassicGroupState.DEAD:
            raise ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"group {self.group_id!r} was deleted")
        if leaver.member_id in self.roster.expected:
            del self.roster.expected[leaver.member_id]
            return
        member_id = leaver.member_id
        if member_id == NO_MEMBER and leaver.instance_id is not None:
            member_id = self.roster.static.get(leaver.instance_id, NO_MEMBER)
        self._remove(self.roster.check(member_id, leaver.instance_id))
