"""Where partitions go."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from braidmq.cluster.placement import BadPlacement, Candidate, by_hand, per_broker, spread


def brokers(count: int, racks: int = 0) -> list[Candidate]:
    return [
        Candidate(node_id, f"host{node_id}", f"rack{node_id % racks}" if racks else None)
        for node_id in range(count)
    ]


@given(st.integers(1, 7), st.lists(st.integers(1, 9), min_size=1, max_size=6), st.data())
def test_leaders_and_replicas_are_spread_evenly(size: int, topics: list[int], data: st.DataObject) -> None:
    """N3: over topics of any size, created one after the other."""
    factor = data.draw(st.integers(1, size))
    candidates = brokers(size)
    placed = [replicas for count in topics for replicas in spread(candidates, count, factor)]
    leaders = Counter(replicas[0] for replicas in placed)
    held = Counter(node for replicas in placed for node in replicas)
    assert all(len(set(replicas)) == factor for replicas in placed)
    assert max(leaders.values()) - min(leaders[node] for node in range(size)) <= 1
    assert max(held.values()) - min(held[node] for node in range(size)) <= 2
    assert [candidate.leaders for candidate in candidates] == [leaders[node] for node in range(size)]


def test_replicas_go_to_other_racks_then_to_other_hosts() -> None:
    """N3: two processes of one machine hold two replicas only where nothing else is left."""
    candidates = brokers(6, racks=3)
    for replicas in spread(candidates, 12, 3):
        assert {node % 3 for node in replicas} == {0, 1, 2}
    together = [Candidate(0, "a"), Candidate(1, "a"), Candidate(2, "b")]
    for replicas in spread(together, 9, 2):
        assert 2 in replicas
    assert sorted(spread(together, 1, 3)[0]) == [0, 1, 2]


def test_a_broker_leads_as_many_as_it_is_given() -> None:
    """N3: cluster mode gives each the same, broker mode each its own count."""
    placed = per_broker(brokers(3), {0: 3, 1: 1, 2: 0}, 1)
    assert placed == [(0,), (1,), (0,), (0,)]
    assert Counter(replicas[0] for replicas in per_broker(brokers(3), dict.fromkeys(range(3), 4), 2)) == {
        0: 4,
        1: 4,
        2: 4,
    }


@pytest.mark.parametrize(
    ("assignment", "complaint"),
    [
        ([], "no partition"),
        ([[]], "partition 0 has no replica"),
        ([[1, 1]], "partition 0 names a broker twice"),
        ([[0], [0, 1]], "partition 1 has 2 replicas, partition 0 has 1"),
        ([[0], [9]], "partition 1: brokers 9 are not running; running: 0, 1, 2"),
    ],
)
def test_an_assignment_that_cannot_be_made_says_why(assignment: list[list[int]], complaint: str) -> None:
    """N3: before anything is written."""
    with pytest.raises(BadPlacement, match=complaint):
        by_hand(brokers(3), assignment)


def test_more_replicas_than_brokers_are_refused() -> None:
    """N3: and so is a cluster in which nobody runs."""
    with pytest.raises(BadPlacement, match="replication factor 4: choose between 1 and 3"):
        spread(brokers(3), 1, 4)
    with pytest.raises(BadPlacement, match="no broker is running"):
        spread([], 1, 1)
    with pytest.raises(BadPlacement, match="broker 7 is not running; running: 0, 1, 2"):
        per_broker(brokers(3), {7: 1}, 1)
