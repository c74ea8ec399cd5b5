"""Tables of Iceberg, Delta or another format of the user's Spark session: archiving into them, and reading.

These formats have their own log of commits and record which batch of which query they have; with Spark's
checkpoint that makes an archive exactly once. Here is only the query: what is read, and the date of a row.
For reading, a folder's format is recognised by its files.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from braidmq.spark.errors import first_line
from braidmq.spark.lake.archiver import ARCHIVED, Archive, with_date_by
from braidmq.spark.lake.commits import LakeError
from braidmq.spark.lake.decode import Avro, Json, decode
from braidmq.spark.lake.schema import RAW

PACKAGES = {
    "delta": "io.delta:delta-spark_2.13 and spark.sql.extensions=io.delta.sql.DeltaSparkSessionExtension",
    "iceberg": "org.apache.iceberg:iceberg-spark-runtime and a catalog (spark.sql.catalog.NAME=…)",
}
CHECKPOINT = "_checkpoints/braid"
KEPT = {"delta": "_delta_log", "iceberg": "metadata/version-hint.text", "parquet": "_spark_metadata"}
"""The files by which a folder's format is recognised; the last is of Spark's own streaming sink."""


@dataclass(frozen=True, slots=True)
class Target:
    """A table by name (`catalog.db.orders`) or by path, its format, and where the query keeps its offsets."""

    format: str
    to: str
    checkpoint: str | None = None

    @property
    def is_path(self) -> bool:
        return "/" in self.to

    def checkpoint_location(self) -> str:
        if self.checkpoint is not None:
            return self.checkpoint
        if not self.is_path:
            raise LakeError(
                f"table {self.to} needs a folder for the offsets: add --checkpoint DIR"
                f" (or write ./{self.to} for a folder)"
            )
        return f"{self.to.rstrip('/')}/{CHECKPOINT}"


def check_format(spark: SparkSession, name: str) -> None:
    """LakeError if the session cannot write this format."""
    try:
        spark.read.format(name).load("/nowhere")
    except Exception as error:
        # Any other error is about the path, so the format exists.
        if "DATA_SOURCE_NOT_FOUND" in str(error) or "ClassNotFoundException" in str(error):
            advice = PACKAGES.get(name, "the jar of the format")
            raise LakeError(
                f"this Spark session has no format {name!r}; add --conf spark.jars.packages=… with {advice}"
            ) from None


def start(spark: SparkSession, job: Archive, target: Target, every_s: float | None) -> StreamingQuery:
    """Starts the archive: once up to the current ends, or every `every_s` seconds."""
    check_format(spark, target.format)
    if isinstance(job.decode, Json) and job.decode.fields is None:
        raise LakeError(f"--format {target.format} with --decode needs the columns: add --schema")
    if isinstance(job.decode, Avro) and job.decode.lacks_registry_id:
        raise LakeError(
            f"--format {target.format} with --decode avro-registry needs the schema's id: add --registry-id"
        )
    if job.date_by == ARCHIVED:
        raise LakeError(f"--date-by {ARCHIVED} is for --format parquet; a table has its own history")
    reader = spark.readStream.format("braid").options(**job.client_options).schema(RAW)
    reader = reader.option("bootstrap.servers", job.bootstrap).option("subscribe", ",".join(job.topics))
    reader = reader.option("startingOffsets", "earliest").option("isolation", "read_committed")
    reader = reader.option("failOnDataLoss", str(not job.skip_lost).lower())
    reader = reader.option("maxOffsetsPerTrigger", job.rows_per_commit).option("groupId", job.group or "")
    rows = reader.option("includeHeaders", "true").load()
    if job.decode is not None:
        rows = decode(rows, job.decode, RAW)
    writer = with_date_by(rows, job.date_by).writeStream.format(target.format).partitionBy("date")
    writer = writer.option("checkpointLocation", target.checkpoint_location()).option("mergeSchema", "true")
    writer = writer.option("fanout-enabled", "true")
    if every_s is None:
        writer = writer.trigger(availableNow=True)
    else:
        writer = writer.trigger(processingTime=f"{every_s} seconds")
    try:
        return writer.start(target.to) if target.is_path else writer.toTable(target.to)
    except AnalysisException as error:
        raise LakeError(f"{target.format} cannot write {target.to}: {first_line(error)}") from None


def read_table(spark: SparkSession, name: str) -> DataFrame | None:
    """The rows of a table of another format, by folder or by name; None if there is none."""
    if "/" not in name and not Path(name).exists():
        return spark.table(name) if _is_table(spark, name) else None
    for format_, kept in KEPT.items():
        if _exists(spark, f"{name.rstrip('/')}/{kept}"):
            check_format(spark, format_)
            return spark.read.format(format_).load(name)
    return None


def _is_table(spark: SparkSession, name: str) -> bool:
    try:
        return spark.catalog.tableExists(name)
    except AnalysisException:
        # Not a valid name in SQL, or of a catalog that the session does not have.
        return False


def _exists(spark: SparkSession, path: str) -> bool:
    """Whether this file exists, on any file system of the session."""
    jvm: Any = spark._jvm
    place = jvm.org.apache.hadoop.fs.Path(path)
    return bool(place.getFileSystem(spark.sparkContext._jsc.hadoopConfiguration()).exists(place))
