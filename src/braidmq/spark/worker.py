"""Spark's Python worker processes, made faster and quieter.

Spark forks them from a daemon, one for each kind of work: tasks, planning a read or a write, committing a
batch. A process serves one request after the other, and after each one it

- collects garbage. A request leaves little garbage, but each collection visits everything that was ever
  imported, which takes 60 ms. Here, objects that survive a collection are frozen (`gc.freeze`) after the
  first request and a few later ones, since new kinds of work import more.
- prints the traceback of a broken pipe if a query ends while the process is about to answer. That is of no
  use to anyone and is suppressed here.

Between requests, glibc returns each freed buffer of a megabyte to the kernel and gets the next one page by
page, which took a third of the time of a sink task. Here it keeps them.

This happens only in sessions of `braidmq.spark.session`: the processes run all code of a session, and
sessions made otherwise keep Spark's behaviour. Tasks are forked from our own daemon (`daemon.py`); processes
that plan and commit come from Spark's, with a variable of ours in the environment.
"""

from __future__ import annotations

import ctypes
import gc
import os
import sys
import traceback
from types import ModuleType, SimpleNamespace

DAEMON = "pyspark.daemon"
SESSION = "BRAID_SPARK_SESSION"
"""Set in the environment of the JVM of our session, and so in that of its processes."""
FREEZES_UNTIL = 64
"""The last request after which objects are frozen, so that later garbage does not pile up."""

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
"""The numbers of glibc's malloc.h."""
KEPT_BYTES_MAX = 128 * 1024 * 1024
KEPT_BUFFER_BYTES_MAX = 32 * 1024 * 1024
"""The most that every version of glibc accepts."""

_requests = 0


def collect() -> int:
    """`gc.collect`; after requests 1, 2, 4, 8, … it also freezes what is left."""
    global _requests
    found = gc.collect()
    _requests += 1
    if _requests <= FREEZES_UNTIL and _requests.bit_count() == 1:
        gc.freeze()
    return found


def print_exc() -> None:
    """`traceback.print_exc`, except for a pipe that the other side has closed."""
    if not isinstance(sys.exc_info()[1], BrokenPipeError):
        traceback.print_exc()


def adapt_worker() -> None:
    """Installs the functions above in a process of Spark's daemon in our session; elsewhere does nothing."""
    main = sys.modules["__main__"]
    spec = getattr(main, "__spec__", None)
    if spec is not None and spec.name == DAEMON and SESSION in os.environ:
        change(main)


def keep_memory() -> None:
    """Lets this process and its children reuse freed buffers; does nothing without glibc."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(M_MMAP_THRESHOLD, KEPT_BUFFER_BYTES_MAX)
        mallopt(M_TRIM_THRESHOLD, KEPT_BYTES_MAX)


def change(daemon: ModuleType) -> None:
    """Replaces `gc` and `traceback` in Spark's daemon, and keeps memory."""
    keep_memory()
    setattr(daemon, "gc", SimpleNamespace(collect=collect))  # noqa: B010
    printing = SimpleNamespace(print_exc=print_exc, format_exc=traceback.format_exc)
    setattr(daemon, "traceback", printing)  # noqa: B010
