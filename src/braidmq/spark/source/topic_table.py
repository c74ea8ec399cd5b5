"""A topic as a table that is told, query by query, which columns and rows are used.

Spark tells a data source in Python neither: every column is decoded, sent to the JVM and dropped there, and a
pushed filter stays with the DataFrame (see `filters.py`). It does tell what implements the interfaces of its
data sources in Java, and py4j lets an object of the driver's Python stand for one. Those that are here are
asked on the driver only, while a query is planned. What comes out is a plan of `mapInArrow` made for that
query alone, with the columns that it uses and with its filters, which Spark takes as the rows of a table
(`relation.py`): a million rows of 100 bytes cost the JVM two thirds of what they do through a data source in
Python, which keeps accounts of every row.

Method names are those of Spark's interfaces, by which the JVM calls them. What this file does not know of a
table is answered by a table that Spark made.
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
"""What is read where a query uses no column at all, as `count()`: a scan without any would have no rows."""
_numbers = itertools.count()

Rows = Callable[[tuple[str, ...], Pushed], "DataFrame"]
"""The rows of one query: these columns of records that meet these filters, or of more."""


@dataclass(frozen=True)
class Topics:
    """What is read, by which name plans show it, and who makes the rows of a query."""

    spark: SparkSession
    name: str
    rows: Rows
    pushdown: Pushdown


def as_table(topics: Topics, whole: DataFrame) -> DataFrame:
    """The DataFrame of a table that is read by whatever `topics.rows` makes for a query.

    `whole` is one that Spark has read by a format of its own, with all columns; it is never run.
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

    def __init__(self, topics: Topics, whole: DataFrame) -> None:
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
        """The other comes as the JVM's view of a Python object; two are one when they call themselves so."""
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

    def __init__(self, topics: Topics) -> None:
        self._topics = topics
        self._columns: tuple[str, ...] = ()
        self._filters: list[Any] = []
        self._conditions: list[Condition] = []

    def pushFilters(self, filters: Any) -> Any:  # noqa: N802
        """All of them are left to Spark as well: they are pushed so that less is read."""
        for each in filters if self._topics.pushdown is not Pushdown.NEVER else ():
            known = from_java(each)
            if known is not None and (found := condition(known)) is not None:
                self._filters.append(each)
                self._conditions.append(found)
        return filters

    def pushedFilters(self) -> Any:  # noqa: N802
        """What Spark shows as pushed."""
        return java_array(self._topics.spark, "org.apache.spark.sql.sources.Filter", self._filters)

    def supportCompletePushDown(self, _aggregation: Any) -> bool:  # noqa: N802
        """No: each task counts for itself, and Spark adds them up."""
        return False

    def pushAggregation(self, aggregation: Any) -> bool:  # noqa: N802
        """Takes `count(*)`, over everything or by what the records of a batch have in common."""
        counts = [str(each) for each in aggregation.aggregateExpressions()]
        groups = [str(each) for each in aggregation.groupByExpressions()]
        if counts != ["COUNT(*)"] or not COUNTED.issuperset(groups):
            return False
        self._columns = (*groups, COUNT)
        return True

    def pruneColumns(self, schema: Any) -> None:  # noqa: N802
        # By name: of a nested column Spark may ask for parts, and gets all of it.
        self._columns = tuple(schema.fieldNames())

    def build(self) -> TopicScan:
        pushed = Pushed(tuple(self._conditions))
        return TopicScan(self._topics, self._topics.rows(self._columns or (CHEAPEST,), pushed))


class TopicScan:
    """Spark's `Scan` of one query, of the kind whose rows are there already as an RDD."""

    class Java:
        implements: ClassVar = [f"{READ}.V1Scan"]

    def __init__(self, topics: Topics, frame: DataFrame) -> None:
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
        """No two scans are one: each has rows of its own."""
        return False

    def toV1TableScan(self, _context: Any) -> Any:  # noqa: N802
        """The same each time: Spark asks again when it plans what is left of a query anew."""
        return self._relation

    @cached_property
    def _relation(self) -> Any:
        return relation_of(self._topics.spark, self._topics.name, self._frame)
