"""Runs a pipeline: turns the model into streaming queries and keeps them running.

Each sink is a query with its own checkpoint. A query that fails because a broker is unreachable is restarted
from its checkpoint, with growing pauses; any other failure stops the run with one sentence. A signal to stop
may reach Spark's process too (systemd sends it to every process of a service); that Spark ends then is no
failure. The run's status is written to the checkpoint as it changes, for `braid pipeline status` and the
live table.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from braidmq.spark.pipelines import compatibility, graph, progress
from braidmq.spark.pipelines.checkpoint import Checkpoint, holding, local_directory
from braidmq.spark.pipelines.failures import Failure, SparkGone, in_one_sentence, understand_failure
from braidmq.spark.pipelines.mistakes import NotInstalled, PipelineError
from braidmq.spark.pipelines.model import BadRecords, Pipeline, PythonStep, TopicSource, UpsertSink
from braidmq.spark.pipelines.preflight import Preflight
from braidmq.spark.pipelines.status import QueryStatus, RunState, RunStatus

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from braidmq.spark.pipelines.sinks import StartQuery
    from braidmq.spark.pipelines.sources import SourceOpener

POLL_S = 0.25
SAVE_EVERY_S = 1.0
STATUS_POLL_S = 0.05
SOURCES_S_MAX = 10.0
INITIALIZING = "Initializing"
"""The beginning of Spark's status message until a query has its sources."""
SIGNAL_S = 2.0
"""How much later than Spark's process this one may get a signal that was sent to both."""
RESTART_PAUSE_S, RESTART_PAUSE_MAX_S = 1.0, 30.0

Watcher = Callable[[RunStatus], None]
Teller = Callable[[str], None]


def run(
    pipeline: Pipeline,
    *,
    once: bool = False,
    master: str = "local[*]",
    checkpoint: Path | str | None = None,
    spark: SparkSession | None = None,
    stop: threading.Event | None = None,
    watch: Watcher | None = None,
    tell: Teller | None = None,
    log_level: str = "OFF",
) -> RunStatus:
    """Runs until `stop` is set or, with `once`, until everything has been read.

    It calls `watch` with the status a few times a second, and `tell` with messages for the user. `log_level`
    is Spark's; the run reports a failed query in one sentence.
    """
    if checkpoint is not None:
        pipeline = replace(pipeline, checkpoint=local_directory(checkpoint))
    kept = Checkpoint(pipeline.checkpoint_directory)
    asked = stop or threading.Event()
    with kept.held(), ExitStack() as held:
        status = _new_status(pipeline)
        try:
            with _recorded_in_status(status, pipeline, kept, asked):
                _hold_tables(pipeline, held)
                for note in prepare(pipeline, kept):
                    (tell or _silent)(note)
                made = spark.newSession() if spark is not None else _session(pipeline, master, log_level)
        except Exception:
            if asked.is_set():
                return status
            raise
        try:
            return Run(pipeline, kept, made, once, asked, watch, tell).run()
        finally:
            if spark is None:
                with suppress(*_bridge_errors()):
                    made.stop()


@contextmanager
def _recorded_in_status(
    status: RunStatus, pipeline: Pipeline, checkpoint: Checkpoint, stop: threading.Event
) -> Iterator[None]:
    """Also records errors before the run begins, for `braid pipeline status`."""
    status.queries = [QueryStatus(name) for name in compatibility.describe(pipeline)]
    status.save(checkpoint)
    try:
        yield
    except BaseException as error:
        is_asked = stop.is_set() or isinstance(error, KeyboardInterrupt)
        status.state = RunState.STOPPED if is_asked else RunState.FAILED
        status.error = str(error) if status.state is RunState.FAILED else None
        for query in status.queries:
            query.state = RunState.STOPPED
        status.updated_ms = _now_ms()
        status.save(checkpoint)
        raise


def _new_status(pipeline: Pipeline) -> RunStatus:
    now_ms = _now_ms()
    return RunStatus(
        pipeline=pipeline.name,
        version=pipeline.version,
        pid=os.getpid(),
        host=os.uname().nodename,
        started_ms=now_ms,
        updated_ms=now_ms,
    )


def _hold_tables(pipeline: Pipeline, held: ExitStack) -> None:
    """Locks upserted tables: each has one writer, of all pipelines and versions."""
    for sink in pipeline.sinks:
        if isinstance(sink, UpsertSink):
            others = f"another run, which upserts into it too; stop that one ({sink.location})"
            held.enter_context(holding(Path(sink.path), others))


def prepare(pipeline: Pipeline, checkpoint: Checkpoint) -> list[str]:
    """All checks that need no Spark; returns notes for the user."""
    notes = compatibility.check(pipeline, checkpoint)
    preflight = Preflight(pipeline)
    try:
        preflight.check_topics()
        preflight.keep_starts(checkpoint)
        notes += [f"created topic {name}" for name in preflight.create_targets()]
    finally:
        preflight.close()
    return notes


def _session(pipeline: Pipeline, master: str, log_level: str) -> SparkSession:
    from braidmq.spark import session
    from braidmq.spark.java.home import JavaMissing
    from braidmq.spark.session import SparkMissing

    try:
        return session(f"braid {pipeline.name}", master, log_level=log_level, config=settings(pipeline))
    except (JavaMissing, SparkMissing) as error:
        raise NotInstalled(str(error)) from None


def settings(pipeline: Pipeline) -> dict[str, str]:
    """Spark settings that a pipeline needs; those of the file win."""
    return {
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": str(pipeline.parallelism),
        **dict(pipeline.spark),
    }


@dataclass(slots=True)
class SinkQuery:
    """One query of a run."""

    status: QueryStatus
    start: StartQuery
    handle: StreamingQuery | None = None
    pause_s: float = RESTART_PAUSE_S
    restart_at_s: float | None = None
    restarts_in_a_row: int = 0


@dataclass(slots=True)
class Run:
    """One run of a pipeline, on one thread."""

    pipeline: Pipeline
    checkpoint: Checkpoint
    spark: SparkSession
    once: bool
    stop: threading.Event
    watch: Watcher | None = None
    tell: Teller | None = None
    status: RunStatus = field(init=False)
    _queries: list[SinkQuery] = field(init=False, default_factory=list)
    _saved_s: float = field(init=False, default=0.0)

    def run(self) -> RunStatus:
        self.status = _new_status(self.pipeline)
        self.status.ui = self.spark.sparkContext.uiWebUrl
        try:
            with in_one_sentence(self.pipeline):
                self._start()
                self._follow()
        except BaseException as error:
            if isinstance(error, PipelineError) and self._is_asked_to_stop(error):
                self._end(RunState.STOPPED)
                return self.status
            self._end(RunState.STOPPED if isinstance(error, KeyboardInterrupt) else RunState.FAILED, error)
            raise
        self._end(RunState.STOPPED if self.stop.is_set() else RunState.DONE)
        return self.status

    def _start(self) -> None:
        for name, text in settings(self.pipeline).items():
            if name.startswith("spark.sql."):
                _set(self.spark, name, text)
        # Spark looks up a sink's format in the active session of the thread. A new thread has none, and this
        # call sets it.
        self.spark.createDataFrame([], "nothing INT")
        compiled = compile_queries(self.spark, self.pipeline, self.checkpoint)
        states = {name: query.states for name, query in compiled.items()}
        compatibility.check_states(self.pipeline, self.checkpoint, states)
        self._queries = [SinkQuery(QueryStatus(name), query.start) for name, query in compiled.items()]
        self.status.queries = [query.status for query in self._queries]
        compatibility.record(self.pipeline, self.checkpoint, states)
        self._save()
        for query in self._queries:
            self._launch(query)
            wait_for_sources(query.handle, self.stop)
        self.status.state = RunState.RUNNING

    def _is_asked_to_stop(self, error: PipelineError) -> bool:
        """After Spark's process has ended, waits for the signal that may have ended it."""
        return self.stop.wait(SIGNAL_S if isinstance(error, SparkGone) else 0)

    def _launch(self, query: SinkQuery) -> None:
        query.restart_at_s = None
        query.handle = query.start(self.once)
        query.status.state = RunState.RUNNING

    def _follow(self) -> None:
        """Runs until all queries are done, one fails, or the run is stopped."""
        while not self.stop.is_set():
            changed = [self._look_after(query) for query in self._queries]
            if any(changed) or time.monotonic() - self._saved_s > SAVE_EVERY_S:
                self._save()
            if self.watch is not None:
                self.watch(self.status)
            if all(query.status.state is RunState.DONE for query in self._queries):
                return
            self.stop.wait(POLL_S)

    def _look_after(self, query: SinkQuery) -> bool:
        """Updates the status and restarts failed queries; returns whether anything changed."""
        if query.restart_at_s is not None:
            if time.monotonic() < query.restart_at_s:
                return False
            self._launch(query)
            return True
        handle = query.handle
        if handle is None or query.status.state is RunState.DONE:
            return False
        active = handle.isActive
        changed = self._take_progress(query)
        if active:
            return changed
        error = handle.exception()
        if error is not None:
            self._failed(query, understand_failure(error, self.pipeline))
        elif self.once:
            query.status.state = RunState.DONE
        else:
            raise PipelineError(f"query {query.status.name} was stopped by another program")
        return True

    def _take_progress(self, query: SinkQuery) -> bool:
        assert query.handle is not None
        changed = False
        for report in query.handle.recentProgress[-3:]:
            if query.status.batch is None or report["batchId"] >= query.status.batch:
                changed = progress.update(query.status, _mapping(report)) or changed
        if changed:
            query.pause_s, query.restarts_in_a_row, query.status.error = RESTART_PAUSE_S, 0, None
        return changed

    def _failed(self, query: SinkQuery, failure: Failure) -> None:
        query.status.error = failure.text
        if not failure.may_pass or query.restarts_in_a_row >= self.pipeline.restarts_max:
            query.status.state = RunState.FAILED
            raise PipelineError(f"query {query.status.name}: {failure.text}")
        query.status.state = RunState.RESTARTING
        query.status.restarts += 1
        query.restarts_in_a_row += 1
        query.restart_at_s = time.monotonic() + query.pause_s
        (self.tell or _silent)(
            f"query {query.status.name}: {failure.text}; restarting it in {query.pause_s:.0f} s"
        )
        query.pause_s = min(query.pause_s * 2, RESTART_PAUSE_MAX_S)

    def _end(self, state: RunState, error: BaseException | None = None) -> None:
        for query in self._queries:
            _stop(query.handle)
            if query.status.state not in (RunState.DONE, RunState.FAILED):
                query.status.state = RunState.STOPPED
        self.status.state = state
        self.status.error = str(error) if error is not None and state is RunState.FAILED else None
        self._save()
        if self.watch is not None:
            self.watch(self.status)

    def _save(self) -> None:
        self.status.updated_ms = _now_ms()
        self.status.save(self.checkpoint)
        self._saved_s = time.monotonic()


def _set(spark: SparkSession, name: str, text: str) -> None:
    """Sets a SQL setting; static settings were given to the new session."""
    from pyspark.errors import PySparkException

    try:
        spark.conf.set(name, text)
    except PySparkException as error:
        if not (error.getCondition() or "").startswith("CANNOT_MODIFY"):
            raise


def wait_for_sources(handle: StreamingQuery | None, stop: threading.Event) -> None:
    """Waits until a started query has its sources, has ended, or takes too long.

    Spark starts a Python process for each source, which must connect within ten seconds; no setting changes
    that. The processes of many queries at once would be too slow on a small machine.
    """
    until_s = time.monotonic() + SOURCES_S_MAX
    while handle is not None and handle.isActive and time.monotonic() < until_s:
        if not handle.status["message"].startswith(INITIALIZING) or stop.wait(STATUS_POLL_S):
            return


def _stop(handle: StreamingQuery | None) -> None:
    # If Spark's process has ended, so has the query.
    with suppress(*_bridge_errors()):
        if handle is not None and handle.isActive:
            handle.stop()


def _bridge_errors() -> tuple[type[Exception], ...]:
    """What a call into Spark raises if its process has ended, or ends meanwhile."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    return Py4JError, PySparkException, OSError


@dataclass(frozen=True, slots=True)
class CompiledSink:
    """How to start a query, and its state after Spark's analysis."""

    start: StartQuery
    states: Mapping[str, str] = field(default_factory=dict)


def compile_queries(
    spark: SparkSession, pipeline: Pipeline, checkpoint: Checkpoint
) -> dict[str, CompiledSink]:
    """All queries, analysed by Spark and not yet started."""
    from braidmq.spark.pipelines import sinks
    from braidmq.spark.pipelines.clusters import connection_options
    from braidmq.spark.pipelines.frames import kept_columns, stateful_operators
    from braidmq.spark.pipelines.sources import SourceOpener

    opener = SourceOpener(spark, pipeline, checkpoint)
    frames: dict[str, DataFrame] = {}
    made: dict[str, CompiledSink] = {}
    for sink in pipeline.sinks:
        # Each query reads topics under its own name. The first one gets all parts, so that parts without a
        # sink are analysed too; later queries share parts that read no stream of a topic.
        own = _fed_by_topics(pipeline, sink.source) if made else _parts(pipeline)
        frames |= _frames(opener, own, sink.name, frames)
        frame = frames[sink.source]
        steps = (pipeline.step(name) for name in graph.upstream(pipeline, sink.source))
        is_python = any(isinstance(step, PythonStep) for step in steps)
        states = {compatibility.STATE: stateful_operators(frame)} if is_python else {}
        states[compatibility.COLUMNS] = kept_columns(frame)
        made[sink.name] = CompiledSink(sinks.starter(frame, sink, pipeline, checkpoint), states)
    for source in pipeline.sources:
        if (
            isinstance(source, TopicSource)
            and source.bad_records is BadRecords.SIDE_TOPIC
            and source.bad_topic
        ):
            beside = connection_options(source.options)
            name = f"{source.name}_bad"
            writer = sinks.to_topic(opener.bad_rows(source, name), source.bad_topic, pipeline, beside)
            made[name] = CompiledSink(sinks.starting(writer, name, checkpoint, None))
    return made


def _parts(pipeline: Pipeline) -> list[str]:
    return [*(source.name for source in pipeline.sources), *graph.in_order(pipeline)]


def _fed_by_topics(pipeline: Pipeline, name: str) -> list[str]:
    """The parts under a name that read a stream of a topic, in order."""
    return [
        each
        for each in graph.upstream(pipeline, name)
        if any(isinstance(pipeline.source(one), TopicSource) for one in graph.streams_of(pipeline, each))
    ]


def _frames(
    opener: SourceOpener, names: list[str], query: str, others: Mapping[str, DataFrame]
) -> dict[str, DataFrame]:
    """These parts as DataFrames of one query, and as views for SQL."""
    from braidmq.spark.pipelines import steps

    frames = dict(others)
    for name in names:
        source, step = opener.pipeline.source(name), opener.pipeline.step(name)
        if source is not None:
            frames[name] = opener.open(source, query)
        else:
            assert step is not None
            frames[name] = steps.make(opener.spark, step, frames, opener.pipeline.directory)
        frames[name].createOrReplaceTempView(name)
    return frames


def _mapping(report: Any) -> Mapping[str, Any]:
    """Spark's report as plain values, for every supported release."""
    import json

    if isinstance(report, dict):
        return report
    parsed: Mapping[str, Any] = json.loads(report.json)
    return parsed


def _silent(_: str) -> None:
    pass


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
