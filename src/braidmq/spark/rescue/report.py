"""What happened in topics: throughput, delays, hot keys, skew and lag, as DataFrames and numbers.

What is known about delays depends on the topic. A record has one timestamp. With
`message.timestamp.type=LogAppendTime` the broker writes the time of the append into the header of each batch
and leaves the producer's times in the records. So both are in the log, and the delay from produce to append
is known for the first record of every batch, which waited longest. With `CreateTime`, the default, the log
does not have the time of the append. It is only certain that a record was appended after every record before
it: a record with an earlier timestamp than its predecessors was late by at least the difference. The report
calls that lateness, a lower bound, and not latency.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as fn

from braidmq.client.cluster import Cluster, TopicPartition
from braidmq.client.consumer import Consumer, Start
from braidmq.client.groups import GroupAdmin, Position
from braidmq.client.offsets import list_offsets
from braidmq.spark.cluster import open_cluster
from braidmq.spark.lake import ranges
from braidmq.spark.lake.schema import DAY_MICROSECONDS, LAST_DAY
from braidmq.spark.sink.ledger import is_ledger
from braidmq.wire.messages.groups import ListedGroup

BUCKETS_MAX = 200
BUCKET_CHOICES_S = (1, 5, 15, 60, 300, 900, 3600, 21_600, 86_400, 604_800)
HOT_KEYS = 20
QUANTILES = (0.5, 0.9, 0.99, 1.0)
APPEND_TIME = 1
ACCURACY = 10_000
BATCHES = (
    "topic string, partition int, base_offset long, records int, size_bytes long, codec string,"
    " produced_ms long, appended_ms long"
)
PARTITION_FETCH_BYTES = 4_194_304


def measured(rows: DataFrame) -> DataFrame:
    """The columns of records that the figures need, without values; to be persisted and used several times.

    Times before 1970, which means none, and after the year 9999 are null.
    """
    known = fn.unix_micros("timestamp").between(0, LAST_DAY * DAY_MICROSECONDS)
    size = fn.coalesce(fn.octet_length("key"), fn.lit(0)) + fn.coalesce(fn.octet_length("value"), fn.lit(0))
    return rows.select(
        "topic",
        "partition",
        "offset",
        fn.when(known, fn.col("timestamp")).alias("timestamp"),
        "timestampType",
        "key",
        size.cast("long").alias("bytes"),
    )


def bucket_s(rows: DataFrame) -> int:
    """The length of a time bucket for a plot of at most 200 of them."""
    span = rows.agg(fn.min("timestamp").alias("first"), fn.max("timestamp").alias("last")).collect()[0]
    if span["first"] is None:
        return BUCKET_CHOICES_S[0]
    seconds = (span["last"] - span["first"]).total_seconds()
    fitting = (choice for choice in BUCKET_CHOICES_S if seconds / choice <= BUCKETS_MAX)
    return next(fitting, int(seconds // BUCKETS_MAX) + 1)


def throughput(rows: DataFrame, bucket_s: int) -> DataFrame:
    """Records and bytes of each bucket of time, by the timestamps of the records."""
    # Not window(): buckets of plain seconds sort and plot without a struct, and need no time zone.
    start = fn.timestamp_seconds(fn.floor(fn.unix_seconds("timestamp") / bucket_s) * bucket_s)
    return (
        rows.filter("timestamp IS NOT NULL")
        .groupBy("topic", start.alias("time"))
        .agg(fn.count("*").alias("records"), fn.sum("bytes").alias("bytes"))
        .withColumn("records_per_s", fn.col("records") / bucket_s)
        .withColumn("bytes_per_s", fn.col("bytes") / bucket_s)
        .orderBy("topic", "time")
    )


def partitions(rows: DataFrame, there: Iterable[TopicPartition] = ()) -> DataFrame:
    """Records and bytes of each partition, its share, and how it compares with the mean (1.0: no skew).

    Partitions of `there` are included without records too.
    """
    grouped = rows.groupBy("topic", "partition").agg(
        fn.count("*").alias("records"),
        fn.sum("bytes").alias("bytes"),
        fn.min("timestamp").alias("first"),
        fn.max("timestamp").alias("last"),
    )
    known = rows.sparkSession.createDataFrame(list(there), "topic string, partition int")
    grouped = grouped.join(known, ["topic", "partition"], "full").fillna(0, ["records", "bytes"])
    topic = Window.partitionBy("topic")
    # A topic without records has neither.
    return grouped.select(
        "*",
        fn.try_divide("records", fn.sum("records").over(topic)).alias("share"),
        fn.try_divide("records", fn.avg("records").over(topic)).alias("skew"),
    ).orderBy("topic", "partition")


def hot_keys(rows: DataFrame, most: int = HOT_KEYS) -> DataFrame:
    """The keys with the most records of each topic, and their share; records without a key count as one."""
    grouped = rows.groupBy("topic", "key").agg(
        fn.count("*").alias("records"),
        fn.sum("bytes").alias("bytes"),
        fn.count_distinct("partition").alias("partitions"),
    )
    topic = Window.partitionBy("topic")
    rank = fn.row_number().over(topic.orderBy(fn.desc("records"), "key"))
    shares = grouped.withColumn("share", fn.col("records") / fn.sum("records").over(topic))
    return shares.withColumn("rank", rank).filter(fn.col("rank") <= most).orderBy("topic", "rank")


def lateness(rows: DataFrame) -> DataFrame:
    """Quantiles, in ms, of the minimum delay of records (CreateTime only; see above)."""
    before = (
        Window.partitionBy("topic", "partition").orderBy("offset").rowsBetween(Window.unboundedPreceding, 0)
    )
    late = fn.unix_millis(fn.max("timestamp").over(before)) - fn.unix_millis("timestamp")
    created = rows.filter(fn.col("timestampType") != APPEND_TIME).withColumn("late_ms", late)
    return created.groupBy("topic").agg(
        fn.count("*").alias("records"),
        fn.sum((fn.col("late_ms") > 0).cast("long")).alias("late"),
        *_quantiles("late_ms"),
    )


def batches(
    spark: SparkSession, bootstrap: str, spans: ranges.Ranges, options: ranges.ClientOptions | None = None
) -> DataFrame:
    """One row per stored batch, from its header alone: nothing is decompressed."""
    wanted = [(*at, *span) for at, span in spans.items() if span[0] < span[1]]
    if not wanted:
        return spark.createDataFrame([], BATCHES)
    # One task for each partition: it is read in order anyway.
    tasks = spark.createDataFrame(wanted, "topic string, partition int, first long, end long")
    tasks = tasks.repartition(len(wanted), "topic", "partition")

    def read(pieces: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for piece in pieces:
            for row in piece.to_pylist():
                with open_cluster(bootstrap, options or {}) as cluster:
                    yield from _headers(cluster, **row)

    return tasks.mapInArrow(read, BATCHES)


def _headers(cluster: Cluster, topic: str, partition: int, first: int, end: int) -> Iterator[pa.RecordBatch]:
    with Consumer(cluster, reset=Start.EARLIEST, partition_max_bytes=PARTITION_FETCH_BYTES) as consumer:
        consumer.seek(topic, partition, first)
        while consumer.position(topic, partition) < end:
            found = []
            for batch in consumer.poll_batches():
                header = batch.header
                if header.base_offset >= end:
                    break
                found.append(
                    {
                        "topic": topic,
                        "partition": partition,
                        "base_offset": header.base_offset,
                        "records": header.record_count,
                        "size_bytes": header.size,
                        "codec": header.codec.name.lower(),
                        "produced_ms": header.base_timestamp,
                        "appended_ms": header.max_timestamp if header.timestamp_type_append else None,
                    }
                )
            if found:
                yield pa.RecordBatch.from_pylist(found, schema=_BATCH_SCHEMA)


_BATCH_SCHEMA = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("base_offset", pa.int64()),
        ("records", pa.int32()),
        ("size_bytes", pa.int64()),
        ("codec", pa.string()),
        ("produced_ms", pa.int64()),
        ("appended_ms", pa.int64()),
    ]
)


def append_latency(found: DataFrame) -> DataFrame:
    """Quantiles, in ms, from produce to append of the first record of each batch (LogAppendTime only)."""
    known = found.filter("appended_ms IS NOT NULL AND produced_ms >= 0")
    known = known.withColumn("latency_ms", fn.col("appended_ms") - fn.col("produced_ms"))
    return known.groupBy("topic").agg(fn.count("*").alias("batches"), *_quantiles("latency_ms"))


def batch_sizes(found: DataFrame) -> DataFrame:
    """How well producers batch: records and bytes of a batch, on average, by codec."""
    return (
        found.groupBy("topic", "codec")
        .agg(
            fn.count("*").alias("batches"),
            fn.avg("records").alias("records_per_batch"),
            fn.avg("size_bytes").alias("bytes_per_batch"),
        )
        .orderBy("topic", "codec")
    )


def _quantiles(name: str) -> list[Column]:
    labels = ("p50", "p90", "p99", "max")
    found = fn.percentile_approx(name, list(QUANTILES), ACCURACY)
    return [found[index].alias(label) for index, label in enumerate(labels)]


@dataclass(frozen=True, slots=True)
class Lag:
    """The lag of a group in a partition. `lost`: records that retention deleted before it read them."""

    group: str
    topic: str
    partition: int
    committed: int
    end: int
    lag: int
    lost: int
    oldest_unread_ms: int | None = None


def lags(cluster: Cluster, topics: Iterable[str]) -> list[Lag]:
    """The current lag of every group that has committed offsets of these topics.

    Without the ledgers of the Spark sink, whose offsets are batch numbers.
    """
    wanted = set(topics)
    groups = GroupAdmin(cluster)
    found: list[tuple[ListedGroup, Position]] = []
    for group in groups.all():
        if is_ledger(groups.texts(group.group_id, group.group_type).values()):
            continue
        positions = groups.positions(group.group_id, group.group_type)
        found += [(group, each) for each in positions if each.topic in wanted]
    known = {TopicPartition(each.topic, each.partition) for _, each in found}
    starts = list_offsets(cluster, dict.fromkeys(known, int(Start.EARLIEST))) if known else {}
    return [
        Lag(
            group.group_id,
            each.topic,
            each.partition,
            each.committed,
            each.end,
            each.lag or 0,
            max(0, starts[TopicPartition(each.topic, each.partition)].offset - each.committed),
        )
        for group, each in found
        if each.committed is not None
    ]


def oldest_unread(rows: DataFrame, found: list[Lag]) -> Mapping[tuple[str, str, int], int]:
    """For each group, topic and partition with lag: the time (ms) of the first unread record."""
    lagging = [(each.group, each.topic, each.partition, each.committed) for each in found if each.lag]
    if not lagging:
        return {}
    spark = rows.sparkSession
    places = spark.createDataFrame(lagging, "group string, topic string, partition int, committed long")
    unread = rows.join(fn.broadcast(places), ["topic", "partition"]).filter("offset >= committed")
    first = unread.groupBy("group", "topic", "partition").agg(fn.min_by("timestamp", "offset").alias("first"))
    first = first.withColumn("first", fn.unix_millis("first"))
    return {(row["group"], row["topic"], row["partition"]): row["first"] for row in first.collect()}
