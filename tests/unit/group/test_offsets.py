"""Committed offsets: what may be committed, when they expire, what transactions do to them."""

from __future__ import annotations

import pytest

from braidmq.group.offsets import Committed, Expirable, OffsetTable, checked_metadata
from braidmq.wire.errors import ApiError, ErrorCode

DAY_MS = 86_400_000
WEEK_MS = 7 * DAY_MS
NOBODY_READS = Expirable(frozenset(), None)


def at(offset: int, commit_ms: int = 0, expire_ms: int | None = None) -> Committed:
    return Committed(offset, -1, "", commit_ms, expire_ms)


def table_of(**commits: Committed) -> OffsetTable:
    table = OffsetTable()
    for topic, committed in commits.items():
        table.commit(topic, 0, committed)
    return table


def test_the_last_commit_of_a_partition_counts() -> None:
    """C6: partitions are told apart, and a later commit replaces an earlier one, backwards as well."""
    table = table_of(orders=at(10))
    table.commit("orders", 1, at(5))
    table.commit("orders", 0, at(3))
    assert table.find("orders", 0) == at(3)
    assert table.find("orders", 1) == at(5)
    assert table.find("orders", 2) is None
    assert table.topics() == {"orders": [0, 1]}


def test_metadata_is_limited_in_length() -> None:
    """C6: 4,096 characters are kept, as Kafka counts them; one more is refused, and null counts as empty."""
    assert checked_metadata(None, 4096) == ""
    assert checked_metadata("x" * 4096, 4096) == "x" * 4096
    assert checked_metadata("é" * 4096, 4096) == "é" * 4096
    for too_long in ("x" * 4097, "é" * 4097):
        with pytest.raises(ApiError) as refused:
            checked_metadata(too_long, 4096)
        assert refused.value.code is ErrorCode.OFFSET_METADATA_TOO_LARGE


def test_offsets_of_topics_that_are_read_do_not_expire() -> None:
    """C6: a member may read for months without anything new to commit."""
    table = table_of(read=at(1), dropped=at(1))
    due = table.expired(WEEK_MS, WEEK_MS, Expirable(frozenset({"read"}), None))
    assert due == [("dropped", 0)]
    assert table.expired(WEEK_MS - 1, WEEK_MS, Expirable(frozenset({"read"}), None)) == []


def test_offsets_of_an_empty_group_expire_when_it_has_been_idle_long_enough() -> None:
    """C6: idle time counts from the last member's leaving; a reset by hand afterwards counts anew."""
    table = table_of(old=at(1, commit_ms=0), reset=at(1, commit_ms=9 * DAY_MS))
    assert table.expired(10 * DAY_MS, WEEK_MS, Expirable(frozenset(), 6 * DAY_MS)) == []
    assert table.expired(10 * DAY_MS, WEEK_MS, Expirable(frozenset(), 8 * DAY_MS)) == [("old", 0)]


def test_an_end_that_the_client_asked_for_is_kept() -> None:
    """C6: retention_time of OffsetCommit 2 to 4 goes before the broker's own."""
    table = table_of(short=at(1, expire_ms=DAY_MS), long=at(1, expire_ms=30 * DAY_MS))
    assert table.expired(DAY_MS - 1, WEEK_MS, NOBODY_READS) == []
    assert table.expired(8 * DAY_MS, WEEK_MS, NOBODY_READS) == [("short", 0)]


def test_offsets_in_a_transaction_count_when_it_commits_and_vanish_when_it_aborts() -> None:
    """T2: until the marker comes the old offset holds, and is known to be undecided."""
    table = table_of(orders=at(1))
    table.commit_undecided(7, "orders", 0, at(20))
    table.commit_undecided(8, "orders", 0, at(30))
    assert table.find("orders", 0) == at(1)
    assert table.is_undecided("orders", 0)
    assert not table.is_undecided("orders", 1)
    assert table.expired(WEEK_MS, WEEK_MS, NOBODY_READS) == [], "a transaction holds on to its offsets"
    assert table.decide(8, committed=False) == [("orders", 0)]
    assert table.find("orders", 0) == at(1)
    assert table.decide(7, committed=True) == [("orders", 0)]
    assert table.find("orders", 0) == at(20)
    assert not table.is_undecided("orders", 0)
    assert table.decide(7, committed=True) == []


def test_a_table_is_in_use_while_anything_is_in_it() -> None:
    """C6: a group may be forgotten only when nothing is left, decided or not."""
    table = OffsetTable()
    assert not table.in_use
    table.commit_undecided(1, "orders", 0, at(1))
    assert table.in_use
    table.decide(1, committed=False)
    table.commit("orders", 0, at(1))
    assert table.has_more_than([])
    assert not table.has_more_than([("orders", 0)])
    table.forget(table.of_topic("orders"))
    assert not table.in_use
