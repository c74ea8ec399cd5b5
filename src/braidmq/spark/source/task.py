"""What runs in a Python worker: a split in, Arrow record batches out.

A worker keeps its connections from one task to the next, since a stream runs a task a second or more often.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa

from braidmq.client.cluster import Cluster
from braidmq.spark.errors import without_traceback
from braidmq.spark.options import LocalLog, OptionError
from braidmq.spark.source import positions
from braidmq.spark.source.arrow import ArrowDecoder
from braidmq.spark.source.columns import COUNT, COUNTED
from braidmq.spark.source.data_loss import RecordsLost, report_loss
from braidmq.spark.source.fetch import FETCH_BYTES, RangeFetch
from braidmq.spark.source.filters import EVERYTHING, Pushed
from braidmq.spark.source.local_log import LocalRange, machine
from braidmq.spark.source.query import ReadQuery
from braidmq.spark.source.row_counter import RowCounter
from braidmq.spark.source.splits import ReadTask, Split
from braidmq.spark.worker import adapt_worker

adapt_worker()

_idle: dict[str, Cluster] = {}
"""The cluster of the last task of this worker, with its connections; a task takes it and puts it back."""


def read_task(
    query: ReadQuery, columns: tuple[str, ...], task: ReadTask, pushed: Pushed = EVERYTHING
) -> Iterator[pa.RecordBatch]:
    """The records of all splits of a task that meet the filters which were pushed down."""
    with without_traceback():
        for split in task.splits:
            for batch in read_split(query, columns, split):
                yield from pushed.keep(batch)
        if not task.splits and columns == (COUNT,):
            # A count of nothing is still a number.
            yield from RowCounter(columns, "", 0, 0, 0).flush()


def read_split(query: ReadQuery, columns: tuple[str, ...], split: Split) -> Iterator[pa.RecordBatch]:
    """The records of a split, some thousands at a time."""
    kind = RowCounter if COUNTED.issuperset(columns) else ArrowDecoder
    decoder = kind(columns, split.topic, split.partition, split.start, split.end)
    for batches in stored_batches(query, split):
        yield from decoder.feed(batches)
    yield from decoder.flush()


def stored_batches(query: ReadQuery, split: Split) -> Iterator[memoryview]:
    """The batches of a split, some at a time: from the local disk where possible, then from the broker."""
    position = split.start
    if split.directory is not None and split.machine == machine():
        local = LocalRange(split.directory, split.start, split.end, query.isolation)
        yield from local.batches()
        position = local.position
    elif query.local_log is LocalLog.ALWAYS:
        raise OptionError(f"option localLog is always, but {split.at} is not on this machine; use auto")
    if position < split.end:
        with _cluster(query, split) as cluster:
            yield from _fetched(cluster, query, split, position)


def _fetched(cluster: Cluster, query: ReadQuery, split: Split, position: int) -> Iterator[memoryview]:
    while position < split.end:
        fetch = RangeFetch(cluster, split.at, position, split.end, query.isolation, fetch_bytes(query))
        try:
            yield from fetch.batches()
            return
        except RecordsLost as lost:
            begins = positions.earliest(cluster, split.at)
            known_begins = begins if lost.ends is None else None
            report_loss(
                RecordsLost(lost.at, lost.first, split.end, known_begins, lost.ends), query.fail_on_data_loss
            )
            if begins <= fetch.position:
                # The partition ends before the range: it belongs to a recreated topic.
                return
            position = begins


def fetch_bytes(query: ReadQuery) -> int:
    """The size of one response; the user's `max.partition.fetch.bytes` wins over our default."""
    return FETCH_BYTES if query.fetch_bytes is None else query.fetch_bytes


@contextmanager
def _cluster(query: ReadQuery, split: Split) -> Iterator[Cluster]:
    """A cluster connected to the split's leader, which the driver looked up; closed if the task fails."""
    key = repr((query.bootstrap, sorted(query.client_settings.items())))
    cluster = _idle.pop(key, None)
    for other in _idle.values():
        other.close()
    _idle.clear()
    if cluster is None:
        cluster = positions.connect(query)
    if split.leader is not None:
        cluster.assume(split.at, split.leader_id, split.leader)
    try:
        yield cluster
    except BaseException:
        cluster.close()
        raise
    _idle[key] = cluster
