"""Who may join at all: bounds on what a member says about itself, and on what all members weigh together.

Members bring names, subscriptions and whatever their assignor wants to tell its peers, and all of it is kept
for as long as they are there. A single one may bring so much, and all of them together so much; past that
newcomers are refused, while those who are members go on.

The sum is not kept up to date with every change. What newcomers bring is added to an estimate, which can only
be too high; when it reaches the limit everybody is weighed anew, at most once a second.
"""

from __future__ import annotations

from collections.abc import Callable

from braidmq.group.consumer_member import Heartbeat
from braidmq.group.events import Join, Protocol, Sync
from braidmq.group.settings import GroupSettings
from braidmq.wire.errors import ApiError, ErrorCode

MEMBER_BYTES = 1_000
"""What a member weighs that says nothing: about what it takes in memory."""
WEIGHED_AGAIN_MS = 1_000

Weigh = Callable[[], int]


class Admission:
    """Checks requests by which members make a group remember something."""

    def __init__(self, settings: GroupSettings, weigh: Weigh) -> None:
        self._settings = settings
        self._weigh = weigh
        """What all members weigh now; takes time in proportion to their number."""
        self._estimate_bytes = 0
        self._weighed_ms: int | None = None

    def check_group(self, group_id: str) -> None:
        """Raises ApiError if there can be no group of that name."""
        if _too_long(group_id, self._settings.group_name_max_bytes):
            most = self._settings.group_name_max_bytes
            raise ApiError(ErrorCode.INVALID_GROUP_ID, f"a group id may have {most} bytes at most")

    def check_join(self, group_id: str, request: Join, now_ms: int) -> None:
        """Raises ApiError if a JoinGroup brings too much."""
        self.check_group(group_id)
        self._check_names(request.member_id, request.instance_id, request.client_id, request.protocol_type)
        weight_bytes = weight_of_protocols(request.protocols)
        self._check_size(weight_bytes)
        self._admit(weight_bytes, now_ms)

    def check_sync(self, request: Sync, now_ms: int) -> None:
        """Raises ApiError if a leader hands out too much."""
        sizes = [len(assignment) for _, assignment in request.assignments]
        self._check_size(max(sizes, default=0))
        self._admit(sum(sizes), now_ms)

    def check_beat(self, group_id: str, beat: Heartbeat, now_ms: int) -> None:
        """Raises ApiError if a heartbeat brings too much; most bring nothing."""
        if beat.topics is None and beat.pattern is None:
            return
        self._check_names(group_id, beat.member_id, beat.instance_id, beat.rack_id, beat.client_id)
        weight_bytes = weight_of_topics(beat.topics or frozenset(), beat.pattern or "")
        self._check_size(weight_bytes)
        self._admit(weight_bytes, now_ms)

    def _check_names(self, *names: str | None) -> None:
        most = self._settings.group_name_max_bytes
        if any(name is not None and _too_long(name, most) for name in names):
            raise ApiError(ErrorCode.INVALID_REQUEST, f"an id may have {most} bytes at most")

    def _check_size(self, size_bytes: int) -> None:
        most = self._settings.group_member_max_bytes
        if size_bytes > most:
            raise ApiError(
                ErrorCode.MESSAGE_TOO_LARGE, f"{size_bytes} bytes for one member, who may have {most}"
            )

    def _admit(self, weight_bytes: int, now_ms: int) -> None:
        most = self._settings.group_members_max_bytes
        if self._estimate_bytes + weight_bytes > most and self._may_weigh(now_ms):
            self._estimate_bytes = self._weigh()
            self._weighed_ms = now_ms
        if self._estimate_bytes + weight_bytes > most:
            raise ApiError(
                ErrorCode.POLICY_VIOLATION, f"the members of all groups weigh {most} bytes already"
            )
        self._estimate_bytes += weight_bytes

    def _may_weigh(self, now_ms: int) -> bool:
        return self._weighed_ms is None or now_ms - self._weighed_ms >= WEIGHED_AGAIN_MS


def weight_of_protocols(protocols: tuple[Protocol, ...]) -> int:
    """What a member of the classic protocol weighs."""
    return MEMBER_BYTES + sum(len(one.name) + len(one.metadata) for one in protocols)


def weight_of_topics(topics: frozenset[str], pattern: str) -> int:
    """What a member of a server-assigned or share group weighs."""
    return MEMBER_BYTES + len(pattern) + sum(map(len, topics))


def _too_long(name: str, bytes_max: int) -> bool:
    return len(name) > bytes_max or len(name.encode()) > bytes_max
