"""How a command reaches its broker: an address, and settings as Kafka's own tools take them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from braidmq.cli.mistake import UserMistake
from braidmq.cli.options import parse_settings

if TYPE_CHECKING:
    from braidmq.client.cluster import Cluster

BOOTSTRAP = "127.0.0.1:9092"
SERVERS = "bootstrap.servers"

CommandConfig = Annotated[
    Path | None,
    typer.Option(
        "--command-config",
        envvar="BRAID_COMMAND_CONFIG",
        metavar="FILE",
        help="Client settings (TLS, SASL) from a properties file, as Kafka's tools take it.",
    ),
]
ClientSettings = Annotated[
    list[str] | None,
    typer.Option(
        "-X", metavar="NAME=VALUE", help="One client setting; wins over --command-config. May repeat."
    ),
]


@dataclass(frozen=True)
class Broker:
    """--bootstrap, --command-config and -X."""

    bootstrap: Annotated[
        str,
        typer.Option(
            "--bootstrap",
            "-b",
            "--bootstrap-server",
            envvar="BRAID_BOOTSTRAP",
            metavar="HOST:PORT",
            help="A broker of the cluster.",
        ),
    ] = BOOTSTRAP
    command_config: CommandConfig = None
    client_settings: ClientSettings = None

    def connect(self) -> Cluster:
        """The cluster; nothing is sent before the first request."""
        from braidmq.client.settings import SettingError, connect

        try:
            return connect(self.bootstrap, checked_settings(self.command_config, self.client_settings))
        except SettingError as error:
            raise UserMistake(str(error)) from None

    def settings(self) -> dict[str, str]:
        """By plain names, for a job on Spark: -X may also name an option of its source or sink."""
        from braidmq.client.settings import merged

        return merged(read_command_config(self.command_config), _parsed(self.client_settings))


def checked_settings(file: Path | None, given: list[str] | None) -> dict[str, str]:
    """Settings of a client by plain names; UserMistake if one is not known."""
    from braidmq.client.settings import merged

    settings = _parsed(given)
    _check_names(settings, "-X")
    return merged(read_command_config(file), settings)


def read_command_config(file: Path | None) -> dict[str, str]:
    """The settings of a properties file; as with Kafka's tools, the address is not one of them."""
    from braidmq.client.properties import parse_properties

    if file is None:
        return {}
    try:
        found = parse_properties(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserMistake(f"--command-config {file}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise UserMistake(f"--command-config {file}: {error}") from None
    _check_names(found, f"--command-config {file}")
    return {name: text for name, text in found.items() if name != SERVERS}


def _parsed(given: list[str] | None) -> dict[str, str]:
    settings = parse_settings(given)
    if SERVERS in settings:
        raise UserMistake(f"-X {SERVERS}: use --bootstrap {settings[SERVERS]}")
    return settings


def _check_names(settings: Mapping[str, str], where: str) -> None:
    from braidmq.client.settings import SettingError, check_names

    try:
        check_names(settings, where)
    except SettingError as error:
        raise UserMistake(str(error)) from None
