"""The unit of work of one task: a range of offsets of one partition."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from pyspark.sql.datasource import InputPartition

from braidmq.client.cluster import TopicPartition


@dataclass(frozen=True)
class Split(InputPartition):
    """Offsets `start` (read) to `end` (not read) of a partition."""

    topic: str
    partition: int
    start: int
    end: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition} [{self.start}, {self.end})"


def split(starts: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]) -> Iterator[Split]:
    """One split for each partition that has something to read."""
    for at, start in sorted(starts.items()):
        if at in ends and start < ends[at]:
            yield Split(at.topic, at.partition, start, ends[at])
