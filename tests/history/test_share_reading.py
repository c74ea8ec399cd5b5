"""The checker of share groups is checked: a clean history passes, each planted bug is caught."""

from __future__ import annotations

from tests.history.checker import Violation
from tests.history.share_reading import ShareReading

LIMIT = 3
END = 4


def clean() -> ShareReading:
    """Accepted at once; released and accepted; given up; accepted by one that died before it was told."""
    group = ShareReading(LIMIT)
    group.delivered(1, 0, 1)
    accept(group, 2, 0)
    for time, count in ((1, 1), (3, 2)):
        group.delivered(time, 1, count)
    accept(group, 4, 1)
    for time in range(LIMIT):
        group.delivered(time, 2, time + 1)
    group.delivered(1, 3, 1)
    group.accepting(3)
    return group


def accept(group: ShareReading, time: int, offset: int) -> None:
    group.accepting(offset)
    group.accepted(time, offset)


def found(group: ShareReading, end: int = END) -> set[Violation]:
    group.conclude(end)
    return set(group.counts)


def test_a_group_that_settles_every_record_once_has_no_findings() -> None:
    """C1: however it was settled."""
    assert found(clean()) == set()


def test_a_record_that_is_neither_accepted_nor_given_up_is_lost() -> None:
    """C1: the planted bug is a window whose start moves past a record that was released."""
    group = clean()
    group.delivered(1, END, 1)
    assert found(group, END + 1) == {Violation.LOST}


def test_a_record_that_was_never_delivered_is_lost() -> None:
    """C1: the planted bug is a window that begins too late."""
    assert found(clean(), END + 1) == {Violation.LOST}


def test_a_record_accepted_twice_is_a_duplicate() -> None:
    """C1: the planted bug is an acknowledgement taken from a member whose lock had expired."""
    group = clean()
    accept(group, 2, 0)
    assert found(group) == {Violation.DUPLICATE}


def test_a_record_delivered_after_its_acceptance_is_a_duplicate() -> None:
    """C1: the planted bug is state that a restart takes back."""
    group = clean()
    group.delivered(9, 0, 2)
    assert found(group) == {Violation.DUPLICATE}


def test_one_delivery_to_two_members_is_a_duplicate() -> None:
    """C1: the planted bug is a record handed out twice before it is marked."""
    group = clean()
    group.delivered(1, 3, 1)
    assert found(group) == {Violation.DUPLICATE}


def test_a_record_delivered_past_the_limit_is_found() -> None:
    """C1: the planted bug is a count that a crash of the member does not raise."""
    group = clean()
    group.delivered(9, 2, LIMIT + 1)
    assert found(group) == {Violation.OVERDONE}
