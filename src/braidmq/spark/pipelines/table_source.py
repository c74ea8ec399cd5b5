"""An upserted table as a DataFrame that is read again for every batch.

Spark lists the files of a Parquet directory once, when a query is planned; a stream joined with such a table
would keep reading files that were replaced. This source looks up the current version whenever tasks are
planned, which Spark does for every micro-batch, so a stream always joins the newest rows.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from braidmq.spark.pipelines.mistakes import Location, PipelineError
from braidmq.spark.pipelines.upsert_table import UpsertTable, part_name

OPTION = "table"
BATCH_ROWS = 10_000


def read(spark: SparkSession, path: str | Path, location: Location | None = None) -> DataFrame:
    """The rows of an upserted table."""
    if UpsertTable(path).current() is None:
        where = f"{location}: " if location else ""
        raise PipelineError(f"{where}there is no table in {path} yet; run the pipeline that writes it first")
    return spark.read.format(UpsertTableSource.name()).option(OPTION, str(Path(path).absolute())).load()


class UpsertTableSource(DataSource):
    """The format "braid_table"; `pyspark_braid_table` registers it."""

    @classmethod
    def name(cls) -> str:
        return "braid_table"

    def schema(self) -> StructType:
        found = UpsertTable(self.options[OPTION]).current()
        if found is None:
            raise PipelineError(f"there is no table in {self.options[OPTION]}")
        return StructType.fromJson(found[1].schema)

    def reader(self, schema: StructType) -> DataSourceReader:
        return _UpsertReader(self.options[OPTION], schema.json())


class _Part(InputPartition):
    def __init__(self, file: str) -> None:
        self.file = file


class _UpsertReader(DataSourceReader):
    def __init__(self, path: str, schema: str) -> None:
        self._path = path
        self._schema = schema

    def partitions(self) -> list[InputPartition]:
        found = UpsertTable(self._path).current()
        if found is None:
            return []
        directory, version = found
        return [_Part(str(directory / part_name(bucket))) for bucket, rows in version.parts.items() if rows]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, _Part):
            return
        shape: pa.Schema = to_arrow_schema(StructType.fromJson(json.loads(self._schema)), timezone="UTC")
        table = pq.read_table(partition.file, columns=shape.names, partitioning=None)
        yield from table.cast(shape).to_batches(BATCH_ROWS)
