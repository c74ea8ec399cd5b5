"""Where options come from: a TOML file, `BRAID_…` variables, and `name=value` on the command line."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from braidmq.config.option import ConfigError, find
from braidmq.config.server import SERVER
from braidmq.config.topic import TOPIC


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
    # Checked here as well as in `configure`, because here it is known which file to name.
    for name, value in flat.items():
        try:
            find(name, (*SERVER, *TOPIC)).parse(value)
        except ConfigError as error:
            raise ConfigError(f"{file}: {error}") from None
    return flat


def _flatten(tree: Mapping[str, Any], prefix: str, into: dict[str, object]) -> None:
    # `flush` is both an option and the first word of others, so a table may carry its own value as "".
    for key, value in tree.items():
        name = f"{prefix}.{key}" if prefix and key else prefix or key
        if isinstance(value, dict):
            _flatten(value, name, into)
        else:
            into[name] = value
