"""Topics as Spark DataFrames: the format "braid", a session tuned for it, bulk reads and exports.

    from braidmq.spark import session

    spark = session("orders")
    topic = spark.read.format("braid").option("bootstrap.servers", "127.0.0.1:9092")
    topic.option("subscribe", "orders").load().selectExpr("CAST(value AS STRING)").show()

The format registers itself (`pyspark_braid`); any Spark session in which this package is installed has it.
Nothing here is imported by the broker or the client.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from braidmq.spark.session import session

if TYPE_CHECKING:
    from braidmq.spark.parquet.export import export
    from braidmq.spark.source.bulk import read
    from braidmq.spark.source.lag import lag

__all__ = ["export", "lag", "read", "session"]

_LATER = {"export": "parquet.export", "lag": "source.lag", "read": "source.bulk"}
"""Imported on first use: they need pyspark, and `session` has a clear message where it is missing."""


def __getattr__(name: str) -> Any:
    if name in _LATER:
        return getattr(import_module(f"{__name__}.{_LATER[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
