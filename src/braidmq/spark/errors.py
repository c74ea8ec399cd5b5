"""Errors whose message is the whole story: what happened, where, and what to do.

Spark sends what a Python worker raises to the driver together with its traceback, a page through files of
Spark and of ours. For a `UserError`, and for errors of the client and the broker, Spark is asked to leave the
traceback out. Everything else keeps it: it is a defect, or comes from the user's own code.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from braidmq.client.errors import ClientError
from braidmq.wire.errors import ApiError

WITHOUT_TRACEBACK = "SPARK_HIDE_TRACEBACK"
"""Spark's worker reads this variable when it reports an exception, which is the last thing it does."""


class UserError(Exception):
    """The message says what was wrong, where, and what to do; no traceback is needed."""


USER_ERRORS = (UserError, ClientError, ApiError)


@contextmanager
def without_traceback() -> Iterator[None]:
    """For code that Spark calls in a process of its own; such a process ends with the first failure."""
    try:
        yield
    except USER_ERRORS:
        os.environ[WITHOUT_TRACEBACK] = "1"
        raise
