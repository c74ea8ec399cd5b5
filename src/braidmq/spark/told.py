"""Failures that are told in a sentence: what happened, where, and what to do.

Spark carries what a Python worker raises to the driver together with its traceback, a page through files of
Spark and of ours. For these failures the message is the whole story and the way there is none, so Spark is
asked to leave it out; everything else keeps its traceback, since it would be a defect, or the user's own.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from braidmq.client.errors import ClientError
from braidmq.spark.options import OptionError
from braidmq.spark.sink.ledger import SinkError
from braidmq.spark.source.loss import RecordsLost
from braidmq.spark.source.timestamps import TimestampTooLarge
from braidmq.wire.errors import ApiError

TOLD = (OptionError, RecordsLost, TimestampTooLarge, SinkError, ClientError, ApiError)
WITHOUT_TRACEBACK = "SPARK_HIDE_TRACEBACK"
"""Spark's worker looks at this variable when it writes down an exception, which is the last thing it does."""


@contextmanager
def told() -> Iterator[None]:
    """Around whatever Spark calls in a process of its own; such a process ends with the first failure."""
    try:
        yield
    except TOLD:
        os.environ[WITHOUT_TRACEBACK] = "1"
        raise
