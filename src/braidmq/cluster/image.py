"""The cluster as a broker sees it: the metadata store in memory, and what each change of it means.

A broker takes a snapshot of the store and then follows its watch. `Image` is where both end: it turns them
into objects that requests are answered from, and says what has changed as a `Delta`. No request waits for the
store, unless it changes metadata. This module is pure; `cluster/image_feed.py` feeds it.

A topic shows when its key in `topics/` does. Its partitions are written before that, a hundred at a time, and
deleted after it, so partition keys without a topic are normal: the topic was never committed, or is gone.
Nobody counts them. Likewise a partition at or above the topic's count belongs to a growth that is under way.

A value that cannot be read changes nothing: what the key held before stays, and the delta names it. One bad
value must not stop every broker of the cluster at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Generic, NamedTuple, TypeVar, cast

from braidmq.cluster import records
from braidmq.cluster.metadata_store import Change, Event, Item, Snapshot
from braidmq.cluster.placement import Candidate
from braidmq.cluster.records import (
    Admitted,
    Alive,
    BadRecord,
    ClusterId,
    Controller,
    DeletedTopic,
    Format,
    NextProducerId,
    Node,
    Options,
    PartitionMeta,
    Record,
    Secret,
    State,
    Tick,
    TopicMeta,
    TopicName,
    decode,
)

R = TypeVar("R", bound=Record)


class Held(NamedTuple, Generic[R]):
    """What a key holds, and the revisions that a change of it compares."""

    record: R
    create_revision: int
    mod_revision: int
    lease: int


PartitionImage = Held[PartitionMeta]


class PartitionId(NamedTuple):
    """Which partition of which topic."""

    topic_id: bytes
    partition: int


class Move(NamedTuple):
    """A partition before and after a change; None where there was, or is, none."""

    before: PartitionImage | None
    after: PartitionImage | None


class TopicImage:
    """A topic with all its partitions."""

    __slots__ = ("id", "meta", "partitions")

    def __init__(
        self, topic_id: bytes, meta: Held[TopicMeta], partitions: list[PartitionImage | None]
    ) -> None:
        self.id = topic_id
        self.meta = meta
        self.partitions = partitions
        """None for one whose value has never been readable."""

    @property
    def name(self) -> str:
        return self.meta.record.name


@dataclass(slots=True)
class BrokerImage:
    """All that is known of one broker."""

    node_id: int
    node: Held[Node] | None = None
    alive: Held[Alive] | None = None
    admitted: Held[Admitted] | None = None

    @property
    def epoch(self) -> int:
        """The broker epoch, while it runs; else -1."""
        return records.NO_EPOCH if self.alive is None else self.alive.create_revision

    @property
    def takes_partitions(self) -> bool:
        return self.alive is not None and self.alive.record.state is State.UP and self.node is not None


@dataclass(slots=True)
class _Load:
    """What a broker holds."""

    leaders: int = 0
    replicas: int = 0


class Role(Enum):
    """What a broker is for a partition."""

    NONE = auto()
    FOLLOWER = auto()
    LEADER = auto()


@dataclass(slots=True)
class Delta:
    """What one change, or a new snapshot, has changed."""

    revision: int
    topics: dict[bytes, tuple[TopicImage | None, TopicImage | None]] = field(default_factory=dict)
    """Topics that came, went, or have another count or other options: before and after."""
    partitions: dict[PartitionId, Move] = field(default_factory=dict)
    brokers: dict[int, None] = field(default_factory=dict)
    """Node ids, in order; what they are now is in the image."""
    options: dict[str, None] = field(default_factory=dict)
    """Keys under `configs/`."""
    deleted: dict[bytes, None] = field(default_factory=dict)
    """Topics whose deletion has been recorded: their directories may go."""
    controller: bool = False
    unreadable: dict[str, str] = field(default_factory=dict)
    """Keys whose value is not understood, and why; what they held before stays."""

    def moves_of(self, node_id: int) -> Iterator[tuple[PartitionId, Role, Move]]:
        """Partitions that `node_id` had or has, with what it is for them now."""
        for which, move in self.partitions.items():
            role = role_of(move.after, node_id)
            if role is not Role.NONE or role_of(move.before, node_id) is not Role.NONE:
                yield which, role, move


def role_of(partition: PartitionImage | None, node_id: int) -> Role:
    if partition is None or node_id not in partition.record.replicas:
        return Role.NONE
    return Role.LEADER if partition.record.leader == node_id else Role.FOLLOWER


_SINGLE: Mapping[str, type[Record]] = {
    records.CLUSTER_ID: ClusterId,
    records.FORMAT: Format,
    records.SECRET: Secret,
    records.CONTROLLER: Controller,
    records.TICK: Tick,
    records.PRODUCER_IDS: NextProducerId,
}
_GROUPED: Mapping[str, type[Record]] = {
    records.NAMES: TopicName,
    records.TOPICS: TopicMeta,
    records.PARTITIONS: PartitionMeta,
    records.DELETED: DeletedTopic,
    records.CONFIGS: Options,
}
_OF_BROKER: Mapping[str, type[Record]] = {"node": Node, "alive": Alive, "admitted": Admitted}


class Image:
    """Everything under a cluster's prefix, as of one revision."""

    def __init__(self, prefix: str) -> None:
        self.revision = 0
        self.version = 0
        """Goes up whenever a topic or a partition changes."""
        self.topics: dict[bytes, TopicImage] = {}
        self.by_name: dict[str, TopicImage] = {}
        self.brokers: dict[int, BrokerImage] = {}
        self._prefix = prefix
        self._held: dict[str, Held[Record]] = {}
        self._loads: dict[int, _Load] = {}
        self._last: tuple[type[Record], bytes, Record] | None = None
        """What was decoded last: the partitions of a topic have a few values between them."""
        self._indexes: dict[bytes, set[int]] = {}
        """The partition keys there are of each topic, shown or not."""

    # -- what is there --------------------------------------------------------------------------

    def find(self, name: str) -> TopicImage | None:
        return self.by_name.get(name)

    def partition(self, topic_id: bytes, index: int) -> PartitionImage | None:
        topic = self.topics.get(topic_id)
        if topic is None or not 0 <= index < len(topic.partitions):
            return None
        return topic.partitions[index]

    @property
    def controller(self) -> Held[Controller] | None:
        return self._of_kind(records.CONTROLLER, Controller)

    @property
    def tick(self) -> int:
        """The newest count of the controller's tick."""
        held = self._of_kind(records.TICK, Tick)
        return 0 if held is None else held.record.count

    @property
    def cluster_id(self) -> str | None:
        held = self._of_kind(records.CLUSTER_ID, ClusterId)
        return None if held is None else held.record.id

    @property
    def format_level(self) -> int:
        held = self._of_kind(records.FORMAT, Format)
        return 0 if held is None else held.record.level

    @property
    def secret(self) -> str | None:
        held = self._of_kind(records.SECRET, Secret)
        return None if held is None else held.record.hex

    def options(self, kind: str, name: str) -> Held[Options] | None:
        return self._of_kind(records.config_key(kind, name), Options)

    def all_options(self, kind: str) -> dict[str, Held[Options]]:
        """The options of everything of a kind, by name."""
        start = records.config_key(kind, "")
        return {
            key.removeprefix(start): cast("Held[Options]", held)
            for key, held in self._held.items()
            if key.startswith(start) and isinstance(held.record, Options)
        }

    def was_deleted(self, topic_id: bytes) -> bool:
        return records.deleted_key(topic_id) in self._held

    def deleted(self, topic_id: bytes) -> DeletedTopic | None:
        """The record of a topic's deletion."""
        held = self._of_kind(records.deleted_key(topic_id), DeletedTopic)
        return None if held is None else held.record

    def all_deleted(self) -> list[bytes]:
        """The topics whose deletion is recorded."""
        return [records.topic_of(key) for key in self._held if key.startswith(records.DELETED)]

    def mod_revision(self, key: str) -> int:
        """The revision that last wrote a key, without the prefix; 0 if there is none."""
        held = self._held.get(key)
        return 0 if held is None else held.mod_revision

    def key(self, name: str) -> str:
        """A key as the store knows it."""
        return self._prefix + name

    def leftovers(self) -> Iterator[PartitionId]:
        """Partition keys that belong to no topic, or lie above its count."""
        for topic_id, indexes in self._indexes.items():
            topic = self.topics.get(topic_id)
            count = 0 if topic is None else len(topic.partitions)
            if len(indexes) <= count and max(indexes) < count:
                continue
            yield from (PartitionId(topic_id, index) for index in sorted(indexes) if index >= count)

    def loads(self) -> dict[int, tuple[int, int]]:
        """How many partitions each broker leads and holds; under -1 those that nobody leads."""
        return {
            node_id: (load.leaders, load.replicas)
            for node_id, load in self._loads.items()
            if load.leaders or load.replicas
        }

    def candidates(self, asked: int | None = None) -> list[Candidate]:
        """The brokers that may take partitions, with what they hold.

        `asked` is the broker that asks: it runs, whether or not its lease says so at the moment.
        """
        found = []
        for node_id, broker in sorted(self.brokers.items()):
            if broker.node is not None and (broker.takes_partitions or node_id == asked):
                node, load = broker.node.record, self._loads.get(node_id, _Load())
                found.append(Candidate(node_id, node.host, node.rack, load.leaders, load.replicas))
        return found

    def _count(self, partition: PartitionImage | None, added: int) -> None:
        if partition is not None:
            self._load_of(partition.record.leader).leaders += added
            for node_id in partition.record.replicas:
                self._load_of(node_id).replicas += added

    def _load_of(self, node_id: int) -> _Load:
        load = self._loads.get(node_id)
        if load is None:
            load = self._loads[node_id] = _Load()
        return load

    def _of_kind(self, key: str, kind: type[R]) -> Held[R] | None:
        held = self._held.get(key)
        if held is None or not isinstance(held.record, kind):
            return None
        return cast("Held[R]", held)

    # -- changes --------------------------------------------------------------------------------

    def apply(self, change: Change) -> Delta:
        """Follows one revision of the store."""
        if change.revision <= self.revision:
            return Delta(self.revision)
        return self._take(change.revision, change.events)

    def load(self, snapshot: Snapshot) -> Delta:
        """Takes a whole snapshot; the delta is what differs from what was known before."""
        return self._take(snapshot.revision, list(self._differences(snapshot.items)))

    def _differences(self, items: Iterable[Item]) -> Iterator[Event]:
        gone = dict.fromkeys(self._held)
        for item in items:
            name = item.key.removeprefix(self._prefix)
            gone.pop(name, None)
            # The create revision, too: a key may have been deleted and put again meanwhile.
            held = self._held.get(name)
            if held is None or held[1:] != (item.create_revision, item.mod_revision, item.lease):
                yield Event(item.key, item)
        for name in gone:
            yield Event(self._prefix + name, None)

    def _take(self, revision: int, events: Iterable[Event]) -> Delta:
        delta = Delta(revision)
        topics: dict[bytes, None] = {}
        partitions_changed: dict[PartitionId, None] = {}
        for event in events:
            name = event.key.removeprefix(self._prefix)
            try:
                kind = _kind_of(name)
                if kind is None:
                    continue
                if event.item is None:
                    self._held.pop(name, None)
                else:
                    item = event.item
                    record = self._decoded(kind, name, item.value)
                    self._held[name] = Held(record, item.create_revision, item.mod_revision, item.lease)
                self._note(name, kind, topics, partitions_changed, delta)
            except BadRecord as error:
                delta.unreadable[name] = str(error)
        for topic_id in topics:
            self._rebuild(topic_id, delta)
        for which in partitions_changed:
            if which.topic_id not in topics:
                self._replace(which, delta)
        for move in delta.partitions.values():
            self._count(move.before, -1)
            self._count(move.after, 1)
        if delta.topics or delta.partitions:
            self.version += 1
        self.revision = revision
        return delta

    def _decoded(self, kind: type[Record], name: str, value: bytes) -> Record:
        if self._last is None or self._last[0] is not kind or self._last[1] != value:
            self._last = (kind, value, decode(kind, name, value))
        return self._last[2]

    def _note(
        self,
        name: str,
        kind: type[Record],
        topics: dict[bytes, None],
        partitions_changed: dict[PartitionId, None],
        delta: Delta,
    ) -> None:
        """Remembers what a changed key is about."""
        if kind is PartitionMeta:
            which = PartitionId(*records.partition_of(name))
            indexes = self._indexes.setdefault(which.topic_id, set())
            if name in self._held:
                indexes.add(which.partition)
            else:
                indexes.discard(which.partition)
                if not indexes:
                    del self._indexes[which.topic_id]
            partitions_changed[which] = None
        elif kind is TopicMeta:
            topics[records.topic_of(name)] = None
        elif kind in (Node, Alive, Admitted):
            node_id, _ = records.broker_of(name)
            self._note_broker(node_id)
            delta.brokers[node_id] = None
        elif kind is Options:
            delta.options[name] = None
        elif kind is DeletedTopic:
            if name in self._held:
                delta.deleted[records.topic_of(name)] = None
        elif kind is Controller:
            delta.controller = True

    def _note_broker(self, node_id: int) -> None:
        broker = BrokerImage(
            node_id,
            self._of_kind(records.node_key(node_id), Node),
            self._of_kind(records.alive_key(node_id), Alive),
            self._of_kind(records.admitted_key(node_id), Admitted),
        )
        if broker.node is None and broker.alive is None:
            self.brokers.pop(node_id, None)
        else:
            self.brokers[node_id] = broker

    def _rebuild(self, topic_id: bytes, delta: Delta) -> None:
        """A topic's own key has changed."""
        before = self.topics.pop(topic_id, None)
        if before is not None and self.by_name.get(before.name) is before:
            del self.by_name[before.name]
        after = None
        meta = self._of_kind(records.topic_key(topic_id), TopicMeta)
        if meta is not None:
            partitions = [
                self._of_kind(records.partition_key(topic_id, index), PartitionMeta)
                for index in range(meta.record.partitions)
            ]
            after = self.topics[topic_id] = self.by_name[meta.record.name] = TopicImage(
                topic_id, meta, partitions
            )
        if before is None and after is None:
            return
        delta.topics[topic_id] = (before, after)
        held_before = [] if before is None else before.partitions
        held_after = [] if after is None else after.partitions
        for index in range(max(len(held_before), len(held_after))):
            move = Move(
                held_before[index] if index < len(held_before) else None,
                held_after[index] if index < len(held_after) else None,
            )
            if move.before != move.after:
                delta.partitions[PartitionId(topic_id, index)] = move

    def _replace(self, which: PartitionId, delta: Delta) -> None:
        """The key of one partition has changed, that of its topic has not."""
        topic = self.topics.get(which.topic_id)
        if topic is None or which.partition >= len(topic.partitions):
            return
        before = topic.partitions[which.partition]
        after = self._of_kind(records.partition_key(*which), PartitionMeta)
        topic.partitions[which.partition] = after
        if before is not None or after is not None:
            delta.partitions[which] = Move(before, after)


def _kind_of(name: str) -> type[Record] | None:
    """What a key holds; None for keys of a later version, which are none of our business."""
    if (kind := _SINGLE.get(name)) is not None:
        return kind
    group, slash, _ = name.partition("/")
    if group + slash == records.BROKERS:
        return _OF_BROKER.get(records.broker_of(name)[1])
    return _GROUPED.get(group + slash)
