"""From topics to a lake, exactly once.

There is no checkpoint beside the lake that could disagree with it: each commit holds files and the offsets
that they reach. The archiver reads the last offsets from the lake, reads a fixed range from there, writes
files, and commits both. Killed before the commit, it reads the same range again, and the files of the first
attempt are swept later; killed after the commit, it continues with the next range.

It reads only committed records, and a range ends before the first open transaction, so it does not skip a
record that is committed later.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as fn

from braidmq.client.cluster import Cluster
from braidmq.client.groups import GroupAdmin
from braidmq.platform.clock import SystemClock
from braidmq.spark.cluster import open_cluster
from braidmq.spark.lake import ranges
from braidmq.spark.lake.commits import LakeError, Snapshot, TopicIds
from braidmq.spark.lake.compaction import tidy
from braidmq.spark.lake.decode import Avro, Decoding, decode, first_registry_id
from braidmq.spark.lake.direct_write import ROWS_PER_FILE, DirectWrite
from braidmq.spark.lake.lake import Lake
from braidmq.spark.lake.schema import DATE, dated, utc_date
from braidmq.spark.options import merged
from braidmq.spark.source.data_loss import RecordsLost
from braidmq.spark.source.query import parse_query

ROWS_PER_COMMIT = 2_000_000
DAY_MS = 86_400_000
INTERVAL_S = 60.0
REGISTRY_ID = "registry id"
"""The unit of work under which a lake stores the registry id of decoded values."""
ARCHIVED = "archived"
"""As `date_by`: rows get the day on which they were archived, whatever their timestamps are."""


@dataclass(frozen=True, slots=True)
class Archive:
    """What to archive, and how."""

    bootstrap: str
    topics: tuple[str, ...]
    rows_per_commit: int = ROWS_PER_COMMIT
    date_by: str = "timestamp"
    decode: Decoding | None = None
    skip_lost: bool = False
    group: str | None = None
    """A consumer group to publish the positions in, for tools that show lag."""
    client_options: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_raw(self) -> bool:
        """Whether records are archived as they are, without decoding their values."""
        return self.decode is None and self.date_by in ("timestamp", ARCHIVED)


@dataclass(frozen=True, slots=True)
class ArchiveStep:
    """One commit: how many rows it added, and how many offsets are left."""

    version: int
    rows: int
    files: int
    ahead: int


def archive(spark: SparkSession, lake: Lake, job: Archive) -> Iterator[ArchiveStep]:
    """Archives everything up to the current ends, one step per commit."""
    with open_cluster(job.bootstrap, job.client_options) as cluster:
        ids = ranges.topic_ids(cluster, job.topics)
        there = ranges.whole(cluster, job.topics)
        snapshot = lake.create()
        if topic := snapshot.recreated(ids):
            raise LakeError(
                f"{topic} was deleted and recreated since it was archived into {lake.path};"
                " archive the new topic into another folder"
            )
        # The last run may have died before it published.
        _publish(cluster, job, snapshot, there)
        while left := ranges.remaining(ranges.still_there(cluster, there), snapshot.positions, job.skip_lost):
            part = ranges.capped(left, job.rows_per_commit)
            job, snapshot = _pinned(spark, lake, job, snapshot, part)
            before = snapshot
            snapshot = _archive_range(spark, lake, job, snapshot, part, ids)
            _publish(cluster, job, snapshot, part)
            ahead = sum(end - start for start, end in left.values())
            ahead -= sum(end - start for start, end in part.values())
            yield ArchiveStep(snapshot.version, snapshot.rows - before.rows, len(snapshot.files), ahead)
            snapshot = tidy(lake, spark, snapshot)


def follow(
    spark: SparkSession, lake: Lake, job: Archive, interval_s: float = INTERVAL_S
) -> Iterator[ArchiveStep | None]:
    """Archives for ever, every `interval_s`; yields None if there is nothing new."""
    clock = SystemClock()
    while True:
        began_s = clock.monotonic()
        steps = 0
        for step in archive(spark, lake, job):
            steps += 1
            yield step
        if not steps:
            yield None
        clock.sleep(max(0.0, began_s + interval_s - clock.monotonic()))


def _pinned(
    spark: SparkSession, lake: Lake, job: Archive, snapshot: Snapshot, part: ranges.Ranges
) -> tuple[Archive, Snapshot]:
    """The job with the registry id of its schema: that of the first record, which the lake stores."""
    if not isinstance(job.decode, Avro) or not job.decode.lacks_registry_id:
        return job, snapshot
    if REGISTRY_ID not in snapshot.batches:
        rows = ranges.read_ranges(spark, job.bootstrap, part, _reading(job))
        found = first_registry_id(rows)
        if found is None:
            return job, snapshot
        snapshot = lake.mark(REGISTRY_ID, found)
    return replace(job, decode=job.decode.of_id(snapshot.batches[REGISTRY_ID])), snapshot


def _reading(job: Archive) -> dict[str, str]:
    return merged(job.client_options, {"failOnDataLoss": str(not job.skip_lost).lower()})


def _publish(cluster: Cluster, job: Archive, snapshot: Snapshot, some: ranges.Ranges) -> None:
    """Commits the lake's positions in these partitions to the group."""
    if job.group is None:
        return
    groups = GroupAdmin(cluster)
    reached = {at: snapshot.positions.get(at.topic, {}).get(at.partition) for at in some}
    known = {at: offset for at, offset in reached.items() if offset is not None}
    if known.items() - groups.committed(job.group).items():
        groups.commit(job.group, known)


def _archive_range(
    spark: SparkSession, lake: Lake, job: Archive, snapshot: Snapshot, part: ranges.Ranges, ids: TopicIds
) -> Snapshot:
    reached: dict[str, dict[int, int]] = {}
    for at, (_, end) in part.items():
        reached.setdefault(at.topic, {})[at.partition] = end
    known = {topic: ids[topic] for topic in reached if topic in ids}
    offsets = sum(end - start for start, end in part.values())
    options = _reading(job)
    if job.is_raw:
        query = parse_query(ranges.source_options(job.bootstrap, part, options), streaming=False)
        day = lake.clock.wall_ms() // DAY_MS if job.date_by == ARCHIVED else None
        write = DirectWrite(spark, query, offsets, day)
        try:
            return lake.append_staged(write.stage, onto=snapshot, reached=reached, topic_ids=known)
        except RecordsLost as lost:
            raise LakeError(
                f"{lost.at}: records from offset {lost.first} on were deleted (retention or a trim)"
                " before they were archived; add --skip-lost to continue with what is left"
            ) from None
    rows = ranges.read_ranges(spark, job.bootstrap, part, options)
    if job.decode is not None:
        rows = decode(rows, job.decode, lake.schema(snapshot))
    rows, files_max = with_date_by(rows, job.date_by), 1 + offsets // ROWS_PER_FILE
    return lake.append(rows, onto=snapshot, reached=reached, topic_ids=known, files_max=files_max)


def with_date_by(rows: DataFrame, by: str) -> DataFrame:
    """Rows with their date: that of a column, or today."""
    if by == ARCHIVED:
        return rows.withColumn(DATE, utc_date(fn.current_timestamp()))
    if by != "timestamp" and by not in rows.columns:
        raise LakeError(
            f"there is no column {by!r} to take the date from; rows have {', '.join(rows.columns)},"
            f" or write {ARCHIVED}"
        )
    return dated(rows, by)
