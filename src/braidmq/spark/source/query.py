"""The options of a read, parsed and checked once.

Every mistake that can be found without a broker is found here. The object is pickled into tasks, so it has
plain values only.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from braidmq.client.consumer import Start
from braidmq.client.security import SecurityError, parse_security
from braidmq.spark.java.pattern import NotInPython, compile_java
from braidmq.spark.options import (
    DEFAULT_REQUEST_TIMEOUT_MS,
    READ_OPTIONS,
    Isolation,
    LocalLog,
    OptionError,
    Options,
    Pushdown,
    bootstrap,
)

WHAT = 'format("braid")'
STRATEGY = "startingOffsetsByTimestampStrategy"
ByPartition = Mapping[str, Mapping[int, int]]


@dataclass(frozen=True)
class Subscription:
    """Which partitions are read: topics by name or by pattern, or single partitions; exactly one is set."""

    topics: tuple[str, ...] = ()
    pattern: str | None = None
    assigned: Mapping[str, tuple[int, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class Bound:
    """Where reading begins or ends: one edge or time for all, or offsets or times by partition."""

    edge: Start | None = None
    timestamp_ms: int | None = None
    offsets: ByPartition = field(default_factory=dict)
    timestamps: ByPartition = field(default_factory=dict)


@dataclass(frozen=True)
class ReadQuery:
    """The options of a read, parsed."""

    bootstrap: str
    client_settings: Mapping[str, str] = field(repr=False)
    subscription: Subscription
    start: Bound
    end: Bound
    late_start_is_latest: bool = True
    fail_on_data_loss: bool = True
    include_headers: bool = False
    include_tag: bool = False
    isolation: Isolation = Isolation.READ_UNCOMMITTED
    local_log: LocalLog = LocalLog.AUTO
    pushdown: Pushdown = Pushdown.AUTO
    group_id: str | None = None
    group_prefix: str = "spark-braid"
    partitions_min: int | None = None
    split_records_max: int | None = None
    trigger_offsets_max: int | None = None
    trigger_offsets_min: int | None = None
    trigger_delay_max_ms: int = 900_000
    trigger_bytes_max: int | None = None
    fetch_bytes: int | None = None
    timeout_s: float = DEFAULT_REQUEST_TIMEOUT_MS / 1000

    @property
    def tasks_are_counted(self) -> bool:
        """Whether the user set the number or the size of tasks."""
        return self.partitions_min is not None or self.split_records_max is not None


def parse_query(given: Mapping[str, str], streaming: bool) -> ReadQuery:
    """The query that the options describe; OptionError if one is wrong."""
    options = Options(given, READ_OPTIONS, WHAT)
    if streaming:
        for name in ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp"):
            if name in options:
                raise OptionError(f"option {name} has no meaning in a stream, which has no end; remove it")
    try:
        parse_security(options.client_settings())
    except SecurityError as error:
        raise OptionError(f"option {error}") from None
    level = options.text("isolation", options.text("isolation.level", "read_uncommitted"))
    isolation = options.one_of("isolation", level or "", [each.value for each in Isolation])
    return ReadQuery(
        bootstrap=bootstrap(options),
        client_settings=options.client_settings(),
        subscription=_subscription(options),
        start=_bound(options, "starting", Start.LATEST if streaming else Start.EARLIEST, streaming),
        end=_bound(options, "ending", Start.LATEST, streaming),
        late_start_is_latest=options.one_of(STRATEGY, "error", ["error", "latest"]) == "latest",
        fail_on_data_loss=options.boolean("failOnDataLoss", True),
        include_headers=options.boolean("includeHeaders", False),
        include_tag=options.boolean("includeTag", False),
        isolation=Isolation(isolation),
        local_log=LocalLog(options.one_of("localLog", "auto", [each.value for each in LocalLog])),
        pushdown=Pushdown(options.one_of("pushdown", "auto", [each.value for each in Pushdown])),
        group_id=options.text("groupId", options.text("group.id")),
        group_prefix=options.text("groupIdPrefix") or "spark-braid",
        partitions_min=options.count("minPartitions"),
        split_records_max=options.count("maxRecordsPerPartition"),
        trigger_offsets_max=options.count("maxOffsetsPerTrigger"),
        trigger_offsets_min=options.count("minOffsetsPerTrigger"),
        trigger_delay_max_ms=_duration_ms(options, "maxTriggerDelay", "15m"),
        trigger_bytes_max=options.count("maxBytesPerTrigger"),
        fetch_bytes=_least(options, "max.partition.fetch.bytes", "fetch.max.bytes"),
        timeout_s=(options.count("request.timeout.ms") or DEFAULT_REQUEST_TIMEOUT_MS) / 1000,
    )


def extra_columns(given: Mapping[str, str]) -> tuple[bool, bool]:
    """Whether headers, and whether tag and message id, are columns; for batch and stream."""
    options = Options(given, READ_OPTIONS, WHAT)
    return options.boolean("includeHeaders", False), options.boolean("includeTag", False)


def _least(options: Options, *names: str) -> int | None:
    return min((given for name in names if (given := options.count(name)) is not None), default=None)


def _subscription(options: Options) -> Subscription:
    ways = [name for name in ("subscribe", "subscribePattern", "assign") if name in options]
    if len(ways) != 1:
        found = f"{' and '.join(ways)} are given" if ways else "none is given"
        raise OptionError(f"set exactly one of the options subscribe, subscribePattern and assign; {found}")
    text = options.required(ways[0], "orders")
    if ways[0] == "subscribe":
        topics = tuple(dict.fromkeys(name for each in text.split(",") if (name := each.strip())))
        if not topics:
            raise OptionError("option subscribe names no topic; write for example orders,payments")
        return Subscription(topics=topics)
    if ways[0] == "subscribePattern":
        try:
            compile_java(text)
        except NotInPython as error:
            raise OptionError(
                f"option subscribePattern is {text!r}; Braid does not support {error}"
            ) from None
        except ValueError as error:
            raise OptionError(f"option subscribePattern is not a regular expression: {error}") from None
        return Subscription(pattern=text)
    return Subscription(assigned=_assignment(text))


def _assignment(text: str) -> dict[str, tuple[int, ...]]:
    example = 'write {"orders":[0,1]}'
    parsed = _json("assign", text, example)
    assigned = {}
    for topic, partitions in parsed.items():
        if not isinstance(partitions, list) or not all(_is_whole(each) and each >= 0 for each in partitions):
            raise OptionError(f"option assign: partitions of {topic!r} are not a list of numbers; {example}")
        assigned[topic] = tuple(sorted(set(partitions)))
    if not any(assigned.values()):
        raise OptionError(f"option assign names no partition; {example}")
    return assigned


def _bound(options: Options, side: str, default: Start, streaming: bool) -> Bound:
    """As in Spark's Kafka source, one time for all wins over times by partition, which win over offsets."""
    timestamp_ms = options.count(f"{side}Timestamp", least=0)
    if timestamp_ms is not None:
        return Bound(timestamp_ms=timestamp_ms)
    name = f"{side}OffsetsByTimestamp"
    if name in options:
        return Bound(timestamps=_by_partition(name, options.text(name) or "", least=0))
    name = f"{side}Offsets"
    text = (options.text(name) or default.name).strip()
    if text.lower() in ("earliest", "latest"):
        edge = Start[text.upper()]
        if side == "ending" and edge is Start.EARLIEST:
            raise OptionError("option endingOffsets is earliest, so nothing would be read; write latest")
        if side == "starting" and edge is Start.LATEST and not streaming:
            raise OptionError("option startingOffsets is latest, so nothing would be read; write earliest")
        return Bound(edge=edge)
    offsets = _by_partition(name, text, least=-2)
    forbidden = int(Start.EARLIEST) if side == "ending" else None if streaming else int(Start.LATEST)
    for topic, partitions in offsets.items():
        for partition, offset in partitions.items():
            if offset == forbidden:
                raise OptionError(f"option {name}: {offset} for {topic}-{partition} would read nothing")
    return Bound(offsets=offsets)


def _by_partition(name: str, text: str, least: int) -> dict[str, dict[int, int]]:
    example = 'write {"orders":{"0":23,"1":-2}}'
    found: dict[str, dict[int, int]] = {}
    for topic, partitions in _json(name, text, example).items():
        if not isinstance(partitions, dict):
            raise OptionError(f"option {name}: {topic!r} needs an offset for each partition; {example}")
        found[topic] = {}
        for partition, number in partitions.items():
            if not partition.isdigit() or not _is_whole(number) or number < least:
                raise OptionError(f"option {name}: {topic!r} has {partition!r}: {number!r}; {example}")
            found[topic][int(partition)] = number
    return found


def _json(name: str, text: str, example: str) -> dict[str, Any]:
    try:
        parsed = json.loads(text)
    except ValueError:
        parsed = None
    if not isinstance(parsed, dict):
        raise OptionError(f"option {name} is {text!r}, which is not JSON of the right form; {example}")
    return parsed


def _is_whole(number: object) -> bool:
    return isinstance(number, int) and not isinstance(number, bool)


_UNITS_MS = {"ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}


def _duration_ms(options: Options, name: str, default: str) -> int:
    text = (options.text(name) or default).strip().lower()
    match = re.fullmatch(r"(\d+)\s*([a-z]*)", text)
    if match is None or (match[2] or "ms") not in _UNITS_MS:
        raise OptionError(f"option {name} is {text!r}; write a time like 500ms, 30s or 15m")
    return int(match[1]) * _UNITS_MS[match[2] or "ms"]
