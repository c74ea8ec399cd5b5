"""Spark's Python processes with a bug planted into the sink: the daemon module of a sabotaged stream.

Tasks and commits both run in processes forked from this one. Which bug is in the environment, as that is
what the JVM hands down.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from pyspark import daemon

from braidmq.spark.daemon import run_task
from braidmq.spark.sink_ledger import Decision, Ledger

BUG = "SPARK_SABOTAGE"


def the_ledger_is_not_read() -> None:
    """Nobody knows which batches were decided: one that is run again is written again."""

    def read(self: Ledger) -> Decision | None:  # noqa: ARG001
        return None

    Ledger.read = read  # type: ignore[method-assign]


BUGS: dict[str, Callable[[], None]] = {bug.__name__: bug for bug in (the_ledger_is_not_read,)}


if __name__ == "__main__":
    BUGS[os.environ[BUG]]()
    setattr(daemon, "worker", run_task)  # noqa: B010
    daemon.manager()
