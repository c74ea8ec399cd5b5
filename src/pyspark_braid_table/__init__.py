"""Registers the format "braid_table", upserted tables, with Spark: one `DefaultSource` for each module."""

from __future__ import annotations

from braidmq.spark.pipelines.table_source import UpsertTableSource as DefaultSource

__all__ = ["DefaultSource"]
