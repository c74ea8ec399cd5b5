"""What Spark's Python processes do around our code, done quicker and more quietly.

Spark forks them from a daemon of its own, one for each kind of work: tasks, planning a read or a write,
committing a batch. Each serves one request after the other, and after each it

- collects garbage. What a request has left behind is little; what is looked at each time is everything that
  was ever imported, 60 ms of it. Here what is still there after a collection is set aside for good
  (`gc.freeze`), after the first request and a few later ones, since new kinds of work import more.
- prints the traceback of a broken pipe when a query ends while the process is about to answer, which tells
  users nothing, and is left out here.

And in between, glibc gives each buffer of a megabyte back to the kernel as soon as it is free and gets the
next one page by page: a third of what a task of the sink did. Here it keeps them.

All of that is done in sessions of `braidmq.spark.session` only. The processes serve whatever else runs in a
session, and one that others have made keeps what it has. Tasks are forked from a daemon of ours there
(`daemon.py`); processes that plan and commit come from Spark's own, with a mark of ours in its environment.
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
"""In the environment of a JVM that was started for a session of ours, and so in that of its processes."""
FREEZES_UNTIL = 64
"""The last request after which something is set aside: what would be garbage later must not pile up."""

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
"""The numbers of glibc's malloc.h."""
KEPT_BYTES_MAX = 128 * 1024 * 1024
KEPT_BUFFER_BYTES_MAX = 32 * 1024 * 1024
"""The most that every version of glibc accepts."""

_requests = 0


def collect() -> int:
    """As Python's own; after requests 1, 2, 4, 8, … what is left is not looked at again."""
    global _requests
    found = gc.collect()
    _requests += 1
    if _requests <= FREEZES_UNTIL and _requests.bit_count() == 1:
        gc.freeze()
    return found


def print_exc() -> None:
    """As Python's own, except for a pipe that the other side has closed."""
    if not isinstance(sys.exc_info()[1], BrokenPipeError):
        traceback.print_exc()


def settle_in() -> None:
    """In a process of Spark's daemon in a session of ours: has it use the functions above. Else nothing."""
    main = sys.modules["__main__"]
    spec = getattr(main, "__spec__", None)
    if spec is not None and spec.name == DAEMON and SESSION in os.environ:
        change(main)


def keep_memory() -> None:
    """Lets this process and its children use freed buffers again; where the C library is another, nothing."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(M_MMAP_THRESHOLD, KEPT_BUFFER_BYTES_MAX)
        mallopt(M_TRIM_THRESHOLD, KEPT_BYTES_MAX)


def change(daemon: ModuleType) -> None:
    """What Spark's daemon calls `gc` and `traceback` is ours from now on, and memory is kept."""
    keep_memory()
    setattr(daemon, "gc", SimpleNamespace(collect=collect))  # noqa: B010
    printing = SimpleNamespace(print_exc=print_exc, format_exc=traceback.format_exc)
    setattr(daemon, "traceback", printing)  # noqa: B010
