"""`braid tail`: records of a topic from an offset, from a time, or the last few, and new ones with -f."""

from __future__ import annotations

import json
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from braidmq.cli.broker import Broker
from braidmq.cli.mistake import UserMistake
from braidmq.cli.moment import format_moment, parse_moment
from braidmq.cli.options import From, Until
from braidmq.cli.output import text_of

if TYPE_CHECKING:
    from braidmq.client.cluster import Cluster
    from braidmq.client.consumer import Consumer, Message, Start

LAST_COUNT = 10
FURTHER_BACK = 8
FIELDS = ("topic", "partition", "offset", "timestamp", "time", "key", "value", "headers")
Formatter = Callable[["Message"], str]
EXAMPLES = (
    "braid tail orders",
    "braid tail orders -f --from 10m",
    "braid tail orders --offset earliest --format '{key}={value}'",
    "braid tail orders --partition 3 --offset 1200 -n 5 --json",
)


def tail(
    broker: Broker,
    topic: Annotated[str, typer.Argument(metavar="TOPIC")],
    partition: Annotated[
        list[int] | None, typer.Option("--partition", min=0, help="Only this partition. May repeat.")
    ] = None,
    offset: Annotated[
        str | None, typer.Option("--offset", metavar="N|earliest|latest", help="Start at this offset.")
    ] = None,
    since: From = None,
    until: Until = None,
    count: Annotated[int | None, typer.Option("--count", "-n", min=1, help="Show this many records.")] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Wait for new records and show them.")
    ] = False,
    layout: Annotated[
        str,
        typer.Option(
            "--format", metavar="FORMAT", help="text, value, or a template: '{offset} {key} {value}'."
        ),
    ] = "text",
    as_json: Annotated[bool, typer.Option("--json", help="Print each record as a line of JSON.")] = False,
) -> None:
    """Show records: the last 10, or those from an offset or a time on.

    A template can use topic, partition, offset, timestamp (ms), time, key, value and headers.
    """
    from braidmq.client.consumer import Consumer, Start

    if offset is not None and since is not None:
        raise UserMistake("--offset and --from cannot be used together")
    if follow and until is not None:
        raise UserMistake("--follow and --until cannot be used together")
    show = _json_line if as_json else _formatter(layout)
    with broker.connect() as cluster:
        _check_topic(cluster, topic, partition)
        consumer = Consumer(cluster, reset=Start.EARLIEST)
        chosen = partition or range(cluster.partition_count(topic))
        ends = _ends(cluster, topic, chosen, until)
        if since is not None:
            consumer.assign(topic, ends)
            consumer.seek_to_time(parse_moment(since, cluster.clock.wall_ms()))
        elif offset is not None:
            consumer.assign(topic, ends, _parse_offset(offset))
        else:
            firsts = _offsets_at(cluster, topic, chosen, Start.EARLIEST)
            _print(iter(_last(consumer, topic, firsts, ends, count or LAST_COUNT)), show)
            if not follow:
                return
            count = None
            for index, end in ends.items():
                consumer.seek(topic, index, end)
        _print(_read(consumer, topic, None if follow else ends, count), show)


def _check_topic(cluster: Cluster, topic: str, partitions: list[int] | None) -> None:
    # Looking must not create: a misspelt name would leave an empty topic.
    from braidmq.client.admin import Admin

    described = Admin(cluster).partition_indexes(topic)
    for partition in partitions or ():
        if partition not in described:
            raise UserMistake(f"{topic} has partitions 0 to {len(described) - 1}, not {partition}")


def _ends(cluster: Cluster, topic: str, partitions: Iterable[int], until: str | None) -> dict[int, int]:
    """The offset after the last record to show, by partition."""
    from braidmq.client.consumer import Start

    ends = _offsets_at(cluster, topic, partitions, Start.LATEST)
    if until is None:
        return ends
    found = _offsets_at(cluster, topic, ends, parse_moment(until, cluster.clock.wall_ms()))
    return {partition: end if found[partition] < 0 else found[partition] for partition, end in ends.items()}


def _offsets_at(
    cluster: Cluster, topic: str, partitions: Iterable[int], start: Start | int
) -> dict[int, int]:
    """By partition: its first offset, the one after its last, or that of a time (-1: no record since)."""
    from braidmq.client.cluster import TopicPartition
    from braidmq.client.offsets import list_offsets

    found = list_offsets(cluster, {TopicPartition(topic, index): int(start) for index in partitions})
    return {at.partition: spot.offset for at, spot in found.items()}


def _parse_offset(text: str) -> int:
    from braidmq.client.consumer import Start

    if text in ("earliest", "latest"):
        return Start[text.upper()]
    if not text.isdigit():
        raise UserMistake(f"--offset {text!r} is not a number, earliest or latest")
    return int(text)


def _last(
    consumer: Consumer, topic: str, firsts: dict[int, int], ends: dict[int, int], count: int
) -> list[Message]:
    """The youngest `count` records over all partitions, oldest first.

    Not every offset is a record: transactions end with one that is not, and compaction takes some. So where
    too few were found it looks further back.
    """
    found: dict[int, deque[Message]] = {}
    wanted, span = dict(ends), count
    while wanted:
        starts = {partition: max(firsts[partition], end - span) for partition, end in wanted.items()}
        for partition, start in starts.items():
            consumer.assign(topic, [partition], start)
            found[partition] = deque(maxlen=count)
        for message in _read(consumer, topic, ends, None):
            if message.partition in wanted:
                found[message.partition].append(message)
        wanted = {
            partition: end
            for partition, end in wanted.items()
            if len(found[partition]) < count and starts[partition] > firsts[partition]
        }
        span *= FURTHER_BACK
    messages = sorted(
        (message for some in found.values() for message in some),
        key=lambda message: (message.timestamp_ms, message.partition, message.offset),
    )
    return messages[-count:]


def _read(
    consumer: Consumer, topic: str, ends: dict[int, int] | None, count: int | None
) -> Iterator[Message]:
    """Records up to `ends` (None: for ever), at most `count`."""
    shown = 0
    while ends is None or any(consumer.position(topic, partition) < end for partition, end in ends.items()):
        for message in consumer.poll():
            if ends is not None and message.offset >= ends[message.partition]:
                continue
            yield message
            shown += 1
            if shown == count:
                return


def _print(messages: Iterator[Message], show: Formatter) -> None:
    for message in messages:
        sys.stdout.write(show(message) + "\n")
        sys.stdout.flush()


def _fields(message: Message) -> dict[str, Any]:
    return {
        "topic": message.topic,
        "partition": message.partition,
        "offset": message.offset,
        "timestamp": message.timestamp_ms,
        "time": format_moment(message.timestamp_ms),
        "key": text_of(message.key),
        "value": text_of(message.value),
        "headers": [[name, text_of(content)] for name, content in message.headers],
    }


def _json_line(message: Message) -> str:
    return json.dumps(_fields(message), ensure_ascii=False)


def _formatter(layout: str) -> Formatter:
    if layout == "text":
        return _text_line
    if layout == "value":
        return lambda message: text_of(message.value) or ""
    try:
        layout.format(**dict.fromkeys(FIELDS, ""))
    except (KeyError, IndexError, ValueError) as error:
        raise UserMistake(f"--format {layout!r}: {error}; it can use {', '.join(FIELDS)}") from None
    return lambda message: layout.format(**_fields(message))


def _text_line(message: Message) -> str:
    parts = [f"{format_moment(message.timestamp_ms)} {message.topic}-{message.partition}@{message.offset}"]
    if message.key is not None:
        parts.append(f"key={text_of(message.key)}")
    parts += [f"{name}={text_of(content)}" for name, content in message.headers]
    value = text_of(message.value)
    return f"{' '.join(parts)} {'(null)' if value is None else value}"
