"""Delivery of single messages, story by story."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from braidmq.delivery import window_codec
from braidmq.delivery.status import (
    Acknowledgement,
    Acquired,
    Archived,
    DeliveryLimits,
    DeliveryState,
    LogRange,
    NotHeld,
    Reason,
    Verdict,
)
from braidmq.delivery.window import RUNS_PER_MESSAGE, DeliveryWindow

THOUSAND = LogRange(0, 999, ((0, 499), (500, 999)))
REJECTED = (Verdict.REJECT,)


def held(window: DeliveryWindow, state: DeliveryState = DeliveryState.ACQUIRED) -> list[tuple[int, int]]:
    return [(first, last) for first, last, status in window.runs() if status.state is state]


def accept(first: int, last: int) -> list[Acknowledgement]:
    return [Acknowledgement(first, last, (Verdict.ACCEPT,))]


def test_consumers_share_a_partition_without_overlap() -> None:
    """C3: two consumers on one partition get different messages."""
    window = DeliveryWindow(0, DeliveryLimits())
    assert window.acquire("ada", 0, 300, THOUSAND) == [Acquired(0, 299, 1)]
    assert window.acquire("bob", 0, 300, THOUSAND) == [Acquired(300, 599, 1)]
    assert window.fetch_offset(0) == 600


def test_the_start_moves_when_the_head_is_settled_and_not_before() -> None:
    """C3: acks may come in any order."""
    window = DeliveryWindow(0, DeliveryLimits())
    window.acquire("ada", 0, 300, THOUSAND)
    window.acknowledge("ada", 0, accept(100, 299))
    assert window.start_offset == 0
    window.acknowledge("ada", 0, accept(0, 99))
    assert (window.start_offset, window.run_count) == (300, 0)


def test_a_lock_that_runs_out_gives_the_message_to_another_with_a_higher_count() -> None:
    """C3: a consumer that hangs does not keep its messages."""
    window = DeliveryWindow(0, DeliveryLimits(lock_ms=100))
    window.acquire("ada", 0, 10, THOUSAND)
    assert window.next_deadline_ms == 100
    assert window.acquire("bob", 99, 10, LogRange(0, 9, ((0, 9),))) == []
    assert window.acquire("bob", 100, 10, THOUSAND) == [Acquired(0, 9, 2)]
    with pytest.raises(NotHeld, match="another consumer"):
        window.acknowledge("ada", 100, accept(0, 9))


def test_a_renewed_lock_lasts_longer_without_another_delivery() -> None:
    """C3: slow work asks for more time."""
    window = DeliveryWindow(0, DeliveryLimits(lock_ms=100))
    window.acquire("ada", 0, 10, THOUSAND)
    window.acknowledge("ada", 90, [Acknowledgement(0, 4, (Verdict.RENEW,))])
    window.tick(120)
    assert held(window) == [(0, 4)]
    assert held(window, DeliveryState.AVAILABLE) == [(5, 9)]
    window.acknowledge("ada", 189, accept(0, 4))
    assert window.start_offset == 5


def test_the_last_delivery_ends_in_the_archive_and_is_reported() -> None:
    """C3: a message nobody can work on does not come back for ever."""
    window = DeliveryWindow(0, DeliveryLimits(deliveries_max=2, lock_ms=100))
    reading = LogRange(0, 2, ((0, 2),))
    assert window.acquire("ada", 0, 3, reading) == [Acquired(0, 2, 1)]
    window.acknowledge("ada", 0, [Acknowledgement(0, 2, (Verdict.RELEASE, Verdict.ACCEPT, Verdict.REJECT))])
    assert window.acquire("ada", 0, 3, reading) == [Acquired(0, 0, 2)]
    window.tick(100)
    assert window.take_archived() == [Archived(2, 2, 1, Reason.REJECTED), Archived(0, 0, 2, Reason.EXHAUSTED)]
    assert window.take_archived() == []
    assert window.start_offset == 3


def test_what_a_lost_consumer_held_goes_to_others() -> None:
    """C3: a consumer that dies loses nothing for its group."""
    window = DeliveryWindow(0, DeliveryLimits())
    window.acquire("ada", 0, 5, THOUSAND)
    window.acquire("bob", 0, 5, THOUSAND)
    window.release_consumer("ada", 0)
    assert held(window) == [(5, 9)]
    assert window.acquire("cyd", 0, 7, THOUSAND) == [Acquired(0, 4, 2), Acquired(10, 11, 1)]


def test_a_full_window_hands_out_nothing_new_until_something_is_settled() -> None:
    """C9: memory is bounded by the window, not by the backlog."""
    window = DeliveryWindow(0, DeliveryLimits(in_flight_max=100))
    assert window.acquire("ada", 0, 500, THOUSAND) == [Acquired(0, 99, 1)]
    assert window.fetch_offset(0) is None
    window.acknowledge("ada", 0, accept(40, 49))
    assert window.acquire("ada", 0, 500, THOUSAND) == [Acquired(100, 109, 1)]
    assert window.fetch_offset(0) is None


def test_one_message_held_for_hours_does_not_stop_those_after_it() -> None:
    """C9: only messages that are not settled take up room, and what is settled costs little."""
    window = DeliveryWindow(0, DeliveryLimits(in_flight_max=10))
    everything = LogRange(0, 100_000, ((0, 100_000),))
    assert window.acquire("slow", 0, 1, everything, lock_ms=7_200_000) == [Acquired(0, 0, 1)]
    for first in range(1, 2_000, 2):
        reading = everything._replace(first=first)
        assert window.acquire("fast", 0, 2, reading) == [Acquired(first, first + 1, 1)]
        window.acknowledge(
            "fast", 0, [*accept(first, first), Acknowledgement(first + 1, first + 1, REJECTED)]
        )
        assert window.run_count <= RUNS_PER_MESSAGE * 10
    assert (window.start_offset, window.end_offset, window.in_flight) == (0, 2_001, 1)
    restored = DeliveryWindow.restore(window.snapshot(), (), window.limits, 0)
    assert (restored.start_offset, restored.end_offset, restored.in_flight) == (0, 2_001, 1)
    window.acknowledge("slow", 0, accept(0, 0))
    assert window.start_offset == 2_001


def test_gaps_are_settled_without_anybody_and_cost_no_place() -> None:
    """C3: compaction and transaction markers leave offsets without a message."""
    window = DeliveryWindow(0, DeliveryLimits(in_flight_max=4))
    reading = LogRange(0, 1_000_000, ((10, 11), (999_999, 999_999)))
    assert window.acquire("ada", 0, 10, reading) == [Acquired(10, 11, 1), Acquired(999_999, 999_999, 1)]
    assert (window.start_offset, window.end_offset, window.in_flight) == (10, 1_000_001, 3)
    window.acknowledge("ada", 0, [*accept(10, 11), *accept(999_999, 999_999)])
    assert window.start_offset == 1_000_001


def test_a_reading_from_ahead_of_the_window_hands_out_nothing() -> None:
    """C3: what lies between is not known to be a gap."""
    window = DeliveryWindow(0, DeliveryLimits())
    assert window.acquire("ada", 0, 10, LogRange(5, 9, ((5, 9),))) == []
    assert (window.start_offset, window.end_offset) == (0, 0)


@pytest.mark.parametrize(
    "acknowledgements",
    [accept(0, 10), accept(3, 4), [*accept(0, 1), *accept(1, 2)], [*accept(0, 1), *accept(11, 11)]],
    ids=["not handed out", "already acked", "twice at once", "half right"],
)
def test_verdicts_are_taken_together_or_not_at_all(acknowledgements: list[Acknowledgement]) -> None:
    """C3: a refused acknowledgement changes nothing."""
    window = DeliveryWindow(0, DeliveryLimits())
    window.acquire("ada", 0, 10, THOUSAND)
    window.acknowledge("ada", 0, accept(3, 4))
    before = list(window.runs())
    with pytest.raises(NotHeld):
        window.acknowledge("ada", 0, acknowledgements)
    assert list(window.runs()) == before


def test_a_repeated_ack_of_what_is_settled_is_no_error() -> None:
    """C3: a consumer whose answer was lost says it again."""
    window = DeliveryWindow(0, DeliveryLimits())
    window.acquire("ada", 0, 10, THOUSAND)
    window.acknowledge("ada", 0, accept(0, 4))
    window.acknowledge("ada", 0, accept(0, 4))
    assert window.start_offset == 5


def test_verdicts_that_do_not_fit_their_offsets_are_refused() -> None:
    """C3: three verdicts for four offsets mean nothing."""
    window = DeliveryWindow(0, DeliveryLimits())
    window.acquire("ada", 0, 10, THOUSAND)
    for first, last, count in ((0, 3, 3), (3, 2, 1), (0, 0, 0)):
        with pytest.raises(ValueError, match="verdicts"):
            window.acknowledge("ada", 0, [Acknowledgement(first, last, (Verdict.ACCEPT,) * count)])


def test_a_restart_keeps_acks_and_counts_and_frees_what_was_held() -> None:
    """C3: nothing acked is delivered again after a crash, nothing held is lost."""
    window = DeliveryWindow(0, DeliveryLimits())
    snapshot = window.snapshot()
    window.acquire("ada", 0, 10, THOUSAND)
    first = window.take_delta()
    window.acknowledge("ada", 0, accept(2, 5))
    second = window.take_delta()
    assert first is not None
    assert second is not None
    assert window.take_delta() is None
    again = DeliveryWindow.restore(snapshot, [first, second], DeliveryLimits(), now_ms=0)
    assert again.acquire("bob", 0, 10, LogRange(0, 9, ((0, 9),))) == [Acquired(0, 1, 2), Acquired(6, 9, 2)]


def test_a_last_delivery_cut_off_by_a_crash_is_not_followed_by_another() -> None:
    """C3: a message that crashes the broker with its consumers comes to an end too."""
    limits = DeliveryLimits(deliveries_max=1)
    window = DeliveryWindow(0, limits)
    window.acquire("ada", 0, 10, THOUSAND)
    again = DeliveryWindow.restore(window.snapshot(), [], limits, now_ms=50)
    assert again.fetch_offset(50) == 10
    assert again.take_archived() == [Archived(0, 9, 1, Reason.EXHAUSTED)]
    assert again.take_delta() is not None


def test_a_skip_is_stored_although_no_message_changed() -> None:
    """C3: after retention moved the log's start, a restart does not go back."""
    window = DeliveryWindow(0, DeliveryLimits())
    snapshot = window.snapshot()
    window.skip_to(700)
    delta = window.take_delta()
    assert delta is not None
    assert DeliveryWindow.restore(snapshot, [delta], DeliveryLimits(), 0).start_offset == 700


def test_a_thousand_messages_of_one_fate_are_stored_in_a_few_bytes() -> None:
    """C9: what is stored goes with the number of runs, not of messages."""
    window = DeliveryWindow(10**12, DeliveryLimits())
    window.acquire("ada", 0, 1000, LogRange(10**12, 10**12 + 999, ((10**12, 10**12 + 999),)))
    window.acknowledge("ada", 0, accept(10**12 + 1, 10**12 + 999))
    assert len(window.snapshot()) <= 16


@given(st.binary(max_size=40))
def test_any_bytes_are_a_state_or_refused(content: bytes) -> None:
    """C3: stored state that is damaged is noticed, not believed."""
    try:
        start_offset, runs = window_codec.decode(content)
    except window_codec.BadState:
        return
    assert window_codec.decode(window_codec.encode(start_offset, runs)) == (start_offset, runs)


def test_a_state_with_a_hole_is_refused() -> None:
    """C3: a missing delta must not pass for an empty range."""
    delta = window_codec.encode(0, [window_codec.StoredRun(10, 19, DeliveryState.ACKED, 0)])
    with pytest.raises(window_codec.BadState, match="0 to 9 are missing"):
        DeliveryWindow.restore(DeliveryWindow(0, DeliveryLimits()).snapshot(), [delta], DeliveryLimits(), 0)
