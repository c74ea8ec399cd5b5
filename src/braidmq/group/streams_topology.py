"""What a Kafka Streams application is made of, and what that means for the topics there are (KIP-1071).

An application is cut into subtopologies. Each reads source topics, some of them repartition topics that
another subtopology writes, and keeps its state in stores that are written to changelog topics. A task is one
partition of a subtopology: partition 3 of all topics it reads. Repartition and changelog topics are internal:
the server decides how many partitions they have and creates them.

`configure` looks at the topics there are. It answers with how many tasks each subtopology has, or with what
stands in the way: source topics that are missing, topics with the wrong number of partitions, internal topics
that have to be created first.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Mapping
from enum import IntEnum
from hashlib import blake2b
from typing import NamedTuple

from braidmq.group.catalog import CatalogTopic
from braidmq.wire.errors import ApiError, ErrorCode

TASKS_MAX = 20_000
"""Tasks of one application: an assignment costs the loop some ten microseconds for each."""
NAMES_SHOWN = 5


class ApplicationTopic(NamedTuple):
    """A topic that belongs to the application. No partitions or no replicas: the server decides."""

    name: str
    partitions: int = 0
    replication_factor: int = 0
    options: tuple[tuple[str, str], ...] = ()


class Subtopology(NamedTuple):
    """A part of the application that is connected by nothing but topics with the others."""

    subtopology_id: str
    sources: tuple[str, ...] = ()
    repartition_sources: tuple[ApplicationTopic, ...] = ()
    repartition_sinks: tuple[str, ...] = ()
    changelogs: tuple[ApplicationTopic, ...] = ()
    copartitioned: tuple[frozenset[str], ...] = ()
    """Topics that are joined, and so need equally many partitions."""

    @property
    def reads(self) -> list[str]:
        """The topics whose partitions are its tasks."""
        return [*self.sources, *(each.name for each in self.repartition_sources)]


class Topology(NamedTuple):
    """An application as its members describe it; a later epoch is a later version of it."""

    epoch: int
    subtopologies: tuple[Subtopology, ...]

    def required_topics(self) -> set[str]:
        """The topics that must be there for the application to run."""
        return {name for part in self.subtopologies for name in (*part.reads, *_names(part.changelogs))}

    def source_topics(self) -> frozenset[str]:
        """The topics its members read, and commit offsets of."""
        return frozenset(name for part in self.subtopologies for name in part.reads)

    def weight_bytes(self) -> int:
        """About what the topology takes in memory."""
        weight = 0
        for part in self.subtopologies:
            names = (part.subtopology_id, *part.sources, *part.repartition_sinks)
            weight += 300 + sum(100 + len(name) for name in names)
            for topic in (*part.repartition_sources, *part.changelogs):
                weight += (
                    200 + len(topic.name) + sum(200 + len(key) + len(text) for key, text in topic.options)
                )
            weight += sum(200 + sum(map(len, names)) for names in part.copartitioned)
        return weight


class StatusCode(IntEnum):
    """What keeps an application or a member from running, in the numbers of the protocol."""

    STALE_TOPOLOGY = 0
    MISSING_SOURCE_TOPICS = 1
    INCORRECTLY_PARTITIONED_TOPICS = 2
    MISSING_INTERNAL_TOPICS = 3
    SHUTDOWN_APPLICATION = 4
    ASSIGNMENT_DELAYED = 5


class TopologyStatus(NamedTuple):
    code: StatusCode
    detail: str


class Shape(NamedTuple):
    """A subtopology as the assignor sees it."""

    tasks: int
    stateful: bool


class Configured(NamedTuple):
    """A topology on the topics there are. It can run if there is no obstacle."""

    shapes: Mapping[str, Shape]
    partitions: Mapping[str, int]
    """How many every topic has that is read or written down to, internal ones as decided."""
    obstacle: TopologyStatus | None = None
    missing: tuple[ApplicationTopic, ...] = ()
    """What has to be created, with its number of partitions."""

    @property
    def ready(self) -> bool:
        return self.obstacle is None


class _Unfit(Exception):
    """The topics there are do not fit."""

    def __init__(self, code: StatusCode, detail: str) -> None:
        super().__init__(detail)
        self.status = TopologyStatus(code, detail)


def check_topology(topology: Topology) -> None:
    """Raises STREAMS_INVALID_TOPOLOGY for what no topics can make right."""
    if topology.epoch < 0:
        raise ApiError(ErrorCode.STREAMS_INVALID_TOPOLOGY_EPOCH, f"{topology.epoch} is not a topology epoch")
    ids = [part.subtopology_id for part in topology.subtopologies]
    if len(set(ids)) < len(ids):
        raise _invalid("two subtopologies have the same id")
    for part in topology.subtopologies:
        if not part.reads:
            raise _invalid(f"subtopology {part.subtopology_id!r} has no source topics")
        for topic in part.changelogs:
            if topic.partitions:
                raise _invalid(f"changelog topic {topic.name!r} must leave its number of partitions open")
        for topic in part.repartition_sources:
            if topic.partitions < 0:
                raise _invalid(f"repartition topic {topic.name!r} cannot have {topic.partitions} partitions")
    _repartition_counts(topology, lambda _: 1)


def digest(topology: Topology, topics: Mapping[str, CatalogTopic]) -> int:
    """Changes when one of the topology's topics appears, disappears, grows or is recreated."""
    state = blake2b(digest_size=8)
    for name in sorted(topology.required_topics()):
        if (topic := topics.get(name)) is not None:
            state.update(name.encode() + b"\0" + topic.topic_id + topic.partitions.to_bytes(4, "big"))
    return int.from_bytes(state.digest(), "big", signed=True)


def configure(topology: Topology, topics: Mapping[str, CatalogTopic]) -> Configured:
    """How many tasks there are, or what prevents them. ApiError STREAMS_INVALID_TOPOLOGY."""
    try:
        missing = {name for part in topology.subtopologies for name in part.sources if name not in topics}
        if missing:
            raise _Unfit(StatusCode.MISSING_SOURCE_TOPICS, f"source topics are missing: {_shown(missing)}")
        counts = _internal_counts(topology, topics)
        shapes = {
            part.subtopology_id: Shape(_most_partitions(part, topics, counts), bool(part.changelogs))
            for part in topology.subtopologies
        }
        to_create = _missing_internal(topology, topics, counts)
        known = {name: topics[name].partitions for part in topology.subtopologies for name in part.sources}
        partitions = {**known, **counts}
    except _Unfit as unfit:
        return Configured({}, {}, unfit.status)
    if (tasks := sum(shape.tasks for shape in shapes.values())) > TASKS_MAX:
        raise _invalid(f"the application would have {tasks:,} tasks, and {TASKS_MAX:,} are allowed")
    if not to_create:
        return Configured(shapes, partitions)
    detail = f"internal topics are being created: {_shown(topic.name for topic in to_create)}"
    return Configured(
        shapes, partitions, TopologyStatus(StatusCode.MISSING_INTERNAL_TOPICS, detail), to_create
    )


def _internal_counts(topology: Topology, topics: Mapping[str, CatalogTopic]) -> dict[str, int]:
    counts = _repartition_counts(topology, lambda name: topics[name].partitions)
    fixed = {
        topic.name
        for part in topology.subtopologies
        for topic in part.repartition_sources
        if topic.partitions
    }
    for part in topology.subtopologies:
        for names in part.copartitioned:
            _make_equal(names, topics, counts, fixed)
    for part in topology.subtopologies:
        most = _most_partitions(part, topics, counts)
        counts.update((topic.name, most) for topic in part.changelogs)
    return counts


def _repartition_counts(topology: Topology, count_of: Callable[[str], int]) -> dict[str, int]:
    """Partitions of the repartition topics: as asked for, or as many as their writer reads."""
    counts = {
        topic.name: topic.partitions
        for part in topology.subtopologies
        for topic in part.repartition_sources
        if topic.partitions
    }
    # Round after round over those that know the partitions of something they read. Each is looked at once:
    # in the round in which it learns the first such number, or in the next if its place in this one is past.
    readers: dict[str, list[int]] = {}
    rounds: list[tuple[int, int]] = []
    for index, part in enumerate(topology.subtopologies):
        if part.sources or any(topic.name in counts for topic in part.repartition_sources):
            rounds.append((0, index))
        else:
            for topic in part.repartition_sources:
                readers.setdefault(topic.name, []).append(index)
    entered = {index for _, index in rounds}
    while rounds:
        number, index = heapq.heappop(rounds)
        part = topology.subtopologies[index]
        known = [count_of(name) for name in part.sources]
        known += [counts[topic.name] for topic in part.repartition_sources if topic.name in counts]
        for name in part.repartition_sinks:
            if name in counts:
                continue
            counts[name] = max(known)
            for reader in readers.get(name, ()):
                if reader not in entered:
                    entered.add(reader)
                    heapq.heappush(rounds, (number + (reader <= index), reader))
    for part in topology.subtopologies:
        if any(name not in counts for name in part.repartition_sinks):
            raise _invalid("repartition topics depend on each other in a circle")
    for part in topology.subtopologies:
        for topic in part.repartition_sources:
            if topic.name not in counts:
                raise _invalid(f"no subtopology writes the repartition topic {topic.name!r}")
    return counts


def _make_equal(
    names: frozenset[str], topics: Mapping[str, CatalogTopic], counts: dict[str, int], fixed: set[str]
) -> None:
    """Gives topics that are joined the same number of partitions, where the number is ours to decide."""
    external = {name: topics[name].partitions for name in names if name not in counts}
    deciding = external or {name: counts[name] for name in names if name in fixed}
    if len(set(deciding.values())) > 1:
        shown = ", ".join(f"{name}={count}" for name, count in sorted(deciding.items())[:NAMES_SHOWN])
        raise _Unfit(
            StatusCode.INCORRECTLY_PARTITIONED_TOPICS,
            f"topics that are joined need equally many partitions: {shown}",
        )
    wanted = max((deciding or {name: counts[name] for name in names}).values(), default=0)
    for name in names - external.keys():
        if name in fixed and counts[name] != wanted:
            raise _Unfit(
                StatusCode.INCORRECTLY_PARTITIONED_TOPICS,
                f"repartition topic {name} is to have {counts[name]} partitions, but is joined with topics"
                f" that have {wanted}",
            )
        counts[name] = wanted


def _most_partitions(part: Subtopology, topics: Mapping[str, CatalogTopic], counts: Mapping[str, int]) -> int:
    return max(counts[name] if name in counts else topics[name].partitions for name in part.reads)


def _missing_internal(
    topology: Topology, topics: Mapping[str, CatalogTopic], counts: Mapping[str, int]
) -> tuple[ApplicationTopic, ...]:
    missing: dict[str, ApplicationTopic] = {}
    for part in topology.subtopologies:
        for topic in (*part.repartition_sources, *part.changelogs):
            found = topics.get(topic.name)
            if found is None:
                missing[topic.name] = topic._replace(partitions=counts[topic.name])
            elif found.partitions != counts[topic.name]:
                raise _Unfit(
                    StatusCode.INCORRECTLY_PARTITIONED_TOPICS,
                    f"internal topic {topic.name} has {found.partitions} partitions where"
                    f" {counts[topic.name]} are needed",
                )
    return tuple(missing[name] for name in sorted(missing))


def _names(topics: Iterable[ApplicationTopic]) -> list[str]:
    return [topic.name for topic in topics]


def _shown(names: Iterable[str]) -> str:
    ordered = sorted(names)
    more = len(ordered) - NAMES_SHOWN
    return ", ".join(ordered[:NAMES_SHOWN]) + (f" and {more} more" if more > 0 else "")


def _invalid(reason: str) -> ApiError:
    return ApiError(ErrorCode.STREAMS_INVALID_TOPOLOGY, reason)
