"""What an option is: its name, unit, default and bounds, why one would change it, and how its text is read.

Values arrive as text from a file, the environment, the command line or an admin client. All of them pass
through `Option.parse`, the only place that decides what is valid.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

MS_PER_DAY = 86_400_000
NO_LIMIT = -1
INT64_MAX = 2**63 - 1


class ConfigError(Exception):
    """An option's name or value that cannot be used; the text says what would be right."""


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
                raise ConfigError(f"{self.name}={text} must be true or false")
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


def find(name: str, options: Iterable[Option]) -> Option:
    """The option called `name`, or ConfigError with the closest name there is."""
    by_name = {option.name: option for option in options}
    if name in by_name:
        return by_name[name]
    import difflib  # only mistakes pay for it; start-up is part of the promise

    close = difflib.get_close_matches(name, by_name, n=1)
    hint = f"; did you mean {close[0]}?" if close else "; `braid config` lists them all"
    raise ConfigError(f"unknown option {name}{hint}")
