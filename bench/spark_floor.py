"""What is left of a Spark read when nothing is read: the floor under every source that is written in Python.

The same plan, the same tasks and the same rows as `braidmq.spark.read` or `export`, but each task reads only
its first Arrow batches and hands them on over and over; a few of them, so that a value does not come again
too soon. What that takes is Spark's own, or the Parquet writer's: a socket, Arrow, rows, the query.

A source that only checks hands on the same, but before that it goes through all batches of its task and
checks their CRCs, decoding none. That is the least that a source may do which serves nothing damaged.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from itertools import cycle, islice
from unittest import mock

import pyarrow as pa
from pyspark import cloudpickle

from braidmq.spark.parquet import files as parquet_files
from braidmq.spark.source import bulk
from braidmq.spark.source.filters import EVERYTHING, Pushed
from braidmq.spark.source.query import ReadQuery
from braidmq.spark.source.splits import ReadTask, Split
from braidmq.spark.source.task import read_split, stored_batches

HELD = 4


@contextmanager
def instead(kind: str) -> Iterator[None]:
    """Where `kind` is one of ours, what `read` and `export` plan has tasks that hardly read.

    Workers cannot import this file, so it travels with what they are told to run.
    """
    if kind not in KINDS:
        yield
        return
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    with (
        mock.patch.object(bulk, "read_task", KINDS[kind]),
        mock.patch.object(parquet_files, "read_task", KINDS[kind]),
    ):
        yield


def hand_over(
    query: ReadQuery, columns: tuple[str, ...], task: ReadTask, _pushed: Pushed = EVERYTHING
) -> Iterator[pa.RecordBatch]:
    """As many rows as there are, and all of them the first ones."""
    for split in task.splits:
        yield from _repeated(query, columns, split)


def check_over(
    query: ReadQuery, columns: tuple[str, ...], task: ReadTask, pushed: Pushed = EVERYTHING
) -> Iterator[pa.RecordBatch]:
    """The same after all that is stored was looked at."""
    for split in task.splits:
        for _ in stored_batches(query, split):
            pass
    yield from hand_over(query, columns, task, pushed)


def _repeated(query: ReadQuery, columns: tuple[str, ...], split: Split) -> Iterator[pa.RecordBatch]:
    with closing(read_split(query, columns, split)) as batches:
        first = list(islice(batches, HELD))
    left = split.end - split.start
    for batch in cycle(first):
        yield batch.slice(0, left)
        left -= batch.num_rows
        if left <= 0:
            return


KINDS = {"floor": hand_over, "checks": check_over}
