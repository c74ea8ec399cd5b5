"""Sends dead letters back into a topic: those that a condition chooses, each at most once.

A journal, a small lake, has a row for each dead letter that was sent back: topic, partition, offset, and the
run that sent it. A run first writes its plan there, then sends the records under the plan's name, then marks
the plan as done. Killed before the plan, nothing has happened. Killed after it, the next start sends the same
records under the same name, which the sink writes only once. So the condition may change from run to run:
what was sent is not chosen again. Of two concurrent runs on one journal, only one gets its plan into it.

A plan's name includes both topics, since a journal may serve several.

A record keeps its key, value, headers and time, and gets a header with its topic, partition and offset.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from uuid import uuid4

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as fn
from pyspark.sql.types import IntegerType, LongType, StringType, StructField, StructType

from braidmq.client.admin import Admin
from braidmq.spark.cluster import open_cluster
from braidmq.spark.errors import sentence
from braidmq.spark.lake import ranges
from braidmq.spark.lake.commits import Snapshot
from braidmq.spark.lake.lake import Lake
from braidmq.spark.lake.replay import as_records
from braidmq.spark.lake.schema import DATE, utc_date
from braidmq.spark.rescue.errors import RescueError
from braidmq.spark.rescue.origin import REDRIVEN, header_map, with_header

PLANNED, DONE = "plan", "done"
PLACE = ["topic", "partition", "offset"]
PLAN = StructType(
    [
        StructField("topic", StringType()),
        StructField("partition", IntegerType()),
        StructField("offset", LongType()),
        StructField("run", StringType()),
    ]
)


@dataclass(frozen=True, slots=True)
class Redrive:
    """From where to where. `stamp_now` gives records the current time instead of their own."""

    bootstrap: str
    dead_letters: str
    to: str
    journal: Lake
    where: str | None = None
    limit: int | None = None
    again: bool = False
    stamp_now: bool = False
    client_options: Mapping[str, str] = field(default_factory=dict)

    @property
    def plans(self) -> str:
        """The prefix of all plans for these dead letters; topics have no slashes."""
        return f"{PLANNED}/{self.dead_letters}/"


@dataclass(frozen=True, slots=True)
class Redriven:
    """How many dead letters exist, were sent before, were chosen, and were left by a run that died."""

    there: int
    before: int
    chosen: int
    resumed: int


def redrive(spark: SparkSession, job: Redrive, dry_run: bool = False) -> Redriven:
    """Sends the chosen records, after those that an earlier run planned and did not finish."""
    with open_cluster(job.bootstrap, job.client_options) as cluster:
        Admin(cluster).partition_indexes(job.to)
        ids = ranges.topic_ids(cluster, [job.dead_letters])
        spans = ranges.whole(cluster, [job.dead_letters])
    journal = job.journal.snapshot() if job.journal.exists else Snapshot()
    if journal.recreated(ids):
        raise RescueError(
            f"{job.dead_letters} was deleted and recreated, and the journal {job.journal.path} is of the"
            " old one; use another --checkpoint"
        )
    unfinished = _unfinished(job, journal)
    letters = ranges.read_ranges(spark, job.bootstrap, spans, job.client_options)
    resumed = 0
    if not dry_run:
        job.journal.create(PLAN)
        resumed = sum(_send(spark, job, letters, run) for run in unfinished)
        journal = job.journal.snapshot()
    sent = job.journal.read(spark, snapshot=journal).select(*PLACE).distinct().withColumn("sent", fn.lit(1))
    known = letters.join(sent, PLACE, "left")
    there, before = known.agg(fn.count("*"), fn.count("sent")).collect()[0]
    chosen = _chosen(job, known if job.again else known.filter("sent IS NULL"))
    if dry_run:
        return Redriven(there, before, chosen.count(), 0)
    run = uuid4().hex
    plan = chosen.select(*PLACE, fn.lit(run).alias("run"), utc_date(fn.current_timestamp()).alias(DATE))
    job.journal.append(
        plan,
        onto=journal,
        writer=f"{job.plans}{job.to}/{run}",
        batch=0,
        topic_ids=ids,
        alone=job.plans,
        files_max=1,
    )
    return Redriven(there, before, _send(spark, job, letters, run), resumed)


def _unfinished(job: Redrive, journal: Snapshot) -> list[str]:
    """Runs with an unfinished plan for these dead letters; RescueError if one sends them elsewhere."""
    runs = []
    for name in journal.batches:
        if not name.startswith(job.plans):
            continue
        target, run = name.removeprefix(job.plans).split("/")
        if f"{DONE}/{run}" in journal.batches:
            continue
        if target != job.to:
            raise RescueError(
                f"a run that sends {job.dead_letters} to {target} is not finished; finish it first: braid"
                f" topic redrive {job.dead_letters} --to-topic {target} --checkpoint {job.journal.path}"
                " --where false"
            )
        runs.append(run)
    return runs


def _chosen(job: Redrive, letters: DataFrame) -> DataFrame:
    if job.where is not None:
        try:
            letters = letters.withColumn("header", header_map()).filter(job.where).drop("header")
        except AnalysisException as error:
            raise RescueError(f"--where {job.where!r}: {sentence(str(error))}") from None
    if job.limit is not None:
        letters = letters.orderBy("timestamp", *PLACE).limit(job.limit)
    return letters


def _send(spark: SparkSession, job: Redrive, letters: DataFrame, run: str) -> int:
    """Sends the letters of a plan that still exist, marks the plan as done, and returns how many."""
    plan = job.journal.read(spark).filter(fn.col("run") == run).select(*PLACE)
    rows = letters.join(plan, PLACE, "left_semi").withColumn("headers", with_header(REDRIVEN))
    count = rows.count()
    if not plan.isEmpty():
        records = as_records(rows, keep_partitions=False)
        records = records.drop("timestamp") if job.stamp_now else records
        writer = records.write.format("braid").options(**job.client_options)
        writer = writer.option("bootstrap.servers", job.bootstrap).option("topic", job.to)
        writer.option("writeId", f"redrive-{run}").mode("append").save()
    job.journal.mark(f"{DONE}/{run}")
    return count
