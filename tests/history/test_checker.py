"""The checker is checked: a clean history passes, and each planted bug is caught under its own name."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.history.checker import DETAILS_MAX, History, Violation

SENDER = 3
RECORDS = 20


def clean_history(records: int = RECORDS) -> History:
    """One sender, one partition: every record sent, acked at its own offset and polled by one consumer."""
    history = History()
    for number in range(records):
        history.sent(SENDER, number)
        history.acked(SENDER, number, 0, number)
        history.polled("live", 0, number, SENDER, number)
    return history


def read_back(history: History, numbers: list[int], first_offset: int = 0) -> History:
    for offset, number in enumerate(numbers, first_offset):
        history.read(0, offset, SENDER, number)
    return history


def found(history: History) -> set[Violation]:
    history.conclude()
    return set(history.counts)


def test_a_history_in_which_every_promise_holds_has_no_findings() -> None:
    """L6: what was acked is read back, once, in order."""
    history = read_back(clean_history(), list(range(RECORDS)))
    assert history.conclude() == []
    assert (history.acked_count, history.polled_count, history.read_count) == (RECORDS,) * 3


def test_an_acked_record_missing_at_the_end_is_lost() -> None:
    """L6: the planted bug is an ack before the fsync, then a power cut."""
    history = read_back(clean_history(), list(range(RECORDS - 1)))
    assert found(history) == {Violation.LOST}
    assert history.findings[0].offset == RECORDS - 1


def test_an_acked_record_missing_from_the_middle_is_lost_and_leaves_a_gap() -> None:
    """L6: the planted bug is an index that jumps over a batch."""
    history = clean_history()
    for offset in [*range(7), *range(8, RECORDS)]:
        history.read(0, offset, SENDER, offset)
    assert found(history) == {Violation.LOST, Violation.GAP}


def test_a_record_that_was_never_acked_may_be_missing() -> None:
    """P4: a send that timed out promises nothing."""
    history = clean_history()
    history.sent(SENDER, RECORDS)
    assert found(read_back(history, list(range(RECORDS)))) == set()


def test_a_record_that_was_never_acked_may_be_there() -> None:
    """P4: the ack, not the record, was lost on the way."""
    history = clean_history()
    history.sent(SENDER, RECORDS)
    assert found(read_back(history, list(range(RECORDS + 1)))) == set()


def test_a_record_at_two_offsets_is_a_duplicate() -> None:
    """P4: the planted bug is producer state forgotten in a restart, so that a retry is appended again."""
    history = read_back(clean_history(), [*range(RECORDS), RECORDS - 1])
    assert found(history) == {Violation.DUPLICATE}


def test_a_record_in_two_partitions_is_a_duplicate() -> None:
    """P4: a record belongs to one partition."""
    history = read_back(clean_history(), list(range(RECORDS)))
    history.read(1, 0, SENDER, 5)
    assert found(history) == {Violation.DUPLICATE}


def test_two_records_of_one_sender_in_the_wrong_order_are_reordered() -> None:
    """P4: the planted bug is a sequence check that lets a gap pass."""
    history = History()
    for number in range(RECORDS):
        history.sent(SENDER, number)
    assert found(read_back(history, [0, 1, 3, 2, 4])) == {Violation.REORDERED}


def test_an_offset_with_two_values_is_inconsistent() -> None:
    """L1: the planted bug is a torn tail cut too short, after consumers had read past it."""
    history = clean_history()
    history.sent(SENDER, RECORDS)
    history.polled("other", 0, RECORDS - 1, SENDER, RECORDS)
    assert found(read_back(history, list(range(RECORDS)))) == {Violation.INCONSISTENT_OFFSET}


def test_an_offset_acked_twice_for_different_records_is_inconsistent() -> None:
    """L1: the planted bug is a log that forgets its end offset in a restart."""
    history = clean_history()
    history.sent(SENDER, RECORDS)
    history.acked(SENDER, RECORDS, 0, 4)
    assert Violation.INCONSISTENT_OFFSET in found(read_back(history, list(range(RECORDS))))


def test_a_consumer_that_is_taken_back_is_non_monotonic() -> None:
    """C7: the planted bug is a fetch that answers from an older offset than asked."""
    history = clean_history()
    history.polled("live", 0, 3, SENDER, 3)
    assert found(read_back(history, list(range(RECORDS)))) == {Violation.NON_MONOTONIC}


def test_a_consumer_that_seeks_back_itself_is_not_non_monotonic() -> None:
    """C7: replay is the consumer's right."""
    history = clean_history()
    history.sought("live", 0, 3)
    history.polled("live", 0, 3, SENDER, 3)
    assert found(read_back(history, list(range(RECORDS)))) == set()


def test_an_acked_record_a_consumer_is_carried_past_is_unseen() -> None:
    """C1: the planted bug is a fetch that begins one batch too late."""
    history = clean_history()
    history.polled("second", 0, 0, SENDER, 0)
    history.polled("second", 0, 2, SENDER, 2)
    assert found(read_back(history, list(range(RECORDS)))) == {Violation.UNSEEN}
    assert history.findings[0].offset == 1


def test_a_value_nobody_sent_is_a_phantom() -> None:
    """L6: the planted bug is a recovery that serves old bytes of a reused file."""
    history = read_back(clean_history(), list(range(RECORDS)))
    history.read(0, RECORDS, SENDER, RECORDS + 100)
    assert found(history) == {Violation.PHANTOM}


def test_records_deleted_on_purpose_are_not_lost() -> None:
    """L7: DeleteRecords and retention move the start offset."""
    history = clean_history()
    history.trimmed(0, 5)
    assert found(read_back(history, list(range(5, RECORDS)), first_offset=5)) == set()


def test_details_are_bounded_while_counts_are_not() -> None:
    """L6: a broken broker must not fill the memory of the one who proves it."""
    history = clean_history(10 * DETAILS_MAX)
    history.conclude()
    assert len(history.findings) == DETAILS_MAX
    assert history.counts[Violation.LOST] == 10 * DETAILS_MAX


def drop(numbers: list[int], at: int) -> list[int]:
    return numbers[:at] + numbers[at + 1 :]


def repeat(numbers: list[int], at: int) -> list[int]:
    return [*numbers[: at + 1], *numbers[at:]]


def swap(numbers: list[int], at: int) -> list[int]:
    return [*numbers[:at], numbers[at + 1], numbers[at], *numbers[at + 2 :]]


@pytest.mark.parametrize("damage", [drop, repeat, swap])
@given(at=st.integers(0, RECORDS - 2), records=st.integers(RECORDS, 3 * RECORDS))
def test_any_single_damage_to_a_log_is_found(damage: Callable[..., list[int]], at: int, records: int) -> None:
    """L6: wherever it is, a record dropped, repeated or swapped does not pass."""
    assert found(read_back(clean_history(records), damage(list(range(records)), at)))
