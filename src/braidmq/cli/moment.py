"""Moments as people write them: an ISO 8601 date and time, or how long ago."""

from __future__ import annotations

import re
from datetime import UTC, datetime

from braidmq.cli.mistake import UserMistake

_AGO = re.compile(r"(\d+)(ms|s|m|h|d)")
_UNIT_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def parse_moment(text: str, now_ms: int) -> int:
    """Milliseconds since 1970 of `2026-11-15T21:00`, `2026-11-15`, `10m`, `2h` or `1d` (ago)."""
    if ago := _AGO.fullmatch(text.strip()):
        return now_ms - int(ago[1]) * _UNIT_MS[ago[2]]
    try:
        moment = datetime.fromisoformat(text.strip())
    except ValueError:
        raise UserMistake(
            f"{text!r} is not a time; write 2026-11-15T21:00, or 10m, 2h, 1d for how long ago"
        ) from None
    # Without a zone, what the user's own clock shows.
    return round(moment.timestamp() * 1000)


def format_moment(timestamp_ms: int) -> str:
    """ISO 8601 in UTC to the millisecond; `-` for a record without a time."""
    if timestamp_ms < 0:
        return "-"
    moment = datetime.fromtimestamp(timestamp_ms / 1000, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
