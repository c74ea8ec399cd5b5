"""Moments as people write them: an ISO 8601 date and time, or how long ago; and durations."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

from braidmq.cli.mistake import UserMistake

_DURATION = re.compile(r"(\d+)(ms|s|m|h|d)")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LAST_MS = 253_402_300_799_999
"""The end of the year 9999, where calendars end."""
_UNIT_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def parse_moment(text: str, now_ms: int) -> int:
    """Milliseconds since 1970 of `2026-11-15T21:00`, `2026-11-15`, `10m`, `2h` or `1d` (ago)."""
    ago_ms = _duration_ms(text)
    if ago_ms is not None:
        return now_ms - ago_ms
    try:
        # Without a zone, what the user's own clock shows.
        return round(datetime.fromisoformat(text.strip()).timestamp() * 1000)
    except (ValueError, OverflowError):
        raise UserMistake(
            f"{text!r} is not a time; write 2026-11-15T21:00, or 10m, 2h, 1d for how long ago"
        ) from None


def parse_duration_ms(text: str) -> int:
    """Milliseconds of `500ms`, `10s`, `5m`, `2h` or `1d`."""
    found_ms = _duration_ms(text)
    if found_ms is None:
        raise UserMistake(f"{text!r} is not a duration; write 500ms, 10s, 5m, 2h or 1d")
    return found_ms


def format_duration(duration_ms: int) -> str:
    """The two largest units there are: `1d 2h`, `3m 20s`, `5s`; below a second, milliseconds."""
    if duration_ms < 1000:
        return f"{duration_ms}ms"
    left = duration_ms
    parts: list[str] = []
    for unit in ("d", "h", "m", "s"):
        count, left = divmod(left, _UNIT_MS[unit])
        if count or parts:
            parts.append(f"{count}{unit}")
    return " ".join(part for part in parts[:2] if not part.startswith("0"))


def _duration_ms(text: str) -> int | None:
    found = _DURATION.fullmatch(text.strip())
    return None if found is None else int(found[1]) * _UNIT_MS[found[2]]


def format_moment(timestamp_ms: int) -> str:
    """ISO 8601 in UTC to the millisecond; `-` for a record without a time, a number past the year 9999."""
    if timestamp_ms < 0:
        return "-"
    if timestamp_ms > _LAST_MS:
        return f"{timestamp_ms}ms"
    moment = _EPOCH + timedelta(milliseconds=timestamp_ms)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
