"""Every option Braid has, in one place: name, unit, default, bounds and why one would change it.

`SERVER` holds what belongs to a broker process. `TOPIC` holds what a topic may override; the same names
given to the broker (`-o retention.ms=…`) become the defaults of all its topics. `GROUP` holds what a single
group may have of its own.
The names are Kafka's wherever Kafka has the option. Values arrive as text from a file, the
environment (`BRAID_RETENTION_MS`), the command line or an admin client, and pass through `Option.parse`,
which is the only place that decides what is valid.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from braidmq.reset import parse_reset

MS_PER_DAY = 86_400_000
NO_LIMIT = -1
INT64_MAX = 2**63 - 1


class ConfigError(Exception):
    """An option's name or value that cannot be used; the text says what would be right."""


class Flush(StrEnum):
    """What an acks=all answer means on one machine."""

    SYNC = "sync"
    ASYNC = "async"


class TimestampType(StrEnum):
    CREATE = "CreateTime"
    APPEND = "LogAppendTime"


class OptionType(StrEnum):
    """How an option's text is read, in the words DescribeConfigs uses for it."""

    INT = "int"
    LONG = "long"
    BOOL = "boolean"
    STRING = "string"
    LIST = "list"
    DOUBLE = "double"


@dataclass(frozen=True, slots=True)
class Option:
    """One option: what it is called, what it may be, and the sentence that explains it."""

    name: str
    kind: OptionType
    default: Any
    why: str
    unit: str = ""
    low: float | None = None
    high: float | None = None
    choices: tuple[str, ...] = ()
    form: str = ""
    """The permitted values in words, where neither bounds nor choices say it."""
    check: Callable[[Any], str | None] | None = None

    @property
    def attribute(self) -> str:
        return self.name.replace(".", "_")

    @property
    def environment(self) -> str:
        return "BRAID_" + self.name.replace(".", "_").upper()

    def parse(self, text: object) -> Any:
        """The typed value of `text`, or ConfigError naming the option, the value and the bounds."""
        value = self._convert(text)
        if value != value:
            raise ConfigError(f"{self.name}={text} is not a number; it must be {self.bounds()}")
        if (self.low is not None and value < self.low) or (self.high is not None and value > self.high):
            raise ConfigError(f"{self.name}={text} is out of bounds; it must be {self.bounds()}")
        if self.choices:
            for item in value if self.kind is OptionType.LIST else (value,):
                if item not in self.choices:
                    raise ConfigError(f"{self.name}={text} is not one of {', '.join(self.choices)}")
        if self.check is not None and (complaint := self.check(value)):
            raise ConfigError(f"{self.name}={text}: {complaint}")
        return value

    def _convert(self, text: object) -> Any:
        if self.kind is OptionType.LIST:
            items = text if isinstance(text, (list, tuple)) else str(text).split(",")
            return tuple(str(item).strip() for item in items if str(item).strip())
        if self.kind is OptionType.BOOL:
            lowered = str(text).strip().lower()
            if lowered not in ("true", "false"):
                raise ConfigError(f"{self.name}={text} is not true or false")
            return lowered == "true"
        if self.kind is OptionType.STRING:
            return str(text)
        try:
            return float(str(text)) if self.kind is OptionType.DOUBLE else int(str(text).replace("_", ""))
        except ValueError:
            raise ConfigError(f"{self.name}={text} is not a number; it must be {self.bounds()}") from None

    def bounds(self) -> str:
        """The permitted values in words, for messages, `braid config` and the docs."""
        if self.choices or self.form:
            return self.form or " | ".join(self.choices)
        if self.low is not None and self.high is not None:
            return f"from {self.low:,} to {self.high:,}"
        return f"at least {self.low:,}" if self.low is not None else self.kind.value

    def text(self, value: Any) -> str:
        """The value as it is written in files and sent to admin clients."""
        if self.kind is OptionType.BOOL:
            return "true" if value else "false"
        return ",".join(value) if self.kind is OptionType.LIST else str(value)


def _complaint_about_reset(text: str) -> str | None:
    try:
        parse_reset(text)
    except ValueError as error:
        return str(error)
    return None


SERVER: tuple[Option, ...] = (
    Option("node.id", OptionType.INT, 1, "This broker's number; unique in a cluster.", low=0, high=2**31 - 1),
    Option(
        "auto.create.topics.enable",
        OptionType.BOOL,
        True,
        "Create a topic when a client first asks for it; turn off where topics are managed by hand.",
    ),
    Option(
        "num.partitions",
        OptionType.INT,
        4,
        "Partitions of a topic whose creator does not say.",
        low=1,
        high=10_000,
    ),
    Option(
        "partitions.max",
        OptionType.INT,
        100_000,
        "Partitions this broker holds at most; a guard against a runaway creator.",
        low=1,
        high=10_000_000,
    ),
    Option(
        "net.connections.max",
        OptionType.INT,
        16_000,
        "Connections held at once; more are closed as they arrive. Capped by the open-file limit.",
        low=1,
        high=1_000_000,
    ),
    Option(
        "net.connections.per.ip.max",
        OptionType.INT,
        16_000,
        "Connections from one address; lower it so that one host cannot take every place.",
        low=1,
        high=1_000_000,
    ),
    Option(
        "net.frame.bytes.max",
        OptionType.INT,
        104_857_600,
        "Largest Produce request accepted; a longer one closes the connection.",
        "bytes",
        low=1024,
        high=2**31 - 1,
    ),
    Option(
        "net.request.bytes.max",
        OptionType.INT,
        16_777_216,
        "Largest request accepted that is not Produce: what it lists takes many times its size in memory."
        " A longer one closes the connection.",
        "bytes",
        low=65_536,
        high=2**31 - 1,
    ),
    Option(
        "net.inflight.bytes.max",
        OptionType.LONG,
        268_435_456,
        "Bytes of half-received requests held for all connections; past it, reading pauses.",
        "bytes",
        low=1_048_576,
        high=2**40,
    ),
    Option(
        "net.connection.requests.max",
        OptionType.INT,
        1_000,
        "Requests of one connection that may wait for an answer; past it, reading pauses.",
        low=1,
        high=1_000_000,
    ),
    Option(
        "net.connection.send.bytes.max",
        OptionType.INT,
        4_194_304,
        "Answers queued to a client that does not read; past it, its requests are not read.",
        "bytes",
        low=4096,
        high=2**31 - 1,
    ),
    Option(
        "produce.waiting.bytes.max",
        OptionType.LONG,
        134_217_728,
        "Batches held in memory until their coordinator lets them in, their partition is open, or those"
        " before them are recompressed; past it, more are refused with a code that producers retry.",
        "bytes",
        low=1_048_576,
        high=2**40,
    ),
    Option(
        "net.idle.ms",
        OptionType.LONG,
        600_000,
        "A connection silent for this long is closed.",
        "ms",
        low=1000,
        high=MS_PER_DAY,
    ),
    Option(
        "net.frame.timeout.ms",
        OptionType.LONG,
        60_000,
        "A request whose bytes take longer than this to arrive closes its connection.",
        "ms",
        low=100,
        high=MS_PER_DAY,
    ),
    Option(
        "net.drain.ms",
        OptionType.LONG,
        5_000,
        "Time given to answers under way when the broker stops.",
        "ms",
        low=0,
        high=600_000,
    ),
    Option(
        "loop.stall.limit.ms",
        OptionType.INT,
        200,
        "A turn of the event loop that takes longer is counted and logged with its stack. Lower it to look"
        " for what makes everybody wait; raise it on a machine that is slow for reasons of its own.",
        "ms",
        low=10,
        high=60_000,
    ),
    Option(
        "fetch.wait.max.ms",
        OptionType.LONG,
        300_000,
        "Longest wait of a fetch, whatever the client asks.",
        "ms",
        low=0,
        high=MS_PER_DAY,
    ),
    Option(
        "fetch.bytes.max",
        OptionType.INT,
        57_671_680,
        "Most bytes one fetch answer carries.",
        "bytes",
        low=1024,
        high=2**31 - 1,
    ),
    Option(
        "fetch.sessions.max",
        OptionType.INT,
        1_000,
        "Incremental fetch sessions remembered; past it the idlest is dropped and its client starts anew.",
        low=0,
        high=1_000_000,
    ),
    Option(
        "fetch.sessions.partitions.max",
        OptionType.INT,
        500_000,
        "Partitions remembered in all incremental fetch sessions together, and as many in all share sessions:"
        " what bounds their memory (some 400 bytes each).",
        low=1_000,
        high=100_000_000,
    ),
    Option(
        "log.files.open.max",
        OptionType.INT,
        1_024,
        "Segment and index files kept open; more partitions than this still work, reopening as needed.",
        low=16,
        high=1_000_000,
    ),
    Option(
        "log.sync.threads",
        OptionType.INT,
        4,
        "Threads that wait for the disk in group commits.",
        low=1,
        high=64,
    ),
    Option(
        "log.read.threads",
        OptionType.INT,
        4,
        "Threads that read what is not in memory: logs opened on first use, old bytes to be checked or sent."
        " More help a disk that serves many reads at once.",
        low=1,
        high=64,
    ),
    Option(
        "log.checkpoint.interval.ms",
        OptionType.LONG,
        5_000,
        "How often recovery points are written; shorter means less to check after a crash.",
        "ms",
        low=100,
        high=MS_PER_DAY,
    ),
    Option(
        "log.retention.check.interval.ms",
        OptionType.LONG,
        10_000,
        "How often expired segments and the disk's level are looked at.",
        "ms",
        low=100,
        high=MS_PER_DAY,
    ),
    Option(
        "log.compaction.check.interval.ms",
        OptionType.LONG,
        15_000,
        "How often compacted topics are looked at for work.",
        "ms",
        low=100,
        high=MS_PER_DAY,
    ),
    Option(
        "log.cleanup.hour",
        OptionType.INT,
        4,
        "Local hour in which retention of a day or more is applied, so that the work falls into a quiet"
        " time; -1 applies it at every check. Shorter retention and a filling disk never wait for it.",
        low=-1,
        high=23,
    ),
    Option(
        "disk.clean.percent",
        OptionType.INT,
        75,
        "Disk use at which expired segments go at once.",
        "%",
        low=1,
        high=100,
    ),
    Option(
        "disk.force.percent",
        OptionType.INT,
        85,
        "Disk use at which the oldest segments go, expired or not.",
        "%",
        low=1,
        high=100,
    ),
    Option(
        "disk.full.percent",
        OptionType.INT,
        95,
        "Disk use at which writes are refused; reads go on.",
        "%",
        low=1,
        high=100,
    ),
    Option(
        "producer.id.expiration.ms",
        OptionType.LONG,
        MS_PER_DAY,
        "An idempotent producer silent for this long is forgotten.",
        "ms",
        low=1000,
        high=365 * MS_PER_DAY,
    ),
    Option(
        "producer.ids.per.partition.max",
        OptionType.INT,
        10_000,
        "Idempotent producers remembered per partition; past it the longest silent is forgotten.",
        low=1,
        high=10_000_000,
    ),
    Option(
        "group.min.session.timeout.ms",
        OptionType.INT,
        6_000,
        "Shortest session a member of a classic group may ask for: shorter ones find a dead member sooner.",
        "ms",
        low=100,
        high=MS_PER_DAY,
    ),
    Option(
        "group.max.session.timeout.ms",
        OptionType.INT,
        1_800_000,
        "Longest session a member of a classic group may ask for.",
        "ms",
        low=100,
        high=MS_PER_DAY,
    ),
    Option(
        "group.initial.rebalance.delay.ms",
        OptionType.INT,
        3_000,
        "How long an empty classic group waits for more members before it shares partitions out.",
        "ms",
        low=0,
        high=MS_PER_DAY,
    ),
    Option(
        "group.consumer.session.timeout.ms",
        OptionType.INT,
        45_000,
        "A member of a server-assigned group that is silent for this long is out of it.",
        "ms",
        low=1000,
        high=MS_PER_DAY,
    ),
    Option(
        "group.consumer.heartbeat.interval.ms",
        OptionType.INT,
        5_000,
        "How often members of server-assigned groups report at least, and so how soon they learn what they"
        " are to read; as long as there are few of them they report every second.",
        "ms",
        low=100,
        high=MS_PER_DAY,
    ),
    Option(
        "group.members.bytes.max",
        OptionType.LONG,
        134_217_728,
        "What the members of all groups may say about themselves together; past it newcomers are refused.",
        "bytes",
        low=1_000_000,
        high=2**40,
    ),
    Option(
        "group.offsets.bytes.max",
        OptionType.LONG,
        536_870_912,
        "What committed offsets may take in memory (about 350 bytes each); past it only those that are there"
        " can be committed again.",
        "bytes",
        low=1_000_000,
        high=2**40,
    ),
    Option(
        "group.consumer.migration.policy",
        OptionType.STRING,
        "bidirectional",
        "Which groups with members may change their protocol when the first member of the new one comes"
        " (upgrade) or the last one goes (downgrade).",
        choices=("bidirectional", "upgrade", "downgrade", "disabled"),
    ),
    Option(
        "transaction.max.timeout.ms",
        OptionType.INT,
        15 * 60 * 1000,
        "The longest a producer may let a transaction stay open before it is aborted.",
        "ms",
        low=1,
        high=MS_PER_DAY,
    ),
    Option(
        "transactional.id.expiration.ms",
        OptionType.LONG,
        7 * MS_PER_DAY,
        "A transactional id without a transaction for this long is forgotten.",
        "ms",
        low=1,
        high=365 * MS_PER_DAY,
    ),
    Option(
        "transactional.ids.max",
        OptionType.INT,
        100_000,
        "Transactional ids remembered at once; past it new ones are refused.",
        low=1,
        high=10_000_000,
    ),
    Option(
        "group.share.session.timeout.ms",
        OptionType.INT,
        45_000,
        "A member of a share group that is silent for this long is out of it.",
        "ms",
        low=1000,
        high=MS_PER_DAY,
    ),
    Option(
        "group.share.heartbeat.interval.ms",
        OptionType.INT,
        5_000,
        "How often members of share groups report; also how soon they learn of new partitions.",
        "ms",
        low=100,
        high=MS_PER_DAY,
    ),
    Option(
        "group.share.max.size",
        OptionType.INT,
        200,
        "Members a share group has at most.",
        low=1,
        high=100_000,
    ),
    Option(
        "group.share.max.share.sessions",
        OptionType.INT,
        2_000,
        "Members of all share groups that read at once; more are refused until some stop.",
        low=1,
        high=1_000_000,
    ),
    Option(
        "group.share.partition.max.record.locks",
        OptionType.INT,
        2_000,
        "Records of a partition that a share group may have handed out and not settled: what bounds memory.",
        low=10,
        high=100_000,
    ),
    Option(
        "group.share.record.lock.duration.ms",
        OptionType.INT,
        30_000,
        "How long a consumer of a share group holds a record before it goes to another.",
        "ms",
        low=100,
        high=MS_PER_DAY,
    ),
    Option(
        "group.share.delivery.count.limit",
        OptionType.INT,
        5,
        "How often a record is delivered in a share group before it is given up.",
        low=1,
        high=1_000,
    ),
    Option(
        "group.share.auto.offset.reset",
        OptionType.STRING,
        "latest",
        "Where a share group begins on a partition it has not read yet: at its first record, at its end, or"
        " at the first record that is not older than an ISO 8601 duration.",
        form="earliest | latest | by_duration:PnDTnHnMn.nS",
        check=_complaint_about_reset,
    ),
    Option(
        "group.share.isolation.level",
        OptionType.STRING,
        "read_uncommitted",
        "Whether a share group gets records of transactions before they are committed, and of those that are"
        " aborted.",
        choices=("read_uncommitted", "read_committed"),
    ),
    Option(
        "group.streams.session.timeout.ms",
        OptionType.INT,
        45_000,
        "A member of a streams group that is silent for this long is out of it.",
        "ms",
        low=1000,
        high=MS_PER_DAY,
    ),
    Option(
        "group.streams.heartbeat.interval.ms",
        OptionType.INT,
        5_000,
        "How often members of streams groups report at least; as long as there are few of them they report"
        " every second.",
        "ms",
        low=100,
        high=MS_PER_DAY,
    ),
    Option(
        "group.streams.num.standby.replicas",
        OptionType.INT,
        0,
        "Copies of the state of each task that other processes of an application keep, so that one of them"
        " can take over at once.",
        low=0,
        high=10,
    ),
    Option(
        "group.streams.initial.rebalance.delay.ms",
        OptionType.INT,
        3_000,
        "How long an empty streams group waits for more members before it hands out tasks: tasks that move"
        " later restore their state.",
        "ms",
        low=0,
        high=MS_PER_DAY,
    ),
    Option(
        "group.streams.max.size",
        OptionType.INT,
        10_000,
        "Members a streams group has at most; each thread of an application is one.",
        low=1,
        high=100_000,
    ),
)

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
        "Share of a compacted log that no round has looked at yet, past which one is worth it.",
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
        "Size per partition past which the oldest segments go; -1: no limit.",
        "bytes",
        low=-1,
        high=INT64_MAX,
    ),
    Option(
        "retention.ms",
        OptionType.LONG,
        7 * MS_PER_DAY,
        "Age past which segments go; -1: never.",
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

SERVER_BY_NAME: Mapping[str, Option] = {option.name: option for option in SERVER}
TOPIC_BY_NAME: Mapping[str, Option] = {option.name: option for option in TOPIC}

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
"""What an admin client may change of a broker that runs: nothing that names a file, an address or a command,
and nothing that sizes a structure which is made at the start."""

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

_HEARTBEAT, _SESSION = ".heartbeat.interval.ms", ".session.timeout.ms"


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


@dataclass(slots=True)
class Config:
    """A broker's options, typed, and the topic defaults that go with them.

    There is one for a broker. Those in `DYNAMIC` change in it while the broker runs, so nobody keeps copies.
    """

    node_id: int
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


def check_topic_overrides(overrides: Mapping[str, str]) -> None:
    """Raises ConfigError when a topic option is unknown or its value invalid."""
    values = {name: find(name, TOPIC).parse(text) for name, text in overrides.items()}
    least_ms = values.get("min.compaction.lag.ms", 0)
    if least_ms > values.get("max.compaction.lag.ms", INT64_MAX):
        raise ConfigError(f"min.compaction.lag.ms={least_ms} is more than max.compaction.lag.ms allows")


def check_sessions(values: Mapping[str, Any]) -> None:
    """Raises ConfigError if members would be told to report less often than their session allows."""
    for name, interval_ms in values.items():
        session = name.removesuffix(_HEARTBEAT) + _SESSION
        if name.endswith(_HEARTBEAT) and interval_ms >= values[session]:
            raise ConfigError(f"{name}={interval_ms} is not less than {session}={values[session]}")


def find(name: str, options: Iterable[Option]) -> Option:
    """The option called `name`, or ConfigError with the closest name there is."""
    by_name = {option.name: option for option in options}
    if name in by_name:
        return by_name[name]
    import difflib  # only mistakes pay for it; start-up is part of the promise

    close = difflib.get_close_matches(name, by_name, n=1)
    hint = f"; did you mean {close[0]}?" if close else "; `braid config` lists them all"
    raise ConfigError(f"unknown option {name}{hint}")


def gather(
    file: Path | None = None, settings: Iterable[str] = (), environment: Mapping[str, str] | None = None
) -> dict[str, object]:
    """Options from a TOML file, then `BRAID_…` variables, then `name=value` settings; later ones win."""
    given: dict[str, object] = dict(_from_file(file)) if file is not None else {}
    environment = os.environ if environment is None else environment
    for option in (*SERVER, *TOPIC):
        if option.environment in environment:
            given[option.name] = environment[option.environment]
    for setting in settings:
        name, equals, value = setting.partition("=")
        if not equals:
            raise ConfigError(f"{setting!r} is not of the form name=value")
        given[name.strip()] = value.strip()
    return given


def _from_file(file: Path) -> Mapping[str, object]:
    import tomllib

    try:
        tree = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read {file}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file}: {error}") from None
    flat: dict[str, object] = {}
    _flatten(tree, "", flat)
    return flat


def _flatten(tree: Mapping[str, Any], prefix: str, into: dict[str, object]) -> None:
    # `flush` is both an option and the first word of others, so a table may carry its own value as "".
    for key, value in tree.items():
        name = f"{prefix}.{key}" if prefix and key else prefix or key
        if isinstance(value, dict):
            _flatten(value, name, into)
        else:
            into[name] = value
