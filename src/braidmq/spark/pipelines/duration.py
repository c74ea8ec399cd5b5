"""Durations as people and Spark write them: `10 minutes`, `1 hour`, `500 ms`."""

from __future__ import annotations

import re
from dataclasses import dataclass

_UNITS_S = {
    "ms": 0.001, "millisecond": 0.001,
    "s": 1.0, "sec": 1.0, "second": 1.0,
    "m": 60.0, "min": 60.0, "minute": 60.0,
    "h": 3600.0, "hour": 3600.0,
    "d": 86_400.0, "day": 86_400.0,
    "w": 604_800.0, "week": 604_800.0,
}  # fmt: skip
_SPARK_WORDS = {0.001: "milliseconds", 1.0: "seconds", 60.0: "minutes", 3600.0: "hours", 86_400.0: "days"}
_SPAN = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]+)", re.IGNORECASE)


@dataclass(frozen=True, slots=True, order=True)
class Duration:
    """A duration; `str()` returns it in Spark's form."""

    seconds: float

    def __str__(self) -> str:
        for unit_s, word in sorted(_SPARK_WORDS.items(), reverse=True):
            count = self.seconds / unit_s
            if self.seconds and count == int(count):
                return f"{int(count)} {word[:-1] if count == 1 else word}"
        return f"{round(self.seconds * 1000)} milliseconds"


def parse_duration(text: str) -> Duration | None:
    """The duration that a text names; None if it is none."""
    found = _SPAN.fullmatch(text.strip())
    if found is None:
        return None
    unit = found[2].lower()
    unit_s = _UNITS_S.get(unit) or _UNITS_S.get(unit.removesuffix("s"))
    return None if unit_s is None else Duration(float(found[1]) * unit_s)
