"""No traceback when Spark hangs up on a Python process that has nothing more to say to it.

What is not a task (planning a read or a write, committing a batch) runs in processes that Spark forks from
its own daemon, whatever `spark.python.daemon.module` says (`daemon.py` is for tasks). When a query ends while
one of them is about to flush, it prints the traceback of a broken pipe, which tells users nothing.
"""

from __future__ import annotations

import sys
import traceback
from types import SimpleNamespace

DAEMON = "pyspark.daemon"


def print_exc() -> None:
    """As Python's own, except for a pipe that the other side has closed."""
    if not isinstance(sys.exc_info()[1], BrokenPipeError):
        traceback.print_exc()


def expect_hang_ups() -> None:
    """In a process forked from Spark's daemon: what that prints of a broken pipe is left out."""
    main = sys.modules["__main__"]
    spec = getattr(main, "__spec__", None)
    if spec is not None and spec.name == DAEMON:
        setattr(main, "traceback", SimpleNamespace(print_exc=print_exc, format_exc=traceback.format_exc))  # noqa: B010
