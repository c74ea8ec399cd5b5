"""A consumer group of the new protocol (KIP-848), in which the server decides who reads what.

There is one verb, the heartbeat. Three numbers carry the state: the group epoch goes up when members,
subscriptions or partitions change; the target epoch says for which group epoch the target assignment was
computed; and each member has an epoch of its own, which reaches the target's when the member has got there.
Nobody waits for anybody else: a member hears in the answers to its own heartbeats what to give up and what it
has got.

A heartbeat is answered at once, or refused with an ApiError. What it changed has to be written down before
the answer is sent: `take_changes` says what (see `consumer_records`). Time comes in with every call, and
silence is noticed by `tick`, as in classic groups.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from braidmq.group.admission import weight_of_protocols, weight_of_topics
from braidmq.group.assignors import ASSIGNORS, DEFAULT_ASSIGNOR, NOTHING, Partition, Partitions, Reader
from braidmq.group.catalog import Catalog, CatalogTopic
from braidmq.group.consumer_member import (
    JOINING_EPOCH,
    LEAVING_EPOCH,
    STATIC_LEAVING_EPOCH,
    ClassicTraits,
    ConsumerMember,
    Heartbeat,
    MemberState,
    PartitionOwner,
    SteadyBeat,
    Subscription,
    check_request,
)
from braidmq.group.offsets import Expirable
from braidmq.group.settings import GroupSettings
from braidmq.group.subscription import CONSUMER_PROTOCOL_TYPE
from braidmq.wire.errors import ApiError, ErrorCode

MEMBERS_PER_MS = 100
"""So many members delay a new target by a millisecond, and only if one has just been computed."""


class ConsumerGroupState(StrEnum):
    """In the words of ListGroups."""

    EMPTY = "Empty"
    ASSIGNING = "Assigning"
    RECONCILING = "Reconciling"
    STABLE = "Stable"
    DEAD = "Dead"


class Beat(NamedTuple):
    """The answer to a heartbeat. An assignment of None: the member already knows it."""

    member_id: str
    member_epoch: int
    heartbeat_interval_ms: int
    assignment: Partitions | None


class StoredConsumerGroup(NamedTuple):
    """What is known of a group from what was written down."""

    epoch: int
    target_epoch: int
    members: list[ConsumerMember]
    targets: dict[str, Partitions]
    since: dict[Partition, int]
    """With which epoch its owner got each partition, as far as that was written down."""


@dataclass(slots=True)
class Changes:
    """What has to be written down: names of what changed; the values are the group's own."""

    group_epoch: bool = False
    target_epoch: bool = False
    profiles: set[str] = field(default_factory=set)
    targets: set[str] = field(default_factory=set)
    positions: set[str] = field(default_factory=set)
    gone: set[str] = field(default_factory=set)

    def __bool__(self) -> bool:
        named = self.profiles or self.targets or self.positions or self.gone
        return bool(self.group_epoch or self.target_epoch or named)


class ConsumerGroup:
    """Members, target assignment and epochs of one group."""

    group_type = "consumer"
    """What ListGroups calls this kind."""
    protocol_type = CONSUMER_PROTOCOL_TYPE

    def __init__(
        self, group_id: str, settings: GroupSettings, new_id: Callable[[], str], now_ms: int
    ) -> None:
        self.group_id = group_id
        self.epoch = 0
        self.target_epoch = 0
        self.assignor = DEFAULT_ASSIGNOR
        self.members: dict[str, ConsumerMember] = {}
        self.static: dict[str, str] = {}
        self.targets: dict[str, Partitions] = {}
        self.subscribed_topics: dict[str, CatalogTopic] = {}
        self.state_since_ms = now_ms
        self._settings = settings
        self._new_id = new_id
        self.owners: dict[Partition, PartitionOwner] = {}
        self._catalog_version: int | None = None
        self._matched: dict[str, frozenset[str]] = {}
        self._subscriptions: Counter[Subscription] = Counter()
        """How many members have each subscription: thousands of members have few different ones."""
        self._target_computed_ms = now_ms
        self._changes = Changes()
        self._earliest_ms: int | None = None

    @property
    def state(self) -> ConsumerGroupState:
        if not self.members:
            return ConsumerGroupState.EMPTY
        if self.epoch > self.target_epoch:
            return ConsumerGroupState.ASSIGNING
        if all(member.is_reconciled(self.target_epoch) for member in self.members.values()):
            return ConsumerGroupState.STABLE
        return ConsumerGroupState.RECONCILING

    def restore(self, stored: StoredConsumerGroup, now_ms: int) -> None:
        """Becomes the group that was written down; its members have a session to be heard from."""
        assert not self.members, "only a new group can be restored"
        self.epoch, self.target_epoch = stored.epoch, stored.target_epoch
        self.targets = dict(stored.targets)
        for member in stored.members:
            self.adopt(member, now_ms, stored.since)

    def adopt(self, member: ConsumerMember, now_ms: int, since: Mapping[Partition, int]) -> None:
        """Takes in a member from somewhere else, with all that it has: since its epoch, or as given."""
        self.members[member.member_id] = member
        self.targets.setdefault(member.member_id, member.assigned)
        self._subscriptions[member.subscription] += 1
        if member.instance_id is not None:
            self.static[member.instance_id] = member.member_id
        for partition in member.assigned | member.revoking:
            self.owners[partition] = PartitionOwner(member.member_id, since.get(partition, member.epoch))
        self._set_deadlines(member, now_ms)

    def rewrite_all(self) -> None:
        """Some changes could not be written: the next ones bring everything there is."""
        everybody = set(self.members)
        self._changes = Changes(True, True, set(everybody), set(everybody), everybody, self._changes.gone)

    def take_changes(self) -> Changes:
        """What changed since the last call."""
        changes, self._changes = self._changes, Changes()
        return changes

    # The heartbeat

    def heartbeat(
        self, beat: Heartbeat, catalog: Catalog, now_ms: int, interval_ms: int | None = None
    ) -> Beat:
        """Joins, stays, or leaves, as the member epoch says. Raises ApiError.

        `interval_ms` is when a member with nothing to wait for is to report again, if not as usual.
        """
        check_request(beat)
        if beat.member_epoch in (LEAVING_EPOCH, STATIC_LEAVING_EPOCH):
            return self.leave(beat, now_ms)
        if beat.pattern:
            catalog.matching(beat.pattern)
        member = self._member_of(beat)
        before = member.assigned
        self.advance(member, beat, catalog, now_ms)
        tell = beat.is_full or member.assigned != before
        return Beat(
            member.member_id,
            member.epoch,
            self._interval_ms(member, interval_ms),
            member.assigned if tell else None,
        )

    def is_steady(self, beat: SteadyBeat, catalog_version: int, now_ms: int) -> bool:
        """Whether a plain heartbeat has nothing new to answer; then it has been counted."""
        member = self.members.get(beat.member_id)
        if member is None or self._changes or catalog_version != self._catalog_version:
            return False
        if self.epoch != self.target_epoch or not member.is_as_before(beat, self.epoch):
            return False
        self.extend_session(member, now_ms)
        return True

    def _interval_ms(self, member: ConsumerMember, interval_ms: int | None) -> int:
        settings = self._settings.of(self.group_id)
        usual_ms = settings.group_consumer_heartbeat_interval_ms if interval_ms is None else interval_ms
        if member.is_reconciled(self.target_epoch):
            return usual_ms
        return min(usual_ms, settings.group_consumer_reconciling_interval_ms)

    def advance(
        self,
        member: ConsumerMember,
        beat: Heartbeat,
        catalog: Catalog,
        now_ms: int,
        classic: ClassicTraits | None = None,
    ) -> None:
        """Takes over what the member says, lets the group follow, and the member catch up with the group."""
        before = (member.profile(), member.position())
        member.classic = classic
        self._subscriptions[member.subscription] -= 1
        changed = member.take(beat) or member.deadline_ms is None
        self._subscriptions[member.subscription] += 1
        if changed or catalog.version != self._catalog_version:
            self._refresh_topics(catalog, changed)
        if self.epoch > self.target_epoch and self._may_compute_target(now_ms):
            self._compute_target(now_ms)
        target = self.targets.get(member.member_id, NOTHING)
        member.reconcile(target, self.target_epoch, beat.owned, self.owners)
        self._note(member, before)
        self._set_deadlines(member, now_ms)

    def _member_of(self, beat: Heartbeat) -> ConsumerMember:
        if beat.instance_id is not None:
            return self._static_member_of(beat)
        member = self.members.get(beat.member_id)
        if beat.member_epoch == JOINING_EPOCH:
            if member is None:
                return self.add(beat.member_id or self._new_id())
            member.begin_again(self.owners)
            return member
        if member is None:
            raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID, f"{beat.member_id!r} is not a member of the group")
        member.check_epoch(beat.member_epoch, beat.owned, "partitions")
        return member

    def _static_member_of(self, beat: Heartbeat) -> ConsumerMember:
        assert beat.instance_id is not None
        holder = self.static.get(beat.instance_id)
        if beat.member_epoch != JOINING_EPOCH:
            member = self.check_static(beat.member_id, beat.instance_id)
            member.check_epoch(beat.member_epoch, beat.owned, "partitions")
            return member
        member_id = beat.member_id or self._new_id()
        if holder is None:
            member = self.add(member_id)
            self.static[beat.instance_id] = member_id
            return member
        member = self.members[holder]
        released = member.epoch == STATIC_LEAVING_EPOCH or member.classic is not None
        if not released and holder != member_id:
            raise ApiError(
                ErrorCode.UNRELEASED_INSTANCE_ID, f"instance {beat.instance_id!r} is still member {holder!r}"
            )
        return self.replace(member, member_id)

    def check_static(self, member_id: str, instance_id: str) -> ConsumerMember:
        """The member with that instance id, if it is this one."""
        holder = self.static.get(instance_id)
        if holder is None:
            raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID, f"no member has instance id {instance_id!r}")
        if holder != member_id:
            raise ApiError(ErrorCode.FENCED_INSTANCE_ID, f"instance {instance_id!r} is now {holder!r}")
        return self.members[holder]

    def add(self, member_id: str) -> ConsumerMember:
        """A new member that has said nothing about itself yet."""
        most = self._settings.group_consumer_max_size
        if len(self.members) >= most:
            raise ApiError(ErrorCode.GROUP_MAX_SIZE_REACHED, f"the group is full: it may have {most} members")
        member = self.members[member_id] = ConsumerMember(member_id)
        self._subscriptions[member.subscription] += 1
        self._changes.gone.discard(member_id)
        return member

    def replace(self, member: ConsumerMember, member_id: str) -> ConsumerMember:
        """A static member is back, perhaps under a new id; what was its own is its own again."""
        former = member.member_id
        del self.members[former]
        if former != member_id:
            self._changes.gone.add(former)
            self._changes.targets.add(member_id)
            self._changes.profiles.add(member_id)
            if former in self.targets:
                self.targets[member_id] = self.targets.pop(former)
        member.release(member.revoking, self.owners)
        for partition in member.assigned:
            self.owners[partition] = self.owners[partition]._replace(member_id=member_id)
        member.member_id = member_id
        member.revoking = NOTHING
        member.state = MemberState.STABLE
        member.epoch = member.previous_epoch = JOINING_EPOCH
        self.members[member_id] = member
        assert member.instance_id is not None
        self.static[member.instance_id] = member_id
        return member

    def leave(self, beat: Heartbeat, now_ms: int) -> Beat:
        """Goes for good, or as a static member for a while. Raises ApiError."""
        if beat.instance_id is not None:
            member = self.check_static(beat.member_id, beat.instance_id)
        elif beat.member_id in self.members:
            member = self.members[beat.member_id]
        else:
            raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID, f"{beat.member_id!r} is not a member of the group")
        if beat.member_epoch == STATIC_LEAVING_EPOCH:
            # It will be back before its session ends, so nobody gets its partitions meanwhile.
            before = (member.profile(), member.position())
            member.release(member.revoking, self.owners)
            member.revoking = NOTHING
            member.epoch = STATIC_LEAVING_EPOCH
            member.rebalance_deadline_ms = None
            self._note(member, before)
        else:
            self.remove(member)
            self.drop_unread_topics()
            if not self.members:
                self.state_since_ms = now_ms
        return Beat(beat.member_id, beat.member_epoch, 0, None)

    # Subscriptions and the target

    def _refresh_topics(self, catalog: Catalog, subscriptions_changed: bool) -> None:
        """Looks up what all members subscribe to; a change of members or partitions is a new group epoch."""
        if catalog.version != self._catalog_version:
            self._matched.clear()
            self._catalog_version = catalog.version
        names: set[str] = set()
        for topics, pattern in +self._subscriptions:
            names |= topics | self._match(pattern, catalog)
        found = {name: catalog.topics[name] for name in names if name in catalog.topics}
        if subscriptions_changed or found != self.subscribed_topics:
            self.subscribed_topics = found
            self._bump()

    def _match(self, pattern: str, catalog: Catalog) -> frozenset[str]:
        if not pattern:
            return frozenset()
        if pattern not in self._matched:
            self._matched[pattern] = catalog.matching(pattern)
        return self._matched[pattern]

    def drop_unread_topics(self) -> None:
        """After members have gone: what only they read is no longer the group's business."""
        names: set[str] = set()
        self._subscriptions = +self._subscriptions
        for topics, pattern in self._subscriptions:
            names |= topics | self._matched.get(pattern, frozenset())
        for name in self.subscribed_topics.keys() - names:
            del self.subscribed_topics[name]
        in_use = {pattern for _, pattern in self._subscriptions}
        for pattern in self._matched.keys() - in_use:
            del self._matched[pattern]

    def _bump(self) -> None:
        self.epoch += 1
        self._changes.group_epoch = True

    def _may_compute_target(self, now_ms: int) -> bool:
        """A target costs some microseconds per member, so a large group in a storm of joins skips some."""
        return now_ms - self._target_computed_ms >= len(self.members) // MEMBERS_PER_MS

    def _compute_target(self, now_ms: int) -> None:
        votes = Counter(one.assignor for one in self.members.values() if one.assignor is not None)
        self.assignor = votes.most_common(1)[0][0] if votes else DEFAULT_ASSIGNOR
        ids = {name: topic.topic_id for name, topic in self.subscribed_topics.items()}
        readers = {}
        for member in self.members.values():
            names = member.topics | self._matched.get(member.pattern, frozenset())
            topics = frozenset(ids[name] for name in names if name in ids)
            owned = self.targets.get(member.member_id, NOTHING)
            readers[member.member_id] = Reader(topics, owned, member.instance_id)
        counts = {topic.topic_id: topic.partitions for topic in self.subscribed_topics.values()}
        targets = ASSIGNORS[self.assignor](readers, counts)
        self._changes.targets |= {one for one in targets if targets[one] != self.targets.get(one)}
        self._changes.target_epoch = True
        self.targets = targets
        self.target_epoch = self.epoch
        self._target_computed_ms = now_ms

    def weight_bytes(self) -> int:
        """What is kept for its members."""
        return sum(
            weight_of_topics(one.topics, one.pattern)
            + (0 if one.classic is None else weight_of_protocols(one.classic.protocols))
            for one in self.members.values()
        )

    # Silence

    def next_deadline(self) -> int | None:
        """When `tick` is to be called. It may find nothing to do then, because sessions are prolonged."""
        return self._earliest_ms

    def tick(self, now_ms: int) -> list[str]:
        """Removes members that have been silent, or have not given up what they had to; returns their ids."""
        removed = []
        for member in list(self.members.values()):
            deadlines = [one for one in (member.deadline_ms, member.rebalance_deadline_ms) if one is not None]
            if deadlines and min(deadlines) <= now_ms:
                self.remove(member)
                removed.append(member.member_id)
        self.drop_unread_topics()
        if removed and not self.members:
            self.state_since_ms = now_ms
        left = [one.deadline_ms for one in self.members.values()]
        left += [one.rebalance_deadline_ms for one in self.members.values()]
        self._earliest_ms = min((one for one in left if one is not None), default=None)
        return removed

    def remove(self, member: ConsumerMember) -> None:
        """Takes a member out; what it had is free."""
        member.release(member.assigned | member.revoking, self.owners)
        del self.members[member.member_id]
        self.targets.pop(member.member_id, None)
        if member.instance_id is not None and self.static.get(member.instance_id) == member.member_id:
            del self.static[member.instance_id]
        # Whom it leaves its partitions to is computed with the next heartbeat of anybody.
        self._subscriptions[member.subscription] -= 1
        self._changes.gone.add(member.member_id)
        self._bump()

    def _set_deadlines(self, member: ConsumerMember, now_ms: int) -> None:
        self.extend_session(member, now_ms)
        if member.classic is not None:
            return
        if member.state is not MemberState.UNREVOKED:
            member.rebalance_deadline_ms = None
        elif member.rebalance_deadline_ms is None:
            self.rebalance_by(member, now_ms + member.rebalance_timeout_ms)

    def extend_session(self, member: ConsumerMember, now_ms: int) -> None:
        """The member has been heard from."""
        session_ms = self._settings.of(self.group_id).group_consumer_session_timeout_ms
        member.deadline_ms = now_ms + (member.classic.session_timeout_ms if member.classic else session_ms)
        self._wake_by(member.deadline_ms)

    def rebalance_by(self, member: ConsumerMember, deadline_ms: int) -> None:
        """The member has until then to do what it was asked to."""
        member.rebalance_deadline_ms = deadline_ms
        self._wake_by(deadline_ms)

    def _wake_by(self, deadline_ms: int) -> None:
        if self._earliest_ms is None or deadline_ms < self._earliest_ms:
            self._earliest_ms = deadline_ms

    def _note(self, member: ConsumerMember, before: tuple[tuple[object, ...], tuple[object, ...]]) -> None:
        if member.profile() != before[0]:
            self._changes.profiles.add(member.member_id)
        if member.position() != before[1]:
            self._changes.positions.add(member.member_id)

    # Offsets

    def owner(self, topic: str, partition: int) -> PartitionOwner | None:
        """Who reads a partition of a topic."""
        found = self.subscribed_topics.get(topic)
        return None if found is None else self.owners.get((found.topic_id, partition))

    def expirable(self, now_ms: int) -> Expirable | None:
        """Offsets of topics that nobody reads may expire, by the age of each commit."""
        if self.members and self._catalog_version is None:
            return None  # just loaded: what patterns match is known with the first heartbeat
        idle_ms = None if self.members else now_ms - self.state_since_ms
        return Expirable(self.subscribed(), idle_ms)

    def subscribed(self) -> frozenset[str]:
        return frozenset(self.subscribed_topics) if self.members else frozenset()
