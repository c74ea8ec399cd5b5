"""The pure state machine of the metadata store: what its shells rely on beyond what every store does."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from braidmq.cluster import kv as kv_module
from braidmq.cluster.kv import Committed, Granted, KeyValues, Revoked, restore, step_from_json, step_to_json
from braidmq.cluster.metadata_store import Change, Event, Expired, Item, Lost, Put
from braidmq.cluster.store_json import change_from_json, change_to_json, item_from_json, item_to_json


def commit(kv: KeyValues, *puts: Put, deletes: tuple[str, ...] = ()) -> Change:
    step = kv.commit((), puts, deletes)
    assert step is not None
    change = kv.apply(step, 0.0)
    assert change is not None
    return change


def test_deciding_changes_nothing() -> None:
    """N4: a step is taken by `apply` alone, so a request that is not written has not happened."""
    kv = KeyValues()
    assert kv.commit((), [Put("k", b"")], ()) == Committed(2, (Put("k", b""),), ())
    assert kv.grant(5) == Granted(1, 5)
    assert (kv.revision, len(kv), kv.next_deadline()) == (1, 0, None)


def test_a_lease_ends_at_its_deadline_and_not_before() -> None:
    """N4: renewing moves the deadline; a lease whose time is over cannot be renewed any more."""
    kv = KeyValues()
    kv.apply(kv.grant(10), now=100.0)
    assert kv.due(109.9) == []
    assert kv.renew(1, now=105.0) == 10
    assert kv.due(114.9) == []
    assert (kv.due(115.0), kv.next_deadline()) == ([1], 115.0)
    with pytest.raises(Expired):
        kv.renew(1, now=115.0)
    assert kv.revoke(1) == Revoked(1, 0)


def test_leases_end_in_the_order_of_their_deadlines() -> None:
    """N4: each in a revision of its own."""
    kv = KeyValues()
    for ttl_s in (30, 10, 20):
        kv.apply(kv.grant(ttl_s), now=0.0)
    commit(kv, Put("a", b"", 1), Put("b", b"", 2), Put("c", b"", 3))
    changes = []
    for lease_id in kv.due(25.0):
        step = kv.revoke(lease_id)
        assert step is not None
        changes.append(kv.apply(step, 25.0))
    assert changes == [Change(3, (Event("b", None),)), Change(4, (Event("c", None),))]
    assert kv.deadlines() == {1: 30.0}


def test_history_is_bounded_by_count_and_by_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """N4: a watch that falls out of it is lost; the bound does not depend on who watches."""
    monkeypatch.setattr(kv_module, "HISTORY_REVISIONS_MAX", 3)
    kv = KeyValues()
    assert kv.change_after(0, "", until=99) == (1, None)
    for _ in range(4):
        commit(kv, Put("k", b""))
    assert (kv.revision, kv.compact_revision) == (5, 2)
    with pytest.raises(Lost):
        kv.change_after(1, "", until=99)
    assert kv.change_after(2, "k", until=99)[0] == 3
    monkeypatch.setattr(kv_module, "HISTORY_BYTES_MAX", 1000)
    commit(kv, Put("k", bytes(800)))
    commit(kv, Put("k", bytes(800)))
    assert (kv.revision, kv.compact_revision) == (7, 6)


def test_changes_are_not_shown_before_they_may_be_seen() -> None:
    """N4: what is not durable yet is held back from watches, and a position is not moved past it."""
    kv = KeyValues()
    commit(kv, Put("other", b""))
    commit(kv, Put("k", b""))
    assert kv.change_after(1, "k", until=2) == (2, None)
    assert kv.change_after(2, "k", until=2) == (2, None)
    position, change = kv.change_after(2, "k", until=3)
    assert (position, change and change.revision) == (3, 3)


def test_a_dump_is_restored_with_everything_but_history() -> None:
    """N4: items, revisions and leases come back; a lease has its full time again."""
    kv = KeyValues(last_lease=41)
    kv.apply(kv.grant(10), now=0.0)
    commit(kv, Put("a", b"\xff\x00", 42), Put("b", b"1"))
    commit(kv, Put("b", b"2"), Put("gone", b""))
    commit(kv, deletes=("gone",))
    again = restore(kv.dump(), now=1000.0)
    assert again.items("") == kv.items("")
    assert (again.revision, again.compact_revision) == (4, 4)
    assert again.next_deadline() == 1010.0
    assert again.grant(5).lease_id == 43
    assert again.revoke(42) == Revoked(42, 5)
    assert again.dump() == kv.dump()


def test_a_large_dump_is_written_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """N4: no entry of the journal grows with the store."""
    monkeypatch.setattr(kv_module, "ITEMS_PER_ENTRY", 10)
    kv = KeyValues()
    commit(kv, *(Put(f"k{number:03}", b"") for number in range(95)))
    assert [len(entry.get("items", [])) for entry in kv.entries()] == [0, *[10] * 9, 5]
    assert restore(kv.dump(), 0.0).items("") == kv.items("")
    with pytest.raises(ValueError, match="up to byte"):
        restore(kv.dump()[:-1], 0.0)


@pytest.mark.parametrize(
    "entry",
    [
        {"steps": [["commit", 4, [["k", "", 0]], []]]},
        {"steps": [["commit", 2, [["k", "", 0]], []]]},
        {"steps": [["commit", 3, [], []]]},
        {"steps": [["commit", 3, [], ["none"]]]},
        {"steps": [["commit", 3, [["k", "", 7]], []]]},
        {"steps": [["commit", 3, [["k", "", -1]], []]]},
        {"steps": [["commit", 3, [["k", 1, 0]], []]]},
        {"steps": [["revoke", 7, 0]]},
        {"steps": [["revoke", 1, 3]]},
        {"steps": [["grant", 1, 5]]},
        {"steps": [["compact", 9]]},
        {"steps": [["other"]]},
        {"steps": "x"},
        {"state": [1, 0, []]},
        {"items": [["k", "", 2, 2, 0]]},
        {"items": [["new", "", 3, 2, 0]]},
        {"other": []},
    ],
)
def test_an_entry_that_does_not_fit_is_refused(entry: dict[str, Any]) -> None:
    """L6: a journal that was mixed up is noticed, not believed."""
    kv = KeyValues()
    kv.apply(kv.grant(10), 0.0)
    commit(kv, Put("k", b""))
    with pytest.raises(ValueError, match=r"\w"):
        kv.load(entry, 0.0)


@given(st.binary(), st.text(st.characters(exclude_categories=["Cs"]), min_size=1))
def test_any_value_comes_back_from_json(value: bytes, key: str) -> None:
    """N4: values are bytes, whatever they are."""
    item = Item(key, value, 1, 2, 3)
    assert item_from_json(item_to_json(item)) == item
    change = Change(2, (Event(key, item), Event("k", None)))
    assert change_from_json(change_to_json(change)) == change
    step = Committed(3, (Put(key, value, 4),), (key,))
    assert step_from_json(step_to_json(step)) == step
