"""The settings of coordinators, out of the options of the broker."""

from __future__ import annotations

import dataclasses
from typing import TypeVar

from braidmq.config import Config
from braidmq.group.settings import GroupSettings, MigrationPolicy
from braidmq.txn.settings import TransactionSettings

Settings = TypeVar("Settings", GroupSettings, TransactionSettings)


def take_over(settings: Settings, changed: Settings) -> None:
    """Brings the values of `changed` into the settings that others hold."""
    for field in dataclasses.fields(settings):
        if field.init:
            setattr(settings, field.name, getattr(changed, field.name))


def transaction_settings(config: Config) -> TransactionSettings:
    return TransactionSettings(
        transaction_max_timeout_ms=config.transaction_max_timeout_ms,
        transactional_id_expiration_ms=config.transactional_id_expiration_ms,
        transactional_ids_max=config.transactional_ids_max,
    )


def group_settings(config: Config) -> GroupSettings:
    return GroupSettings(
        group_min_session_timeout_ms=config.group_min_session_timeout_ms,
        group_max_session_timeout_ms=config.group_max_session_timeout_ms,
        group_initial_rebalance_delay_ms=config.group_initial_rebalance_delay_ms,
        group_consumer_session_timeout_ms=config.group_consumer_session_timeout_ms,
        group_consumer_heartbeat_interval_ms=config.group_consumer_heartbeat_interval_ms,
        group_members_bytes_max=config.group_members_bytes_max,
        group_offsets_bytes_max=config.group_offsets_bytes_max,
        group_consumer_migration_policy=MigrationPolicy(config.group_consumer_migration_policy),
        group_share_session_timeout_ms=config.group_share_session_timeout_ms,
        group_share_heartbeat_interval_ms=config.group_share_heartbeat_interval_ms,
        group_share_max_size=config.group_share_max_size,
        group_streams_max_size=config.group_streams_max_size,
    )
