"""Options of single groups, set by admin clients and kept in the metadata store; the rest is the broker's."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from braidmq.broker.metadata import storing
from braidmq.broker.share_delivery import ShareOptions
from braidmq.cluster import records
from braidmq.cluster.changes import Changes
from braidmq.cluster.image import Delta, Image
from braidmq.cluster.records import OF_GROUPS
from braidmq.config import GROUP, Config, ConfigError, check_sessions, find
from braidmq.delivery.status import DeliveryLimits
from braidmq.group.settings import GroupSettings
from braidmq.group.streams_group import StreamsOptions
from braidmq.reset import parse_reset
from braidmq.wire.errors import ApiError, ErrorCode

GROUPS_MAX = 100_000
"""Groups with options of their own; as many as there may be groups."""


_OF_MEMBERSHIP = frozenset(
    option.name for option in GROUP if f"group_{option.attribute}" in GroupSettings.__slots__
)
"""Options that the group itself keeps to; the others belong to delivery."""


class GroupOptions:
    """Reads and changes what groups have set."""

    def __init__(
        self, config: Config, image: Image, changes: Changes, changed: Callable[[str], None]
    ) -> None:
        self._config = config
        self._image = image
        self._changes = changes
        self._changed = changed
        self._groups: dict[str, None] = {}

    def load(self) -> None:
        """Takes over what the image shows."""
        self._groups = dict.fromkeys(sorted(self._image.all_options(OF_GROUPS)))

    def follow(self, delta: Delta) -> None:
        """Says which groups have other options now."""
        for key in delta.options:
            kind, group_id = records.config_of(key)
            if kind == OF_GROUPS:
                if self._image.options(kind, group_id) is None:
                    self._groups.pop(group_id, None)
                else:
                    self._groups[group_id] = None
                self._changed(group_id)

    def __iter__(self) -> Iterator[str]:
        """The groups that have options of their own."""
        return iter(self._groups)

    def overrides(self, group_id: str) -> Mapping[str, str]:
        """What was set for this group, as text."""
        held = self._image.options(OF_GROUPS, group_id)
        return {} if held is None else held.record.options

    def values(self, group_id: str) -> dict[str, Any]:
        """Every option of the group, by name."""
        return self._values(self.overrides(group_id))

    def _values(self, overrides: Mapping[str, str]) -> dict[str, Any]:
        return {
            option.name: option.parse(overrides[option.name])
            if option.name in overrides
            else getattr(self._config, f"group_{option.attribute}")
            for option in GROUP
        }

    def settle(self, usual: GroupSettings, group_id: str | None = None) -> None:
        """Puts what groups, or one group, have set of their own beside the usual settings."""
        for each in self if group_id is None else [group_id]:
            own = self._own_settings(self.overrides(each))
            if own:
                usual.own[each] = replace(usual, **own)
            else:
                usual.own.pop(each, None)

    def _own_settings(self, overrides: Mapping[str, str]) -> dict[str, Any]:
        own = {
            f"group_{option.attribute}": option.parse(overrides[option.name])
            for option in GROUP
            if option.name in overrides and option.name in _OF_MEMBERSHIP
        }
        if "group_consumer_heartbeat_interval_ms" in own:
            # Whoever sets it for a group means it, also while there are few members.
            own["group_consumer_quick_interval_ms"] = own["group_consumer_heartbeat_interval_ms"]
        return own

    def share(self, group_id: str) -> ShareOptions:
        values = self.values(group_id)
        limits = DeliveryLimits(
            in_flight_max=values["share.partition.max.record.locks"],
            deliveries_max=values["share.delivery.count.limit"],
            lock_ms=values["share.record.lock.duration.ms"],
        )
        return ShareOptions(
            limits,
            parse_reset(values["share.auto.offset.reset"]),
            values["share.isolation.level"] == "read_committed",
        )

    def streams(self, group_id: str) -> StreamsOptions:
        """Asked for every heartbeat, so only what the group has set is read."""
        overrides = self.overrides(group_id)
        if not overrides:
            return StreamsOptions(
                *(getattr(self._config, f"group_streams_{name}") for name in StreamsOptions._fields)
            )
        values = self.values(group_id)
        return StreamsOptions(
            *(values[f"streams.{name.replace('_', '.')}"] for name in StreamsOptions._fields)
        )

    def check(self, group_id: str, overrides: Mapping[str, str]) -> None:
        """Raises ApiError unless the group can have these options."""
        if not group_id:
            raise ApiError(ErrorCode.INVALID_REQUEST, "the group id is empty")
        try:
            for name, text in overrides.items():
                find(name, GROUP).parse(text)
            check_sessions(self._values(overrides))
        except ConfigError as error:
            raise ApiError(ErrorCode.INVALID_CONFIG, str(error)) from None
        if overrides and group_id not in self._groups and len(self._groups) >= GROUPS_MAX:
            raise ApiError(
                ErrorCode.POLICY_VIOLATION,
                f"{GROUPS_MAX:,} groups have options of their own, the most there can be; delete some first",
            )

    async def reconfigure(self, group_id: str, overrides: Mapping[str, str]) -> None:
        """Replaces the group's own options."""
        self.check(group_id, overrides)
        with storing(self._changes.outage):
            await self._changes.set_options(OF_GROUPS, group_id, overrides)
