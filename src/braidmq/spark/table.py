"""A topic as a table that is told, query by query, which columns and rows are used.

Spark tells a data source in Python neither: every column is decoded, sent to the JVM and dropped there, and a
pushed filter stays with the DataFrame (see `filters.py`). It does tell what implements the interfaces of its
data sources in Java, and py4j lets an object of the driver's Python stand for one. Both that are here are
asked on the driver only, while a query is planned. What they answer with is Spark's own scan of
`format("braid")`, made for that query alone: with the columns that it uses, and with its filters.

Method names are those of Spark's interfaces, by which the JVM calls them. What this file does not know of a
table is answered by the table that Spark made.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

from braidmq.spark.columns import COUNT, COUNTED, columns_ddl

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

READ = "org.apache.spark.sql.connector.read"
CHEAPEST = "partition"
"""What is read where a query uses no column at all, as `count()`: a scan without any would have no rows."""
_numbers = itertools.count()

Load = Callable[[str | None], "DataFrame"]
"""`format("braid")` with the query's options; told the schema, or None for all columns."""


def as_table(spark: SparkSession, name: str, load: Load) -> DataFrame:
    """The DataFrame of a table that is read by whatever `load` makes for a query."""
    from pyspark.java_gateway import ensure_callback_server_started
    from pyspark.sql import DataFrame

    jvm: Any = spark._jvm
    ensure_callback_server_started(spark.sparkContext._gateway)  # type: ignore[no-untyped-call]
    table = TopicTable(name, load)
    nothing = jvm.scala.Option.empty()
    relation = jvm.org.apache.spark.sql.execution.datasources.v2.DataSourceV2Relation
    plan = relation.create(table, nothing, nothing)
    return DataFrame(jvm.org.apache.spark.sql.classic.Dataset.ofRows(spark._jsparkSession, plan), spark)


class TopicTable:
    """Spark's `Table`."""

    class Java:
        implements: ClassVar = ["org.apache.spark.sql.connector.catalog.SupportsRead"]

    def __init__(self, name: str, load: Load) -> None:
        self._name = name
        self._load = load
        self._number = next(_numbers)
        self._whole = _relation(load(None)).table()

    def name(self) -> str:
        return self._name

    def newScanBuilder(self, _options: Any) -> TopicScanBuilder:  # noqa: N802
        return TopicScanBuilder(self._load)

    def toString(self) -> str:  # noqa: N802
        return f"{self._name} #{self._number}"

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

    def __init__(self, load: Load) -> None:
        self._load = load
        self._columns: list[str] = []
        self._filters: Any = None

    def pushFilters(self, filters: Any) -> Any:  # noqa: N802
        """All of them are left to Spark as well: they are pushed so that less is read."""
        self._filters = filters
        return filters

    def pushedFilters(self) -> Any:  # noqa: N802
        """What Spark shows as pushed; the scan says itself which of these are of use to it."""
        return self._filters

    def supportCompletePushDown(self, _aggregation: Any) -> bool:  # noqa: N802
        """No: each task counts for itself, and Spark adds them up."""
        return False

    def pushAggregation(self, aggregation: Any) -> bool:  # noqa: N802
        """Takes `count(*)`, over everything or by what the records of a batch have in common."""
        counts = [str(each) for each in aggregation.aggregateExpressions()]
        groups = [str(each) for each in aggregation.groupByExpressions()]
        if counts != ["COUNT(*)"] or not COUNTED.issuperset(groups):
            return False
        self._columns = [*groups, COUNT]
        return True

    def pruneColumns(self, schema: Any) -> None:  # noqa: N802
        # By name: of a nested column Spark may ask for parts, and gets all of it.
        self._columns = [*schema.fieldNames()]

    def build(self) -> Any:
        relation = _relation(self._load(columns_ddl(self._columns or [CHEAPEST])))
        builder = relation.table().newScanBuilder(relation.options())
        if self._filters is not None:
            builder.pushFilters(self._filters)
        return builder.build()


def _relation(frame: DataFrame) -> Any:
    return frame._jdf.queryExecution().analyzed()
