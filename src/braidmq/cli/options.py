"""Options that several commands share, and how their text becomes values."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from braidmq.cli.mistake import UserMistake

if TYPE_CHECKING:
    from braidmq.client.producer import Acks
    from braidmq.wire.compress import Codec

TopicOptions = Annotated[
    list[str] | None,
    typer.Option("--option", "-o", metavar="NAME=VALUE", help="A topic option. May repeat."),
]
From = Annotated[
    str | None,
    typer.Option("--from", metavar="TIME", help="Start at this time: 2026-11-15T21:00, or 10m, 2h, 1d ago."),
]
Until = Annotated[str | None, typer.Option("--until", metavar="TIME", help="Stop before this time.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show what would happen; change nothing.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask. Required when stdin is not a terminal.")]


class AcksChoice(StrEnum):
    """acks as people write it."""

    NONE = "0"
    LEADER = "1"
    ALL = "all"

    @property
    def acks(self) -> Acks:
        from braidmq.client.producer import Acks

        return {"0": Acks.NONE, "1": Acks.LEADER, "all": Acks.ALL}[self.value]


class Compression(StrEnum):
    NONE = "none"
    GZIP = "gzip"
    SNAPPY = "snappy"
    LZ4 = "lz4"
    ZSTD = "zstd"

    @property
    def codec(self) -> Codec:
        from braidmq.wire.compress import Codec

        return Codec[self.name]


AcksOption = Annotated[
    AcksChoice, typer.Option("--acks", help="When the broker answers: never, once written, once durable.")
]
CompressionOption = Annotated[Compression, typer.Option("--compression", "-z", help="Codec of the batches.")]


def parse_settings(settings: Iterable[str] | None) -> dict[str, str]:
    """`name=value` pairs as a mapping."""
    parsed = {}
    for setting in settings or ():
        name, equals, value = setting.partition("=")
        if not equals or not name.strip():
            raise UserMistake(f"{setting!r} is not of the form NAME=VALUE")
        parsed[name.strip()] = value.strip()
    return parsed


def require_terminal_or(yes: bool) -> None:
    """UserMistake if there is nobody to ask; called before anything is looked up or shown."""
    if not yes and not sys.stdin.isatty():
        raise UserMistake("this command asks before it changes anything; without a terminal, add --yes")


def confirm(yes: bool, question: str) -> None:
    """Returns if the user agrees, or has with --yes; otherwise ends the command with exit code 1."""
    require_terminal_or(yes)
    if yes:
        return
    # Not typer's: it writes a part of the question to stdout, into the JSON of the result.
    print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        print("nothing was changed", file=sys.stderr)
        raise typer.Exit(1)
