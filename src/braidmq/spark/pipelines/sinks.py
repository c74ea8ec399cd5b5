"""Sinks as streaming queries, each with the checkpoint of its own name."""

from __future__ import annotations

import json
from collections.abc import Callable

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter
from pyspark.sql.types import StructType

from braidmq.spark.lake.compaction import tidy
from braidmq.spark.lake.lake import Lake
from braidmq.spark.lake.schema import DATE, utc_date
from braidmq.spark.pipelines import formats, upsert
from braidmq.spark.pipelines.checkpoint import Checkpoint
from braidmq.spark.pipelines.clusters import topic_options
from braidmq.spark.pipelines.duration import Duration
from braidmq.spark.pipelines.frames import columns_there, output_mode, with_location
from braidmq.spark.pipelines.mistakes import PipelineMistakes
from braidmq.spark.pipelines.model import (
    LakeSink,
    Options,
    OutputMode,
    Pipeline,
    Sink,
    TopicSink,
    UpsertSink,
)

LAKE_EVERY, UPSERT_EVERY = Duration(60), Duration(10)
"""Files and versions of a table cost more than records, so by default they are written less often."""

StartQuery = Callable[[bool], StreamingQuery]
"""Starts a query: as a stream, or (True) once over everything that is available."""


def starter(frame: DataFrame, sink: Sink, pipeline: Pipeline, checkpoint: Checkpoint) -> StartQuery:
    """How to start the query of a sink; all checks are done."""
    with with_location(sink.location, f"sink {sink.name}"):
        if isinstance(sink, TopicSink):
            records = formats.encode(frame, sink)
            output_mode(records, sink.mode.value)
            if sink.mode is OutputMode.APPEND:
                writer = to_topic(records, sink.topic, pipeline, sink.options)
            else:
                writer = _changes_to_topic(records, sink, pipeline, checkpoint)
            every = sink.every
        elif isinstance(sink, LakeSink):
            output_mode(frame, "append")
            writer, every = _to_lake(frame, sink, checkpoint), sink.every or LAKE_EVERY
        else:
            upsert.check(frame, sink)
            writer, every = _to_table(frame, sink, checkpoint), sink.every or UPSERT_EVERY
    return starting(writer, sink.name, checkpoint, every)


def to_topic(records: DataFrame, topic: str, pipeline: Pipeline, own: Options = ()) -> DataStreamWriter:
    return records.writeStream.format("braid").options(**topic_options(pipeline, own)).option("topic", topic)


def _changes_to_topic(
    records: DataFrame, sink: TopicSink, pipeline: Pipeline, checkpoint: Checkpoint
) -> DataStreamWriter:
    """Spark's Python sinks can only append, so changed rows are numbered batches of one named write."""
    options = {**topic_options(pipeline, sink.options), "topic": sink.topic}

    def write(rows: DataFrame, batch: int) -> None:
        named = {"writeId": _identity(checkpoint, sink.name), "writeNumber": str(batch)}
        rows.write.format("braid").mode("append").options(**options, **named).save()

    return records.writeStream.outputMode(sink.mode.value).foreachBatch(write)


def starting(
    writer: DataStreamWriter, name: str, checkpoint: Checkpoint, every: Duration | None
) -> StartQuery:
    named = writer.queryName(name).option("checkpointLocation", str(checkpoint.query(name)))

    def start(once: bool) -> StreamingQuery:
        if once:
            return named.trigger(availableNow=True).start()
        return named.trigger(processingTime=str(every or Duration(0))).start()

    return start


def _to_lake(frame: DataFrame, sink: LakeSink, checkpoint: Checkpoint) -> DataStreamWriter:
    """Our lake on a file system; for a URL Spark's Parquet sink, which also counts batches."""
    columns_there(
        frame, tuple(filter(None, [sink.date_of])), sink.location.of("date_of"), f"sink {sink.name}"
    )
    own = own_date(frame.schema, sink)
    if own is not None:
        frame = frame.withColumnRenamed(own, DATE)
    else:
        # Without a column of event time, the day of the batch, which stays the same if it is repeated.
        moment = F.col(sink.date_of) if sink.date_of else F.current_timestamp()
        frame = frame.withColumn(DATE, utc_date(moment.cast("timestamp")))
    if "://" in sink.path:
        return frame.writeStream.format("parquet").partitionBy(DATE).option("path", sink.path)

    def write(rows: DataFrame, batch: int) -> None:
        lake = Lake(sink.path)
        snapshot = lake.append(rows, writer=_identity(checkpoint, sink.name), batch=batch)
        tidy(lake, rows.sparkSession, snapshot)

    return frame.writeStream.foreachBatch(write)


def own_date(schema: StructType, sink: LakeSink) -> str | None:
    """The rows' own column for the date of files; PipelineMistakes for another column of that name."""
    for field in schema.fields:
        if field.name.lower() != DATE:
            continue
        kind = field.dataType.simpleString()
        if kind != "date" or sink.date_of not in (None, field.name):
            what = f"is {kind.upper()}" if kind != "date" else f"is not the date of {sink.date_of}"
            raise PipelineMistakes.at(
                sink.location,
                f"sink {sink.name}: column {field.name} {what}, but a lake stores files by the date in a"
                f" column of that name; rename it: SELECT {field.name} AS day",
            )
        return field.name
    return None


def _to_table(frame: DataFrame, sink: UpsertSink, checkpoint: Checkpoint) -> DataStreamWriter:
    def write(changes: DataFrame, batch: int) -> None:
        upsert.apply(changes, batch, sink, _identity(checkpoint, sink.name))

    # Changes as they come; sessions and the like, which Spark emits only once, when complete.
    return frame.writeStream.outputMode(output_mode(frame, "update", "append")).foreachBatch(write)


def _identity(checkpoint: Checkpoint, query: str) -> str:
    """Spark's id of a query, which lasts as long as its checkpoint."""
    written = json.loads((checkpoint.query(query) / "metadata").read_text())
    return str(written["id"])
