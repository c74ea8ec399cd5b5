"""Starts the JVM of a session without the warning that it prints first.

Java warns on every start about a module that Spark needs, and no setting of Java or Spark turns that off. So
the JVM's stderr goes through a pipe, and every other line is copied to ours.

The JVM has its own process group. A signal to our group (`timeout` and shells send one) reaches only us: we
stop the queries and then the JVM, which ends by itself if we are killed.
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
    """Copies line by line until the JVM ends."""
    with os.fdopen(read_end, "rb") as lines:
        for line in lines:
            if not line.startswith(UNWANTED):
                _write(line)


def _write(line: bytes) -> None:
    try:
        os.write(STDERR, line)
    except OSError:
        # Our stderr is closed; that must not block the JVM.
        return
