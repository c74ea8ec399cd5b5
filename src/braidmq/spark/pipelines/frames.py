"""What sources and steps share: watermarks, and Spark's errors with their line in the file."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame

from braidmq.spark.errors import first_line
from braidmq.spark.pipelines.mistakes import Location, PipelineMistakes, suggestion
from braidmq.spark.pipelines.model import Watermark

WATERMARK_MARK = "spark.watermarkDelayMs"
STATEFUL = ("Aggregate", "Deduplicate", "Distinct", "FlatMapGroups", "Join", "TransformWithState")
EVENT_TIME_TYPES = ("timestamp", "timestamp_ntz", "struct<start:timestamp,end:timestamp>")


@contextmanager
def with_location(location: Location, what: str) -> Iterator[None]:
    """Turns an error of Spark's analysis into one with the line in the file."""
    try:
        yield
    except PySparkException as error:
        raise PipelineMistakes.at(location, f"{what}: {first_line(error)}") from error


def with_watermark(frame: DataFrame, watermark: Watermark | None, location: Location) -> DataFrame:
    """Declares event time; a column that has a watermark from an earlier step keeps that one."""
    if watermark is None:
        return frame
    if watermark.column not in frame.columns:
        hint = suggestion(watermark.column, frame.columns)
        raise PipelineMistakes.at(
            location.of("watermark"), f"watermark: there is no column {watermark.column}{hint}"
        )
    field = frame.schema[watermark.column]
    if field.dataType.simpleString() not in EVENT_TIME_TYPES:
        raise PipelineMistakes.at(
            location.of("watermark"),
            f"watermark: {watermark.column} is {field.dataType.simpleString()}, not a TIMESTAMP",
        )
    if WATERMARK_MARK in field.metadata:
        return frame
    return frame.withWatermark(watermark.column, str(watermark.delay))


def stateful_operators(frame: DataFrame) -> str:
    """The operators that keep state, in Spark's words without the ids of a session."""
    plan = str(frame._jdf.queryExecution().analyzed().toString())
    # Newer releases of Spark mark operators of a stream with a tilde.
    lines = (line.strip(" :+-").removeprefix("~") for line in plan.splitlines())
    kept = [line for line in lines if line.startswith(STATEFUL)]
    return re.sub(r"#\d+L?(-T\d+ms)?", "", "; ".join(kept))


def kept_columns(frame: DataFrame) -> str:
    """The state columns of each operator with their types: Spark reads rows of a state by position.

    Spark keeps only columns that are used later, so this is the plan after the optimiser.
    """
    plan: Any = frame._jdf.queryExecution().analyzed()
    if any(_kept(plan)):
        plan = frame.sparkSession._jsparkSession.sessionState().optimizer().execute(plan)
    return "; ".join(_kept(plan))


def _kept(node: Any) -> Iterator[str]:
    children = _all(node.children())
    for child in children:
        yield from _kept(child)
    name = node.nodeName()
    if not node.isStreaming():
        return
    if name == "Join" and all(child.isStreaming() for child in children):
        yield f"Join {' with '.join(child.schema().catalogString() for child in children)}"
    elif name == "Aggregate":
        yield f"Aggregate by {_types(node.groupingExpressions())} to {node.schema().catalogString()}"
    elif name.startswith("Deduplicate"):
        yield f"{name} by {_types(node.keys())}"
    elif name == "FlatMapGroupsInPandasWithState":
        yield f"{name} by {_types(node.groupingAttributes())} with {node.stateType().catalogString()}"


def _types(expressions: Any) -> str:
    return ", ".join(each.dataType().catalogString() for each in _all(expressions))


def _all(sequence: Any) -> list[Any]:
    """A Scala sequence as a list."""
    return [sequence.apply(index) for index in range(sequence.size())]


def output_mode(frame: DataFrame, *modes: str) -> str:
    """The first of these modes in which Spark can run a stream; without any, raises the error of the last.

    Spark itself checks when a query starts, which is too late: other queries of the pipeline run then.
    """
    for mode in modes[:-1]:
        with suppress(PySparkException):
            return _checked_mode(frame, mode)
    return _checked_mode(frame, modes[-1])


def _checked_mode(frame: DataFrame, mode: str) -> str:
    spark = frame.sparkSession
    if spark.conf.get("spark.sql.streaming.unsupportedOperationCheck") != "false":
        sql: Any = spark._jvm.org.apache.spark.sql  # type: ignore[union-attr]
        java_mode = getattr(sql.streaming.OutputMode, mode.capitalize())()
        plan = frame._jdf.queryExecution().analyzed()
        sql.catalyst.analysis.UnsupportedOperationChecker.checkForStreaming(plan, java_mode)
    return mode


def columns_there(frame: DataFrame, names: tuple[str, ...], location: Location, what: str) -> None:
    """PipelineMistakes for columns that an input does not have."""
    for name in names:
        if name not in frame.columns:
            raise PipelineMistakes.at(
                location, f"{what}: there is no column {name}{suggestion(name, frame.columns)}"
            )
