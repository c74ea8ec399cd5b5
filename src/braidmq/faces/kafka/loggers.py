"""The loggers of this process as options: their levels, by Kafka's names for them (KIP-412)."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from braidmq.config import ConfigError, Option, OptionType, find
from braidmq.wire.errors import ApiError, ErrorCode

ROOT = "root"
LEVELS = {
    "FATAL": logging.CRITICAL,
    "ERROR": logging.ERROR,
    "WARN": logging.WARNING,
    "INFO": logging.INFO,
    "DEBUG": logging.DEBUG,
    "TRACE": 5,
}
"""From the quietest to the one that says most."""
_OWN = "braid"
"""Loggers of Braid begin with this; those of libraries follow the root."""


class Loggers:
    """Braid's loggers as they are when this is made, and the root."""

    def __init__(self) -> None:
        known = logging.Logger.manager.loggerDict
        names = sorted(name for name in known if name.split(".")[0] == _OWN)
        self._loggers = {_OWN: logging.getLogger(_OWN), **{name: logging.getLogger(name) for name in names}}
        self._loggers[ROOT] = logging.getLogger()
        self.options = tuple(
            Option(
                name, OptionType.STRING, "", f"What the logger {name} lets through.", choices=tuple(LEVELS)
            )
            for name in self._loggers
        )

    def level(self, name: str) -> str:
        """The level of the logger: its own, or that of its nearest parent that has one."""
        effective = self._loggers[name].getEffectiveLevel()
        return next((word for word, level in LEVELS.items() if level <= effective), "TRACE")

    def set_levels(self) -> dict[str, str]:
        """The loggers that have a level of their own."""
        return {name: self.level(name) for name, logger in self._loggers.items() if logger.level}

    def check(self, levels: Mapping[str, str]) -> None:
        """Raises ApiError unless these can be all the levels that are set."""
        try:
            for name, level in levels.items():
                find(name, self.options).parse(level)
        except ConfigError as error:
            raise ApiError(ErrorCode.INVALID_CONFIG, str(error)) from None
        if ROOT not in levels:
            raise ApiError(ErrorCode.INVALID_REQUEST, "the root logger always has a level; set another")

    def change(self, levels: Mapping[str, str]) -> None:
        """Sets these levels; the other loggers follow the next one further up."""
        self.check(levels)
        for name, logger in self._loggers.items():
            wanted = LEVELS[levels[name]] if name in levels else logging.NOTSET
            if logger.level != wanted:
                logger.setLevel(wanted)
