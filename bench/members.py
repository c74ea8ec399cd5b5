"""Members of consumer groups as `crowd` clients: they join, heartbeat, commit what they give up, and read.

One generator keeps the membership, another fetches what is assigned, each over a connection of its own, as in
stock clients. What they own is entered in a `Hall`, which counts the records that arrive and knows when
everybody has what he should. Group and position handling is that of a stock client: offsets of revoked
partitions are committed before they are let go, those of new ones are fetched before they are read.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Generator
from enum import StrEnum

from . import wire_groups as wire
from .channel import Channel
from .crowd import Ask, Client, Crowd, Pause
from .wire import Position, batches, fetch_frame, fetched
from .wire_groups import Partitions

HEARTBEAT_SECONDS = 0.01
"""Of classic members. A stock client takes 3 s, which would be nearly all of what is measured."""
IDLE_SECONDS = 0.002
FETCH_WAIT_MS = 100

Steps = Generator[Ask | Pause, bytes, None]


class Kind(StrEnum):
    """How a group shares out its partitions."""

    EAGER = "eager"
    COOPERATIVE = "cooperative-sticky"
    CONSUMER = "group.protocol=consumer"


class Hall:
    """One group, its topic, and what its members have."""

    def __init__(self, group: str, topic: str, topic_id: bytes, partitions: int) -> None:
        self.group = group
        self.topic = topic
        self.topic_id = topic_id
        self.partitions = partitions
        self.members: list[Member] = []
        self.records = 0
        self._unread = partitions
        self._unread_since = time.perf_counter()
        self._unread_seconds = 0.0

    def changed(self, more: int) -> None:
        """So many more partitions are read from now on."""
        self.unread_seconds()
        self._unread -= more

    def unread_seconds(self) -> float:
        """For how long partitions had nobody who read them, summed over all of them."""
        now = time.perf_counter()
        self._unread_seconds += self._unread * (now - self._unread_since)
        self._unread_since = now
        return self._unread_seconds

    def settled(self, members: int) -> bool:
        """So many members have each its share, and every partition is read by one of them."""
        active = [member for member in self.members if member.reading]
        if len(active) != members or any(member.rebalancing for member in active):
            return False
        share = self.partitions // members
        counts = [len(member.reading) for member in active]
        return min(counts) >= share and sum(counts) == self.partitions


class Member(ABC):
    """One consumer: its membership and its reading are two generators."""

    def __init__(self, hall: Hall, crowd: Crowd) -> None:
        self._hall = hall
        self._coordinator: Channel = crowd.connect()
        self._leader: Channel = crowd.connect()
        self.member_id = ""
        self.reading: dict[int, int] = {}
        """Partition to the next offset."""
        self.rebalancing = True
        self.leaving = False
        self.gone = False

    @abstractmethod
    def membership(self) -> Client:
        """Joins, stays in the group as its protocol wants it, and leaves when told."""

    def fetching(self) -> Client:
        """Reads what is assigned; what comes for a partition that was revoked meanwhile is not counted."""
        while not self.gone:
            if not self.reading:
                yield Pause(IDLE_SECONDS)
                continue
            positions = [Position(*item) for item in self.reading.items()]
            answer = memoryview(
                (yield Ask(self._leader, fetch_frame(self._hall.topic, positions, FETCH_WAIT_MS)))
            )
            for part in fetched(answer):
                wire.expect(part.code, "a fetch")
                for _, following in batches(answer, part.start, part.end):
                    at = self.reading.get(part.partition)
                    if at is not None and following > at:
                        self._hall.records += following - at
                        self.reading[part.partition] = following

    def _give_up(self, partitions: Partitions, epoch: int) -> Steps:
        """Stops reading, and commits how far it has got."""
        offsets = {partition: self.reading.pop(partition) for partition in partitions & self.reading.keys()}
        if offsets:
            self._hall.changed(-len(offsets))
            frame = wire.commit_frame(self._hall.group, epoch, self.member_id, self._hall.topic, offsets)
            wire.expect(wire.commit_error((yield Ask(self._coordinator, frame))), "a commit")

    def _take(self, partitions: Partitions) -> Steps:
        """Asks where the group stands in new partitions, and begins to read them."""
        new = sorted(partitions - self.reading.keys())
        if new:
            frame = wire.offset_fetch_frame(self._hall.group, self._hall.topic, new)
            offsets = wire.fetched_offsets((yield Ask(self._coordinator, frame)))
            self.reading.update({partition: max(0, offsets[partition]) for partition in new})
            self._hall.changed(len(new))


class ClassicMember(Member):
    """The classic protocol, eager or cooperative; every member can lead."""

    def __init__(self, hall: Hall, crowd: Crowd, kind: Kind) -> None:
        super().__init__(hall, crowd)
        self._kind = kind
        self._protocol = "range" if kind is Kind.EAGER else "cooperative-sticky"
        self._generation = -1

    def membership(self) -> Client:
        yield from self._rebalance()
        while not self.leaving:
            yield Pause(HEARTBEAT_SECONDS)
            frame = wire.heartbeat_frame(self._hall.group, self._generation, self.member_id)
            code = wire.heartbeat_error((yield Ask(self._coordinator, frame)))
            if code == wire.REBALANCE_IN_PROGRESS:
                yield from self._rebalance()
            else:
                wire.expect(code, "a heartbeat")
        yield from self._give_up(frozenset(self.reading), self._generation)
        yield Ask(self._coordinator, wire.leave_frame(self._hall.group, self.member_id))
        self.gone = True

    def _rebalance(self) -> Steps:
        self.rebalancing = True
        again = True
        while again:
            if self._kind is Kind.EAGER:
                yield from self._give_up(frozenset(self.reading), self._generation)
            code, mine = yield from self._join_and_sync()
            if code == wire.REBALANCE_IN_PROGRESS:
                continue
            wire.expect(code, "a sync")
            lost = frozenset(self.reading) - mine
            yield from self._give_up(lost, self._generation)
            yield from self._take(mine)
            # Who has let go of something joins again, so that it can be given to somebody (KIP-429).
            again = bool(lost)
        self.rebalancing = False

    def _join_and_sync(self) -> Generator[Ask | Pause, bytes, tuple[int, Partitions]]:
        group, protocol = self._hall.group, self._protocol
        while True:
            owned = frozenset(self.reading) if self._kind is Kind.COOPERATIVE else None
            metadata = wire.subscription(self._hall.topic, owned)
            join = wire.join_frame(group, self.member_id, protocol, metadata)
            joined = wire.joined((yield Ask(self._coordinator, join)))
            self.member_id = joined.member_id
            if joined.code not in (wire.MEMBER_ID_REQUIRED, wire.REBALANCE_IN_PROGRESS):
                break
        wire.expect(joined.code, "a join")
        self._generation = joined.generation
        plan = self._plan(joined.members) if joined.leader == joined.member_id else {}
        sync = wire.sync_frame(group, joined.generation, joined.member_id, protocol, plan)
        code, content = wire.synced((yield Ask(self._coordinator, sync)))
        return code, wire.assigned_of(content)

    def _plan(self, members: dict[str, bytes]) -> dict[str, bytes]:
        if self._kind is Kind.EAGER:
            shares = range_shares(sorted(members), self._hall.partitions)
        else:
            owned = {name: wire.owned_of(metadata) for name, metadata in members.items()}
            shares = cooperative_shares(owned, self._hall.partitions)
        return {name: wire.assignment(self._hall.topic, share) for name, share in shares.items()}


class ConsumerMember(Member):
    """The protocol in which the server assigns (KIP-848); the server also says how often to look in."""

    def membership(self) -> Client:
        hall = self._hall
        self.member_id = f"{hall.group}-{len(hall.members)}"
        epoch, owned = 0, frozenset[int]()
        topic: str | None = hall.topic
        tell = True
        while not self.leaving:
            told = (hall.topic_id, owned) if tell else None
            frame = wire.consumer_heartbeat_frame(hall.group, self.member_id, epoch, topic, told)
            beat = wire.beat((yield Ask(self._coordinator, frame)))
            wire.expect(beat.code, "a heartbeat")
            epoch, topic, tell = beat.epoch, None, False
            if beat.assigned is not None and beat.assigned != owned:
                yield from self._give_up(owned - beat.assigned, epoch)
                yield from self._take(beat.assigned)
                owned, tell = beat.assigned, True
                self.rebalancing = False
            else:
                yield Pause(beat.interval_s)
        yield from self._give_up(frozenset(self.reading), epoch)
        yield Ask(self._coordinator, wire.consumer_heartbeat_frame(hall.group, self.member_id, -1))
        self.gone = True


def range_shares(names: list[str], partitions: int) -> dict[str, Partitions]:
    """Neighbouring partitions to each."""
    shares, begin = {}, 0
    for place, name in enumerate(names):
        size = partitions // len(names) + (place < partitions % len(names))
        shares[name] = frozenset(range(begin, begin + size))
        begin += size
    return shares


def cooperative_shares(owned: dict[str, Partitions], partitions: int) -> dict[str, Partitions]:
    """Everybody keeps what he has up to a fair share; what somebody still has is not given to others yet."""
    share, larger = divmod(partitions, len(owned))
    kept: dict[str, set[int]] = {}
    for name in sorted(owned, key=lambda name: (-len(owned[name]), name)):
        most = share + (larger > 0 and len(owned[name]) > share)
        larger -= most > share
        kept[name] = set(sorted(owned[name])[:most])
    held = frozenset[int]().union(*owned.values())
    for partition in sorted(frozenset(range(partitions)) - held):
        kept[min(kept, key=lambda name: (len(kept[name]), name))].add(partition)
    return {name: frozenset(has) for name, has in kept.items()}


def make(hall: Hall, crowd: Crowd, kind: Kind) -> Member:
    """A new member of the group, which begins at once."""
    member = ConsumerMember(hall, crowd) if kind is Kind.CONSUMER else ClassicMember(hall, crowd, kind)
    hall.members.append(member)
    crowd.start([member.membership(), member.fetching()])
    return member
