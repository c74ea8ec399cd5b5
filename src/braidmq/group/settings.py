"""The limits of groups: the same names, units and defaults as Kafka's broker options."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from braidmq.wire.errors import ApiError, ErrorCode

MS_PER_MINUTE = 60_000


class MigrationPolicy(StrEnum):
    """Which groups with members may change their protocol; those without always may."""

    BIDIRECTIONAL = "bidirectional"
    UPGRADE = "upgrade"
    DOWNGRADE = "downgrade"
    DISABLED = "disabled"

    @property
    def upgrades(self) -> bool:
        return self in (MigrationPolicy.BIDIRECTIONAL, MigrationPolicy.UPGRADE)

    @property
    def downgrades(self) -> bool:
        return self in (MigrationPolicy.BIDIRECTIONAL, MigrationPolicy.DOWNGRADE)


@dataclass(slots=True)
class GroupSettings:
    """What an operator may set about groups. Each field is Kafka's option with dots for underscores.

    The broker changes the fields while it runs. Groups read them when they need them and keep no copies.
    """

    group_min_session_timeout_ms: int = 6_000
    group_max_session_timeout_ms: int = 30 * MS_PER_MINUTE
    group_initial_rebalance_delay_ms: int = 3_000
    group_max_size: int = 100_000
    groups_max: int = 100_000
    """Groups kept at once, empty ones included. Kafka has neither this limit nor the next four."""
    group_name_max_bytes: int = 1_000
    """Ids of groups, members, instances, racks and clients."""
    group_member_max_bytes: int = 524_288
    """What one member may say about itself, and get from its leader."""
    group_members_bytes_max: int = 134_217_728
    """What the members of all groups may say together."""
    group_offsets_bytes_max: int = 536_870_912
    """What the committed offsets of all groups may weigh together."""
    new_member_join_timeout_ms: int = 5 * MS_PER_MINUTE
    """How long a JoinGroup of a newcomer may wait. A newcomer cannot send heartbeats, so this is what ends
    the ghosts of clients that gave up on a long rebalance and tried again."""

    offset_metadata_max_bytes: int = 4_096
    offsets_retention_ms: int = 7 * 24 * 60 * MS_PER_MINUTE

    group_consumer_session_timeout_ms: int = 45_000
    group_consumer_heartbeat_interval_ms: int = 5_000
    group_consumer_quick_interval_ms: int = 1_000
    """How often members report while there are few of them; see `heartbeat_interval`."""
    group_consumer_reconciling_interval_ms: int = 500
    """How often a member that waits for partitions asks, so that it has them soon after they are free."""
    group_consumer_max_size: int = 100_000
    group_consumer_migration_policy: MigrationPolicy = MigrationPolicy.BIDIRECTIONAL

    group_share_session_timeout_ms: int = 45_000
    group_share_heartbeat_interval_ms: int = 5_000
    group_share_max_size: int = 200

    group_streams_max_size: int = 100_000

    own: dict[str, GroupSettings] = field(default_factory=dict, init=False)
    """The settings of groups that have options of their own, by group id."""

    def of(self, group_id: str) -> GroupSettings:
        """What a group has to keep to."""
        return self.own.get(group_id, self)

    def check_session(self, timeout_ms: int) -> None:
        """Raises ApiError if members of the classic protocol may not ask for such a session."""
        least_ms, most_ms = self.group_min_session_timeout_ms, self.group_max_session_timeout_ms
        if not least_ms <= timeout_ms <= most_ms:
            raise ApiError(
                ErrorCode.INVALID_SESSION_TIMEOUT,
                f"session.timeout.ms={timeout_ms} is not within the broker's limits: {least_ms} to {most_ms}",
            )
