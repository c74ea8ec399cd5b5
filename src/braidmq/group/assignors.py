"""Who reads which partition: the assignors the server has for groups of the new protocol (KIP-848).

`uniform` gives everybody as equal a number of partitions as subscriptions allow, and moves as few as it can.
`range` gives each member neighbouring partitions, the same ones of every topic, so that topics partitioned
alike are read together. Both are pure functions of the members, what they have, and the topics; the order of
anything does not matter, because everything is sorted first.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping
from typing import NamedTuple

TopicId = bytes
Partition = tuple[TopicId, int]
Partitions = frozenset[Partition]

NOTHING: Partitions = frozenset()


class Reader(NamedTuple):
    """A member as an assignor sees it."""

    topics: frozenset[TopicId]
    owned: Partitions = NOTHING
    instance_id: str | None = None


Assignor = Callable[[Mapping[str, Reader], Mapping[TopicId, int]], dict[str, Partitions]]
"""(members, partition counts of topics) to the partitions of each member."""


def assign_range(readers: Mapping[str, Reader], topics: Mapping[TopicId, int]) -> dict[str, Partitions]:
    """Neighbouring partitions to each member; static members keep their place whatever their id is."""
    plan: dict[str, list[Partition]] = {member_id: [] for member_id in readers}
    order = sorted(readers, key=lambda member_id: (readers[member_id].instance_id or "\uffff", member_id))
    for topic_id, count in sorted(topics.items()):
        sharing = [member_id for member_id in order if topic_id in readers[member_id].topics]
        start = 0
        for index, member_id in enumerate(sharing):
            share = count // len(sharing) + (index < count % len(sharing))
            plan[member_id] += [(topic_id, partition) for partition in range(start, start + share)]
            start += share
    return {member_id: frozenset(partitions) for member_id, partitions in plan.items()}


def assign_uniform(readers: Mapping[str, Reader], topics: Mapping[TopicId, int]) -> dict[str, Partitions]:
    """As equal as subscriptions allow, with as little moved as possible."""
    plan = _kept(readers, topics)
    if len({reader.topics for reader in readers.values()}) <= 1:
        _level_down(plan, sum(topics[topic] for topic in _all_topics(readers, topics)))
    _hand_out(plan, readers, topics)
    _balance(plan, readers)
    return {member_id: frozenset(partitions) for member_id, partitions in plan.items()}


def assign_shared(readers: Mapping[str, Reader], topics: Mapping[TopicId, int]) -> dict[str, Partitions]:
    """For share groups: everybody has something to do, and every partition has somebody, or several.

    Members with the same subscription deal the partitions out among themselves in turn.
    """
    plan: dict[str, Partitions] = {}
    alike: dict[frozenset[TopicId], list[str]] = {}
    for member_id, reader in sorted(readers.items()):
        alike.setdefault(reader.topics, []).append(member_id)
    for subscription, members in alike.items():
        wanted = sorted(topic for topic in subscription if topic in topics)
        partitions = [(topic, number) for topic in wanted for number in range(topics[topic])]
        for index, member_id in enumerate(members):
            turn = index % len(partitions) if partitions else 0
            plan[member_id] = frozenset(partitions[turn :: len(members)])
    return plan


ASSIGNORS: dict[str, Assignor] = {"uniform": assign_uniform, "range": assign_range}
DEFAULT_ASSIGNOR = "uniform"


def _all_topics(readers: Mapping[str, Reader], topics: Mapping[TopicId, int]) -> list[TopicId]:
    wanted = {topic for reader in readers.values() for topic in reader.topics}
    return sorted(topic for topic in wanted if topic in topics)


def _kept(readers: Mapping[str, Reader], topics: Mapping[TopicId, int]) -> dict[str, set[Partition]]:
    """What everybody has and may keep; where two claim the same, the first by id has it."""
    claimed: set[Partition] = set()
    plan = {}
    for member_id, reader in sorted(readers.items()):
        plan[member_id] = {
            partition
            for partition in reader.owned
            if partition[0] in reader.topics
            and partition[1] < topics.get(partition[0], 0)
            and partition not in claimed
        }
        claimed |= plan[member_id]
    return plan


def _level_down(plan: dict[str, set[Partition]], total: int) -> None:
    """Takes from those who have more than their share; where all read the same, shares are known at once."""
    if not plan:
        return
    share, larger_shares = divmod(total, len(plan))
    for partitions in plan.values():
        most = share
        if larger_shares and len(partitions) > share:
            most += 1
            larger_shares -= 1
        for partition in sorted(partitions)[most:]:
            partitions.discard(partition)


def _hand_out(
    plan: dict[str, set[Partition]], readers: Mapping[str, Reader], topics: Mapping[TopicId, int]
) -> None:
    """Gives each free partition to the member with the least that may read it; what few may read first."""
    taken = set().union(*plan.values()) if plan else set()
    sharing: dict[TopicId, list[str]] = {topic: [] for topic in _all_topics(readers, topics)}
    for member_id, reader in sorted(readers.items()):
        for topic in reader.topics:
            if topic in sharing:
                sharing[topic].append(member_id)
    for topic in sorted(sharing, key=lambda topic: (len(sharing[topic]), topic)):
        least = [(len(plan[member_id]), member_id) for member_id in sharing[topic]]
        heapq.heapify(least)
        for number in range(topics[topic]):
            if (topic, number) not in taken:
                load, member_id = least[0]
                plan[member_id].add((topic, number))
                heapq.heapreplace(least, (load + 1, member_id))


def _balance(plan: dict[str, set[Partition]], readers: Mapping[str, Reader]) -> None:
    """Moves single partitions from who has more to who may read them and has at least two fewer.

    Each move makes the sum of the squares of the loads smaller, so it ends.
    """
    if len({reader.topics for reader in readers.values()}) <= 1:
        return
    moved = True
    while moved:
        moved = False
        for giver in sorted(plan, key=lambda member_id: (-len(plan[member_id]), member_id)):
            for partition in sorted(plan[giver]):
                taker = _taker(partition[0], giver, plan, readers)
                if taker is not None:
                    plan[giver].discard(partition)
                    plan[taker].add(partition)
                    moved = True


def _taker(
    topic: TopicId, giver: str, plan: dict[str, set[Partition]], readers: Mapping[str, Reader]
) -> str | None:
    load = len(plan[giver])
    able = [
        (len(plan[member_id]), member_id)
        for member_id, reader in readers.items()
        if topic in reader.topics and len(plan[member_id]) <= load - 2
    ]
    return min(able)[1] if able else None
