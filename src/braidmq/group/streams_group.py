"""A group of a Kafka Streams application (KIP-1071), in which the server decides who works on which task.

It is like a `consumer_group`: one verb, the heartbeat; a group epoch, a target epoch, and an epoch of each
member; nobody waits for anybody else. What is different:

-   Members bring the topology of the application when they join (`streams_topology`). From it and the topics
    there are, the group knows the tasks. The topology of the first member is that of the group until nobody
    is left in it; a member with another one is refused, one of an earlier epoch learns that it is stale.
-   As long as topics are missing or do not fit, nobody has a task, and members learn why. Internal topics
    that are missing are for the shell to create: the answer to a heartbeat names them.
-   Tasks have roles: one active, and standbys as the group's options say (`streams_assignor`).
-   A group that was empty waits for a moment before it hands out tasks, because threads join one by one, and
    each task that moves has to restore its state.
-   Members that can be asked for state say where, and learn where all the others are (`Located`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from braidmq.group import streams_topology
from braidmq.group.admission import MEMBER_BYTES
from braidmq.group.catalog import Catalog
from braidmq.group.consumer_group import MEMBERS_PER_MS, Changes
from braidmq.group.offsets import Expirable
from braidmq.group.reconciliation import JOINING_EPOCH, LEAVING_EPOCH, MemberState
from braidmq.group.settings import GroupSettings
from braidmq.group.streams_assignor import Thread, assign
from braidmq.group.streams_member import (
    Endpoint,
    StreamsHeartbeat,
    StreamsMember,
    check_request,
)
from braidmq.group.streams_tasks import NO_TASKS, Active, Role, TaskOwners, Tasks
from braidmq.group.streams_topology import ApplicationTopic, Configured, StatusCode, Topology, TopologyStatus
from braidmq.wire.errors import ApiError, ErrorCode

NO_TOPOLOGY = Topology(-1, ())
"""What a group has before its first member; no member can bring it."""


class StreamsGroupState(StrEnum):
    """In the words of ListGroups."""

    EMPTY = "Empty"
    NOT_READY = "NotReady"
    ASSIGNING = "Assigning"
    RECONCILING = "Reconciling"
    STABLE = "Stable"


class StreamsOptions(NamedTuple):
    """What may be set for a single group; names and defaults are Kafka's, after `group.streams.`."""

    session_timeout_ms: int = 45_000
    heartbeat_interval_ms: int = 5_000
    num_standby_replicas: int = 0
    initial_rebalance_delay_ms: int = 3_000


class Located(NamedTuple):
    """Which partitions of source topics a process has the state of, for interactive queries."""

    endpoint: Endpoint
    active: list[tuple[str, list[int]]]
    standby: list[tuple[str, list[int]]]


class StreamsBeat(NamedTuple):
    """The answer to a heartbeat. Tasks of None: the member already knows them."""

    member_id: str
    member_epoch: int
    heartbeat_interval_ms: int = 0
    tasks: Tasks | None = None
    statuses: tuple[TopologyStatus, ...] = ()
    endpoint_epoch: int = 0
    located: list[Located] | None = None
    to_create: tuple[ApplicationTopic, ...] = ()


class StoredStreamsGroup(NamedTuple):
    """What is known of a group from what was written down."""

    epoch: int
    target_epoch: int
    digest: int
    validated_epoch: int
    standby_replicas: int
    topology: Topology
    members: list[StreamsMember]
    targets: dict[str, Tasks]
    since: dict[tuple[str, int], int]
    """With which epoch its owner got each active task, as far as that was written down."""


@dataclass(slots=True)
class StreamsChanges(Changes):
    """What has to be written down."""

    topology: bool = field(default=False)

    def __bool__(self) -> bool:
        return self.topology or Changes.__bool__(self)


class StreamsGroup:
    """Topology, members, target assignment and epochs of one application."""

    group_type = "streams"
    """What ListGroups calls this kind."""
    protocol_type = "streams"

    def __init__(
        self, group_id: str, settings: GroupSettings, options: Callable[[str], StreamsOptions], now_ms: int
    ) -> None:
        self.group_id = group_id
        self.epoch = 0
        self.target_epoch = 0
        self.topology = NO_TOPOLOGY
        self.validated_epoch = -1
        """The epoch of the topology for which all topics were there and right; -1 if they are not."""
        self.digest = 0
        self.standby_replicas = 0
        self.members: dict[str, StreamsMember] = {}
        self.targets: dict[str, Tasks] = {}
        self.owners = TaskOwners()
        self.state_since_ms = now_ms
        self.endpoint_epoch = 0
        self._located_epoch = -1
        self._located_all: list[Located] = []
        self._settings = settings
        self._options = options
        self._configured = Configured({}, {})
        self._configured_for: tuple[Topology, int] | None = None
        self._ended_by: str | None = None
        self._delayed_until_ms: int | None = None
        self._target_computed_ms = now_ms
        self._changes = StreamsChanges()
        self._earliest_ms: int | None = None

    @property
    def state(self) -> StreamsGroupState:
        if not self.members:
            return StreamsGroupState.EMPTY
        if self.validated_epoch != self.topology.epoch:
            return StreamsGroupState.NOT_READY
        if self.epoch > self.target_epoch or self._delayed_until_ms is not None:
            return StreamsGroupState.ASSIGNING
        if all(member.is_reconciled(self.target_epoch) for member in self.members.values()):
            return StreamsGroupState.STABLE
        return StreamsGroupState.RECONCILING

    @property
    def configured(self) -> Configured:
        """The topology on the topics that there were at the last heartbeat."""
        return self._configured

    def restore(self, stored: StoredStreamsGroup, now_ms: int) -> None:
        """Becomes the group that was written down; its members have a session to be heard from."""
        assert not self.members, "only a new group can be restored"
        self.epoch, self.target_epoch = stored.epoch, stored.target_epoch
        self.digest, self.validated_epoch = stored.digest, stored.validated_epoch
        self.standby_replicas, self.topology = stored.standby_replicas, stored.topology
        self.targets = dict(stored.targets)
        for member in stored.members:
            self.members[member.member_id] = member
            for task in member.assigned | member.revoking:
                self.owners.enter(member, task, stored.since.get(task.task_id, member.epoch))
            self._set_deadlines(member, now_ms)
        if not any(self.targets.values()):
            self._bump()  # it may have waited for members, and nothing says until when

    def rewrite_all(self) -> None:
        """Some changes could not be written: the next ones bring everything there is."""
        all_ids = set(self.members)
        gone = self._changes.gone - all_ids
        self._changes = StreamsChanges(
            True, True, set(all_ids), set(all_ids), set(all_ids), gone, topology=True
        )

    def take_changes(self) -> StreamsChanges:
        """What changed since the last call."""
        changes, self._changes = self._changes, StreamsChanges()
        return changes

    # The heartbeat

    def heartbeat(
        self, beat: StreamsHeartbeat, catalog: Catalog, now_ms: int, interval_ms: int | None = None
    ) -> StreamsBeat:
        """Joins, stays, or leaves, as the member epoch says. Raises ApiError.

        `interval_ms` is when a member with nothing to wait for is to report again, if not as usual.
        """
        check_request(beat)
        if beat.member_epoch == LEAVING_EPOCH:
            return self._leave(beat, now_ms)
        topology = self._topology_with(beat)
        configured = self._configure(topology, catalog)
        member = self._member_of(beat, configured, now_ms)
        profile, position = member.profile(), member.position()
        before, endpoint = member.assigned, member.endpoint
        self._take_topology(topology, configured, catalog)
        if member.take(beat) or member.deadline_ms is None:
            self._bump()
        if beat.ends_application and self._ended_by is None:
            self._ended_by = member.member_id
        self._follow(now_ms)
        target = self.targets.get(member.member_id, NO_TASKS)
        member.reconcile(target, self.target_epoch, beat.owned, self.owners)
        if member.profile() != profile:
            self._changes.profiles.add(member.member_id)
        if member.position() != position:
            self._changes.positions.add(member.member_id)
        self._set_deadlines(member, now_ms)
        if member.endpoint is not None and (member.assigned != before or member.endpoint != endpoint):
            self.endpoint_epoch += 1
        return StreamsBeat(
            member.member_id,
            member.epoch,
            self._interval_ms(member, interval_ms, now_ms),
            member.assigned if _has_news(member, beat, before) else None,
            tuple(self._statuses(member)),
            self.endpoint_epoch,
            self._located(member, beat),
            configured.missing,
        )

    def _topology_with(self, beat: StreamsHeartbeat) -> Topology:
        """The topology the group has with this member; ApiError if it cannot have the member's."""
        if beat.topology is None or beat.topology == self.topology:
            return self.topology
        if not self.members:
            return beat.topology
        if beat.topology.epoch < self.topology.epoch:
            return self.topology
        raise ApiError(
            ErrorCode.INVALID_REQUEST,
            "the members of the group have another topology; stop all of them before a changed one starts",
        )

    def _configure(self, topology: Topology, catalog: Catalog) -> Configured:
        if self._configured_for == (topology, catalog.version):
            return self._configured
        return streams_topology.configure(topology, catalog.topics)

    def _take_topology(self, topology: Topology, configured: Configured, catalog: Catalog) -> None:
        """Notes the topology and its topics; a change of either is a new group epoch."""
        if topology != self.topology:
            self.topology = topology
            self._changes.topology = True
            self._bump()
        if self._configured_for == (topology, catalog.version):
            return
        self._configured, self._configured_for = configured, (topology, catalog.version)
        found = streams_topology.digest(topology, catalog.topics)
        validated = topology.epoch if configured.ready else -1
        if (found, validated) != (self.digest, self.validated_epoch):
            self.digest, self.validated_epoch = found, validated
            self._bump()

    def _follow(self, now_ms: int) -> None:
        """Lets the target follow the group, unless a large one has just been computed."""
        if self._delayed_until_ms is not None and now_ms >= self._delayed_until_ms:
            self._delayed_until_ms = None
            self._bump()
        replicas = self._options(self.group_id).num_standby_replicas
        if replicas != self.standby_replicas:
            self.standby_replicas = replicas
            self._bump()
        if self.epoch > self.target_epoch and self._may_compute_target(now_ms):
            self._compute_target(now_ms)

    def _may_compute_target(self, now_ms: int) -> bool:
        """A target costs time for each task and member, so a large group in a storm of joins skips some."""
        tasks = sum(shape.tasks for shape in self._configured.shapes.values())
        return now_ms - self._target_computed_ms >= (len(self.members) + tasks) // MEMBERS_PER_MS

    def _statuses(self, member: StreamsMember) -> Iterable[TopologyStatus]:
        if member.topology_epoch < self.topology.epoch:
            detail = (
                f"topology epoch {member.topology_epoch} is older than the group's, {self.topology.epoch}"
            )
            yield TopologyStatus(StatusCode.STALE_TOPOLOGY, detail)
        if self._delayed_until_ms is not None:
            detail = "tasks are handed out when other members have had time to join"
            yield TopologyStatus(StatusCode.ASSIGNMENT_DELAYED, detail)
        if self._configured.obstacle is not None:
            yield self._configured.obstacle
        if self._ended_by is not None:
            detail = f"member {self._ended_by} asked for the whole application to be shut down"
            yield TopologyStatus(StatusCode.SHUTDOWN_APPLICATION, detail)

    def _interval_ms(self, member: StreamsMember, interval_ms: int | None, now_ms: int) -> int:
        asked_ms = self._options(self.group_id).heartbeat_interval_ms
        obstacle = self._configured.obstacle
        if obstacle is not None and obstacle.code is StatusCode.MISSING_SOURCE_TOPICS:
            # Clients give up when source topics are missing for twice this interval.
            return asked_ms
        usual_ms = asked_ms if interval_ms is None else min(asked_ms, interval_ms)
        soon_ms = min(usual_ms, self._settings.group_consumer_reconciling_interval_ms)
        if self._delayed_until_ms is not None:
            return max(1, min(soon_ms, self._delayed_until_ms - now_ms))
        settled = member.is_reconciled(self.epoch) and self._configured.ready
        return usual_ms if settled else soon_ms

    def _member_of(self, beat: StreamsHeartbeat, configured: Configured, now_ms: int) -> StreamsMember:
        member = self.members.get(beat.member_id)
        if beat.member_epoch != JOINING_EPOCH:
            if member is None:
                raise ApiError(
                    ErrorCode.UNKNOWN_MEMBER_ID, f"{beat.member_id!r} is not a member of the group"
                )
            member.check_epoch(beat.member_epoch, beat.owned, "tasks")
            _check_owned((beat.owned or NO_TASKS) - member.assigned - member.revoking, configured)
            return member
        if member is not None:
            member.begin_again(self.owners)
            return member
        most = self._settings.group_streams_max_size
        if len(self.members) >= most:
            raise ApiError(ErrorCode.GROUP_MAX_SIZE_REACHED, f"the group is full: it may have {most} members")
        delay_ms = self._options(self.group_id).initial_rebalance_delay_ms
        if not self.members and delay_ms:
            self._delayed_until_ms = now_ms + delay_ms
        member = self.members[beat.member_id] = StreamsMember(beat.member_id)
        self._changes.gone.discard(beat.member_id)
        return member

    def _leave(self, beat: StreamsHeartbeat, now_ms: int) -> StreamsBeat:
        member = self.members.get(beat.member_id)
        if member is None:
            raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID, f"{beat.member_id!r} is not a member of the group")
        if beat.ends_application and self._ended_by is None:
            self._ended_by = member.member_id
        self._remove(member, now_ms)
        return StreamsBeat(beat.member_id, beat.member_epoch)

    # The target

    def _bump(self) -> None:
        """Something changed that a target depends on. An epoch without a target can take in more of it."""
        self.epoch = self.target_epoch + 1
        self._changes.group_epoch = True

    def _compute_target(self, now_ms: int) -> None:
        targets = dict.fromkeys(self.members, NO_TASKS)
        if self._configured.ready and self._delayed_until_ms is None:
            threads = {
                member_id: Thread(member.process_id, self.targets.get(member_id, NO_TASKS))
                for member_id, member in self.members.items()
            }
            targets = assign(threads, self._configured.shapes, self.standby_replicas)
        self._changes.targets |= {one for one in targets if targets[one] != self.targets.get(one)}
        self._changes.target_epoch = True
        self.targets = targets
        self.target_epoch = self.epoch
        self._target_computed_ms = now_ms

    # Interactive queries

    def _located(self, member: StreamsMember, beat: StreamsHeartbeat) -> list[Located] | None:
        """Where state is, if the member does not know it yet."""
        if member.knows_endpoints and beat.endpoint_epoch == self.endpoint_epoch:
            return None
        member.knows_endpoints = True
        if self._located_epoch != self.endpoint_epoch:
            self._located_epoch = self.endpoint_epoch
            # Threads of a process have one endpoint, and clients take the last word on each.
            had: dict[Endpoint, Tasks] = {}
            for one in self.members.values():
                if one.endpoint is not None:
                    had[one.endpoint] = had.get(one.endpoint, NO_TASKS) | one.assigned
            self._located_all = [
                Located(endpoint, self._partitions(mine, Role.ACTIVE), self._partitions(mine, Role.STANDBY))
                for endpoint, mine in had.items()
            ]
        return self._located_all

    def _partitions(self, tasks: Tasks, role: Role) -> list[tuple[str, list[int]]]:
        found: dict[str, list[int]] = {}
        reads = {part.subtopology_id: part.reads for part in self.topology.subtopologies}
        for task in sorted(tasks):
            if task.role is role:
                for name in reads.get(task.subtopology, ()):
                    if task.partition < self._partition_count(name):
                        found.setdefault(name, []).append(task.partition)
        return sorted(found.items())

    def _partition_count(self, topic: str) -> int:
        return self._configured.partitions.get(topic, 0)

    # Silence

    def next_deadline(self) -> int | None:
        """When `tick` is to be called. It may find nothing to do then, because sessions are prolonged."""
        return self._earliest_ms

    def tick(self, now_ms: int) -> list[str]:
        """Removes members that have been silent, or have not given up what they had to; returns their ids."""
        removed = []
        for member in list(self.members.values()):
            if any(deadline_ms <= now_ms for deadline_ms in _deadlines(member)):
                self._remove(member, now_ms)
                removed.append(member.member_id)
        left = [deadline_ms for one in self.members.values() for deadline_ms in _deadlines(one)]
        self._earliest_ms = min(left, default=None)
        return removed

    def _remove(self, member: StreamsMember, now_ms: int) -> None:
        """Takes a member out; what it had is free, and given to others with the next heartbeat of anybody."""
        member.release(member.assigned | member.revoking, self.owners)
        del self.members[member.member_id]
        self.targets.pop(member.member_id, None)
        if member.endpoint is not None:
            self.endpoint_epoch += 1
        if not self.members:
            self.state_since_ms = now_ms
            self._ended_by = self._delayed_until_ms = None
        self._changes.gone.add(member.member_id)
        self._bump()

    def _set_deadlines(self, member: StreamsMember, now_ms: int) -> None:
        member.deadline_ms = now_ms + self._options(self.group_id).session_timeout_ms
        if member.state is not MemberState.UNREVOKED:
            member.rebalance_deadline_ms = None
        elif member.rebalance_deadline_ms is None:
            member.rebalance_deadline_ms = now_ms + member.rebalance_timeout_ms
        earliest_ms = min(_deadlines(member))
        if self._earliest_ms is None or earliest_ms < self._earliest_ms:
            self._earliest_ms = earliest_ms

    # Offsets

    def weight_bytes(self) -> int:
        """What is kept for its members and its topology."""
        members = sum(MEMBER_BYTES + one.weight_bytes() for one in self.members.values())
        return members + self.topology.weight_bytes()

    def owner(self, topic: str, partition: int) -> Active | None:
        """Who works on a partition of a source topic."""
        for part in self.topology.subtopologies:
            if topic in part.reads:
                return self.owners.active((part.subtopology_id, partition))
        return None

    def expirable(self, now_ms: int) -> Expirable | None:
        """Offsets of topics that the application does not read may expire, by the age of each commit."""
        idle_ms = None if self.members else now_ms - self.state_since_ms
        return Expirable(self.subscribed(), idle_ms)

    def subscribed(self) -> frozenset[str]:
        return self.topology.source_topics() if self.members else frozenset()


def _deadlines(member: StreamsMember) -> list[int]:
    return [one for one in (member.deadline_ms, member.rebalance_deadline_ms) if one is not None]


def _has_news(member: StreamsMember, beat: StreamsHeartbeat, before: Tasks) -> bool:
    """Whether its tasks are new to the member: one that says it has others may have missed an answer."""
    differs = beat.owned is not None and beat.owned != member.assigned
    return beat.member_epoch == JOINING_EPOCH or member.assigned != before or differs


def _check_owned(owned: Tasks, configured: Configured) -> None:
    """Nobody owns tasks that there cannot be."""
    if not configured.ready:
        return
    shapes = configured.shapes
    for task in owned:
        if task.subtopology not in shapes or not 0 <= task.partition < shapes[task.subtopology].tasks:
            raise ApiError(ErrorCode.INVALID_REQUEST, f"there is no task {task.subtopology}_{task.partition}")
