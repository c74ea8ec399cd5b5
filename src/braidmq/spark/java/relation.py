"""A DataFrame's rows in the form in which Spark takes them from a table: a `BaseRelation` of Java.

Everything else that Spark plans a query with is an interface, which objects of the driver's Python can
implement (`source/topic_table.py`). This one is an abstract class, and py4j implements no classes. So it is
written in Java, below, and Janino, with which Spark itself compiles every query, compiles it in the driver's
memory. It returns only what it was given, never leaves the driver, and adds nothing to Spark's class path.
"""

from __future__ import annotations

from functools import cache, reduce
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

NAME = "braidmq.spark.Rows"
JAVA = """
package braidmq.spark;

import org.apache.spark.rdd.RDD;
import org.apache.spark.sql.SQLContext;
import org.apache.spark.sql.classic.Dataset;
import org.apache.spark.sql.sources.BaseRelation;
import org.apache.spark.sql.sources.TableScan;
import org.apache.spark.sql.types.StructType;

public final class Rows extends BaseRelation implements TableScan {
    private final String name;
    private final SQLContext context;
    private final StructType schema;
    private final RDD rows;

    public Rows(String name, Dataset frame) {
        this.name = name;
        this.context = frame.sqlContext();
        this.schema = frame.schema();
        this.rows = frame.queryExecution().toRdd();
    }

    public SQLContext sqlContext() { return context; }
    public StructType schema() { return schema; }
    public RDD buildScan() { return rows; }
    public String toString() { return name; }

    // They are rows of Spark's own kind already.
    public boolean needConversion() { return false; }
}
"""


def relation_of(spark: SparkSession, name: str, frame: DataFrame) -> Any:
    """A relation with the rows of `frame`; plans show it under this name."""
    return _constructor(spark._jvm).newInstance(java_array(spark, "java.lang.Object", [name, frame._jdf]))


def java_array(spark: SparkSession, of: str, some: list[Any]) -> Any:
    """A Java array of this class with these elements."""
    gateway: Any = spark.sparkContext._gateway
    made = gateway.new_array(_java_class(spark._jvm, of), len(some))
    for number, each in enumerate(some):
        made[number] = each
    return made


@cache
def _java_class(jvm: Any, name: str) -> Any:
    """Looked up once: each part of the name is a call into the JVM."""
    return reduce(getattr, name.split("."), jvm)


@cache
def _constructor(jvm: Any) -> Any:
    compiler = jvm.org.codehaus.janino.SimpleCompiler()
    compiler.setParentClassLoader(jvm.org.apache.spark.util.Utils.getContextOrSparkClassLoader())
    compiler.cook(JAVA)
    return compiler.getClassLoader().loadClass(NAME).getConstructors()[0]
