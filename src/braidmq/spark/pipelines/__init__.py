"""Pipelines by declaration: topics, files and tables in, SQL or Python between, topics and tables out.

    from braidmq.spark.pipelines import load

    plan = load("orders.yaml")

`loader` reads a YAML file or a Python program with decorators (`builder`) into one frozen `model`; mistakes
come with line and suggestion (`section`, `parser`, `checks`). `runner` compiles the model to Structured
Streaming, one query per sink, and keeps the queries alive. Nothing imports Spark before a pipeline is run.
"""

from __future__ import annotations

from braidmq.spark.pipelines.builder import PipelineBuilder, pipeline
from braidmq.spark.pipelines.loader import load, loads
from braidmq.spark.pipelines.mistakes import PipelineError, PipelineMistakes
from braidmq.spark.pipelines.model import Pipeline

__all__ = ["Pipeline", "PipelineBuilder", "PipelineError", "PipelineMistakes", "load", "loads", "pipeline"]
