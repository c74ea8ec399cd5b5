"""Writing DataFrames and streams to topics: `df.write.format("braid")` and `writeStream` likewise.

    orders.select("key", "value").writeStream.format("braid")
        .option("bootstrap.servers", "127.0.0.1:9092").option("topic", "orders")
        .option("checkpointLocation", "/data/orders-checkpoint").start()

Spark creates a writer on the driver and sends it to the tasks; what tasks return goes to `commit` or `abort`
on the driver, in a separate process. The work is elsewhere: `columns` says what can be written, `batches`
makes batches of it, `task` sends them, and `commit` says why every row arrives once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any
from uuid import uuid4

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from braidmq.client.errors import ClientError
from braidmq.spark.errors import without_traceback
from braidmq.spark.sink.columns import ColumnLayout, layout
from braidmq.spark.sink.commit import BatchCommitter, TaskResult
from braidmq.spark.sink.ledger import SinkError, sink_error
from braidmq.spark.sink.options import SinkOptions, check_topic, parse_sink, write_number
from braidmq.spark.sink.task import TaskAttempt, session_for, write_task
from braidmq.spark.worker import adapt_worker
from braidmq.wire.errors import ApiError

adapt_worker()
BATCH_ID = "streaming.sql.batchId"
QUERY_ID = "sql.streaming.queryId"
RUN_ID = "spark.jobGroup.id"
"""The local properties that identify a task's query; the run of a query is its job group."""
RUN_LENGTH = 8
COMMITTERS_MAX = 64

Messages = Iterable[WriterCommitMessage | None]


def batch_writer(given: Mapping[str, str], schema: StructType, overwrite: bool) -> BatchWriter:
    options = parse_sink(given, streaming=False, overwrite=overwrite)
    where = layout(schema, options.topic)
    _look(options)
    run = uuid4().hex[:RUN_LENGTH] if options.write_id else uuid4().hex
    return BatchWriter(options, where, run, write_number(given))


def stream_writer(given: Mapping[str, str], schema: StructType, _overwrite: bool) -> StreamWriter:
    # In output mode complete Spark asks to overwrite; as in its Kafka sink, every result is appended.
    options = parse_sink(given, streaming=True, overwrite=False)
    where = layout(schema, options.topic)
    _look(options)
    return StreamWriter(options, where, given.get("checkpointLocation") or "")


class BatchWriter(DataSourceArrowWriter):
    """One `df.write`; with `writeId` it can be repeated without writing twice."""

    def __init__(self, options: SinkOptions, where: ColumnLayout, run: str, number: int) -> None:
        self._options = options
        self._where = where
        self._run = run
        self._number = number
        self._scope = options.scope
        self._family = f"{self._scope}/" if self._scope else f"{options.prefix}/{run}/"

    @without_traceback()
    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskResult:
        context = _context()
        attempt = TaskAttempt(self._family, self._scope, self._number, self._run, *_attempt(context))
        return write_task(self._options, self._where, iterator, attempt)

    @without_traceback()
    def commit(self, messages: Messages) -> None:
        try:
            self._committer().commit(self._number, _results(messages))
        except (ApiError, ClientError) as error:
            again = "write again with the same writeId" if self._scope else "some tasks' rows may be visible"
            text = f"the write was not committed, or only in part: {error}; {again}"
            raise sink_error(error, text) from None

    @without_traceback()
    def abort(self, messages: Messages) -> None:
        self._committer().abort(self._number, _results(messages))

    def _committer(self) -> BatchCommitter:
        return _committer(self._options, self._family, self._scope)


class StreamWriter(DataSourceStreamArrowWriter):
    """One query's output, batch by batch."""

    def __init__(self, options: SinkOptions, where: ColumnLayout, checkpoint: str) -> None:
        self._options = options
        self._where = where
        self._checkpoint = checkpoint

    @without_traceback()
    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskResult:
        context = _context()
        batch, query = context.getLocalProperty(BATCH_ID), context.getLocalProperty(QUERY_ID)
        if batch is None or query is None:
            raise SinkError("Spark did not say which query and batch this is; use Spark 4.1 or newer")
        run = (context.getLocalProperty(RUN_ID) or "")[:RUN_LENGTH]
        scope = f"{self._options.prefix}-{query}"
        attempt = TaskAttempt(f"{scope}/", scope, int(batch), run, *_attempt(context))
        return write_task(self._options, self._where, iterator, attempt)

    @without_traceback()
    def commit(self, messages: Messages, batchId: int) -> None:  # noqa: N803
        results = _results(messages)
        if committer := self._committer(results):
            try:
                committer.commit(batchId, results)
            except (ApiError, ClientError) as error:
                text = f"batch {batchId} was not committed, or only in part: {error}"
                raise sink_error(error, f"{text}; start the query again") from None

    @without_traceback()
    def abort(self, messages: Messages, batchId: int) -> None:  # noqa: N803
        results = _results(messages)
        if committer := self._committer(results):
            committer.abort(batchId, results)

    def _committer(self, results: list[TaskResult]) -> BatchCommitter | None:
        """From the results of tasks; without any, from the last batch under this checkpoint.

        A checkpoint that only the session sets is not known here, and queries that write to one topic cannot
        be distinguished: then the next batch, or a timeout, aborts what failed tasks left open.
        """
        key = f"{self._options!r} {self._checkpoint}" if self._checkpoint else ""
        scope = next((each.scope for each in results if each.scope), None) or _scopes.get(key)
        if scope is None:
            return None
        if key:
            while len(_scopes) >= COMMITTERS_MAX and key not in _scopes:
                _scopes.pop(next(iter(_scopes)))
            _scopes[key] = scope
        return _committer(self._options, f"{scope}/", scope)


_looked: set[str] = set()
_scopes: dict[str, str] = {}
_committers: dict[str, BatchCommitter] = {}


def _committer(options: SinkOptions, family: str, scope: str | None) -> BatchCommitter:
    """The committer of a query or write; Spark uses this process for all batches of it."""
    key = f"{options!r} {family}"
    found = _committers.get(key)
    if found is None:
        while len(_committers) >= COMMITTERS_MAX:
            _committers.pop(next(iter(_committers)))
        session = session_for(options)
        found = BatchCommitter(session.cluster, session.client, options.transaction_timeout_ms, family, scope)
        _committers[key] = found
    return found


def _results(messages: Messages) -> list[TaskResult]:
    """The results of tasks; failed tasks have none."""
    return [message for message in messages if isinstance(message, TaskResult)]


def _context() -> Any:
    context = TaskContext.get()
    if context is None:
        raise SinkError("the sink writes only in tasks of Spark")
    return context


def _attempt(context: Any) -> tuple[int, int, int]:
    """The number of the task, of the attempt, and the attempt's unique id."""
    return context.partitionId(), context.attemptNumber(), context.taskAttemptId()


def _look(options: SinkOptions) -> None:
    """Finds a wrong address or a missing topic on the driver, before any task runs."""
    key = repr(options)
    if key in _looked:
        return
    session = session_for(options)
    try:
        if options.topic is None:
            session.cluster.refresh([])
        else:
            check_topic(session.cluster, options.topic)
    except (ApiError, ClientError) as error:
        raise sink_error(error, f"writing to {options.bootstrap}: {error}") from None
    if len(_looked) >= COMMITTERS_MAX:
        _looked.clear()
    _looked.add(key)
