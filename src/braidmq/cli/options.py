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

Bootstrap = Annotated[
    str,
    typer.Option(
        "--bootstrap", "-b", envvar="BRAID_BOOTSTRAP", metavar="HOST:PORT", help="A broker of the cluster."
    ),
]
BOOTSTRAP = "127.0.0.1:9092"
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for scripts.")]
Settings = Annotated[
    list[str] | None,
    typer.Option("--option", "-o", metavar="NAME=VALUE", help="A topic option; may be repeated."),
]


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


AcksOption = Annotated[AcksChoice, typer.Option("--acks", help="What an answer means.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
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


def confirm_unless(yes: bool, question: str) -> None:
    """Asks on a terminal; in a script, or with --yes, it goes on."""
    if not yes and sys.stdin.isatty():
        typer.confirm(question, abort=True)
