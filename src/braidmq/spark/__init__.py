"""Topics as Spark DataFrames: the format "braid", a session tuned for it, and bulk reads.

    from braidmq.spark import session

    spark = session("orders")
    topic = spark.read.format("braid").option("bootstrap.servers", "127.0.0.1:9092")
    topic.option("subscribe", "orders").load().selectExpr("CAST(value AS STRING)").show()

The format registers itself (`pyspark_braid`); any Spark session in which this package is installed has it.
Nothing here is imported by the broker or the client.
"""

from __future__ import annotations

from braidmq.spark.session import session

__all__ = ["session"]
