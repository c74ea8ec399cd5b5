"""The cluster in memory: what a watch and a snapshot make of it, and what they say has changed."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from braidmq.cluster import records
from braidmq.cluster.image import Image, Move, PartitionId, PartitionImage, Role
from braidmq.cluster.kv import KeyValues
from braidmq.cluster.metadata_store import Change, Put, Snapshot
from braidmq.cluster.records import (
    Alive,
    BadRecord,
    DeletedTopic,
    Listener,
    Node,
    PartitionMeta,
    Record,
    State,
    TopicMeta,
    TopicName,
    decode,
    encode,
)

PREFIX = records.prefix("test")
ID = bytes(range(16))
OTHER = bytes(range(1, 17))


class Cluster:
    """A store, and an image that follows it."""

    def __init__(self) -> None:
        self.kv = KeyValues()
        self.image = Image(PREFIX)

    def commit(self, puts: dict[str, Record | bytes], deletes: tuple[str, ...] = ()) -> Change:
        step = self.kv.commit(
            (),
            [
                Put(PREFIX + key, value if isinstance(value, bytes) else encode(value, "1/1"))
                for key, value in puts.items()
            ],
            [PREFIX + key for key in deletes],
        )
        assert step is not None
        change = self.kv.apply(step, 0.0)
        assert change is not None
        return change

    def snapshot(self) -> Snapshot:
        return Snapshot(self.kv.revision, self.kv.items(PREFIX))


def held_by(*replicas: int, epoch: int = 0) -> PartitionMeta:
    return PartitionMeta(leader=replicas[0], epoch=epoch, replicas=replicas, isr=replicas)


def topic_keys(topic_id: bytes, name: str, count: int) -> dict[str, Record | bytes]:
    return {
        records.topic_key(topic_id): TopicMeta(name=name, partitions=count),
        records.name_key(name): TopicName(topic_id=topic_id.hex()),
    }


def broker_keys(node_id: int, host: str = "a", rack: str | None = None) -> dict[str, Record | bytes]:
    return {
        records.node_key(node_id): Node(uuid=f"u{node_id}", host=host, rack=rack),
        records.alive_key(node_id): Alive(listeners=(Listener("plain", host, 9092),), boot_id="b"),
    }


def test_a_topic_shows_with_its_own_key_and_all_its_partitions() -> None:
    """N3 N4: partition keys come first, a hundred at a time; nobody sees half a topic."""
    cluster = Cluster()
    image = cluster.image
    partitions: dict[str, Record | bytes] = {
        records.partition_key(ID, index): held_by(index) for index in range(3)
    }
    assert image.apply(cluster.commit(partitions)).partitions == {}
    assert image.find("orders") is None
    assert list(image.leftovers()) == [PartitionId(ID, index) for index in range(3)]
    delta = image.apply(cluster.commit(topic_keys(ID, "orders", 3)))
    assert {which.partition: move.before for which, move in delta.partitions.items()} == dict.fromkeys(
        range(3)
    )
    assert [(which.partition, role) for which, role, _ in delta.moves_of(1)] == [(1, Role.LEADER)]
    assert list(image.leftovers()) == []
    found = image.find("orders")
    assert found is not None
    assert [one.record.leader for one in found.partitions if one is not None] == [0, 1, 2]


def test_a_growth_shows_when_the_count_does() -> None:
    """N3: a partition above the topic's count belongs to nobody."""
    cluster = Cluster()
    image = cluster.image
    image.apply(cluster.commit({records.partition_key(ID, 0): held_by(0), **topic_keys(ID, "t", 1)}))
    assert image.apply(cluster.commit({records.partition_key(ID, 1): held_by(1)})).partitions == {}
    delta = image.apply(cluster.commit(topic_keys(ID, "t", 2)))
    assert list(delta.partitions) == [PartitionId(ID, 1)]


def test_a_deleted_topic_goes_at_once_and_its_deletion_is_on_record() -> None:
    """N4 L12: its partition keys go later; a recreated topic of that name is another one."""
    cluster = Cluster()
    image = cluster.image
    image.apply(cluster.commit({records.partition_key(ID, 0): held_by(0), **topic_keys(ID, "t", 1)}))
    gone = cluster.commit(
        {
            records.deleted_key(ID): DeletedTopic(at_ms=1),
            records.partition_key(OTHER, 0): held_by(0),
            **topic_keys(OTHER, "t", 1),
        },
        deletes=(records.topic_key(ID),),
    )
    delta = image.apply(gone)
    assert list(delta.deleted) == [ID]
    assert delta.partitions[PartitionId(ID, 0)].after is None
    assert image.was_deleted(ID)
    found = image.find("t")
    assert found is not None
    assert found.id == OTHER
    assert list(image.leftovers()) == [PartitionId(ID, 0)]


def test_a_change_that_was_seen_before_changes_nothing() -> None:
    """N4: a watch that is opened again may repeat itself."""
    cluster = Cluster()
    change = cluster.commit(topic_keys(ID, "t", 0))
    cluster.image.apply(change)
    version = cluster.image.version
    assert cluster.image.apply(change).topics == {}
    assert cluster.image.version == version


def test_a_value_that_cannot_be_read_leaves_what_was_known() -> None:
    """N4: one bad value stops no broker."""
    cluster = Cluster()
    image = cluster.image
    key = records.partition_key(ID, 0)
    image.apply(cluster.commit({key: held_by(3), **topic_keys(ID, "t", 1)}))
    delta = image.apply(cluster.commit({key: b'{"leader":"nobody"}'}))
    assert list(delta.unreadable) == [key]
    assert "epoch, isr, replicas missing" in delta.unreadable[key]
    partition = image.partition(ID, 0)
    assert partition is not None
    assert partition.record.leader == 3
    delta = image.apply(cluster.commit({"partitions/xyz/0": held_by(0), "later/version": b"?"}))
    assert list(delta.unreadable) == ["partitions/xyz/0"]


def test_fields_of_a_later_version_are_written_again() -> None:
    """N4: an older broker must not undo what a newer one has added."""
    value = b'{"v":2,"by":"2/7","leader":1,"epoch":4,"replicas":[1],"isr":[1],"mood":"good"}'
    found = decode(PartitionMeta, "k", value)
    again = decode(PartitionMeta, "k", encode(replace(found, epoch=5), "1/1"))
    assert (again.epoch, again.rest) == (5, {"mood": "good"})


@pytest.mark.parametrize(
    "value",
    [b"", b"[]", b"{}", b"\xff", b'{"leader":1,"epoch":true,"replicas":[1],"isr":[1]}', b"[" * 100_000],
)
def test_anything_else_is_refused(value: bytes) -> None:
    """N4 W4: whatever stands in the store."""
    with pytest.raises(BadRecord, match=r"^k: "):
        decode(PartitionMeta, "k", value)


def test_a_brokers_epoch_is_when_it_came_and_only_running_ones_take_partitions() -> None:
    """N4: draining brokers and those without a lease get nothing new."""
    cluster = Cluster()
    image = cluster.image
    for node_id in (1, 2, 3):
        image.apply(cluster.commit(broker_keys(node_id, rack="r")))
    epoch = image.brokers[1].epoch
    draining = Alive(listeners=(), boot_id="b", state=State.DRAINING)
    delta = image.apply(cluster.commit({records.alive_key(2): draining}, (records.alive_key(3),)))
    assert list(delta.brokers) == [2, 3]
    assert (image.brokers[1].epoch, image.brokers[3].epoch) == (epoch, -1)
    assert [candidate.node_id for candidate in image.candidates()] == [1]


KEYS = [
    *(records.partition_key(topic, index) for topic in (ID, OTHER) for index in range(3)),
    *(records.topic_key(topic) for topic in (ID, OTHER)),
    *(records.node_key(1), records.alive_key(1), records.deleted_key(ID), records.CONTROLLER),
]


def value_of(key: str, number: int) -> Record:
    if key.startswith(records.PARTITIONS):
        return held_by(number % 3, epoch=number)
    if key.startswith(records.TOPICS):
        return TopicMeta(name=f"t{number % 2}", partitions=number % 4)
    if key == records.CONTROLLER:
        return records.Controller(node_id=number)
    if key.startswith(records.DELETED):
        return DeletedTopic(at_ms=number)
    return broker_keys(1)[key]  # type: ignore[return-value]


@given(
    st.lists(st.dictionaries(st.sampled_from(KEYS), st.none() | st.integers(0, 9), min_size=1), min_size=1),
    st.data(),
)
def test_following_and_loading_end_the_same(
    history: list[dict[str, int | None]], data: st.DataObject
) -> None:
    """N4: after any history, with or without a watch that was lost; and deltas add up to what there is."""
    cluster = Cluster()
    image = cluster.image
    shown: dict[PartitionId, PartitionImage] = {}

    def note(moves: dict[PartitionId, Move]) -> None:
        for which, move in moves.items():
            assert shown.pop(which, None) == move.before
            if move.after is not None:
                shown[which] = move.after

    for step in history:
        puts = {key: value_of(key, number) for key, number in step.items() if number is not None}
        gone = tuple(
            key for key, number in step.items() if number is None and cluster.kv.get(PREFIX + key) is not None
        )
        if not puts and not gone:
            continue
        change = cluster.commit(dict(puts), gone)
        if data.draw(st.booleans()):
            note(image.apply(change).partitions)
        else:
            note(image.load(cluster.snapshot()).partitions)
    fresh = Image(PREFIX)
    fresh.load(cluster.snapshot())
    assert described(image) == described(fresh)
    assert shown == {
        PartitionId(topic.id, index): partition
        for topic in fresh.topics.values()
        for index, partition in enumerate(topic.partitions)
        if partition is not None
    }


def described(image: Image) -> object:
    return (
        {topic.id: (topic.meta, topic.partitions) for topic in image.topics.values()},
        image.brokers,
        image.controller,
        sorted(image.leftovers()),
        image.was_deleted(ID),
    )


@pytest.mark.parametrize("count", [-1, 10**9, 10**30])
def test_a_count_that_cannot_be_is_not_believed(count: int) -> None:
    """N4: one bad value must not take the memory of every broker."""
    cluster = Cluster()
    cluster.image.apply(cluster.commit(topic_keys(ID, "orders", 1)))
    delta = cluster.image.apply(cluster.commit(topic_keys(ID, "orders", count)))
    assert list(delta.unreadable) == [records.topic_key(ID)]
    assert len(cluster.image.topics[ID].partitions) == 1


def test_a_key_that_came_unreadable_and_went_is_no_change() -> None:
    """N4: a delta says what was and what is; of this there was never anything."""
    cluster = Cluster()
    cluster.image.apply(cluster.commit(topic_keys(ID, "orders", 1)))
    keys = (records.topic_key(OTHER), records.partition_key(ID, 0))
    cluster.image.apply(cluster.commit(dict.fromkeys(keys, b"?")))
    version = cluster.image.version
    delta = cluster.image.apply(cluster.commit({}, keys))
    assert (delta.topics, delta.partitions, cluster.image.version) == ({}, {}, version)
