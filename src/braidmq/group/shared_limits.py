"""What the groups of all shards of a broker have in common: bounds on memory, and how often members report.

A broker coordinates the groups of several partitions, each for itself (`Groups`). What they may keep is said
for the broker as a whole.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from braidmq.group.admission import GroupAdmission
from braidmq.group.consumer_group import ConsumerGroup
from braidmq.group.heartbeat_interval import HeartbeatInterval
from braidmq.group.settings import GroupSettings
from braidmq.group.streams_group import StreamsGroup
from braidmq.wire.errors import ApiError, ErrorCode

if TYPE_CHECKING:
    from braidmq.group.groups import Groups


class SharedLimits:
    """Kept to by every `Groups` that was added."""

    def __init__(self, settings: GroupSettings) -> None:
        self._settings = settings
        self._shards: dict[Groups, None] = {}
        self.admission = GroupAdmission(settings, self._weigh_members, self._weigh_offsets)
        self.interval = HeartbeatInterval(settings, self._count_members)

    def add(self, groups: Groups) -> None:
        self._shards[groups] = None

    def remove(self, groups: Groups) -> None:
        """These are coordinated elsewhere now."""
        self._shards.pop(groups, None)

    def check_room(self) -> None:
        """Raises ApiError if the broker has as many groups as it keeps."""
        most = self._settings.groups_max
        if sum(map(len, self._shards)) >= most:
            raise ApiError(
                ErrorCode.POLICY_VIOLATION,
                f"the broker has {most} groups, the most it keeps; delete some first",
            )

    def _weigh_members(self) -> int:
        return sum(groups.weigh_members() for groups in self._shards)

    def _weigh_offsets(self) -> int:
        return sum(groups.weigh_offsets() for groups in self._shards)

    def _count_members(self) -> int:
        return sum(
            len(group.members)
            for groups in self._shards
            for group in groups
            if isinstance(group, ConsumerGroup | StreamsGroup)
        )
