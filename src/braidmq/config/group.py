"""Options of groups: classic and server-assigned, share groups, and groups of Kafka Streams applications."""

from __future__ import annotations

from braidmq.config.option import MS_PER_DAY, Option, OptionType
from braidmq.reset import parse_reset


def _complaint_about_reset(text: str) -> str | None:
    try:
        parse_reset(text)
    except ValueError as error:
        return str(error)
    return None


CONSUMER_GROUPS: tuple[Option, ...] = (
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
        "How long an empty classic group waits for more members before it assigns partitions.",
        "ms",
        low=0,
        high=MS_PER_DAY,
    ),
    Option(
        "group.consumer.session.timeout.ms",
        OptionType.INT,
        45_000,
        "A member of a server-assigned group that sends no heartbeat for this long is removed.",
        "ms",
        low=1000,
        high=MS_PER_DAY,
    ),
    Option(
        "group.consumer.heartbeat.interval.ms",
        OptionType.INT,
        5_000,
        "Longest time between heartbeats of a member of a server-assigned group, and so before it learns what"
        " to read; while there are few members they send one every second.",
        "ms",
        low=100,
        high=MS_PER_DAY,
    ),
    Option(
        "group.members.bytes.max",
        OptionType.LONG,
        134_217_728,
        "Memory for the members of all groups together; past it new members are refused.",
        "bytes",
        low=1_000_000,
        high=2**40,
    ),
    Option(
        "group.offsets.bytes.max",
        OptionType.LONG,
        536_870_912,
        "Memory for committed offsets (about 350 bytes each); past it a group can commit only where"
        " it has committed before.",
        "bytes",
        low=1_000_000,
        high=2**40,
    ),
    Option(
        "group.consumer.migration.policy",
        OptionType.STRING,
        "bidirectional",
        "Which groups with members may change their protocol: when the first member with the new protocol"
        " joins (upgrade), when the last one leaves (downgrade).",
        choices=("bidirectional", "upgrade", "downgrade", "disabled"),
    ),
)

SHARE_GROUPS: tuple[Option, ...] = (
    Option(
        "group.share.session.timeout.ms",
        OptionType.INT,
        45_000,
        "A member of a share group that sends no heartbeat for this long is removed.",
        "ms",
        low=1000,
        high=MS_PER_DAY,
    ),
    Option(
        "group.share.heartbeat.interval.ms",
        OptionType.INT,
        5_000,
        "Time between heartbeats of a member of a share group; also how soon it learns of new partitions.",
        "ms",
        low=100,
        high=MS_PER_DAY,
    ),
    Option(
        "group.share.max.size",
        OptionType.INT,
        200,
        "Most members of a share group.",
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
        "How long a consumer of a share group holds a record before another one gets it.",
        "ms",
        low=100,
        high=MS_PER_DAY,
    ),
    Option(
        "group.share.delivery.count.limit",
        OptionType.INT,
        5,
        "How often a record is delivered in a share group before the group gives up on it.",
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
)

STREAMS_GROUPS: tuple[Option, ...] = (
    Option(
        "group.streams.session.timeout.ms",
        OptionType.INT,
        45_000,
        "A member of a streams group that sends no heartbeat for this long is removed.",
        "ms",
        low=1000,
        high=MS_PER_DAY,
    ),
    Option(
        "group.streams.heartbeat.interval.ms",
        OptionType.INT,
        5_000,
        "Longest time between heartbeats of a member of a streams group; while there are few members they"
        " send one every second.",
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
        "Most members of a streams group; each thread of an application is one.",
        low=1,
        high=100_000,
    ),
)
