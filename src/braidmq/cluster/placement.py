"""Where partitions go: a pure function of the brokers, what they hold already, and what is asked for.

Leaders are spread first: each partition is led by the broker that leads the fewest. Its other replicas go to
racks that have none yet, then to other hosts, then to other processes of one host, each time to the broker
that holds the fewest. Load is what the image counts, so topics that are created one by one spread as
evenly as one large topic.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

Replicas = tuple[int, ...]
"""The brokers of one partition; the first is the preferred leader."""


class BadPlacement(ValueError):
    """Partitions cannot be placed as asked."""


@dataclass(slots=True)
class Candidate:
    """A broker that may take partitions, and what it has."""

    node_id: int
    host: str
    rack: str | None = None
    leaders: int = 0
    replicas: int = 0


def spread(candidates: Sequence[Candidate], count: int, factor: int, first: int = 0) -> list[Replicas]:
    """Replicas of `count` new partitions. Adds what it places to the candidates' load.

    `first` is the index of the first new partition, so that a topic that grows continues where it ended.
    """
    _check_factor(candidates, factor)
    return [_one(candidates, index, factor) for index in range(first, first + count)]


def per_broker(candidates: Sequence[Candidate], counts: Mapping[int, int], factor: int) -> list[Replicas]:
    """Replicas of new partitions of which each broker leads as many as `counts` says."""
    by_id = {candidate.node_id: candidate for candidate in candidates}
    for node_id, count in counts.items():
        if node_id not in by_id:
            raise BadPlacement(f"broker {node_id} is not running; running: {_listed(by_id)}")
        if count < 0:
            raise BadPlacement(f"broker {node_id}: {count} partitions")
    if not any(counts.values()):
        raise BadPlacement("no broker gets a partition")
    _check_factor(candidates, factor)
    placed: list[Replicas] = []
    for turn in range(max(counts.values())):
        for node_id, count in sorted(counts.items()):
            if turn < count:
                placed.append(_with_followers(candidates, by_id[node_id], len(placed), factor))
    return placed


def by_hand(candidates: Sequence[Candidate], assignment: Sequence[Sequence[int]]) -> list[Replicas]:
    """An assignment that a person wrote down, if it can be made."""
    known = {candidate.node_id for candidate in candidates}
    if not assignment:
        raise BadPlacement("the assignment names no partition")
    for index, replicas in enumerate(assignment):
        if not replicas:
            raise BadPlacement(f"partition {index} has no replica")
        if len(set(replicas)) != len(replicas):
            raise BadPlacement(f"partition {index} names a broker twice: {_listed(replicas)}")
        if len(replicas) != len(assignment[0]):
            raise BadPlacement(
                f"partition {index} has {len(replicas)} replicas, partition 0 has {len(assignment[0])};"
                " give each the same number"
            )
        if unknown := [node_id for node_id in replicas if node_id not in known]:
            raise BadPlacement(
                f"partition {index}: brokers {_listed(unknown)} are not running; running: {_listed(known)}"
            )
    return [tuple(replicas) for replicas in assignment]


def _check_factor(candidates: Sequence[Candidate], factor: int) -> None:
    if not candidates:
        raise BadPlacement("no broker is running that could take partitions")
    if not 1 <= factor <= len(candidates):
        raise BadPlacement(
            f"replication factor {factor}: choose between 1 and {len(candidates)} (the running brokers)"
        )


def _one(candidates: Sequence[Candidate], index: int, factor: int) -> Replicas:
    size = len(candidates)
    leader = min(
        range(size),
        key=lambda at: (candidates[at].leaders, candidates[at].replicas, (at - index) % size),
    )
    return _with_followers(candidates, candidates[leader], index, factor)


def _with_followers(candidates: Sequence[Candidate], leader: Candidate, index: int, factor: int) -> Replicas:
    leader.leaders += 1
    leader.replicas += 1
    chosen = [leader]
    while len(chosen) < factor:
        racks = {one.rack for one in chosen if one.rack is not None}
        hosts = {one.host for one in chosen}
        left = [candidate for candidate in candidates if candidate not in chosen]
        follower = min(
            enumerate(left),
            key=lambda one: (
                one[1].rack in racks,
                one[1].host in hosts,
                one[1].replicas,
                (one[0] - index) % len(left),
            ),
        )[1]
        follower.replicas += 1
        chosen.append(follower)
    return tuple(one.node_id for one in chosen)


def _listed(node_ids: Iterable[int]) -> str:
    return ", ".join(str(node_id) for node_id in sorted(node_ids)) or "none"
