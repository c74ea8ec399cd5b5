"""A group's offsets in the new topic, from its offsets in the old one.

One old partition fans out into many new ones, and one new partition has records from many old ones, so no
offset means "everything I have read and nothing else". The rule loses nothing: in each new partition the
group continues at the first record that it has not read. A record counts as read if it came from old
partition p at an offset before the group's committed one. After that first unread record there may be some
that the group has read; it will read them again, as after any crash between reading and committing. Their
number is reported.

Old partitions in which a group has never committed are unread. So is a record that was sent to the new topic
directly. In a new partition without unread records the group continues at the end.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pyspark.sql import DataFrame
from pyspark.sql import functions as fn

from braidmq.client.cluster import TopicPartition

Ends = Mapping[int, int]
"""Partition of the new topic → its end."""


@dataclass(frozen=True, slots=True)
class Translation:
    """One group: its new offsets, how much it has not read, and how much it will read again."""

    group: str
    positions: Mapping[int, int]
    unread: int
    again: int


def translate(
    copies: DataFrame, topic: str, committed: Mapping[str, Mapping[int, int]], ends: Ends
) -> list[Translation]:
    """Positions in the new topic for each group of `committed` (group → old partition → offset).

    `copies` has one row for each record of the new topic: partition, offset, and its origin as
    from_topic, from_partition, from_offset.
    """
    if not committed:
        return []
    unread = _seen_by(copies, topic, committed).filter(~fn.col("read"))
    grouped = unread.groupBy("group", "partition").agg(
        fn.min("offset").alias("first"), fn.count("*").alias("records")
    )
    rows = grouped.collect()
    firsts = {(row["group"], row["partition"]): row["first"] for row in rows}
    again = _again(copies, topic, committed, firsts)
    return [
        Translation(
            group,
            {partition: firsts.get((group, partition), end) for partition, end in ends.items()},
            sum(row["records"] for row in rows if row["group"] == group),
            again.get(group, 0),
        )
        for group in committed
    ]


def _again(
    copies: DataFrame,
    topic: str,
    committed: Mapping[str, Mapping[int, int]],
    firsts: Mapping[tuple[str, int], int],
) -> dict[str, int]:
    """How many records after the first unread one each group has already read."""
    if not firsts:
        return {}
    places = copies.sparkSession.createDataFrame(
        [(*where, first) for where, first in firsts.items()], "group string, partition int, first long"
    )
    read = _seen_by(copies, topic, committed).filter("read")
    later = read.join(fn.broadcast(places), ["group", "partition"]).filter("offset > first")
    return {row["group"]: row["count"] for row in later.groupBy("group").count().collect()}


def _seen_by(copies: DataFrame, topic: str, committed: Mapping[str, Mapping[int, int]]) -> DataFrame:
    """Every record with every group, and whether that group has read it."""
    spark = copies.sparkSession
    groups = spark.createDataFrame([(group,) for group in committed], "group string")
    offsets = spark.createDataFrame(
        [
            (group, topic, partition, offset)
            for group, partitions in committed.items()
            for partition, offset in partitions.items()
        ],
        "group string, from_topic string, from_partition long, committed long",
    )
    pairs = copies.crossJoin(fn.broadcast(groups))
    joined = pairs.join(fn.broadcast(offsets), ["group", "from_topic", "from_partition"], "left")
    read = fn.coalesce(fn.col("from_offset") < fn.col("committed"), fn.lit(False))
    return joined.select("group", "partition", "offset", read.alias("read"))


def as_offsets(topic: str, positions: Mapping[int, int]) -> dict[TopicPartition, int]:
    return {TopicPartition(topic, partition): offset for partition, offset in positions.items()}
