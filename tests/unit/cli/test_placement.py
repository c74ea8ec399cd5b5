"""Where partitions go, from the command line."""

from __future__ import annotations

import pytest

from braidmq.cli.mistake import UserMistake
from braidmq.cli.placement import parse_placement


def test_a_placement_is_read_by_count_and_by_hand() -> None:
    """N3: broker mode and explicit placement; nothing where nobody says."""
    assert parse_placement(None, None, 3) == []
    assert parse_placement("3=3,1=2,2", None, None) == [[1], [2], [3], [1], [3], [3]]
    assert parse_placement(None, "1,2, 1", None) == [[1], [2], [1]]
    assert parse_placement(None, "1:2,2:3", None) == [[1, 2], [2, 3]]


@pytest.mark.parametrize(
    ("on_brokers", "by_hand", "partitions", "complaint"),
    [
        ("1=2", "1,2", None, "not both"),
        ("1=2", None, 4, "--partitions does not go"),
        ("1=x", None, None, "'x' is no number"),
        ("1,1", None, None, "broker 1 twice"),
        ("1=0", None, None, "choose from 1"),
        ("1=9999999999", None, None, "choose from 1"),
        (None, "1,,2", None, "'' is no number"),
        (None, "", None, "'' is no number"),
    ],
)
def test_a_placement_that_makes_no_sense_is_refused(
    on_brokers: str | None, by_hand: str | None, partitions: int | None, complaint: str
) -> None:
    """N3: with what to write instead."""
    with pytest.raises(UserMistake, match=complaint):
        parse_placement(on_brokers, by_hand, partitions)
