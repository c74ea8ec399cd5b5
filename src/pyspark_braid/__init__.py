"""Registers the format "braid" with Spark, which looks for `DefaultSource` in modules named pyspark_*."""

from __future__ import annotations

from braidmq.spark.data_source import BraidSource as DefaultSource

__all__ = ["DefaultSource"]
