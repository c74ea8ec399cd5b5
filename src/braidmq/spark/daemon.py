"""The process Spark forks its Python workers from, with one change: garbage is frozen after the first task.

Spark's worker runs a full collection after each task. What a task has left behind is little; what is looked
at each time is everything that was ever imported, 60 ms of it. After the first task all of that is loaded and
set aside for good (`gc.freeze`), and a collection looks only at what came later. Started by Spark as a
module, through `spark.python.daemon.module`; on a worker machine it needs nothing but this package.
"""

from __future__ import annotations

import gc
import socket

from pyspark import daemon

HUNG_UP = 1

_run_task = daemon.worker


def run_task(sock: socket.socket, authenticated: bool) -> int:
    """One task of a worker; the first one leaves its imports frozen."""
    try:
        code = _run_task(sock, authenticated)
    except BrokenPipeError:
        # The JVM has stopped the query and hung up: the worker ends, and nobody needs a traceback.
        return HUNG_UP
    if gc.get_freeze_count() == 0:
        gc.collect()
        gc.freeze()
    return code


if __name__ == "__main__":
    setattr(daemon, "worker", run_task)  # noqa: B010
    daemon.manager()
