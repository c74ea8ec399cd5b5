"""Bulk batch reads: a query gets the columns and rows that it uses, or every row of columns that are named.

Without a schema the topic is a table which Spark tells what a query uses (`table.py`). With one there is
nothing left to leave out, and the tasks are started by `mapInArrow` over their numbers: Spark hands on the
rows of a Python data source through more layers. Spark Connect has no JVM at hand, and always goes that way.

Either way the offsets are settled when `read` is called: all queries over a DataFrame see the same rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, cast

import pyarrow as pa

from braidmq.spark import columns, positions
from braidmq.spark.batch_reader import plan_batch, settle
from braidmq.spark.filters import Pushed
from braidmq.spark.options import READ_OPTIONS, Pushdown, merged
from braidmq.spark.query import Query, parse_query
from braidmq.spark.splits import Task, tasks
from braidmq.spark.table import as_table
from braidmq.spark.task import read_task

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

SETTLED = tuple(
    name.lower() for name in READ_OPTIONS if name.startswith(("subscribe", "assign", "starting", "ending"))
)
"""What is said by offsets once these are known."""


def read(
    spark: SparkSession,
    bootstrap_servers: str,
    subscribe: str | None = None,
    *,
    schema: str | StructType | None = None,
    **options: str | int | bool,
) -> DataFrame:
    """A topic as a batch DataFrame, for reading it fast: what a query does not use is not read.

    Options are those of `spark.read.format("braid")`; names with dots are given as `**{"kafka.…": …}`.
    `schema` names the columns that are wanted, for queries that use all of them and every row.
    """
    from pyspark.sql import SparkSession

    given = _given(bootstrap_servers, subscribe, options)
    query = parse_query(given, streaming=False)
    if schema is None and isinstance(spark, SparkSession):
        return _table(spark, given, query)
    parsed = _columns(query, schema)
    planned = planned_tasks(query)
    numbers = spark.range(0, len(planned), 1, max(1, len(planned)))
    return numbers.mapInArrow(_reader(query, columns.wanted(parsed), planned), parsed)


def asked(
    bootstrap_servers: str,
    subscribe: str | None,
    schema: str | StructType | None,
    options: Mapping[str, str | int | bool],
) -> tuple[Query, tuple[str, ...]]:
    """The query and the columns of arguments like those of `read`."""
    query = parse_query(_given(bootstrap_servers, subscribe, options), streaming=False)
    return query, columns.wanted(_columns(query, schema))


def planned_tasks(query: Query) -> list[Task]:
    """The tasks that read all of it."""
    return tasks(plan_batch(query, Pushed()), query.tasks_are_counted)


def _given(
    bootstrap_servers: str, subscribe: str | None, options: Mapping[str, str | int | bool]
) -> dict[str, str]:
    given = {name: _text(value) for name, value in options.items()} | {"bootstrap.servers": bootstrap_servers}
    return given if subscribe is None else given | {"subscribe": subscribe}


def _columns(query: Query, schema: str | StructType | None) -> StructType:
    """The columns that are named, or all."""
    from pyspark.sql.types import StructType

    wanted = schema or columns.ddl(query.include_headers, query.include_tag)
    return cast("StructType", StructType.fromDDL(wanted)) if isinstance(wanted, str) else wanted


def _table(spark: SparkSession, given: dict[str, str], query: Query) -> DataFrame:
    """The topics between the offsets they have now."""
    with positions.connect(query) as cluster:
        topics = positions.topology(cluster, query)
        starts, ends = settle(cluster, query, topics.partitions)
    if not starts:
        return spark.createDataFrame([], columns.ddl(query.include_headers, query.include_tag))
    settled = {name: text for name, text in merged(given).items() if name not in SETTLED}
    settled |= positions.between(starts, ends)
    # A scan is made for each query here, so that filters are safe to push.
    settled["pushdown"] = "never" if query.pushdown is Pushdown.NEVER else "always"

    def load(schema: str | None) -> DataFrame:
        reader = spark.read.format("braid").options(**settled)
        return (reader if schema is None else reader.schema(schema)).load()

    return as_table(spark, f"braid {','.join(sorted({at.topic for at in starts}))}", load)


def _reader(
    query: Query, names: tuple[str, ...], planned: list[Task]
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def run(numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in numbers:
            for number in batch.column(0).to_pylist():
                yield from read_task(query, names, planned[number])

    return run


def _text(value: str | int | bool) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
