"""The server's assignors: everything is given to somebody who may read it, evenly, with little moved."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from braidmq.group.assignors import ASSIGNORS, Assignor, Partitions, Reader, assign_range, assign_uniform

TOPICS = [b"a", b"b", b"c"]
counts = st.dictionaries(st.sampled_from(TOPICS), st.integers(0, 9))
subscriptions = st.frozensets(st.sampled_from(TOPICS))
members = st.dictionaries(st.sampled_from("uvwxyz"), subscriptions, max_size=6)


def readers_of(subscribed: dict[str, frozenset[bytes]], owned: dict[str, Partitions]) -> dict[str, Reader]:
    return {name: Reader(topics, owned.get(name, frozenset())) for name, topics in subscribed.items()}


def alike(names: str, topics: list[bytes], owned: dict[str, Partitions] | None = None) -> dict[str, Reader]:
    return readers_of(dict.fromkeys(names, frozenset(topics)), owned or {})


@pytest.mark.parametrize("assign", ASSIGNORS.values(), ids=list(ASSIGNORS))
@settings(max_examples=60, deadline=None)
@given(members, counts, members)
def test_every_partition_goes_to_exactly_one_member_that_reads_it(
    assign: Assignor,
    subscribed: dict[str, frozenset[bytes]],
    topics: dict[bytes, int],
    before: dict[str, frozenset[bytes]],
) -> None:
    """C5: whatever was assigned before, to whomever."""
    first = assign(readers_of(before, {}), topics)
    plan = assign(readers_of(subscribed, first), topics)
    assert plan.keys() == subscribed.keys()
    given_out = [partition for partitions in plan.values() for partition in partitions]
    assert len(given_out) == len(set(given_out))
    readable = {topic for names in subscribed.values() for topic in names}
    assert set(given_out) == {
        (topic, number) for topic in readable & topics.keys() for number in range(topics[topic])
    }
    for name, partitions in plan.items():
        assert {topic for topic, _ in partitions} <= subscribed[name]


@settings(max_examples=60, deadline=None)
@given(members, counts, members)
def test_uniform_is_as_even_as_subscriptions_allow(
    subscribed: dict[str, frozenset[bytes]], topics: dict[bytes, int], before: dict[str, frozenset[bytes]]
) -> None:
    """C5: nobody has two more than another who could read one of them."""
    first = assign_uniform(readers_of(before, {}), topics)
    plan = assign_uniform(readers_of(subscribed, first), topics)
    for giver, partitions in plan.items():
        for taker, names in subscribed.items():
            if any(topic in names for topic, _ in partitions):
                assert len(plan[giver]) - len(plan[taker]) <= 1


@settings(max_examples=60, deadline=None)
@given(members, counts)
def test_an_assignment_that_is_right_stays(
    subscribed: dict[str, frozenset[bytes]], topics: dict[bytes, int]
) -> None:
    """C5: computing again moves nothing."""
    for assign in ASSIGNORS.values():
        plan = assign(readers_of(subscribed, {}), topics)
        assert assign(readers_of(subscribed, plan), topics) == plan


def test_uniform_moves_no_more_than_a_newcomer_needs() -> None:
    """C5: ten members share 100 partitions; an eleventh takes nine, and nobody else gains."""
    before = assign_uniform(alike("abcdefghij", [b"t"]), {b"t": 100})
    after = assign_uniform(alike("abcdefghijk", [b"t"], before), {b"t": 100})
    assert len(after["k"]) == 9
    for name in "abcdefghij":
        assert after[name] <= before[name]


def test_uniform_leaves_alone_what_remaining_members_have() -> None:
    """C5: when one goes, only its own partitions find new owners."""
    before = assign_uniform(alike("abc", [b"t"]), {b"t": 12})
    after = assign_uniform(alike("ab", [b"t"], before), {b"t": 12})
    assert all(before[name] <= after[name] for name in "ab")


def test_range_gives_the_same_numbers_of_every_topic_to_the_same_member() -> None:
    """C5: so that topics partitioned alike can be joined by whoever reads them."""
    plan = assign_range(alike("ab", [b"t", b"s"]), {b"t": 3, b"s": 3})
    assert plan["a"] == {(b"t", 0), (b"t", 1), (b"s", 0), (b"s", 1)}
    assert plan["b"] == {(b"t", 2), (b"s", 2)}


def test_range_keeps_static_members_in_the_order_of_their_instances() -> None:
    """C5: a restart under another member id changes nothing."""
    topics = frozenset({b"t"})
    first = assign_range(
        {"m9": Reader(topics, instance_id="1"), "m1": Reader(topics, instance_id="2")}, {b"t": 2}
    )
    again = assign_range(
        {"m0": Reader(topics, instance_id="2"), "m9": Reader(topics, instance_id="1")}, {b"t": 2}
    )
    assert first["m9"] == again["m9"] == {(b"t", 0)}
    assert first["m1"] == again["m0"] == {(b"t", 1)}
