"""Starting the JVM of a session without what it says first.

Java warns on every start of a module that Spark asks for and nobody can do anything about; no setting of
either keeps it from that. So the JVM's stderr comes through a pipe, and all but that line goes on to ours.

The JVM gets a process group of its own. A signal to ours (`timeout` sends one, so does a shell) is for us to
follow: we stop queries and then the JVM, which ends by itself should we be killed.
"""

from __future__ import annotations

import os
import threading
from typing import Any

from pyspark import SparkConf
from pyspark.java_gateway import launch_gateway

from braidmq.spark.worker import SESSION

UNWANTED = (b"WARNING: Using incubator modules: ",)
STDERR = 2


def launch(conf: SparkConf) -> Any:
    """The gateway to a new JVM; in an application of spark-submit, to the JVM that started us."""
    read_end, write_end = os.pipe()
    threading.Thread(target=_pass_on, args=(read_end,), name="stderr of Spark", daemon=True).start()
    os.environ[SESSION] = "1"
    try:
        kept_apart = {"stderr": write_end, "start_new_session": True}
        return launch_gateway(conf, kept_apart)  # type: ignore[no-untyped-call]
    finally:
        del os.environ[SESSION]
        os.close(write_end)


def _pass_on(read_end: int) -> None:
    """Line by line until the JVM ends, to wherever our stderr goes then."""
    with os.fdopen(read_end, "rb") as lines:
        for line in lines:
            if not line.startswith(UNWANTED):
                _write(line)


def _write(line: bytes) -> None:
    try:
        os.write(STDERR, line)
    except OSError:
        # Nobody listens to our stderr any more; the JVM must not be held up by that.
        return
