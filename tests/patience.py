"""Waiting for what another process does in its own time."""

from __future__ import annotations

import time
from collections.abc import Callable

WAIT_S = 200.0


def wait_until(happens: Callable[[], object]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not happens():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.2)
