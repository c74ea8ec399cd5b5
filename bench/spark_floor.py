"""What is left of a Spark read when nothing is read: the floor under every source that is written in Python.

The same plan, the same tasks and the same rows as `braidmq.spark.read`, but each task reads only its first
Arrow batches and hands them to Spark over and over; a few of them, so that a value does not come again too
soon. What that takes is Spark's own: a socket, Arrow, rows, the query.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from itertools import cycle, islice
from unittest import mock

import pyarrow as pa
from pyspark import cloudpickle

from braidmq.spark import bulk
from braidmq.spark.filters import EVERYTHING, Pushed
from braidmq.spark.query import Query
from braidmq.spark.splits import Split, Task
from braidmq.spark.task import read_split

HELD = 4


@contextmanager
def instead() -> Iterator[None]:
    """Queries over what `read` made are planned with tasks that hardly read.

    Workers cannot import this file, so it travels with what they are told to run.
    """
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    with mock.patch.object(bulk, "read_task", hand_over):
        yield


def hand_over(
    query: Query, columns: tuple[str, ...], task: Task, _pushed: Pushed = EVERYTHING
) -> Iterator[pa.RecordBatch]:
    """As many rows as there are, and all of them the first ones."""
    for split in task.splits:
        yield from _repeated(query, columns, split)


def _repeated(query: Query, columns: tuple[str, ...], split: Split) -> Iterator[pa.RecordBatch]:
    with closing(read_split(query, columns, split)) as batches:
        first = list(islice(batches, HELD))
    left = split.end - split.start
    for batch in cycle(first):
        yield batch.slice(0, left)
        left -= batch.num_rows
        if left <= 0:
            return
