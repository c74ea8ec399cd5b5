"""A run of a pipeline, as far as it needs no Spark."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from braidmq.spark.pipelines.runner import wait_for_sources


class Handle:
    """A query that says these things about itself, one after the other, and has ended when all are said."""

    def __init__(self, *messages: str) -> None:
        self.left = list(messages)

    @property
    def isActive(self) -> bool:  # noqa: N802
        return bool(self.left)

    @property
    def status(self) -> dict[str, Any]:
        return {"message": self.left.pop(0)}


STARTING = ("Initializing StreamExecution", "Initializing sources")


@pytest.mark.parametrize(
    ("messages", "left"),
    [
        ((*STARTING, "Getting offsets", "Processing"), ["Processing"]),
        (("Waiting for data", "Processing"), ["Processing"]),
        (STARTING, []),
    ],
)
def test_the_next_query_waits_for_the_sources_of_the_one_before(
    messages: tuple[str, ...], left: list[str]
) -> None:
    """S4: a process of Python has ten seconds to start, and many at once would take each other's time."""
    handle: Any = Handle(*messages)
    wait_for_sources(handle, threading.Event())
    assert handle.left == left


def test_a_run_that_is_asked_to_stop_waits_for_no_source() -> None:
    """S4: Ctrl-C may come at any time."""
    stop = threading.Event()
    stop.set()
    handle: Any = Handle(*STARTING)
    wait_for_sources(handle, stop)
    assert handle.left == [STARTING[1]]
