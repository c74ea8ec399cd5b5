"""Heartbeats that say nothing new: answered without a look at the group, if nothing is to be told."""

from __future__ import annotations

from braidmq.group.consumer_group import ConsumerGroup
from braidmq.group.consumer_member import Heartbeat, SteadyBeat
from braidmq.group.settings import GroupSettings
from unit.group.catalogs import FakeCatalog

SESSION_MS = 45_000


def joining(member_id: str) -> Heartbeat:
    return Heartbeat(member_id, 0, "c", "/h", None, None, 60_000, frozenset({"orders"}), owned=frozenset())


def steady(member_id: str, epoch: int, client_id: str = "c") -> SteadyBeat:
    return SteadyBeat(member_id, epoch, client_id, "/h")


def settled(catalog: FakeCatalog) -> ConsumerGroup:
    group = ConsumerGroup("g", GroupSettings(), lambda: "id", 0)
    group.heartbeat(joining("ann"), catalog, 0)
    group.take_changes()
    return group


def test_a_settled_member_is_heard_and_told_nothing() -> None:
    """C4: such a heartbeat keeps the member in the group like any other."""
    catalog = FakeCatalog(orders=4)
    group = settled(catalog)
    assert group.is_steady(steady("ann", 1), catalog.version, SESSION_MS - 1)
    group.tick(SESSION_MS + 1)
    assert "ann" in group.members
    group.tick(2 * SESSION_MS)
    assert "ann" not in group.members


def test_a_member_with_another_epoch_or_another_face_is_looked_at() -> None:
    """C4: it may have missed something, or be somebody else."""
    catalog = FakeCatalog(orders=4)
    group = settled(catalog)
    for beat in (steady("ann", 0), steady("ann", 2), steady("ann", -1), steady("bob", 1)):
        assert not group.is_steady(beat, catalog.version, 0)
    assert not group.is_steady(steady("ann", 1, client_id="other"), catalog.version, 0)


def test_a_member_learns_of_every_change_with_its_next_heartbeat() -> None:
    """C4: of new members, new partitions, and what could not be written."""
    catalog = FakeCatalog(orders=4)
    assert not settled(catalog).is_steady(steady("ann", 1), catalog.version + 1, 0)
    group = settled(catalog)
    group.heartbeat(joining("bob"), catalog, 0)
    group.take_changes()
    assert not group.is_steady(steady("ann", 1), catalog.version, 0), "it has to give up partitions"
    assert not group.is_steady(steady("bob", 2), catalog.version, 0), "it waits for them"
    group = settled(catalog)
    group.rewrite_all()
    assert not group.is_steady(steady("ann", 1), catalog.version, 0), "what changed is to be written first"
