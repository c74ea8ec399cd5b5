"""A Spark application of its own: reads a topic in a batch, copies it as a stream, writes a batch of its own.

    python -m tests.compat.spark_job MASTER BOOTSTRAP SOURCE COPY WRITTEN SCRATCH

MASTER may be "connect": then it is a client of Spark Connect, with a server of its own. Prints one line of
JSON: what the batch reads found, by the format, in bulk and exported, and the number of executors.
"""

from __future__ import annotations

import json
import os
import sys

from pyspark.sql import SparkSession

from braidmq.spark import export, read, session
from braidmq.spark.java.home import find_java_home

CONNECT = "connect"
ROWS_WRITTEN = 1_000


def main(master: str, bootstrap: str, source: str, copy: str, written: str, scratch: str) -> None:
    config = {
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.executor.memory": "512m",
        "spark.sql.shuffle.partitions": "2",
        "spark.local.dir": scratch,
        "spark.sql.warehouse.dir": f"{scratch}/warehouse",
    }
    if master == CONNECT:
        spark = connected(config)
    else:
        spark = session("compat", master, memory_mb=700, ui=False, config=config)
    try:
        frame = spark.read.format("braid").option("kafka.bootstrap.servers", bootstrap)
        rows = frame.option("subscribe", source).option("includeHeaders", "true").load()
        found = rows.selectExpr("count(*)", "sum(length(value))", "count(distinct partition)").first()
        assert found is not None
        table = read(spark, bootstrap, source)
        (total,) = table.selectExpr("sum(length(value))").first() or (None,)
        in_bulk = [table.count(), total, table.where("partition = 0").count()]
        exported = export(spark, bootstrap, source, path=f"{scratch}/exported")
        copy_stream(spark, bootstrap, source, copy, scratch)
        write_batch(spark, bootstrap, written)
        told = {
            "found": list(found),
            "in bulk": in_bulk,
            "exported": [exported.rows, spark.read.parquet(f"{scratch}/exported").count()],
            "executors": 1 if master == CONNECT else executors(spark),
        }
        sys.stdout.write(json.dumps(told) + "\n")
    finally:
        spark.stop()


def connected(config: dict[str, str]) -> SparkSession:
    os.environ["JAVA_HOME"] = str(find_java_home())
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.remote("local[2]")
    for name, text in config.items():
        builder.config(name, text)
    return builder.getOrCreate()


def copy_stream(spark: SparkSession, bootstrap: str, source: str, copy: str, scratch: str) -> None:
    reader = spark.readStream.format("braid").option("kafka.bootstrap.servers", bootstrap)
    rows = reader.option("subscribe", source).option("startingOffsets", "earliest")
    limited = rows.option("maxOffsetsPerTrigger", "700").load()
    writer = limited.select("key", "value").writeStream.format("braid")
    query = (
        writer.option("kafka.bootstrap.servers", bootstrap)
        .option("topic", copy)
        .option("checkpointLocation", f"{scratch}/checkpoint")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


def write_batch(spark: SparkSession, bootstrap: str, written: str) -> None:
    rows = spark.range(ROWS_WRITTEN).selectExpr("cast(id as string) key", "repeat('x', 100) value")
    writer = rows.repartition(2).write.format("braid").mode("append")
    writer.option("kafka.bootstrap.servers", bootstrap).option("topic", written).save()


def executors(spark: SparkSession) -> int:
    """How many processes run tasks: on a local master it is the driver itself."""
    infos = spark.sparkContext._jsc.sc().statusTracker().getExecutorInfos()
    return max(1, len(infos) - 1)


if __name__ == "__main__":
    main(*sys.argv[1:])
