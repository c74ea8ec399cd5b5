"""What a user may write in `.option(…)` when reading: names, meanings, checks.

The names are those of Spark's Kafka source, so that a query needs only another format to move over. Settings
of the Kafka client may have the prefix `kafka.`, as there, or not. An unknown name is an error that suggests
the closest known one: a misspelt `maxOffsetPerTrigger` would otherwise read everything at once.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable, Mapping
from enum import Enum

from braidmq.address import AddressError, parse_addresses
from braidmq.client.settings import CLIENT_OPTIONS as CLIENT_OPTIONS
from braidmq.client.settings import PREFIX as PREFIX
from braidmq.client.settings import WITHOUT_EFFECT
from braidmq.client.settings import merged as merged
from braidmq.spark.errors import UserError

DEFAULT_REQUEST_TIMEOUT_MS = 60_000


class OptionError(UserError, ValueError):
    """An option with a wrong name or value; the message names it and what would be right."""


class Isolation(Enum):
    """Which records of transactions are read."""

    READ_UNCOMMITTED = "read_uncommitted"
    READ_COMMITTED = "read_committed"


class LocalLog(Enum):
    """Whether segments on this machine are read from the disk instead of through the broker."""

    AUTO = "auto"
    ALWAYS = "always"
    NEVER = "never"


class Pushdown(Enum):
    """Whether to take the filters that Spark offers (`source/filters.py` says why that may be unsafe)."""

    AUTO = "auto"
    ALWAYS = "always"
    NEVER = "never"


READ_OPTIONS = (
    "subscribe",
    "subscribePattern",
    "assign",
    "startingOffsets",
    "startingTimestamp",
    "startingOffsetsByTimestamp",
    "startingOffsetsByTimestampStrategy",
    "endingOffsets",
    "endingTimestamp",
    "endingOffsetsByTimestamp",
    "minPartitions",
    "maxRecordsPerPartition",
    "maxOffsetsPerTrigger",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
    "maxBytesPerTrigger",
    "failOnDataLoss",
    "includeHeaders",
    "includeTag",
    "isolation",
    "localLog",
    "pushdown",
    "groupId",
    "groupIdPrefix",
)


class Options:
    """The options of one query by name; case and the prefix `kafka.` make no difference."""

    def __init__(self, given: Mapping[str, str], known: Collection[str], what: str) -> None:
        names = {name.lower(): name for name in (*known, *CLIENT_OPTIONS, *WITHOUT_EFFECT)}
        self._values: dict[str, str] = {}
        for written, text in given.items():
            plain = written.lower().removeprefix(PREFIX)
            if plain not in names:
                raise OptionError(_unknown(written, (*known, *CLIENT_OPTIONS), what))
            name = names[plain]
            if self._values.get(name, text) != text:
                raise OptionError(f"option {name} is given twice, as {self._values[name]!r} and {text!r}")
            self._values[name] = text

    def __contains__(self, name: str) -> bool:
        return name in self._values

    def text(self, name: str, default: str | None = None) -> str | None:
        return self._values.get(name, default)

    def required(self, name: str, example: str) -> str:
        found = (self._values.get(name) or "").strip()
        if not found:
            is_what = "is empty; write" if name in self._values else "is missing; add"
            raise OptionError(f'option {name} {is_what} .option("{name}", "{example}")')
        return found

    def boolean(self, name: str, default: bool) -> bool:
        text = self._values.get(name, str(default)).strip().lower()
        if text not in ("true", "false"):
            raise OptionError(f"option {name} is {text!r}; it must be true or false")
        return text == "true"

    def count(self, name: str, least: int = 1) -> int | None:
        """A whole number of at least `least`, or None where it is not given."""
        text = self._values.get(name)
        if text is None:
            return None
        try:
            number = int(text)
        except ValueError:
            number = least - 1
        if number < least:
            raise OptionError(f"option {name} is {text!r}; it must be a whole number of at least {least}")
        return number

    def one_of(self, name: str, default: str, allowed: Iterable[str]) -> str:
        text = self._values.get(name, default).strip().lower()
        if text not in (choices := list(allowed)):
            raise OptionError(f"option {name} is {text!r}; it must be one of {', '.join(choices)}")
        return text

    def client_settings(self) -> dict[str, str]:
        """The settings of the connection."""
        return {name: self._values[name] for name in CLIENT_OPTIONS if name in self._values}


def bootstrap(options: Options) -> str:
    """The bootstrap servers, checked for their form."""
    servers = options.required("bootstrap.servers", "127.0.0.1:9092")
    try:
        parse_addresses(servers)
    except AddressError as error:
        raise OptionError(f"option bootstrap.servers: {error}") from None
    return servers


def _unknown(written: str, names: Iterable[str], what: str) -> str:
    by_lower = {name.lower(): name for name in names}
    plain = written.lower().removeprefix(PREFIX)
    if of_reading := next((name for name in READ_OPTIONS if name.lower() == plain), None):
        return f"{what} has no option {of_reading!r}; it is an option for reading"
    close = difflib.get_close_matches(plain, by_lower, n=1, cutoff=0.5)
    advice = f"; did you mean {by_lower[close[0]]!r}?" if close else "; see docs/reference/spark-options.md"
    return f"{what} has no option {written!r}{advice}"
