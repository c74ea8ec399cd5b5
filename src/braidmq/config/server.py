"""Everything a broker process is configured with: the tables together, and their typed form.

`SERVER` holds what belongs to a broker process, `GROUP` what a single group may set for itself, and
`DYNAMIC` what may change while the broker runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from braidmq.config.broker import BROKER
from braidmq.config.cluster import CLUSTER
from braidmq.config.group import CONSUMER_GROUPS, SHARE_GROUPS, STREAMS_GROUPS
from braidmq.config.option import ConfigError, Option, find
from braidmq.config.shards import SHARDS
from braidmq.config.topic import TOPIC, TOPIC_BY_NAME, TopicConfig
from braidmq.config.transaction import TRANSACTIONS

SERVER: tuple[Option, ...] = (
    *BROKER,
    *CLUSTER,
    *CONSUMER_GROUPS,
    *TRANSACTIONS,
    *SHARE_GROUPS,
    *STREAMS_GROUPS,
    *SHARDS,
)
SERVER_BY_NAME: Mapping[str, Option] = {option.name: option for option in SERVER}

GROUP: tuple[Option, ...] = tuple(
    replace(option, name=option.name.removeprefix("group."))
    for option in SERVER
    if option.name
    in (
        "group.consumer.session.timeout.ms",
        "group.consumer.heartbeat.interval.ms",
        "group.share.session.timeout.ms",
        "group.share.heartbeat.interval.ms",
        "group.share.record.lock.duration.ms",
        "group.share.delivery.count.limit",
        "group.share.auto.offset.reset",
        "group.share.isolation.level",
        "group.share.partition.max.record.locks",
        "group.streams.session.timeout.ms",
        "group.streams.heartbeat.interval.ms",
        "group.streams.num.standby.replicas",
        "group.streams.initial.rebalance.delay.ms",
    )
)
"""What an admin client may set for a single group; the default is the broker's option, `group.` before it."""

DYNAMIC: frozenset[str] = frozenset(
    (
        *(option.name for option in TOPIC),
        "nameservers",
        "auto.create.topics.enable",
        "num.partitions",
        "partitions.max",
        "net.connections.per.ip.max",
        "net.idle.ms",
        "net.frame.timeout.ms",
        "net.drain.ms",
        "fetch.wait.max.ms",
        "fetch.bytes.max",
        "log.cleanup.hour",
        "disk.clean.percent",
        "disk.force.percent",
        "disk.full.percent",
        "group.min.session.timeout.ms",
        "group.max.session.timeout.ms",
        "group.initial.rebalance.delay.ms",
        "group.consumer.migration.policy",
        "transaction.max.timeout.ms",
        "transactional.id.expiration.ms",
        "transactional.ids.max",
        "group.share.max.size",
        *(f"group.{option.name}" for option in GROUP),
    )
)
"""What an admin client may change of a broker that runs: nothing that names a file or a command, no
address to listen on, and nothing that sizes a structure which is made at the start."""

_HEARTBEAT, _SESSION = ".heartbeat.interval.ms", ".session.timeout.ms"


@dataclass(slots=True)
class Config:
    """A broker's options, typed, and the topic defaults that go with them.

    There is one for a broker. Those in `DYNAMIC` change in it while the broker runs, so nobody keeps copies.
    """

    node_id: int
    cluster_name: str
    nameservers: tuple[str, ...]
    store: str
    store_token_file: str
    rack: str
    host_name: str
    replace: bool
    cluster_lease_ms: int
    cluster_lease_renew_ms: int
    forward_listen: str
    forward_advertise: str
    etcd_compact: bool
    auto_create_topics_enable: bool
    num_partitions: int
    partitions_max: int
    net_connections_max: int
    net_connections_per_ip_max: int
    net_frame_bytes_max: int
    net_request_bytes_max: int
    net_inflight_bytes_max: int
    net_connection_requests_max: int
    net_connection_send_bytes_max: int
    produce_waiting_bytes_max: int
    net_idle_ms: int
    net_frame_timeout_ms: int
    net_drain_ms: int
    loop_stall_limit_ms: int
    fetch_wait_max_ms: int
    fetch_bytes_max: int
    fetch_sessions_max: int
    fetch_sessions_partitions_max: int
    log_files_open_max: int
    log_sync_threads: int
    log_read_threads: int
    log_checkpoint_interval_ms: int
    log_retention_check_interval_ms: int
    log_compaction_check_interval_ms: int
    log_cleanup_hour: int
    disk_clean_percent: int
    disk_force_percent: int
    disk_full_percent: int
    producer_id_expiration_ms: int
    producer_ids_per_partition_max: int
    group_min_session_timeout_ms: int
    group_max_session_timeout_ms: int
    group_initial_rebalance_delay_ms: int
    group_consumer_session_timeout_ms: int
    group_consumer_heartbeat_interval_ms: int
    group_members_bytes_max: int
    group_offsets_bytes_max: int
    group_consumer_migration_policy: str
    transaction_max_timeout_ms: int
    transactional_id_expiration_ms: int
    transactional_ids_max: int
    group_share_session_timeout_ms: int
    group_share_heartbeat_interval_ms: int
    group_share_max_size: int
    group_share_max_share_sessions: int
    group_share_partition_max_record_locks: int
    group_share_record_lock_duration_ms: int
    group_share_delivery_count_limit: int
    group_share_auto_offset_reset: str
    group_share_isolation_level: str
    group_streams_session_timeout_ms: int
    group_streams_heartbeat_interval_ms: int
    group_streams_num_standby_replicas: int
    group_streams_initial_rebalance_delay_ms: int
    group_streams_max_size: int
    offsets_topic_num_partitions: int
    transaction_state_log_num_partitions: int
    share_coordinator_state_topic_num_partitions: int
    given: Mapping[str, str]
    """The options somebody set, as text, by name; the rest are defaults."""

    def change(self, given: Mapping[str, str]) -> None:
        """Takes over what `given` says of options in `DYNAMIC`."""
        changed = configure(given)
        for name in DYNAMIC & SERVER_BY_NAME.keys():
            attribute = SERVER_BY_NAME[name].attribute
            setattr(self, attribute, getattr(changed, attribute))
        self.given = changed.given

    def topic(self, overrides: Mapping[str, str]) -> TopicConfig:
        """The effective options of a topic with these overrides."""
        values = {option.attribute: option.default for option in TOPIC}
        for source in (self.given, overrides):
            for name, text in source.items():
                if name in TOPIC_BY_NAME:
                    values[TOPIC_BY_NAME[name].attribute] = TOPIC_BY_NAME[name].parse(text)
        return TopicConfig(**values)


def configure(given: Mapping[str, object] | None = None) -> Config:
    """A Config from names and values, all checked; unknown names get the closest right one."""
    given = given or {}
    values = {option.attribute: option.default for option in SERVER}
    texts: dict[str, str] = {}
    for name, value in given.items():
        option = find(name, (*SERVER, *TOPIC))
        parsed = option.parse(value)
        texts[option.name] = option.text(parsed)
        if option.name in SERVER_BY_NAME:
            values[option.attribute] = parsed
    return Config(**values, given=texts)


def check_sessions(values: Mapping[str, Any]) -> None:
    """Raises ConfigError if members would send heartbeats less often than their session allows."""
    for name, interval_ms in values.items():
        session = name.removesuffix(_HEARTBEAT) + _SESSION
        if name.endswith(_HEARTBEAT) and interval_ms >= values[session]:
            raise ConfigError(f"{name}={interval_ms} must be less than {session}={values[session]}")
