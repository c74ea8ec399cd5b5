"""Times on the command line."""

from __future__ import annotations

import pytest

from braidmq.cli.mistake import UserMistake
from braidmq.cli.moment import format_duration, format_moment, parse_duration_ms, parse_moment

NOW_MS = 1_800_000_000_000


@pytest.mark.parametrize(
    ("text", "expected_ms"),
    [
        ("500ms", NOW_MS - 500),
        ("10s", NOW_MS - 10_000),
        ("2m", NOW_MS - 120_000),
        ("3h", NOW_MS - 10_800_000),
        ("1d", NOW_MS - 86_400_000),
        ("2026-11-15T21:00:00Z", 1_794_776_400_000),
        ("2026-11-15T22:00:00+01:00", 1_794_776_400_000),
        ("1970-01-01T00:00:01.500Z", 1500),
    ],
)
def test_a_moment_is_a_date_or_how_long_ago(text: str, expected_ms: int) -> None:
    """C7: as people write times."""
    assert parse_moment(text, NOW_MS) == expected_ms


@pytest.mark.parametrize("text", ["", "yesterday", "10", "10x", "-5m", "2026-13-01", "0001-01-01"])
def test_what_is_not_a_moment_is_refused_with_examples(text: str) -> None:
    """C7: the message shows how to write one."""
    with pytest.raises(UserMistake, match="10m, 2h, 1d"):
        parse_moment(text, NOW_MS)


def test_moments_are_shown_in_utc_to_the_millisecond() -> None:
    """C7: and read back as they were."""
    assert format_moment(1_794_776_400_123) == "2026-11-15T21:00:00.123Z"
    assert format_moment(253_402_300_799_999) == "9999-12-31T23:59:59.999Z"
    assert format_moment(253_402_300_800_000) == "253402300800000ms"
    assert parse_moment("2026-11-15T21:00:00.123Z", NOW_MS) == 1_794_776_400_123
    assert format_moment(-1) == "-"


@pytest.mark.parametrize(
    ("text", "duration_ms", "shown"),
    [
        ("500ms", 500, "500ms"),
        ("90s", 90_000, "1m 30s"),
        ("2m", 120_000, "2m"),
        ("25h", 90_000_000, "1d 1h"),
        ("7d", 604_800_000, "7d"),
        ("3601s", 3_601_000, "1h"),
        ("0ms", 0, "0ms"),
    ],
)
def test_a_duration_is_read_and_shown_in_its_largest_units(text: str, duration_ms: int, shown: str) -> None:
    """O1: as people write them."""
    assert parse_duration_ms(text) == duration_ms
    assert format_duration(duration_ms) == shown


@pytest.mark.parametrize("text", ["", "10", "-5m", "1w", "2026-11-15"])
def test_what_is_not_a_duration_is_refused_with_examples(text: str) -> None:
    """O1: the message shows how to write one."""
    with pytest.raises(UserMistake, match="10s, 5m, 2h or 1d"):
        parse_duration_ms(text)
