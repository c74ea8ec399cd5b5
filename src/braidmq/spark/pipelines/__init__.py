"""Declared pipelines: topics, files and tables in, SQL or Python between, topics and tables out.

    from braidmq.spark.pipelines import load

    plan = load("orders.yaml")

`loader` reads a YAML file or a Python program with decorators (`builder`) into a frozen `model`; errors show
the line and a suggestion (`section`, `parser`, `checks`). `runner` compiles the model to Structured
Streaming, one query per sink, and keeps the queries running. Spark is imported only when a pipeline runs.
"""

from __future__ import annotations

from braidmq.spark.pipelines.builder import PipelineBuilder, pipeline
from braidmq.spark.pipelines.loader import load, loads
from braidmq.spark.pipelines.mistakes import PipelineError, PipelineMistakes
from braidmq.spark.pipelines.model import Pipeline

__all__ = ["Pipeline", "PipelineBuilder", "PipelineError", "PipelineMistakes", "load", "loads", "pipeline"]
