"""Replays rows of a lake into a topic: chosen by time, key or SQL, with their keys, headers and timestamps.

Rows are sent in their original order: all rows of one partition of a topic go through one task, by offset. By
default the key decides the partition, as with any producer; rows without a key are spread out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as fn

from braidmq.client.transactional import TransactionalClient
from braidmq.spark.cluster import open_cluster
from braidmq.spark.errors import first_line
from braidmq.spark.lake.commits import LakeError
from braidmq.spark.lake.reader import open_rows
from braidmq.spark.lake.schema import RAW
from braidmq.spark.sink.ledger import Ledger
from braidmq.spark.sink.options import parse_sink


@dataclass(frozen=True, slots=True)
class Selection:
    """Which rows: all given conditions must hold."""

    from_ms: int | None = None
    until_ms: int | None = None
    topics: tuple[str, ...] = ()
    keys: tuple[bytes, ...] = ()
    where: str | None = None


@dataclass(frozen=True, slots=True)
class Count:
    """The size of a selection for one topic and day."""

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
            raise LakeError(f"the condition {chosen.where!r} is wrong: {first_line(error)}") from None
    return rows


def counts(rows: DataFrame) -> list[Count]:
    """The size of the selection, by topic and day."""
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
    """Sends rows to a topic as the records they were, all or none; False if that was done before.

    Nothing more is sent under a `write_id` that was used. A write that was killed after its decision is
    completed.
    """
    options = {**(client_options or {}), "bootstrap.servers": bootstrap, "topic": topic, "writeId": write_id}
    known = parse_sink(options, streaming=False, overwrite=False)
    assert known.scope is not None
    with open_cluster(bootstrap, client_options or {}) as cluster:
        ledger = Ledger(cluster, TransactionalClient(cluster), known.scope, known.transaction_timeout_ms)
        decided = ledger.read() is not None
    as_records(rows, keep_partitions).write.format("braid").options(**options).mode("append").save()
    return not decided


def as_records(rows: DataFrame, keep_partitions: bool) -> DataFrame:
    """The columns of a sink, with rows in the order to send them."""
    ordered = rows.repartition("topic", "partition").sortWithinPartitions("topic", "partition", "offset")
    # A record may have no time; a producer must set one.
    timestamp = fn.when(fn.unix_micros("timestamp") >= 0, fn.col("timestamp")).alias("timestamp")
    kept = ["partition"] if keep_partitions else []
    return ordered.select("key", "value", "headers", timestamp, *kept)
