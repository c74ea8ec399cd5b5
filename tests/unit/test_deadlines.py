"""The heap of deadlines that groups, transactions and share groups have in common."""

from __future__ import annotations

import weakref

from hypothesis import given
from hypothesis import strategies as st

from braidmq.deadlines import Deadlines


def test_keys_come_due_in_the_order_of_their_deadlines() -> None:
    """C4 T2: and only those whose time has come."""
    deadlines: Deadlines[str] = Deadlines()
    assert deadlines.next_ms() is None
    for key, due_ms in (("b", 20), ("c", 30), ("a", 10)):
        deadlines.set(key, due_ms)
    deadlines.set("never", None)
    assert deadlines.next_ms() == 10
    assert list(deadlines.pop_due(9)) == []
    assert list(deadlines.pop_due(20)) == ["a", "b"]
    assert deadlines.next_ms() == 30
    assert list(deadlines.pop_due(1_000)) == ["c"]
    assert deadlines.next_ms() is None


def test_the_earlier_of_two_deadlines_counts_and_fires_once() -> None:
    """C4 T2: a later one is noticed by the owner, who looks when the earlier has come."""
    deadlines: Deadlines[str] = Deadlines()
    deadlines.set("a", 30)
    deadlines.set("a", 10)
    deadlines.set("a", 50)
    assert list(deadlines.pop_due(10)) == ["a"]
    assert list(deadlines.pop_due(100)) == [], "the deadline of 30 was replaced"


def test_a_key_that_is_dropped_never_comes_due() -> None:
    """C4 T2: a group or transactional id that is gone is not looked at again, and may come back."""
    deadlines: Deadlines[str] = Deadlines()
    deadlines.set("gone", 10)
    deadlines.drop("gone")
    deadlines.drop("unknown")
    assert list(deadlines.pop_due(10)) == []
    deadlines.set("gone", 10)
    deadlines.drop("gone")
    deadlines.set("gone", 20)
    assert list(deadlines.pop_due(15)) == []
    assert list(deadlines.pop_due(20)) == ["gone"]


def test_a_deadline_may_be_set_while_others_are_taken() -> None:
    """C1 C4: as a tick does; one that is due already is taken in the same round."""
    deadlines: Deadlines[tuple[str, int]] = Deadlines()
    deadlines.set(("jobs", 0), 10)
    taken = []
    for key in deadlines.pop_due(20):
        taken.append(key)
        if len(taken) < 3:
            deadlines.set(("jobs", len(taken)), 10 * len(taken))
    assert taken == [("jobs", 0), ("jobs", 1), ("jobs", 2)]


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 9), st.booleans()), max_size=30))
def test_each_key_is_taken_at_its_earliest_deadline(steps: list[tuple[str, int, bool]]) -> None:
    """C4 T2: against a plain dictionary, with keys dropped in between."""
    deadlines: Deadlines[str] = Deadlines()
    expected: dict[str, int] = {}
    for key, due_ms, dropped in steps:
        if dropped:
            deadlines.drop(key)
            expected.pop(key, None)
        else:
            deadlines.set(key, due_ms)
            expected[key] = min(due_ms, expected.get(key, due_ms))
    taken = [(now_ms, key) for now_ms in range(10) for key in deadlines.pop_due(now_ms)]
    assert sorted(taken) == sorted((due_ms, key) for key, due_ms in expected.items())


class Key(str):
    """Can be looked for after it is gone."""

    __slots__ = ("__weakref__",)


def test_keys_that_are_gone_hold_no_memory_until_their_time_comes() -> None:
    """C4 T2: a deadline may be a week away, and keys may come and go all the time."""
    deadlines: Deadlines[Key] = Deadlines()
    held: list[weakref.ref[Key]] = []
    for number in range(1000):
        key = Key(number)
        held.append(weakref.ref(key))
        deadlines.set(key, 10**9 + number)
        if number % 10:
            deadlines.drop(key)
        del key
    assert sum(each() is not None for each in held) < 400
    assert [str(key) for key in deadlines.pop_due(2 * 10**9)] == [
        str(number) for number in range(0, 1000, 10)
    ]
