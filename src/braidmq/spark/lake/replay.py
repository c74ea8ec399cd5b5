"""Rows of a lake back into a topic: chosen by time, key or SQL, with their keys, headers and timestamps.

Rows are sent in the order they had: all rows of one partition of a topic go through one task, by offset. By
default the key decides about the partition, as with any producer; rows without a key spread out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as fn

from braidmq.client.groups import Groups
from braidmq.spark.cluster import open_cluster
from braidmq.spark.errors import first_line
from braidmq.spark.lake.commits import LakeError
from braidmq.spark.lake.reader import open_rows
from braidmq.spark.lake.schema import RAW
from braidmq.spark.sink.options import parse_sink


@dataclass(frozen=True, slots=True)
class Selection:
    """Which rows: all conditions that are given must hold."""

    from_ms: int | None = None
    until_ms: int | None = None
    topics: tuple[str, ...] = ()
    keys: tuple[bytes, ...] = ()
    where: str | None = None


@dataclass(frozen=True, slots=True)
class Count:
    """What a selection holds of one topic and day."""

    topic: str
    date: str
    rows: int
    value_bytes: int


def select(spark: SparkSession, name: str, chosen: Selection) -> DataFrame:
    """The chosen rows of a lake of topics, or of a table in another format."""
    rows = open_rows(spark, name, chosen.from_ms, chosen.until_ms)
    missing = [each.name for each in RAW.fields if each.name not in rows.columns]
    if missing:
        raise LakeError(f"{name} holds no records of topics: it has no column {missing[0]}")
    if chosen.topics:
        rows = rows.filter(fn.col("topic").isin(list(chosen.topics)))
    if chosen.keys:
        keys = spark.createDataFrame([(each,) for each in dict.fromkeys(chosen.keys)], "key binary")
        rows = rows.join(fn.broadcast(keys), "key", "left_semi")
    if chosen.where is not None:
        try:
            rows = rows.filter(chosen.where)
        except (AnalysisException, ParseException) as error:
            raise LakeError(f"the condition {chosen.where!r} is not right: {first_line(error)}") from None
    return rows


def counts(rows: DataFrame) -> list[Count]:
    """How much would be sent, by topic and day."""
    grouped = rows.groupBy("topic", "date").agg(
        fn.count("*").alias("rows"), fn.coalesce(fn.sum(fn.octet_length("value")), fn.lit(0)).alias("bytes")
    )
    found = grouped.orderBy("topic", "date").collect()
    return [Count(row["topic"], str(row["date"] or "-"), row["rows"], row["bytes"]) for row in found]


def replay(
    rows: DataFrame,
    bootstrap: str,
    topic: str,
    write_id: str,
    keep_partitions: bool = False,
    client_options: Mapping[str, str] | None = None,
) -> bool:
    """Sends rows to a topic, each as the record it was, all of them or none; False if that was done before.

    What was sent under a `write_id` is not sent again, nor is anything else under that name. A write that
    was decided and then killed is brought to its end.
    """
    options = {**(client_options or {}), "bootstrap.servers": bootstrap, "topic": topic, "writeId": write_id}
    known = parse_sink(options, streaming=False, overwrite=False)
    assert known.scope is not None
    with open_cluster(bootstrap, client_options or {}) as cluster:
        decided = bool(Groups(cluster).committed(known.scope, "classic"))
    as_records(rows, keep_partitions).write.format("braid").options(**options).mode("append").save()
    return not decided


def as_records(rows: DataFrame, keep_partitions: bool) -> DataFrame:
    """The columns a sink takes, in the order in which they are to be sent."""
    ordered = rows.repartition("topic", "partition").sortWithinPartitions("topic", "partition", "offset")
    # A record may have no time, which a producer has to fill in.
    timestamp = fn.when(fn.unix_micros("timestamp") >= 0, fn.col("timestamp")).alias("timestamp")
    kept = ["partition"] if keep_partitions else []
    return ordered.select("key", "value", "headers", timestamp, *kept)
