"""The unit of work: a range of offsets of one partition; how a query is cut into such ranges, and into tasks.

A partition is one task, unless the query asks for more (`minPartitions`, `maxRecordsPerPartition`) or the
partition is so large that cores would idle while one task reads it: then it is cut into pieces of equal
numbers of offsets. Pieces of one partition keep their order in the plan; nothing else is promised about rows
of several tasks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

from pyspark.sql.datasource import InputPartition

from braidmq.address import Address
from braidmq.client.cluster import TopicPartition

SPLIT_RECORDS = 1_000_000
"""Offsets in a task by default: seconds of work, so a failed task costs little."""


TASK_RECORDS = 10_000
"""Small splits share a task up to this many records: a task costs as much as reading some thousand."""


@dataclass(frozen=True)
class Split:
    """Offsets `start` to `end` (excluded) of a partition, its leader, and its directory if it is local."""

    topic: str
    partition: int
    start: int
    end: int
    leader_id: int = -1
    leader: Address | None = None
    directory: str | None = None
    machine: str = ""

    @property
    def at(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)


@dataclass(frozen=True)
class ReadTask(InputPartition):
    """What one Spark task reads, split after split."""

    splits: tuple[Split, ...]


@dataclass(frozen=True)
class Range:
    """Offsets of one partition, not yet cut."""

    at: TopicPartition
    start: int
    end: int

    @property
    def size(self) -> int:
        return self.end - self.start


def ranges(starts: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]) -> list[Range]:
    """The ranges to read, without empty ones."""
    both = [Range(at, start, ends[at]) for at, start in sorted(starts.items()) if at in ends]
    return [each for each in both if each.size > 0]


def cut(whole: list[Range], partitions_min: int | None = None, records_max: int | None = None) -> list[Range]:
    """The ranges cut into splits, at least `partitions_min` if there are that many records."""
    pieces = [piece for each in whole for piece in _pieces(each, records_max or SPLIT_RECORDS)]
    total = sum(each.size for each in whole)
    if partitions_min is None or len(pieces) >= partitions_min or not total:
        return pieces
    shares = [max(1, -(-each.size * partitions_min // total)) for each in whole]
    return [piece for each, share in zip(whole, shares, strict=True) for piece in _equal(each, share)]


def tasks(splits: list[Split], alone: bool, records_max: int = TASK_RECORDS) -> list[ReadTask]:
    """The splits as tasks: one each if `alone`, else neighbours together, up to `records_max`."""
    groups: list[list[Split]] = []
    room = 0
    for split in splits:
        size = split.end - split.start
        if alone or size > room:
            groups.append([])
            room = records_max
        groups[-1].append(split)
        room -= size
    return [ReadTask(tuple(group)) for group in groups]


def _pieces(whole: Range, records_max: int) -> list[Range]:
    return _equal(whole, -(-whole.size // records_max))


def _equal(whole: Range, count: int) -> list[Range]:
    count = min(count, whole.size)
    cuts = [whole.start + whole.size * number // count for number in range(count + 1)]
    return [Range(whole.at, first, end) for first, end in pairwise(cuts)]
