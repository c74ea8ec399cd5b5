"""Sources as DataFrames: topics, files and tables, as streams or as they stand.

The driver infers a missing schema from some records and keeps it in the checkpoint: the next run must read
the same columns, whatever has been sent since.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from braidmq.client.consumer import Consumer
from braidmq.client.consumer import Start as ConsumerStart
from braidmq.spark import avro
from braidmq.spark.errors import first_line
from braidmq.spark.options import merged
from braidmq.spark.pipelines import formats, registry, table_source
from braidmq.spark.pipelines.checkpoint import Checkpoint
from braidmq.spark.pipelines.clusters import about_values, connect, topic_options
from braidmq.spark.pipelines.frames import with_location, with_watermark
from braidmq.spark.pipelines.mistakes import PipelineError, PipelineMistakes, closest
from braidmq.spark.pipelines.model import (
    FileFormat,
    FileSource,
    Metadata,
    Pipeline,
    Source,
    TableSource,
    TopicSource,
    TopicStart,
    ValueFormat,
)

SAMPLE_WAIT_S = 2.0
SAMPLE_POLLS_MAX = 1000


@dataclass(frozen=True, slots=True)
class SourceOpener:
    """Opens the sources of one pipeline."""

    spark: SparkSession
    pipeline: Pipeline
    checkpoint: Checkpoint

    def open(self, source: Source, query: str) -> DataFrame:
        """The rows of a source for one query, which publishes its positions under its name."""
        return with_watermark(self._frame(source, query), source.watermark, source.location)

    def _frame(self, source: Source, query: str) -> DataFrame:
        match source:
            case TopicSource():
                source = registry.pinned(self.pipeline, source, self.checkpoint)
                return formats.decode(self.records(source, query), source, self.schema(source))
            case FileSource():
                return self._files(source)
            case TableSource():
                return self._table(source)

    def bad_rows(self, source: TopicSource, query: str) -> DataFrame:
        source = registry.pinned(self.pipeline, source, self.checkpoint)
        records = self.records(source, query, with_headers=True)
        return formats.bad_rows(records, source, self.schema(source), self.pipeline.name)

    def records(self, source: TopicSource, query: str, *, with_headers: bool = False) -> DataFrame:
        """The records of a topic, undecoded; with their headers if the source asks for them, too.

        Each query has its own group, so that a stuck one is visible.
        """
        with_headers = with_headers or Metadata.HEADERS in source.metadata
        reader = self.spark.readStream if source.stream else self.spark.read
        ours = {"subscribe": source.topic, "isolation": "read_committed", **self._start(source)}
        options = merged(ours, topic_options(self.pipeline, source.options))
        if with_headers:
            options["includeHeaders"] = "true"
        if source.stream:
            prefix = options.pop("groupidprefix", f"braid-{self.pipeline.name}")
            options["groupIdPrefix"] = f"{prefix}-{query}"
        if source.stream and source.batch_records_max is not None:
            options["maxOffsetsPerTrigger"] = str(source.batch_records_max)
        return reader.format("braid").schema(formats.columns_read(with_headers)).options(**options).load()

    def _start(self, source: TopicSource) -> dict[str, str]:
        """For queries without a checkpoint; `Preflight.keep_starts` has fixed a start at the end."""
        kept = self.checkpoint.start(source.name)
        if source.stream and source.start is not TopicStart.EARLIEST and kept is not None:
            return {"startingOffsets": json.dumps(kept[1])}
        if isinstance(source.start, TopicStart):
            return {"startingOffsets": source.start.value} if source.stream else {}
        return {"startingTimestamp": str(source.start), "startingOffsetsByTimestampStrategy": "latest"}

    def schema(self, source: TopicSource) -> StructType | None:
        """The columns of a topic's values; None if the value is one column."""
        if source.format in (ValueFormat.TEXT, ValueFormat.RAW):
            return None
        if source.avro is not None:
            ddl = avro.ddl(source.avro)
        else:
            ddl = source.schema or self.checkpoint.schema(source.name) or self._infer(source)
        try:
            made = StructType.fromDDL(ddl)
        except PySparkException as error:
            raise PipelineMistakes.at(
                source.location.of("schema"), f"schema {ddl!r}: {first_line(error)}"
            ) from None
        assert isinstance(made, StructType)
        return made

    def _infer(self, source: TopicSource) -> str:
        values = sample(self.pipeline, source)
        if not values:
            raise PipelineError(
                f"{source.location}: topic {source.topic} has no records to infer a schema from;"
                " send some, or write the schema"
            )
        texts = self.spark.sparkContext.parallelize([value.decode(errors="replace") for value in values], 1)
        reader = self.spark.read.options(**about_values(source.options))
        if source.format is ValueFormat.JSON:
            found = reader.json(texts, mode="DROPMALFORMED").schema
        else:
            found = reader.csv(texts, inferSchema=True, mode="DROPMALFORMED").schema
        if not found.fields:
            raise PipelineMistakes.at(
                source.location.of("format"), f"the sample of topic {source.topic} is not {source.format}"
            )
        ddl = found.toDDL()
        self.checkpoint.keep_schema(source.name, ddl)
        return ddl

    def _files(self, source: FileSource) -> DataFrame:
        reader = self.spark.readStream if source.stream else self.spark.read
        made = reader.format(source.format.value)
        if source.format is FileFormat.CSV:
            # With a schema, a header with other names is an error: so a file without a header loses no row.
            made = made.options(header="true", inferSchema="true", enforceSchema="false")
        made = made.options(**dict(source.options))
        if source.schema is not None:
            made = made.schema(source.schema)
        location = source.location.of("files")
        with with_location(location, f"source {source.name}"):
            try:
                return made.load(source.path)
            except AnalysisException as error:
                if error.getCondition() != "PATH_NOT_FOUND":
                    raise
                raise PipelineMistakes.at(
                    location, f"source {source.name}: {_not_there(source.path)}"
                ) from None

    def _table(self, source: TableSource) -> DataFrame:
        if source.is_directory:
            return table_source.read(self.spark, source.table, source.location)
        reader = self.spark.readStream if source.stream else self.spark.read
        with with_location(source.location.of("table"), f"source {source.name}"):
            return reader.options(**dict(source.options)).table(source.table)


def _not_there(path: str) -> str:
    """With the path that was probably meant, if this machine can see it."""
    wanted = Path(path)
    beside = [each.name for each in wanted.parent.iterdir()] if wanted.parent.is_dir() else []
    meant = closest(wanted.name, beside)
    return f"there is no file or directory {path}" + (f"; did you mean {meant}?" if meant else "")


def sample(pipeline: Pipeline, source: TopicSource) -> list[bytes]:
    """The first values of a topic, from all partitions."""
    values: list[bytes] = []
    with connect(pipeline, source) as cluster:
        consumer = Consumer(cluster, reset=ConsumerStart.EARLIEST)
        consumer.assign(source.topic, start=ConsumerStart.EARLIEST)
        for _ in range(SAMPLE_POLLS_MAX):
            messages = consumer.poll(SAMPLE_WAIT_S)
            values += [message.value for message in messages if message.value is not None]
            if not messages or len(values) >= source.sample_records:
                break
    return values[: source.sample_records]
