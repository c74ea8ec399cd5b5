"""What a name server knows, by the clock of the test."""

from __future__ import annotations

import pytest

from braidmq.cluster import name_server, records
from braidmq.cluster.image import Image
from braidmq.cluster.metadata_store import Change, Event, Item, Snapshot
from braidmq.cluster.name_server import Beat, NameServer, Page, PartitionRoute, TooMany, TopicRoute
from braidmq.cluster.records import PartitionMeta, TopicMeta, encode
from braidmq.cluster.route_changes import RouteChanges


def beat(node_id: int, revision: int, epoch: int = 1) -> Beat:
    return Beat(node_id, epoch, f"host-{node_id}", 9092, None, 1, 0, draining=False, routes_revision=revision)


def page(after: int, revision: int, *names: str, removed: tuple[str, ...] = ()) -> Page:
    topics = [TopicRoute(name, name.encode(), False, (PartitionRoute(1, 0, (1,), (1,)),)) for name in names]
    return Page(after, revision, topics, removed, is_first=True, is_last=True)


def test_routes_are_asked_for_once_and_only_what_is_missing() -> None:
    """N1: heartbeats carry no topics; changes travel once, from one broker."""
    known = NameServer()
    assert known.heartbeat(beat(1, 10), 0.0) == 0
    assert known.heartbeat(beat(2, 10), 0.0) == -1
    known.take(2, page(0, 10, "unasked"), 0.0)
    assert not known.topics
    known.take(1, page(0, 10, "a", "b"), 0.1)
    assert list(known.topics) == ["a", "b"]
    assert known.heartbeat(beat(2, 10), 3.0) == -1
    assert known.heartbeat(beat(2, 12), 6.0) == 10
    known.take(2, page(10, 12, "c", removed=("a",)), 6.1)
    assert sorted(known.topics) == ["b", "c"]
    assert len(known.by_id) == 2


def test_a_broker_that_does_not_send_routes_is_not_waited_for() -> None:
    """N1: another one is asked after some seconds, or when the first is gone."""
    known = NameServer()
    assert known.heartbeat(beat(1, 10), 0.0) == 0
    assert known.heartbeat(beat(2, 10), 4.0) == -1
    assert known.heartbeat(beat(2, 10), 5.5) == 0
    known.forget(2)
    assert known.heartbeat(beat(1, 10), 5.6) == 0


def test_the_silent_are_forgotten_after_ten_seconds() -> None:
    """N1: a scan each second finds them; their partitions have no leader then."""
    known = NameServer()
    known.heartbeat(beat(1, 10), 0.0)
    known.take(1, page(0, 10, "a"), 0.0)
    known.heartbeat(beat(2, 10), 8.0)
    assert known.leader("a", 0) == beat(1, 10)
    assert known.scan(10.0) == []
    assert known.scan(10.5) == [1]
    assert list(known.brokers) == [2]
    assert known.leader("a", 0) is None


def test_metadata_from_a_backup_is_read_whole() -> None:
    """N1: revisions that all went back are no reason to keep what was known."""
    known = NameServer()
    known.heartbeat(beat(1, 10), 0.0)
    known.take(1, page(0, 10, "a", "b"), 0.0)
    assert known.heartbeat(beat(1, 4), 3.0) == 0
    known.take(1, page(0, 4, "a"), 3.0)
    assert list(known.topics) == ["a"]


def item(key: str, value: bytes, revision: int) -> Item:
    return Item(records.prefix("braid") + key, value, revision, revision)


def topic_items(name: str, revision: int, leader: int = 1) -> list[Item]:
    topic_id = name.encode().rjust(16, b"\0")
    meta = PartitionMeta(leader=leader, epoch=0, replicas=(leader,), isr=(leader,))
    return [
        item(records.partition_key(topic_id, 0), encode(meta, "t"), revision),
        item(records.topic_key(topic_id), encode(TopicMeta(name=name, partitions=1), "t"), revision),
    ]


def test_a_broker_sends_what_has_changed_since_and_else_everything() -> None:
    """N1: the newest changes by name, deletions among them; all routes to who knows too little."""
    image = Image(records.prefix("braid"))
    image.load(Snapshot(9, (*topic_items("a", 3), *topic_items("b", 5))))
    changes = RouteChanges(image, frozenset())
    assert changes.revision == 5
    change = Change(11, tuple(Event(one.key, one) for one in topic_items("c", 11)))
    assert changes.follow(image.apply(change))
    gone = Change(12, tuple(Event(one.key, None) for one in topic_items("a", 0)))
    assert changes.follow(image.apply(gone))
    other = Change(13, (Event(records.prefix("braid") + records.TICK, None),))
    assert not changes.follow(image.apply(other))
    assert changes.revision == 12
    (found,) = changes.pages(5)
    assert (found.after, found.revision, [one.name for one in found.topics], found.removed) == (
        5, 12, ["c"], ["a"],
    )  # fmt: skip
    (found,) = changes.pages(11)
    assert (found.topics, found.removed) == ([], ["a"])
    for too_little in (0, 4, 99):
        (found,) = changes.pages(too_little)
        assert (found.after, sorted(one.name for one in found.topics)) == (0, ["b", "c"])


def test_what_brokers_send_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """N1 W5: by topics and partitions, over all pages and changes; what is known stays."""
    monkeypatch.setattr(name_server, "ENTRIES_MAX", 6)
    known = NameServer()
    known.heartbeat(beat(1, 10), 0.0)
    known.take(1, page(0, 10, "a", "b"), 0.0)
    known.heartbeat(beat(1, 11), 3.0)
    known.take(1, page(10, 11, "c"), 3.0)
    known.heartbeat(beat(1, 12), 6.0)
    with pytest.raises(TooMany):
        known.take(1, page(11, 12, "d"), 6.0)
    assert sorted(known.topics) == ["a", "b", "c"]
    assert known.heartbeat(beat(1, 12), 9.0) == 11
