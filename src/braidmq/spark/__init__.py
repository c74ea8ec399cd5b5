"""Topics as Spark DataFrames: the format "braid", a session tuned for it, and bulk reads.

    from braidmq.spark import session

    spark = session("orders")
    topic = spark.read.format("braid").option("bootstrap.servers", "127.0.0.1:9092")
    topic.option("subscribe", "orders").load().selectExpr("CAST(value AS STRING)").show()

The format registers itself (`pyspark_braid`); any Spark session in which this package is installed has it.
Nothing here is imported by the broker or the client.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from braidmq.spark.session import session

if TYPE_CHECKING:
    from braidmq.spark.bulk import read
    from braidmq.spark.progress import lag

__all__ = ["lag", "read", "session"]


def __getattr__(name: str) -> Any:
    """`read` and `lag` on first use: they need pyspark, which `session` looks for with a clear message."""
    if name == "read":
        from braidmq.spark.bulk import read

        return read
    if name == "lag":
        from braidmq.spark.progress import lag

        return lag
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
