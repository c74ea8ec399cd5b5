"""What must hold in a cluster after every step, whatever its clients see.

- A partition has one leader in an epoch, and epochs only go up.
- A topic's name leads to one topic, and a topic that is there keeps its name.
- The image of every broker is the store's content as of the image's revision: a prefix of its history.
- No two brokers hold a partition at the same time (there is one replica of each).
- A coordinator writes under the leader epoch it was loaded with, and nothing after it has resigned.
- A partition takes no marker of an earlier coordinator after one of a later.
- A topic's directory goes only after a record of the topic's deletion.

The store's history is looked at when it grows, an image when it moves, and directories every now and then.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any
from unittest import mock

from tests.history.group_reading import GroupReading
from tests.sim.invariants import PARTITIONS, Judge
from tests.sim.nodes import DATA, Node
from tests.sim.store import SimStore

from braidmq.broker.broker import Broker
from braidmq.broker.internal_partition import InternalPartition
from braidmq.broker.replica import Replica
from braidmq.broker.topic_directories import split_name
from braidmq.cluster import records
from braidmq.cluster.image import _kind_of
from braidmq.cluster.metadata_store import Change
from braidmq.cluster.records import PartitionMeta, TopicMeta, TopicName, decode
from braidmq.log.transactions import EndMarker
from braidmq.wire.errors import ErrorCode

LATE = (
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.UNKNOWN_TOPIC_ID,
    ErrorCode.LEADER_NOT_AVAILABLE,
    ErrorCode.NETWORK_EXCEPTION,
    ErrorCode.OFFSET_NOT_AVAILABLE,
)
"""What a broker may say whose image is not there yet; a client tries again."""


class ClusterJudge(Judge):
    """Judges a whole cluster: its clients, its store, its images and its disks."""

    def __init__(self, store: SimStore, prefix: str) -> None:
        super().__init__("the cluster", LATE)
        self.classic = GroupReading()
        self.watching = True
        """Not after somebody has put an old store in the place of the right one."""
        self._prefix = prefix
        self._state: dict[str, int] = {}
        self._states: dict[int, dict[str, int]] = {}
        self._leaders: dict[str, tuple[int, int]] = {}
        self._names: dict[str, str] = {}
        self._topics: dict[str, str] = {}
        self._deleted: dict[str, None] = {}
        """Topic ids, as far as a directory's name has them."""
        self._markers: dict[tuple[str, int], int] = {}
        """The newest coordinator epoch among the markers of a producer in a partition."""
        self._sizes: dict[bytes, int] = {}
        self._created: dict[str, None] = {}
        self._directories: dict[str, dict[str, None]] = {}
        self.counts: dict[str, tuple[int, int]] = {}
        """By topic that grows: the partitions that were confirmed, and the most that were asked for."""
        store.on_change.append(self._on_change)

    # -- the store's history --------------------------------------------------------------------

    def _on_change(self, change: Change) -> None:
        if not self.watching:
            return
        for event in change.events:
            name = event.key.removeprefix(self._prefix)
            if event.item is None:
                self._state.pop(name, None)
                self._went(name)
            else:
                self._state[name] = event.item.mod_revision
                self._came(name, event.item.value)
        self._states[change.revision] = dict(self._state)
        for name, topic_id in self._names.items():
            if self._topics.get(topic_id) != name:
                self.complain(f"at revision {change.revision} the name {name} leads to no topic of that name")
        if len(self._names) != len(self._topics):
            self.complain(f"at revision {change.revision} there are topics without a name")

    def _came(self, name: str, value: bytes) -> None:
        if name.startswith(records.PARTITIONS):
            meta = decode(PartitionMeta, name, value)
            before, self._leaders[name] = self._leaders.get(name), (meta.epoch, meta.leader)
            # Keys that belong to no topic count for nothing.
            topic_id, index = records.partition_of(name)
            if before is None or index >= self._sizes.get(topic_id, 0):
                return
            epoch, leader = before
            if meta.epoch < epoch or (meta.epoch == epoch and meta.leader != leader):
                self.complain(
                    f"{name}: {leader} leads in epoch {epoch}, and then {meta.leader} in {meta.epoch}"
                )
        elif name.startswith(records.TOPICS):
            self._created[records.topic_of(name).hex()[:12]] = None
            topic = decode(TopicMeta, name, value)
            self._topics[name.removeprefix(records.TOPICS)] = topic.name
            if topic.partitions < self._sizes.get(records.topic_of(name), 0):
                self.complain(f"{topic.name} has fewer partitions than before")
            self._sizes[records.topic_of(name)] = topic.partitions
        elif name.startswith(records.NAMES):
            self._names[name.removeprefix(records.NAMES)] = decode(TopicName, name, value).topic_id
        elif name.startswith(records.DELETED):
            self._deleted[records.topic_of(name).hex()[:12]] = None

    def _went(self, name: str) -> None:
        if name.startswith(records.TOPICS):
            self._topics.pop(name.removeprefix(records.TOPICS), None)
        elif name.startswith(records.NAMES):
            self._names.pop(name.removeprefix(records.NAMES), None)
        elif name.startswith(records.PARTITIONS):
            self._leaders.pop(name, None)

    # -- brokers --------------------------------------------------------------------------------

    def follow(self, node: Node, broker: Broker) -> None:
        """Looks at a broker's image whenever it moves."""
        broker.metadata.feed.listen(lambda _delta: self._look(node, broker))

    def _look(self, node: Node, broker: Broker) -> None:
        if not self.watching:
            return
        image = broker.metadata.image
        expected = self._states.get(image.revision)
        if expected is None:
            self.complain(f"{node.name} shows revision {image.revision}, which the store never had")
            return
        shown = {name: held.mod_revision for name, held in image._held.items()}
        wanted = {name: revision for name, revision in expected.items() if _is_followed(name)}
        if shown != wanted:
            differing = sorted(
                name for name in shown.keys() | wanted.keys() if shown.get(name) != wanted.get(name)
            )
            self.complain(
                f"{node.name}: its image of revision {image.revision} is not what the store had then:"
                f" {', '.join(differing[:3])}"
            )

    def look_at(self, nodes: list[Node]) -> None:
        """What can be seen of all brokers at once."""
        holders: dict[tuple[bytes, int], str] = {}
        for node in nodes:
            if node.broker is not None:
                for topic in node.broker.topics:
                    for index in topic.held:
                        other = holders.setdefault((topic.id, index), node.name)
                        if other != node.name:
                            self.complain(f"{other} and {node.name} both hold {topic.name}-{index}")
            self._look_at_directories(node)

    def _look_at_directories(self, node: Node) -> None:
        if node.disk.off or not node.disk.exists(DATA / "topics"):
            return
        now = dict.fromkeys(
            split_name(name)[1] for name in node.disk.listdir(DATA / "topics") if name.count(".") > 0
        )
        for topic in self._directories.get(node.name, {}):
            if topic not in now and topic in self._created and topic not in self._deleted:
                self.complain(f"{node.name} has removed the directory of topic {topic}, which nobody deleted")
        self._directories[node.name] = now

    def died(self, broker: str) -> None:
        """What a crash takes from a disk is nobody's fault."""
        self._markers.clear()
        self._directories.pop(broker, None)

    def watches_shards(self) -> AbstractContextManager[object]:
        """Looks at everything that coordinators append: under the epoch they were loaded with, or not."""
        append = InternalPartition.append_batch

        def watched(partition: InternalPartition, *arguments: Any) -> int:
            offset = append(partition, *arguments)
            replica = partition.replica
            if partition._resigned or replica.leader_epoch != partition.epoch or not replica.leads:
                self.complain(
                    f"the coordinator of {partition} wrote under epoch {partition.epoch}, and it is in epoch"
                    f" {replica.leader_epoch}"
                )
            return offset

        return mock.patch.object(InternalPartition, "append_batch", watched)

    def watches_markers(self) -> AbstractContextManager[object]:
        """Looks at every end of a transaction: none of an earlier coordinator after those of a later one."""
        append = Replica.append_marker

        def watched(replica: Replica, marker: EndMarker, transaction_version: int) -> int:
            before = replica.end_offset
            stored_at = append(replica, marker, transaction_version)
            if replica.end_offset > before:
                key = (str(replica), marker.producer_id)
                newest = self._markers.get(key, -1)
                self._markers[key] = max(newest, marker.coordinator_epoch)
                if marker.coordinator_epoch < newest:
                    self.complain(
                        f"{replica} took a marker of coordinator epoch {marker.coordinator_epoch} after one"
                        f" of {newest}"
                    )
            return stored_at

        return mock.patch.object(Replica, "append_marker", watched)

    # -- the end --------------------------------------------------------------------------------

    def found_counts(self, counts: dict[str, int]) -> None:
        """How many partitions there are in the end."""
        for name, (confirmed, asked) in self.counts.items():
            if not confirmed <= counts.get(name, 0) <= asked:
                self.complain(
                    f"{name} has {counts.get(name, 0)} partitions: {confirmed} were confirmed, {asked} is the"
                    " most anybody asked for"
                )

    def verdict(self) -> list[str]:
        return super().verdict() + [f"{self.broker}: {one}" for one in self.classic.findings]

    def conclude_classic(self, ends: dict[int, int], positions: dict[int, int]) -> None:
        self.classic.conclude(ends, {index: positions[index] for index in range(PARTITIONS)})


def _is_followed(name: str) -> bool:
    try:
        return _kind_of(name) is not None
    except Exception:
        return False
