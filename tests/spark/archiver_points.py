"""The moments at which an archiver can die, from its first file to the position it publishes.

As a program it is an archiver with a group that kills itself, as `kill -9` would, at the second such moment:

    python -m tests.spark.archiver_points BOOTSTRAP TOPIC LAKE GROUP POINT

With the point `none` it lives, and archives everything.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from typing import Any

from braidmq.client.groups import GroupAdmin
from braidmq.spark.lake.archiver import Archive, archive
from braidmq.spark.lake.commits import CommitLog, LakeOperation
from braidmq.spark.lake.lake import Lake

LAST_POINT = "before the position is published"
POINTS: dict[str, tuple[type, str]] = {
    "before the data files": (Lake, "_staged"),
    "between staging and their folder": (Lake, "_move_in"),
    "before the commit": (CommitLog, "commit"),
    LAST_POINT: (GroupAdmin, "commit"),
}
ROWS_PER_COMMIT = 15


def strike(point: str, blow: Callable[[], object]) -> Callable[[], None]:
    """Deals a blow at the second arrival at a point; what is returned undoes that."""
    owner, name = POINTS[point]
    original = getattr(owner, name)
    arrivals = 0

    def struck(*arguments: Any, **named: Any) -> Any:
        nonlocal arrivals
        # The commit that makes an empty lake is none of an archiver's.
        arrivals += not any(getattr(each, "operation", None) is LakeOperation.CREATE for each in arguments)
        if arrivals == 2:
            blow()
        return original(*arguments, **named)

    setattr(owner, name, struck)
    return lambda: setattr(owner, name, original)


def main(bootstrap: str, topic: str, lake: str, group: str, point: str) -> None:
    from braidmq.spark import session

    if point != "none":
        strike(point, lambda: os.kill(os.getpid(), signal.SIGKILL))
    spark = session("archiver", "local[1]", memory_mb=700, ui=False)
    job = Archive(bootstrap, (topic,), rows_per_commit=ROWS_PER_COMMIT, group=group)
    for _ in archive(spark, Lake(lake), job):
        pass
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
