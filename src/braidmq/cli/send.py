"""`braid send`: lines, files or values into a topic.

A slow pipe (`tail -f log | braid send logs`) is sent as it arrives: whenever there is nothing more to read,
the buffered records are flushed. A fast one fills whole batches.
"""

from __future__ import annotations

import os
import select
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from braidmq.cli.broker import Broker
from braidmq.cli.mistake import UserMistake
from braidmq.cli.options import AcksChoice, AcksOption, Compression, CompressionOption, parse_settings
from braidmq.cli.output import AsJson, print_json

if TYPE_CHECKING:
    from braidmq.client.producer import Receipt

READ_BYTES = 1 << 16
EXAMPLES = (
    "echo hello | braid send greetings",
    "braid send orders --key table-7 --value 'one coffee' -H source=till",
    "braid send orders orders.txt -K : -z zstd",
    "braid send photos --whole *.jpg",
)


@dataclass(frozen=True, slots=True)
class Line:
    """One value to send; `pause` if nothing more was waiting after it."""

    value: bytes
    pause: bool = False


def send(
    broker: Broker,
    topic: Annotated[str, typer.Argument(metavar="TOPIC")],
    files: Annotated[
        list[Path] | None, typer.Argument(metavar="FILE", help="Read lines from files instead of stdin.")
    ] = None,
    value: Annotated[
        list[str] | None, typer.Option("--value", "-v", help="Send this value. May repeat.")
    ] = None,
    whole: Annotated[bool, typer.Option("--whole", help="Send each file as one record.")] = False,
    key: Annotated[str | None, typer.Option("--key", "-k", help="Key of every record.")] = None,
    key_separator: Annotated[
        str | None, typer.Option("--key-separator", "-K", metavar="SEP", help="Lines are KEY SEP VALUE.")
    ] = None,
    header: Annotated[
        list[str] | None,
        typer.Option("--header", "-H", metavar="NAME=VALUE", help="A header of every record. May repeat."),
    ] = None,
    partition: Annotated[
        int | None, typer.Option("--partition", min=0, help="Write to this partition. Default: by key.")
    ] = None,
    acks: AcksOption = AcksChoice.ALL,
    compression: CompressionOption = Compression.NONE,
    as_json: AsJson = False,
) -> None:
    """Send records: lines of stdin, lines of files, whole files, or values."""
    from braidmq.client.producer import Producer

    if key is not None and key_separator is not None:
        raise UserMistake("--key and --key-separator cannot be used together")
    if whole and not files:
        raise UserMistake("--whole sends files; name at least one FILE")
    headers = [(name, content.encode()) for name, content in parse_settings(header).items()]
    sent = _Count()
    with (
        broker.connect() as cluster,
        Producer(cluster, acks=acks.acks, codec=compression.codec) as producer,
    ):
        for line in _lines(value, files or [], whole):
            own_key, content = _split(line.value, key, key_separator)
            producer.send(
                topic, content, key=own_key, headers=headers, partition=partition, on_delivery=sent.delivered
            )
            if line.pause:
                producer.flush()
    sent.report(topic, as_json)


class _Count:
    """Records acknowledged, by partition."""

    def __init__(self) -> None:
        self.by_partition: Counter[int] = Counter()

    def delivered(self, receipt: Receipt) -> None:
        if receipt.error is None:
            self.by_partition[receipt.at.partition] += 1

    def report(self, topic: str, as_json: bool) -> None:
        total = self.by_partition.total()
        if as_json:
            print_json({"topic": topic, "sent": total, "partitions": dict(sorted(self.by_partition.items()))})
        else:
            print(f"sent {total:,} record{'' if total == 1 else 's'} to {topic}", file=sys.stderr)


def _split(line: bytes, key: str | None, separator: str | None) -> tuple[bytes | None, bytes]:
    if separator is None:
        return (key.encode() if key is not None else None), line
    own_key, found, content = line.partition(separator.encode())
    if not found:
        raise UserMistake(f"no {separator!r} in the line {line[:60].decode(errors='replace')!r}")
    return own_key, content


def _lines(values: list[str] | None, files: list[Path], whole: bool) -> Iterator[Line]:
    if values:
        yield from (Line(value.encode()) for value in values)
    if not values and not files:
        yield from _stdin_lines()
    for file in files:
        try:
            yield from [Line(file.read_bytes())] if whole else _file_lines(file)
        except OSError as error:
            raise UserMistake(f"cannot read {file}: {error.strerror}") from None


def _file_lines(file: Path) -> Iterable[Line]:
    with file.open("rb") as stream:
        for line in stream:
            yield Line(line.removesuffix(b"\n"))


def _stdin_lines() -> Iterator[Line]:
    left = b""
    while chunk := os.read(sys.stdin.fileno(), READ_BYTES):
        *whole_lines, left = (left + chunk).split(b"\n")
        more = bool(select.select([sys.stdin], [], [], 0)[0])
        for index, line in enumerate(whole_lines):
            yield Line(line, pause=not more and index == len(whole_lines) - 1)
    if left:
        yield Line(left)
