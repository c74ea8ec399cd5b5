"""The data source of `format("braid")`: Spark asks it for a schema and for readers and writers.

Spark creates it from the options in a separate process, pickles the reader or writer that it returns and
sends that to other processes. So nothing here connects to a broker before it must.
"""

from __future__ import annotations

import sys
from collections.abc import MutableMapping
from importlib import import_module
from typing import Any

import pyspark
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from braidmq.spark.errors import without_traceback
from braidmq.spark.options import OptionError, Pushdown
from braidmq.spark.session import check_version
from braidmq.spark.source import columns
from braidmq.spark.source.query import extra_columns, parse_query
from braidmq.spark.worker import adapt_worker

adapt_worker()
PUSHDOWN_WORKER = "pyspark.sql.worker.data_source_pushdown_filters"


class BraidSource(DataSource):
    """Topics as tables and streams."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        # Here, so that sessions not made by `braidmq.spark.session` are checked too.
        check_version(pyspark.__version__)
        super().__init__(options)

    @classmethod
    def name(cls) -> str:
        return "braid"

    @without_traceback()
    def schema(self) -> str:
        return columns.ddl(*extra_columns(self.options))

    @without_traceback()
    def reader(self, schema: StructType) -> DataSourceReader:
        from braidmq.spark.source import filters
        from braidmq.spark.source.batch_reader import BatchReader, FilteringBatchReader

        query = parse_query(self.options, streaming=False)
        wanted = query.pushdown is Pushdown.ALWAYS or (query.pushdown is Pushdown.AUTO and filters.is_safe())
        # Spark raises an error for a reader that takes filters where it does not push them down.
        # This worker runs only where it does.
        kind = FilteringBatchReader if wanted and PUSHDOWN_WORKER in sys.modules else BatchReader
        return kind(query, columns.wanted(schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        from braidmq.spark.source.stream_reader import RefusedStream, StreamReader

        try:
            return StreamReader(parse_query(self.options, streaming=True), columns.wanted(schema))
        except OptionError as error:
            return RefusedStream(error)

    @without_traceback()
    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        made: DataSourceWriter = _sink().batch_writer(self.options, schema, overwrite)
        return made

    @without_traceback()
    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        made: DataSourceStreamWriter = _sink().stream_writer(self.options, schema, overwrite)
        return made


def _sink() -> Any:
    """The sink, imported only where something is written."""
    return import_module("braidmq.spark.sink.writer")
