"""Who may join and commit at all: bounds on what one member says, on what all say together, and on offsets.

Members bring names, subscriptions and whatever their assignor wants to tell its peers, and all of it is kept
for as long as they are there; so are the offsets that groups commit. A single member may bring so much, and
all together so much; past that newcomers are refused; members stay, and may commit where they have
committed before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from braidmq.group.budget import Budget
from braidmq.group.consumer_member import Heartbeat
from braidmq.group.events import Join, MemberProtocol, Sync
from braidmq.group.offsets import Commit, OffsetTable, weight_of
from braidmq.group.settings import GroupSettings
from braidmq.group.streams_member import StreamsHeartbeat
from braidmq.wire.errors import ApiError, ErrorCode

MEMBER_BYTES = 1_000
"""What a member weighs that says nothing: about what it takes in memory."""
MEMBERS_PAUSE_MS, OFFSETS_PAUSE_MS = 1_000, 30_000
"""Between two weighings, which may take a tenth of a second and a second."""


class GroupAdmission:
    """Checks requests by which clients make groups remember something."""

    def __init__(
        self, settings: GroupSettings, weigh_members: Callable[[], int], weigh_offsets: Callable[[], int]
    ) -> None:
        self._settings = settings
        self._members = Budget(settings.group_members_bytes_max, "members", weigh_members, MEMBERS_PAUSE_MS)
        self._offsets = Budget(settings.group_offsets_bytes_max, "offsets", weigh_offsets, OFFSETS_PAUSE_MS)

    def loaded(self, members_bytes: int, offsets_bytes: int) -> None:
        """Takes note of what has come by loading."""
        self._members.add(members_bytes)
        self._offsets.add(offsets_bytes)

    def check_group(self, group_id: str) -> None:
        """Raises ApiError if there can be no group of that name."""
        if _too_long(group_id, self._settings.group_name_max_bytes):
            most = self._settings.group_name_max_bytes
            raise ApiError(ErrorCode.INVALID_GROUP_ID, f"the group id is longer than {most} bytes")

    def check_join(self, group_id: str, request: Join, now_ms: int) -> None:
        """Raises ApiError if a JoinGroup brings too much."""
        self.check_group(group_id)
        self._check_names(request.member_id, request.instance_id, request.client_id, request.protocol_type)
        weight_bytes = weight_of_protocols(request.protocols)
        self._check_size(weight_bytes)
        self._members.admit(weight_bytes, now_ms)

    def check_sync(self, request: Sync, now_ms: int) -> None:
        """Raises ApiError if a leader hands out too much."""
        sizes = [len(assignment) for _, assignment in request.assignments]
        self._check_size(max(sizes, default=0))
        self._members.admit(sum(sizes), now_ms)

    def check_beat(self, group_id: str, beat: Heartbeat, now_ms: int) -> None:
        """Raises ApiError if a heartbeat brings too much; most bring nothing."""
        if beat.topics is None and beat.pattern is None:
            return
        self._check_names(group_id, beat.member_id, beat.instance_id, beat.rack_id, beat.client_id)
        weight_bytes = weight_of_topics(beat.topics or frozenset(), beat.pattern or "")
        self._check_size(weight_bytes)
        self._members.admit(weight_bytes, now_ms)

    def check_streams_beat(self, group_id: str, beat: StreamsHeartbeat, now_ms: int) -> None:
        """Raises ApiError if a member of a streams group brings too much; all but the first bring nothing."""
        if beat.topology is None and beat.tags is None and beat.endpoint is None:
            self._check_names(beat.rack_id, beat.process_id)
            return
        host = None if beat.endpoint is None else beat.endpoint.host
        self._check_names(group_id, beat.member_id, beat.rack_id, beat.client_id, beat.process_id, host)
        weight_bytes = MEMBER_BYTES + sum(len(key) + len(text) for key, text in beat.tags or ())
        if beat.topology is not None:
            weight_bytes += beat.topology.weight_bytes()
        self._check_size(weight_bytes)
        self._members.admit(weight_bytes, now_ms)

    def check_offsets(self, table: OffsetTable | None, entries: Iterable[Commit], now_ms: int) -> None:
        """Raises ApiError if a commit brings too much that is not there yet."""
        added_bytes = 0
        for at, committed in entries:
            known = None if table is None else table.find(*at)
            if known is None:
                added_bytes += weight_of(committed)
            elif committed.metadata:
                added_bytes += max(0, weight_of(committed) - weight_of(known))
        if added_bytes:
            self._offsets.admit(added_bytes, now_ms)

    def _check_names(self, *names: str | None) -> None:
        most = self._settings.group_name_max_bytes
        if any(name is not None and _too_long(name, most) for name in names):
            raise ApiError(ErrorCode.INVALID_REQUEST, f"an id is longer than {most} bytes")

    def _check_size(self, size_bytes: int) -> None:
        most = self._settings.group_member_max_bytes
        if size_bytes > most:
            raise ApiError(
                ErrorCode.MESSAGE_TOO_LARGE,
                f"the member takes {size_bytes} bytes, more than the {most} it may have",
            )


def weight_of_protocols(protocols: tuple[MemberProtocol, ...]) -> int:
    """What a member of the classic protocol weighs."""
    return MEMBER_BYTES + sum(len(one.name) + len(one.metadata) for one in protocols)


def weight_of_topics(topics: frozenset[str], pattern: str) -> int:
    """What a member of a server-assigned or share group weighs."""
    return MEMBER_BYTES + len(pattern) + sum(map(len, topics))


def _too_long(name: str, bytes_max: int) -> bool:
    return len(name) > bytes_max or len(name.encode()) > bytes_max
