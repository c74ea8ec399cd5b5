"""`read`: a batch DataFrame with only the columns and rows that a query uses.

`mapInArrow` over the numbers of the tasks starts them: a Python data source hands its rows on through more
layers of Spark. Without a schema the topic is a table: Spark says which columns and rows a query uses, and
the table makes only those (`topic_table.py`). With a schema there is nothing left to leave out. Spark Connect
has no JVM in this process, and always reads as with a schema.

Either way `read` fixes the offsets: all queries over one DataFrame see the same rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, cast

import pyarrow as pa

from braidmq.spark.errors import USER_ERRORS, without_traceback
from braidmq.spark.source import columns, positions
from braidmq.spark.source.batch_reader import plan_batch, settle
from braidmq.spark.source.filters import EVERYTHING, Pushed
from braidmq.spark.source.query import ReadQuery, parse_query
from braidmq.spark.source.splits import ReadTask, tasks
from braidmq.spark.source.task import read_task
from braidmq.spark.source.topic_table import TableSpec, as_table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

Arrow = Iterator[pa.RecordBatch]


def read(
    spark: SparkSession,
    bootstrap_servers: str,
    subscribe: str | None = None,
    *,
    schema: str | StructType | None = None,
    **options: str | int | bool,
) -> DataFrame:
    """A topic as a batch DataFrame that reads only what a query uses.

    Options are those of `spark.read.format("braid")`; names with dots are given as `**{"kafka.…": …}`.
    `schema` names the columns, for queries that use all of them and every row.
    """
    from pyspark.sql import SparkSession

    given = _given(bootstrap_servers, subscribe, options)
    query = parse_query(given, streaming=False)
    if schema is None and isinstance(spark, SparkSession):
        return _table(spark, query)
    parsed = _columns(query, schema)
    return _mapped(spark, query, columns.wanted(parsed), parsed, planned_tasks(query))


def parse_read(
    bootstrap_servers: str,
    subscribe: str | None,
    schema: str | StructType | None,
    options: Mapping[str, str | int | bool],
) -> tuple[ReadQuery, tuple[str, ...]]:
    """The query and the columns of arguments like those of `read`."""
    query = parse_query(_given(bootstrap_servers, subscribe, options), streaming=False)
    return query, columns.wanted(_columns(query, schema))


def planned_tasks(query: ReadQuery, pushed: Pushed = EVERYTHING) -> list[ReadTask]:
    """The tasks that read all of it, or all that may meet the filters."""
    return tasks(plan_batch(query, pushed), query.tasks_are_counted)


def _given(
    bootstrap_servers: str, subscribe: str | None, options: Mapping[str, str | int | bool]
) -> dict[str, str]:
    given = {name: _text(value) for name, value in options.items()} | {"bootstrap.servers": bootstrap_servers}
    return given if subscribe is None else given | {"subscribe": subscribe}


def _columns(query: ReadQuery, schema: str | StructType | None) -> StructType:
    """The columns that are named, or all."""
    wanted = schema or columns.ddl(query.include_headers, query.include_tag)
    return _parsed(wanted) if isinstance(wanted, str) else wanted


@lru_cache(maxsize=256)
def _parsed(ddl: str) -> StructType:
    """Cached: Spark parses it in the JVM, with several calls."""
    from pyspark.sql.types import StructType

    return cast("StructType", StructType.fromDDL(ddl))


def _table(spark: SparkSession, query: ReadQuery) -> DataFrame:
    """The topics as a table, between the offsets that they have now."""
    with positions.connect(query) as cluster:
        topics = positions.topology(cluster, query)
        starts, ends = settle(cluster, query, topics.partitions)
    ddl = columns.ddl(query.include_headers, query.include_tag)
    if not starts:
        return spark.createDataFrame([], ddl)
    settled = positions.settled(query, starts, ends)

    def rows(names: tuple[str, ...], pushed: Pushed) -> DataFrame:
        schema = _parsed(columns.columns_ddl(names))
        try:
            planned = planned_tasks(settled, pushed)
        except USER_ERRORS as error:
            # Raised here, while Spark plans, it would become an internal error of Spark with a page of Java.
            return spark.range(1).mapInArrow(_refusal(error), schema)
        return _mapped(spark, settled, names, schema, planned, pushed)

    whole = spark.read.format("braid").schema(ddl).load()
    name = f"braid {','.join(sorted({at.topic for at in starts}))}"
    return as_table(TableSpec(spark, name, rows, query.pushdown), whole)


def _mapped(
    spark: SparkSession,
    query: ReadQuery,
    names: tuple[str, ...],
    schema: StructType,
    planned: list[ReadTask],
    pushed: Pushed = EVERYTHING,
) -> DataFrame:
    """The rows of these tasks, one Spark task for each number."""
    some = planned or [ReadTask(())]

    def run(numbers: Arrow) -> Arrow:
        for batch in numbers:
            for number in batch.column(0).to_pylist():
                yield from read_task(query, names, some[number], pushed)

    return spark.range(0, len(some), 1, len(some)).mapInArrow(run, schema)


def _refusal(reason: Exception) -> Callable[[Arrow], Arrow]:
    def run(numbers: Arrow) -> Arrow:
        for _ in numbers:
            with without_traceback():
                raise reason
        yield from ()

    return run


def _text(value: str | int | bool) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
