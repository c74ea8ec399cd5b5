"""Where a group begins on a partition it has not read yet: `earliest`, `latest`, or `by_duration:PT12H`.

The third is KIP-1106's: the first record that is at most so old, as an ISO 8601 duration. For consumer groups
the client resolves it and asks for an offset by time; for share groups the broker does.
"""

from __future__ import annotations

import re
from enum import StrEnum
from typing import NamedTuple

_BY_DURATION = "by_duration:"
_DURATION = re.compile(
    r"P(?=.)(?:(?P<d>\d+)D)?(?:T(?=.)(?:(?P<h>\d+)H)?(?:(?P<m>\d+)M)?(?:(?P<s>\d+)(?:[.,](?P<f>\d{0,9}))?S)?)?",
    re.IGNORECASE | re.ASCII,
)
_UNITS_MS = {"d": 86_400_000, "h": 3_600_000, "m": 60_000, "s": 1000}
_DIGITS_MAX = 12


class ResetKind(StrEnum):
    EARLIEST = "earliest"
    LATEST = "latest"
    BY_DURATION = "by_duration"


class Reset(NamedTuple):
    """A way to begin; `age_ms` is how old records may be, by duration."""

    kind: ResetKind
    age_ms: int = 0


def parse_reset(text: str) -> Reset:
    """ValueError for anything else, with what would be right."""
    if text in (ResetKind.EARLIEST, ResetKind.LATEST):
        return Reset(ResetKind(text))
    duration_ms = _duration_ms(text.removeprefix(_BY_DURATION)) if text.startswith(_BY_DURATION) else None
    if duration_ms is None:
        raise ValueError(
            "it must be earliest, latest, or by_duration: with an ISO 8601 duration such as PT12H or P7D"
        )
    return Reset(ResetKind.BY_DURATION, duration_ms)


def _duration_ms(text: str) -> int | None:
    found = _DURATION.fullmatch(text)
    if found is None or any(len(digits or "") > _DIGITS_MAX for digits in found.groups()):
        return None
    whole_ms = sum(int(found[unit] or 0) * size_ms for unit, size_ms in _UNITS_MS.items())
    return whole_ms + int(f"{found['f'] or '0':0<3}"[:3])
