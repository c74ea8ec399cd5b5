"""Ranges of topics with a fixed beginning and end, so that reading one twice returns the same rows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame, SparkSession

from braidmq.client.admin import Admin
from braidmq.client.cluster import Cluster, TopicPartition
from braidmq.client.consumer import Start
from braidmq.client.offsets import list_offsets
from braidmq.spark.lake.commits import LakeError, Positions
from braidmq.spark.lake.schema import RAW
from braidmq.spark.source.positions import between

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

READ_COMMITTED = 1
ClientOptions = Mapping[str, str]
"""Options of `format("braid")` for the connection, such as security.protocol."""
Ranges = Mapping[TopicPartition, tuple[int, int]]
"""Partition → first offset, and the one after the last."""


def partitions_of(cluster: Cluster, topics: Iterable[str]) -> list[TopicPartition]:
    """Every partition of these topics, which must exist: this does not create them."""
    admin = Admin(cluster)
    return [TopicPartition(topic, index) for topic in topics for index in admin.partition_indexes(topic)]


def topic_ids(cluster: Cluster, topics: Iterable[str]) -> dict[str, str]:
    """The ids of these topics; old brokers have none."""
    answer = cluster.refresh(list(topics))
    return {topic.name or "": topic.topic_id.hex() for topic in answer.topics if any(topic.topic_id)}


def whole(cluster: Cluster, topics: Iterable[str]) -> dict[TopicPartition, tuple[int, int]]:
    """Everything that is readable now, up to the first open transaction."""
    partitions = partitions_of(cluster, topics)
    starts = list_offsets(cluster, dict.fromkeys(partitions, int(Start.EARLIEST)))
    ends = list_offsets(cluster, dict.fromkeys(partitions, int(Start.LATEST)), READ_COMMITTED)
    return {at: (starts[at].offset, max(ends[at].offset, starts[at].offset)) for at in partitions}


def still_there(cluster: Cluster, ranges: Ranges) -> dict[TopicPartition, tuple[int, int]]:
    """The ranges with their current beginnings: retention may have moved them."""
    starts = list_offsets(cluster, dict.fromkeys(ranges, int(Start.EARLIEST)))
    return {at: (starts[at].offset, end) for at, (_, end) in ranges.items()}


def remaining(
    there: Ranges, reached: Positions, skip_lost: bool = False
) -> dict[TopicPartition, tuple[int, int]]:
    """The part of `there` after `reached`; LakeError if some of it was deleted, unless that is skipped."""
    left = {}
    for at, (start, end) in there.items():
        position = reached.get(at.topic, {}).get(at.partition)
        if position is not None and position < start and not skip_lost:
            raise LakeError(
                f"{at}: offsets {position} to {start - 1} were deleted (retention or a trim) before they"
                " were archived; add --skip-lost to continue with what is left"
            )
        if position is not None and position > end:
            raise LakeError(
                f"{at} ends at offset {end}, but {position} were archived: it was deleted and recreated;"
                " archive the new topic into another folder"
            )
        begin = start if position is None else max(position, start)
        if begin < end:
            left[at] = (begin, end)
    return left


def capped(ranges: Ranges, rows_max: int) -> dict[TopicPartition, tuple[int, int]]:
    """The first part of each range, in proportion to its length, about `rows_max` offsets in all."""
    total = sum(end - start for start, end in ranges.values())
    if total <= rows_max:
        return dict(ranges)
    return {
        at: (start, start + max(1, (end - start) * rows_max // total)) for at, (start, end) in ranges.items()
    }


def read_ranges(
    spark: SparkSession,
    bootstrap: str,
    ranges: Ranges,
    options: ClientOptions | None = None,
    schema: StructType | None = None,
) -> DataFrame:
    """The committed records of these ranges, with their headers; `schema` names the columns."""
    ranges = {at: span for at, span in ranges.items() if span[0] < span[1]}
    wanted = schema or RAW
    if not ranges:
        return spark.createDataFrame([], wanted)
    given = source_options(bootstrap, ranges, options)
    return spark.read.format("braid").options(**given).schema(wanted).load()


def source_options(bootstrap: str, ranges: Ranges, options: ClientOptions | None = None) -> dict[str, str]:
    """The options of `format("braid")` that read these ranges, committed records only, with headers."""
    return {
        **(options or {}),
        "bootstrap.servers": bootstrap,
        **between({at: span[0] for at, span in ranges.items()}, {at: span[1] for at, span in ranges.items()}),
        "includeHeaders": "true",
        "isolation": "read_committed",
    }
