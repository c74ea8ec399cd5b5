"""A topic as a table that learns from Spark, for each query, which columns and rows the query uses.

Spark does not say that to a data source in Python: every column is decoded, sent to the JVM and dropped
there, and a pushed filter stays with the DataFrame (see `filters.py`). It does say it to implementations of
its Java interfaces, and py4j lets objects of the driver's Python implement those. Spark calls the objects of
this file on the driver only, while it plans a query. The result is a `mapInArrow` plan for that query alone,
with its columns and filters, which Spark reads as the rows of a table (`java/relation.py`): a million rows of
100 bytes cost the JVM two thirds of what they cost through a Python data source, which counts every row.

Method names are those of Spark's interfaces. Everything else that Spark asks of a table is answered by a
table that Spark made.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

from braidmq.spark.java.filters import from_java
from braidmq.spark.java.relation import java_array, relation_of
from braidmq.spark.options import Pushdown
from braidmq.spark.source.columns import COUNT, COUNTED
from braidmq.spark.source.filters import Condition, Pushed, condition

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

READ = "org.apache.spark.sql.connector.read"
CHEAPEST = "partition"
"""Read for a query without columns, such as `count()`: a scan without columns would have no rows."""
_numbers = itertools.count()

Rows = Callable[[tuple[str, ...], Pushed], "DataFrame"]
"""The rows of one query: these columns, of at least the records that meet these filters."""


@dataclass(frozen=True)
class TableSpec:
    """What is read, its name in plans, and the function that makes the rows of a query."""

    spark: SparkSession
    name: str
    rows: Rows
    pushdown: Pushdown


def as_table(topics: TableSpec, whole: DataFrame) -> DataFrame:
    """The DataFrame of a table whose rows `topics.rows` makes for each query.

    `whole` is a DataFrame of Spark's own formats with all columns; it is never run.
    """
    from pyspark.java_gateway import ensure_callback_server_started
    from pyspark.sql import DataFrame

    spark = topics.spark
    jvm: Any = spark._jvm
    ensure_callback_server_started(spark.sparkContext._gateway)  # type: ignore[no-untyped-call]
    table = TopicTable(topics, whole)
    nothing = jvm.scala.Option.empty()
    relation = jvm.org.apache.spark.sql.execution.datasources.v2.DataSourceV2Relation
    plan = relation.create(table, nothing, nothing)
    return DataFrame(jvm.org.apache.spark.sql.classic.Dataset.ofRows(spark._jsparkSession, plan), spark)


class TopicTable:
    """Spark's `Table`."""

    class Java:
        implements: ClassVar = ["org.apache.spark.sql.connector.catalog.SupportsRead"]

    def __init__(self, topics: TableSpec, whole: DataFrame) -> None:
        self._topics = topics
        self._number = next(_numbers)
        self._whole = whole._jdf.queryExecution().analyzed().table()

    def name(self) -> str:
        return self._topics.name

    def newScanBuilder(self, _options: Any) -> TopicScanBuilder:  # noqa: N802
        return TopicScanBuilder(self._topics)

    def toString(self) -> str:  # noqa: N802
        return f"{self._topics.name} #{self._number}"

    def hashCode(self) -> int:  # noqa: N802
        return self._number

    def equals(self, other: Any) -> bool:
        """The other is the JVM's view of a Python object; two with the same text are equal."""
        return other is not None and str(other) == self.toString()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._whole, name)


class TopicScanBuilder:
    """Spark's `ScanBuilder` of one query: filters come first, then a count or columns, then the scan."""

    class Java:
        implements: ClassVar = [
            f"{READ}.SupportsPushDownFilters",
            f"{READ}.SupportsPushDownAggregates",
            f"{READ}.SupportsPushDownRequiredColumns",
        ]

    def __init__(self, topics: TableSpec) -> None:
        self._topics = topics
        self._columns: tuple[str, ...] = ()
        self._filters: list[Any] = []
        self._conditions: list[Condition] = []

    def pushFilters(self, filters: Any) -> Any:  # noqa: N802
        """Returns all of them, so that Spark applies them too: pushing them only makes reads smaller."""
        for each in filters if self._topics.pushdown is not Pushdown.NEVER else ():
            known = from_java(each)
            if known is not None and (found := condition(known)) is not None:
                self._filters.append(each)
                self._conditions.append(found)
        return filters

    def pushedFilters(self) -> Any:  # noqa: N802
        """The filters that Spark's plan shows as pushed."""
        return java_array(self._topics.spark, "org.apache.spark.sql.sources.Filter", self._filters)

    def supportCompletePushDown(self, _aggregation: Any) -> bool:  # noqa: N802
        """No: each task counts for itself, and Spark adds them up."""
        return False

    def pushAggregation(self, aggregation: Any) -> bool:  # noqa: N802
        """Accepts `count(*)`, over everything or grouped by columns that are the same in a whole batch."""
        counts = [str(each) for each in aggregation.aggregateExpressions()]
        groups = [str(each) for each in aggregation.groupByExpressions()]
        if counts != ["COUNT(*)"] or not COUNTED.issuperset(groups):
            return False
        self._columns = (*groups, COUNT)
        return True

    def pruneColumns(self, schema: Any) -> None:  # noqa: N802
        # By name: Spark may ask for parts of a nested column, and gets all of it.
        self._columns = tuple(schema.fieldNames())

    def build(self) -> TopicScan:
        pushed = Pushed(tuple(self._conditions))
        return TopicScan(self._topics, self._topics.rows(self._columns or (CHEAPEST,), pushed))


class TopicScan:
    """Spark's `Scan` of one query, of the kind that returns its rows as an RDD."""

    class Java:
        implements: ClassVar = [f"{READ}.V1Scan"]

    def __init__(self, topics: TableSpec, frame: DataFrame) -> None:
        self._topics = topics
        self._frame = frame

    def readSchema(self) -> Any:  # noqa: N802
        return self._frame._jdf.schema()

    def description(self) -> str:
        return self._topics.name

    def toString(self) -> str:  # noqa: N802
        return self._topics.name

    def hashCode(self) -> int:  # noqa: N802
        return id(self) & 0x7FFFFFFF

    def equals(self, _other: Any) -> bool:
        """No two scans are equal: each has its own rows."""
        return False

    def toV1TableScan(self, _context: Any) -> Any:  # noqa: N802
        """The same each time: Spark calls it again when it replans a query."""
        return self._relation

    @cached_property
    def _relation(self) -> Any:
        return relation_of(self._topics.spark, self._topics.name, self._frame)
