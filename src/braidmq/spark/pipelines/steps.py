"""Steps as DataFrames of their inputs, each also a view for SQL."""

from __future__ import annotations

import importlib
import inspect
import re
import sys
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pyspark import cloudpickle
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from braidmq.spark.errors import first_line
from braidmq.spark.pipelines import dedup, newest
from braidmq.spark.pipelines.frames import WATERMARK_MARK, columns_there, with_location, with_watermark
from braidmq.spark.pipelines.mistakes import (
    Location,
    PipelineError,
    PipelineMistakes,
    suggestion,
    where_it_failed,
)
from braidmq.spark.pipelines.model import (
    DedupStep,
    JoinKind,
    JoinStep,
    NewestStep,
    PythonStep,
    SqlStep,
    Step,
    WindowStep,
)

Frames = Mapping[str, DataFrame]
_LINE_OF_SQL = re.compile(r"\bline (\d+),? pos \d+")


def make(spark: SparkSession, step: Step, frames: Frames, directory: Path) -> DataFrame:
    """The DataFrame of a step. Errors of Spark's analysis show the line."""
    with with_location(_main_location(step), f"step {step.name}"):
        return with_watermark(_made(spark, step, frames, directory), step.watermark, step.location)


def _made(spark: SparkSession, step: Step, frames: Frames, directory: Path) -> DataFrame:
    match step:
        case SqlStep():
            return _sql(spark, step)
        case PythonStep():
            return _python(step, frames, directory)
        case WindowStep():
            return _window(step, frames[step.inputs[0]])
        case JoinStep():
            return _join(step, frames[step.inputs[0]], frames[step.inputs[1]])
        case DedupStep():
            return _dedup(step, frames[step.inputs[0]])
        case NewestStep():
            columns_there(frames[step.inputs[0]], step.by, step.location.of("by"), "newest")
            columns_there(frames[step.inputs[0]], step.order_by, step.location.of("order_by"), "newest")
            return newest.in_order(frames[step.inputs[0]], step.by, step.order_by)


def _main_location(step: Step) -> Location:
    """The location of the SQL text of a step, if it has one."""
    return step.location.of("compute") if isinstance(step, WindowStep) else step.location


def _sql(spark: SparkSession, step: SqlStep) -> DataFrame:
    """An error in a query of several lines shows the line in the file."""
    try:
        return spark.sql(step.sql)
    except PySparkException as error:
        at = step.location.of("sql")
        found = _LINE_OF_SQL.search(str(error))
        # The text begins below its key; in a Python program only the line of the call is known.
        if found and "\n" in step.sql and not at.file.endswith(".py"):
            at = Location(at.file, at.line + int(found[1]))
        raise PipelineMistakes.at(at, f"step {step.name}: {first_line(error)}") from error


def _python(step: PythonStep, frames: Frames, directory: Path) -> DataFrame:
    function = (
        step.function if callable(step.function) else find_function(step.function, directory, step.location)
    )
    _ship_modules(directory)
    try:
        made = function(*(frames[name] for name in step.inputs))
    except (PySparkException, PipelineError):
        raise
    except Exception as error:
        file = inspect.getsourcefile(function) if inspect.isfunction(function) else None
        wrong = where_it_failed(error, file or str(step.function))
        raise PipelineMistakes.at(step.location, f"step {step.name}: {wrong}") from error
    if not isinstance(made, DataFrame):
        raise PipelineMistakes.at(
            step.location, f"step {step.name}: the function returned {type(made).__name__}, not a DataFrame"
        )
    return made


def find_function(name: str, directory: Path, location: Location) -> Callable[..., Any]:
    """`module:function`; a module beside the pipeline's file comes first."""
    module_name, _, function_name = name.partition(":")
    if str(directory) not in sys.path:
        sys.path.insert(0, str(directory))
    try:
        module = importlib.import_module(module_name)
    except Exception as error:
        wrong = _not_imported(error, module_name, directory)
        raise PipelineMistakes.at(location, f"python: {wrong}") from error
    function = getattr(module, function_name, None)
    if not callable(function):
        named = [each for each, what in vars(module).items() if callable(what) and not each.startswith("_")]
        hint = suggestion(function_name, named)
        raise PipelineMistakes.at(location, f"python: {module_name} has no function {function_name}{hint}")
    found: Callable[..., Any] = function
    return found


def _not_imported(error: Exception, module_name: str, directory: Path) -> str:
    if isinstance(error, ModuleNotFoundError) and error.name in (module_name, module_name.partition(".")[0]):
        return f"there is no module {module_name}; put it into {directory}, or install it"
    if isinstance(error, SyntaxError):
        return f"{error.filename}:{error.lineno}: {error.msg}"
    files = [frame.filename for frame in traceback.extract_tb(error.__traceback__)]
    own = [file for file in files if Path(file).is_relative_to(directory)]
    return where_it_failed(error, own[-1] if own else module_name)


def _ship_modules(directory: Path) -> None:
    """Pickles functions of modules beside the file by value: workers cannot import those modules."""
    for name, module in list(sys.modules.items()):
        file = Path(getattr(module, "__file__", None) or "/nowhere").resolve()
        beside = file.parent.parent if file.stem == "__init__" else file.parent
        if beside == directory and name == module.__name__ and "." not in name:
            cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]


def _window(step: WindowStep, frame: DataFrame) -> DataFrame:
    columns_there(frame, (step.column,), step.location.of("on"), "window")
    columns_there(frame, step.by, step.location.of("by"), "window")
    if step.gap is not None:
        windows = F.session_window(step.column, str(step.gap))
    else:
        windows = F.window(step.column, str(step.size), str(step.slide) if step.slide else None)
    computed = [F.expr(text).alias(name) for name, text in step.compute]
    grouped = frame.groupBy(windows.alias("window"), *step.by).agg(*computed)
    edges = [F.col("window.start").alias("window_start"), F.col("window.end").alias("window_end")]
    return grouped.select(*edges, *step.by, *(name for name, _ in step.compute))


def _join(step: JoinStep, left: DataFrame, right: DataFrame) -> DataFrame:
    for frame, name in ((left, step.inputs[0]), (right, step.inputs[1])):
        columns_there(frame, step.on, step.location.of("on"), f"join on {name}")
    kind = {JoinKind.SEMI: "left_semi", JoinKind.ANTI: "left_anti"}.get(step.kind, step.kind.value)
    # For columns of the same name on both sides, the right one gets the name of its input.
    renamed = {
        name: f"{name}_{step.inputs[1]}"
        for name in right.columns
        if name in left.columns and name not in step.on
    }
    right = right.withColumnsRenamed(renamed)
    if step.within is None:
        return left.join(right, list(step.on), kind)
    return _join_in_time(step, left, right, kind)


def _join_in_time(step: JoinStep, left: DataFrame, right: DataFrame, kind: str) -> DataFrame:
    left_time, right_time = (
        _event_time(step, name, frame) for name, frame in zip(step.inputs, (left, right), strict=True)
    )
    keys = {name: f"_braid_right_{name}" for name in step.on}
    other = right.withColumnsRenamed(keys)
    span = F.expr(f"INTERVAL {step.within}")
    condition = F.col(right_time).between(F.col(left_time) - span, F.col(left_time) + span)
    for name, renamed in keys.items():
        condition = condition & (F.col(name) == F.col(renamed))
    joined = left.join(other, condition, kind)
    if step.kind in (JoinKind.RIGHT, JoinKind.FULL):
        joined = joined.withColumns({name: F.coalesce(name, renamed) for name, renamed in keys.items()})
    return joined.drop(*keys.values())


def _event_time(step: JoinStep | DedupStep, name: str, frame: DataFrame) -> str:
    for field in frame.schema.fields:
        if WATERMARK_MARK in field.metadata:
            return field.name
    raise PipelineMistakes.at(
        step.location,
        f"step {step.name}: {name} no longer has the column of its watermark, only"
        f" {', '.join(frame.columns)}; select that column too",
    )


def _dedup(step: DedupStep, frame: DataFrame) -> DataFrame:
    columns_there(frame, step.by, step.location.of("by"), "dedup")
    if not frame.isStreaming:
        return frame.dropDuplicates(list(step.by))
    if step.within is None:
        return frame.dropDuplicatesWithinWatermark(list(step.by))
    return dedup.first_within(frame, step.by, _event_time(step, step.inputs[0], frame), step.within)
