"""Options of topics, and the typed form in which the broker uses them.

The same names given to the broker (`-o retention.ms=…`) become the defaults of all its topics.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from braidmq.config.option import INT64_MAX, MS_PER_DAY, NO_LIMIT, ConfigError, Option, OptionType, find


class Flush(StrEnum):
    """What an acks=all answer means on one machine."""

    SYNC = "sync"
    ASYNC = "async"


class TimestampType(StrEnum):
    CREATE = "CreateTime"
    APPEND = "LogAppendTime"


TOPIC: tuple[Option, ...] = (
    Option(
        "cleanup.policy",
        OptionType.LIST,
        ("delete",),
        "What happens to old records: delete by age and size, compact to the newest of each key, or both.",
        choices=("delete", "compact"),
    ),
    Option(
        "compression.type",
        OptionType.STRING,
        "producer",
        "Codec on disk; `producer` keeps what the client sent, anything else is recompressed by the broker.",
        choices=("producer", "uncompressed", "gzip", "snappy", "lz4", "zstd"),
    ),
    Option(
        "delete.retention.ms",
        OptionType.LONG,
        MS_PER_DAY,
        "How long tombstones stay in a compacted topic.",
        "ms",
        low=0,
        high=INT64_MAX,
    ),
    Option(
        "file.delete.delay.ms",
        OptionType.LONG,
        60_000,
        "Time between dropping a segment and removing its file.",
        "ms",
        low=0,
        high=INT64_MAX,
    ),
    Option(
        "flush",
        OptionType.STRING,
        Flush.SYNC.value,
        "sync: acks=all is answered, and records become readable, once they are on disk (group commit);"
        " async: once they are in the page cache, flushed by flush.messages and flush.ms.",
        choices=("sync", "async"),
    ),
    Option(
        "flush.messages",
        OptionType.LONG,
        INT64_MAX,
        "With flush=async: records after which a flush is forced.",
        low=1,
        high=INT64_MAX,
    ),
    Option(
        "flush.ms",
        OptionType.LONG,
        INT64_MAX,
        "With flush=async: age of the oldest unflushed record that forces a flush.",
        "ms",
        low=0,
        high=INT64_MAX,
    ),
    Option(
        "index.interval.bytes",
        OptionType.INT,
        4_096,
        "Log bytes between two index entries.",
        "bytes",
        low=64,
        high=2**31 - 1,
    ),
    Option(
        "max.message.bytes",
        OptionType.INT,
        1_048_588,
        "Largest record batch accepted.",
        "bytes",
        low=64,
        high=2**31 - 1,
    ),
    Option(
        "message.timestamp.type",
        OptionType.STRING,
        TimestampType.CREATE.value,
        "Whose clock stamps a record: the producer's or the broker's.",
        choices=("CreateTime", "LogAppendTime"),
    ),
    Option(
        "message.timestamp.before.max.ms",
        OptionType.LONG,
        INT64_MAX,
        "A record may be stamped this long before the broker's time.",
        "ms",
        low=0,
        high=INT64_MAX,
    ),
    Option(
        "message.timestamp.after.max.ms",
        OptionType.LONG,
        3_600_000,
        "A record may be stamped this long after the broker's time; a wild future stamp would never expire.",
        "ms",
        low=0,
        high=INT64_MAX,
    ),
    Option(
        "max.compaction.lag.ms",
        OptionType.LONG,
        INT64_MAX,
        "Records are compacted when they are older than this, however few there are, so that what was deleted"
        " is gone by then.",
        "ms",
        low=1,
        high=INT64_MAX,
    ),
    Option(
        "min.cleanable.dirty.ratio",
        OptionType.DOUBLE,
        0.5,
        "Share of a compacted log not yet compacted at which a round is worth it.",
        low=0.0,
        high=1.0,
    ),
    Option(
        "min.compaction.lag.ms",
        OptionType.LONG,
        0,
        "Records younger than this are never compacted away.",
        "ms",
        low=0,
        high=INT64_MAX,
    ),
    Option(
        "min.insync.replicas",
        OptionType.INT,
        1,
        "Copies that must hold a record before acks=all is answered.",
        low=1,
        high=32_767,
    ),
    Option(
        "retention.bytes",
        OptionType.LONG,
        NO_LIMIT,
        "Size per partition past which the oldest segments are deleted; -1: no limit.",
        "bytes",
        low=-1,
        high=INT64_MAX,
    ),
    Option(
        "retention.ms",
        OptionType.LONG,
        7 * MS_PER_DAY,
        "Age past which segments are deleted; -1: never.",
        "ms",
        low=-1,
        high=INT64_MAX,
    ),
    Option(
        "segment.bytes",
        OptionType.INT,
        1_073_741_824,
        "Size at which a segment is closed and the next begun.",
        "bytes",
        low=1024,
        high=2**31 - 1,
    ),
    Option(
        "segment.ms",
        OptionType.LONG,
        7 * MS_PER_DAY,
        "Age at which a segment is closed even if small, so that retention can reach it.",
        "ms",
        low=1,
        high=INT64_MAX,
    ),
    Option(
        "unclean.leader.election.enable",
        OptionType.BOOL,
        False,
        "Let a replica that may lack acked records lead; availability over durability.",
    ),
)

TOPIC_BY_NAME: Mapping[str, Option] = {option.name: option for option in TOPIC}

BROKER_NAMES: Mapping[str, str] = {
    "cleanup.policy": "log.cleanup.policy",
    "delete.retention.ms": "log.cleaner.delete.retention.ms",
    "file.delete.delay.ms": "log.segment.delete.delay.ms",
    "flush.messages": "log.flush.interval.messages",
    "flush.ms": "log.flush.interval.ms",
    "index.interval.bytes": "log.index.interval.bytes",
    "max.message.bytes": "message.max.bytes",
    "message.timestamp.type": "log.message.timestamp.type",
    "message.timestamp.before.max.ms": "log.message.timestamp.before.max.ms",
    "message.timestamp.after.max.ms": "log.message.timestamp.after.max.ms",
    "max.compaction.lag.ms": "log.cleaner.max.compaction.lag.ms",
    "min.cleanable.dirty.ratio": "log.cleaner.min.cleanable.ratio",
    "min.compaction.lag.ms": "log.cleaner.min.compaction.lag.ms",
    "retention.bytes": "log.retention.bytes",
    "retention.ms": "log.retention.ms",
    "segment.bytes": "log.segment.bytes",
    "segment.ms": "log.roll.ms",
}
"""What Kafka calls the broker's default of a topic option, where that is another name: admin clients read and
change a broker's options by these."""


@dataclass(frozen=True, slots=True)
class TopicConfig:
    """A topic's options, typed: its own overrides on the broker's defaults."""

    cleanup_policy: tuple[str, ...]
    compression_type: str
    delete_retention_ms: int
    file_delete_delay_ms: int
    flush: str
    flush_messages: int
    flush_ms: int
    index_interval_bytes: int
    max_message_bytes: int
    message_timestamp_type: str
    message_timestamp_before_max_ms: int
    message_timestamp_after_max_ms: int
    max_compaction_lag_ms: int
    min_cleanable_dirty_ratio: float
    min_compaction_lag_ms: int
    min_insync_replicas: int
    retention_bytes: int
    retention_ms: int
    segment_bytes: int
    segment_ms: int
    unclean_leader_election_enable: bool

    @property
    def compacts(self) -> bool:
        return "compact" in self.cleanup_policy

    @property
    def deletes(self) -> bool:
        """Whether age and size end a segment; a log that is only compacted keeps the newest of each key."""
        return "delete" in self.cleanup_policy

    @property
    def segment_age_max_ms(self) -> int:
        """Age at which a segment is closed: only then can it be compacted."""
        return min(self.segment_ms, self.max_compaction_lag_ms) if self.compacts else self.segment_ms


def check_topic_overrides(overrides: Mapping[str, str]) -> None:
    """Raises ConfigError when a topic option is unknown or its value invalid."""
    values = {name: find(name, TOPIC).parse(text) for name, text in overrides.items()}
    least_ms = values.get("min.compaction.lag.ms", 0)
    if least_ms > values.get("max.compaction.lag.ms", INT64_MAX):
        raise ConfigError(f"min.compaction.lag.ms={least_ms} must not be more than max.compaction.lag.ms")
