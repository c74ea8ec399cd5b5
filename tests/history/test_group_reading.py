"""The checker of consumer groups is checked: a clean history passes, each planted bug is caught."""

from __future__ import annotations

from tests.history.checker import Violation
from tests.history.group_reading import GroupReading

END = 10


def commit(group: GroupReading, member: str, sent: int, confirmed: int, offset: int) -> None:
    group.sent(member, sent, 0, offset)
    group.committed(member, confirmed, 0)


def handed_over(second_begins: int = 6) -> GroupReading:
    """`a` reads and commits up to 6, then `b` has the partition and reads it to its end."""
    group = GroupReading()
    group.assigned("a", 10, 0)
    group.read("a", 0, 0, 3)
    commit(group, "a", 11, 12, 4)
    group.read("a", 0, 4, 5)
    commit(group, "a", 13, 14, 6)
    group.revoked("a", 15, 0)
    group.assigned("b", 20, 0)
    group.read("b", 0, second_begins, END - 1)
    commit(group, "b", 21, 22, END)
    return group


def found(group: GroupReading, position: int = END, incremental: bool = False) -> set[Violation]:
    group.conclude({0: END}, {0: position}, incremental)
    return set(group.counts)


def test_a_group_that_reads_everything_once_has_no_findings() -> None:
    """C2 C6: one member after another."""
    group = handed_over()
    assert found(group) == set()
    assert group.read_count == END


def test_a_record_nobody_read_is_lost() -> None:
    """C2: the planted bug is a position committed for records that were never given to the member."""
    group = handed_over(second_begins=8)
    commit(group, "a", 14, 15, 8)
    assert found(group) == {Violation.LOST}


def test_records_at_the_end_that_nobody_read_are_lost() -> None:
    """C2: the planted bug is a partition nobody was assigned any more."""
    group = GroupReading()
    assert found(group, position=0) == {Violation.LOST, Violation.POSITION_BEHIND}


def test_reading_again_what_was_not_committed_is_explained_by_the_rebalance() -> None:
    """C6: at least once."""
    group = GroupReading()
    group.assigned("a", 10, 0)
    group.read("a", 0, 0, 7)
    commit(group, "a", 11, 12, 4)
    group.assigned("b", 20, 0)
    group.read("b", 0, 4, END - 1)
    commit(group, "b", 21, 22, END)
    assert found(group) == set()


def test_reading_again_what_was_committed_is_a_duplicate() -> None:
    """C6: the planted bug is a commit that a crash takes back."""
    assert found(handed_over(second_begins=4)) == {Violation.DUPLICATE}


def test_a_commit_that_was_confirmed_after_the_stint_began_may_not_have_been_seen() -> None:
    """C6: the two were under way at the same time."""
    group = handed_over(second_begins=6)
    commit(group, "a", 19, 21, 7)
    assert found(group) == set()


def test_reading_twice_in_one_stint_is_a_duplicate() -> None:
    """C1: the planted bug is a fetch that begins at an older offset than asked."""
    group = handed_over()
    group.read("b", 0, END - 1, END - 1)
    assert found(group) == {Violation.DUPLICATE}


def test_going_past_records_within_a_stint_leaves_them_unseen() -> None:
    """C1: the planted bug is a fetch that begins one batch too late."""
    group = GroupReading()
    group.assigned("a", 10, 0)
    group.read("a", 0, 0, 3)
    group.read("a", 0, 5, END - 1)
    commit(group, "a", 11, 12, END)
    assert found(group) == {Violation.UNSEEN, Violation.LOST}


def test_beginning_where_nobody_was_is_found() -> None:
    """C6: the planted bug is a committed position mixed up with that of another partition."""
    group = GroupReading()
    group.assigned("a", 10, 0)
    group.read("a", 0, 3, END - 1)
    assert Violation.UNSEEN in found(group)


def test_a_commit_whose_answer_was_lost_may_be_where_the_next_begins() -> None:
    """C6: the broker died between the write and the answer."""
    group = GroupReading()
    group.assigned("a", 10, 0)
    group.read("a", 0, 0, 5)
    group.sent("a", 11, 0, 6)
    group.assigned("b", 20, 0)
    group.read("b", 0, 6, END - 1)
    commit(group, "b", 21, 22, END)
    assert found(group) == set()


def test_reading_a_partition_one_does_not_have_is_found() -> None:
    """C4: the planted bug is an assignment of one partition to two members."""
    group = handed_over()
    group.read("a", 0, END - 1, END - 1)
    assert Violation.UNOWNED in found(group)


def test_a_position_that_is_taken_back_is_found() -> None:
    """C4: the planted bug is a member that was thrown out and may commit all the same."""
    group = handed_over()
    commit(group, "a", 30, 31, 6)
    assert found(group) == {Violation.POSITION_BEHIND}


def test_a_commit_that_was_on_its_way_before_the_other_takes_nothing_back() -> None:
    """C4: only its confirmation was late, as that of a member that was paused."""
    group = handed_over()
    commit(group, "a", 14, 31, 6)
    assert found(group) == set()


def test_a_position_that_is_not_the_end_is_found() -> None:
    """C6: either way."""
    assert found(handed_over(), position=END - 1) == {Violation.POSITION_BEHIND}
    assert found(handed_over(), position=END + 1) == {Violation.POSITION_AHEAD}


def test_a_partition_taken_away_and_given_back_is_needless_where_rebalances_are_incremental() -> None:
    """C5: the planted bug is an assignor that forgets who had what."""
    group = handed_over()
    group.revoked("b", 30, 0)
    group.assigned("b", 31, 0)
    assert found(group, incremental=True) == {Violation.NEEDLESS}
    assert found(handed_over(), incremental=True) == set()
