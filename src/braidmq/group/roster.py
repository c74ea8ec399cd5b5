"""Who belongs to a classic group: its members, which of them are static, who leads, and what they can speak.

The roster knows no states and no time; it answers questions such as "which protocol do all members share and
most prefer". Members are kept in the order in which they came, so that every choice among them is repeatable.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable

from braidmq.group.events import Join, JoinedMember, MemberProtocol, MemberSnapshot, Token
from braidmq.wire.errors import ApiError, ErrorCode


class Member:
    """One consumer in the group, and which of its requests wait for an answer."""

    __slots__ = (
        "assignment",
        "client_host",
        "client_id",
        "deadline_ms",
        "instance_id",
        "is_new",
        "join_token",
        "member_id",
        "protocols",
        "rebalance_timeout_ms",
        "session_timeout_ms",
        "sync_token",
        "synced",
    )

    def __init__(self, member_id: str, request: Join) -> None:
        self.member_id = member_id
        self.instance_id = request.instance_id
        self.client_id = request.client_id
        self.client_host = request.client_host
        self.assignment = b""
        self.is_new = True
        self.synced = False
        self.join_token: Token | None = None
        self.sync_token: Token | None = None
        self.deadline_ms: int | None = None
        self.update(request)

    @classmethod
    def restored(cls, stored: MemberSnapshot, protocol_name: str) -> Member:
        """The member that was written down; of its protocols only the chosen one is known."""
        request = Join(
            stored.member_id,
            stored.client_id,
            stored.client_host,
            stored.session_timeout_ms,
            stored.rebalance_timeout_ms,
            "",
            (MemberProtocol(protocol_name, stored.subscription),),
            stored.instance_id,
        )
        member = cls(stored.member_id, request)
        member.is_new = False
        member.synced = True
        member.assignment = stored.assignment
        return member

    def update(self, request: Join) -> None:
        """Takes over what a later JoinGroup says."""
        self.session_timeout_ms = request.session_timeout_ms
        # JoinGroup 0 has no rebalance timeout; the session's is used instead.
        rebalance_timeout_ms = request.rebalance_timeout_ms
        self.rebalance_timeout_ms = (
            rebalance_timeout_ms if rebalance_timeout_ms >= 0 else request.session_timeout_ms
        )
        self.protocols = request.protocols

    def metadata(self, protocol_name: str | None) -> bytes:
        """What the member says about itself in that protocol."""
        return next((one.metadata for one in self.protocols if one.name == protocol_name), b"")

    def snapshot(self, protocol_name: str | None) -> MemberSnapshot:
        return MemberSnapshot(
            self.member_id,
            self.instance_id,
            self.client_id,
            self.client_host,
            self.rebalance_timeout_ms,
            self.session_timeout_ms,
            self.metadata(protocol_name),
            self.assignment,
        )


class Roster:
    """The members of a group."""

    def __init__(self) -> None:
        self.members: dict[str, Member] = {}
        self.static: dict[str, str] = {}
        """Instance id to the member id that holds it now."""
        self.expected: dict[str, int] = {}
        """Ids given out that have not joined with them yet, and when each is forgotten."""
        self.leader: str | None = None
        self._offers: Counter[str] = Counter()
        """How many members offer each protocol; counted, because groups may have thousands of members."""
        self._waiting = 0

    def __len__(self) -> int:
        return len(self.members)

    def add(self, member: Member) -> None:
        self.members[member.member_id] = member
        self.expected.pop(member.member_id, None)
        if member.instance_id is not None:
            self.static[member.instance_id] = member.member_id
        if self.leader is None:
            self.leader = member.member_id
        self._count(member, 1)

    def remove(self, member: Member) -> None:
        assert member.join_token is None, "a member that waits is answered before it goes"
        del self.members[member.member_id]
        self._count(member, -1)
        if member.instance_id is not None and self.static.get(member.instance_id) == member.member_id:
            del self.static[member.instance_id]
        if self.leader == member.member_id:
            self.leader = next(iter(self.members), None)

    def update(self, member: Member, request: Join) -> None:
        """Takes over what a later JoinGroup of the member says."""
        self._count(member, -1)
        member.update(request)
        self._count(member, 1)

    def _count(self, member: Member, change: int) -> None:
        for name in {protocol.name for protocol in member.protocols}:
            self._offers[name] += change
            if not self._offers[name]:
                del self._offers[name]

    def begin_join(self, member: Member, token: Token) -> Token | None:
        """The member now waits for its answer as `token`; what it waited as before is returned."""
        before = self.end_join(member)
        member.join_token = token
        self._waiting += 1
        return before

    def end_join(self, member: Member) -> Token | None:
        """The member waits no longer; what it waited as is returned."""
        token, member.join_token = member.join_token, None
        if token is not None:
            self._waiting -= 1
        return token

    def rename(self, member: Member, member_id: str) -> None:
        """Gives a static member its next id; it keeps its place in the order and its leadership."""
        assert member.instance_id is not None
        if self.leader == member.member_id:
            self.leader = member_id
        renamed = {member_id if key == member.member_id else key: one for key, one in self.members.items()}
        self.members = renamed
        self.static[member.instance_id] = member_id
        member.member_id = member_id

    def check(self, member_id: str, instance_id: str | None) -> Member:
        """The member that sent a request; ApiError if it is none, or not the holder of its instance id."""
        if instance_id is not None:
            holder = self.static.get(instance_id)
            if holder is not None and holder != member_id:
                raise ApiError(
                    ErrorCode.FENCED_INSTANCE_ID, f"instance {instance_id!r} is now member {holder!r}"
                )
            if holder is None:
                raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID, f"no member has instance id {instance_id!r}")
        member = self.members.get(member_id)
        if member is None:
            raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID, f"{member_id!r} is not a member of the group")
        return member

    def elect(self) -> bool:
        """Makes sure that the leader is one who has joined this time; False if nobody has."""
        leader = self.members.get(self.leader or "")
        if leader is None or leader.join_token is None:
            if not self._waiting:
                return False
            self.leader = next(one.member_id for one in self.members.values() if one.join_token is not None)
        return True

    @property
    def waiting(self) -> int:
        """How many members wait for the answer to their JoinGroup."""
        return self._waiting

    @property
    def all_joined(self) -> bool:
        return not self.expected and self._waiting == len(self.members)

    @property
    def rebalance_timeout_ms(self) -> int:
        """The patience of the most patient member is that of the group."""
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

    def offers_shared(self, protocols: tuple[MemberProtocol, ...]) -> bool:
        """Whether a newcomer has a protocol in common with everybody who is here."""
        return any(self._offers[protocol.name] == len(self.members) for protocol in protocols)

    def vote(self) -> str:
        """The protocol most members like best among those that all can; the earlier voter breaks a tie."""
        shared = {name for name, offers in self._offers.items() if offers == len(self.members)}
        return elected((member.protocols for member in self.members.values()), shared)

    def described(self, protocol_name: str | None) -> tuple[JoinedMember, ...]:
        """The members as their leader sees them."""
        return tuple(
            JoinedMember(one.member_id, one.instance_id, one.metadata(protocol_name))
            for one in self.members.values()
        )


def elected(offers: Iterable[tuple[MemberProtocol, ...]], shared: Collection[str]) -> str:
    """The one among the shared protocols that most voters like best; the earlier voter breaks a tie."""
    votes = Counter(next(one.name for one in offered if one.name in shared) for offered in offers)
    return votes.most_common(1)[0][0]
