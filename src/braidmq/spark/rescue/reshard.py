"""Copies an overloaded topic into one with more partitions, while producers and consumers keep running.

Records are copied as they are, with a header that has their origin. One task reads one old partition from
beginning to end, and the key decides the new partition: so all records of a key are in one new partition, in
order. Clients map keys to partitions differently, so the copy must use the partitioner of the producers, or a
key would be in two partitions (`Partitioner`). The copy is a streaming query with a checkpoint and the
exactly-once sink: it can be stopped and killed.

The switch comes after the producers of the old topic have stopped: the rest is copied, and every group gets
its offsets in the new topic (`translate.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as fn
from pyspark.sql.streaming.query import StreamingQuery

from braidmq.client.admin import Admin
from braidmq.client.cluster import TopicPartition
from braidmq.client.consumer import Start
from braidmq.client.groups import GroupAdmin
from braidmq.client.offsets import list_offsets
from braidmq.platform.disk import RealDisk
from braidmq.spark.cluster import open_cluster
from braidmq.spark.lake import ranges
from braidmq.spark.lake.schema import RAW
from braidmq.spark.partitioner import Partitioner
from braidmq.spark.rescue.errors import RescueError
from braidmq.spark.rescue.origin import ORIGIN, origin, with_header
from braidmq.spark.rescue.translate import Translation, as_offsets, translate
from braidmq.spark.sink.ledger import is_ledger
from braidmq.wire.errors import ApiError, ErrorCode

CAUGHT_UP_RECORDS = 1_000
SWITCH_PASSES_MAX = 5
POLL_S = 1
WHOLE_PARTITIONS = str(10**15)
"""A partition is never split between tasks, which keeps its order."""
ROWS_PER_BATCH = 5_000_000


@dataclass(frozen=True, slots=True)
class Reshard:
    """From where to where, and how."""

    bootstrap: str
    topic: str
    into: str
    partitions: int
    checkpoint: Path
    client_options: Mapping[str, str] = field(default_factory=dict)
    partitioner: Partitioner = Partitioner.MURMUR2

    @property
    def group(self) -> str:
        """The group in which the copy publishes its positions, for tools that show lag."""
        return f"braid-reshard-{self.topic}-{self.into}"


@dataclass(frozen=True, slots=True)
class CopyProgress:
    """Records copied since the start, and records left in the old topic."""

    copied: int
    ahead: int


def prepare(job: Reshard) -> bool:
    """Creates the new topic with the options of the old one; False if it exists and the copy continues."""
    with open_cluster(job.bootstrap, job.client_options) as cluster:
        admin = Admin(cluster)
        admin.partition_indexes(job.topic)
        if job.into == job.topic:
            raise RescueError("a topic cannot be resharded into itself; name another with --to-topic")
        try:
            there = admin.partition_indexes(job.into)
        except ApiError as error:
            if error.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                raise
            # The query starts after the topic exists, so traces of one belong to another topic.
            _refuse_used(job, "offsets")
            options = {each.name: each.value for each in admin.topic_configs(job.topic) if each.overridden}
            admin.create_topic(job.into, job.partitions, configs=options)
            return True
        if len(there) != job.partitions:
            raise RescueError(
                f"{job.into} exists with {len(there)} partitions, not {job.partitions};"
                " name another with --to-topic, or delete it"
            )
        spans = ranges.whole(cluster, [job.into]).values()
        if all(end == 0 for _, end in spans):
            _refuse_used(job, "commits")
        if any(end > start for start, end in spans) and not (job.checkpoint / "offsets").is_dir():
            raise RescueError(
                f"{job.into} holds records that {job.checkpoint} does not know; if they are of an"
                " earlier run, use its --checkpoint, else name another topic with --to-topic"
            )
        return False


def _refuse_used(job: Reshard, steps: str) -> None:
    """RescueError if the checkpoint is ahead of the records in the new topic."""
    folder = job.checkpoint / steps
    # Each step has a hidden checksum file.
    if folder.is_dir() and any(entry.name.isdigit() for entry in folder.iterdir()):
        raise RescueError(
            f"{job.checkpoint} belongs to an earlier copy, whose records {job.into} does not have; remove"
            " that folder to copy everything again, or use another --checkpoint"
        )


def _keep_partitioner(job: Reshard) -> None:
    """Writes the partitioner of a copy into its checkpoint; RescueError if it was another."""
    note = job.checkpoint / "partitioner"
    if not note.exists():
        job.checkpoint.mkdir(parents=True, exist_ok=True)
        RealDisk().write_atomically(note, job.partitioner.encode())
    elif (begun := note.read_text(encoding="utf-8")) != job.partitioner:
        raise RescueError(
            f"{job.checkpoint} is of a copy with --partitioner {begun}; continue with that, since with"
            f" {job.partitioner} the records of a key would be in two partitions"
        )


def copy(spark: SparkSession, job: Reshard, until_still: bool = False) -> Iterator[CopyProgress]:
    """Copies until little is left, or (`until_still`) until nothing is left and nothing arrives.

    RescueError with `until_still` if records keep arriving, or come after an open transaction.
    """
    _keep_partitioner(job)
    copied = 0
    passes = 0
    ends = _ends(job)
    while True:
        rows = 0
        for rows in _watched(_start(spark, job)):
            yield CopyProgress(copied + rows, max(0, _ahead(job, ends)))
        copied += rows
        before, ends = ends, _ends(job)
        arrived = sum(ends.values()) - sum(before.values())
        yield CopyProgress(copied, arrived)
        passes += 1
        if arrived == 0 or (not until_still and arrived <= CAUGHT_UP_RECORDS):
            if until_still:
                _refuse_open(job, ends)
            return
        if until_still and passes >= SWITCH_PASSES_MAX:
            raise RescueError(
                f"{job.topic} is still being written: {arrived:,} records arrived while the rest was copied;"
                " stop its producers, then switch again"
            )


def _start(spark: SparkSession, job: Reshard) -> StreamingQuery:
    reader = spark.readStream.format("braid").options(**job.client_options).schema(RAW)
    reader = reader.option("bootstrap.servers", job.bootstrap).option("subscribe", job.topic)
    reader = reader.option("startingOffsets", "earliest").option("includeHeaders", "true")
    reader = reader.option("isolation", "read_committed").option("groupId", job.group)
    reader = reader.option("maxRecordsPerPartition", WHOLE_PARTITIONS)
    reader = reader.option("maxOffsetsPerTrigger", str(ROWS_PER_BATCH))
    rows = reader.load().select("key", "value", with_header(ORIGIN).alias("headers"), "timestamp")
    if job.partitioner is Partitioner.CRC32:
        # The sink spreads records without a key; librdkafka treats an empty key as none.
        by_key = fn.when(fn.octet_length("key") > 0, fn.crc32("key") % job.partitions)
        rows = rows.withColumn("partition", by_key.cast("int"))
    writer = rows.writeStream.format("braid").options(**job.client_options)
    writer = writer.option("bootstrap.servers", job.bootstrap).option("topic", job.into)
    writer = writer.option("checkpointLocation", str(job.checkpoint))
    return writer.trigger(availableNow=True).start()


def _watched(query: StreamingQuery) -> Iterator[int]:
    """Yields the rows since the start of the query now and then, until it ends; raises its failure."""
    batches: dict[int, int] = {}
    ended = False
    try:
        while not ended:
            ended = bool(query.awaitTermination(POLL_S))
            for progress in query.recentProgress:
                batches[progress["batchId"]] = progress["numInputRows"]
            yield sum(batches.values())
    finally:
        query.stop()


def _ends(job: Reshard) -> dict[int, int]:
    with open_cluster(job.bootstrap, job.client_options) as cluster:
        return {at.partition: end for at, (_, end) in ranges.whole(cluster, [job.topic]).items()}


def _refuse_open(job: Reshard, ends: Mapping[int, int]) -> None:
    """RescueError if there are records after `ends`: read_committed stops at an open transaction."""
    with open_cluster(job.bootstrap, job.client_options) as cluster:
        partitions = {TopicPartition(job.topic, partition): end for partition, end in ends.items()}
        last = list_offsets(cluster, dict.fromkeys(partitions, int(Start.LATEST)))
    for at, end in partitions.items():
        if last[at].offset > end:
            raise RescueError(
                f"{at}: a transaction is open at offset {end}, and records after that are not copied;"
                " end it (braid txn list, then braid txn abort) or wait until it times out, then switch again"
            )


def _ahead(job: Reshard, ends: Mapping[int, int]) -> int:
    with open_cluster(job.bootstrap, job.client_options) as cluster:
        committed = GroupAdmin(cluster).committed(job.group)
    reached = {at.partition: offset for at, offset in committed.items()}
    return sum(end - reached.get(partition, 0) for partition, end in ends.items())


def switch(
    spark: SparkSession, job: Reshard, dry_run: bool, note: Callable[[str], None] = lambda _: None
) -> list[Translation]:
    """Gives every group of the old topic its offsets in the new one; all records must have been copied."""
    with open_cluster(job.bootstrap, job.client_options) as cluster:
        groups = GroupAdmin(cluster)
        committed, moved = _groups(groups, job)
        for name in moved:
            note(f"group {name} already has offsets in {job.into} and keeps them")
        if not dry_run:
            _refuse_members(groups, committed)
        spans = ranges.whole(cluster, [job.into])
    copies = copies_of(ranges.read_ranges(spark, job.bootstrap, spans, job.client_options)).persist()
    try:
        ends = {at.partition: end for at, (_, end) in spans.items()}
        found = translate(copies, job.topic, committed, ends)
    finally:
        copies.unpersist()
    if not dry_run:
        with open_cluster(job.bootstrap, job.client_options) as cluster:
            for each in found:
                GroupAdmin(cluster).commit(each.group, as_offsets(job.into, each.positions))
    return found


def copies_of(rows: DataFrame) -> DataFrame:
    """Position and origin of the records of the new topic, without content."""
    return rows.select(
        "partition",
        "offset",
        origin(0).alias("from_topic"),
        origin(1).alias("from_partition"),
        origin(2).alias("from_offset"),
    )


def _groups(groups: GroupAdmin, job: Reshard) -> tuple[dict[str, dict[int, int]], list[str]]:
    """Committed offsets in the old topic by group and partition; and groups with offsets in the new one."""
    committed: dict[str, dict[int, int]] = {}
    moved = []
    for listed in groups.all():
        name = listed.group_id
        if name == job.group or is_ledger(groups.texts(name, listed.group_type).values()):
            continue
        offsets = groups.committed(name, listed.group_type)
        if any(at.topic == job.into for at in offsets):
            moved.append(name)
        elif old := {at.partition: offset for at, offset in offsets.items() if at.topic == job.topic}:
            committed[name] = old
    return committed, moved


def _refuse_members(groups: GroupAdmin, committed: Mapping[str, object]) -> None:
    busy = [name for name in committed if groups.describe(name).members]
    if busy:
        raise RescueError(
            f"group {', '.join(busy)} still has members; stop its consumers, switch, and start them again on"
            " the new topic"
        )
