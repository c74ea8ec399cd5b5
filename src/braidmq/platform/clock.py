"""Time comes in through here, so that tests and simulations can bring their own.

Wall time stamps records and may jump when the machine's clock is set; anything that waits or measures uses
monotonic time, which never goes back. What others agree on by counting, a lease, uses the time since the
machine was started: it counts while the machine is suspended, as everybody else's does.
"""

from __future__ import annotations

import time
from typing import Protocol

_BOOTTIME = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""Linux has it; elsewhere the monotonic clock is the nearest."""


class Clock(Protocol):
    """Where the time comes from."""

    def wall_ms(self) -> int:
        """Milliseconds since 1970, as records are stamped."""
        ...

    def monotonic(self) -> float:
        """Seconds since some fixed point; never goes back."""
        ...

    def boottime(self) -> float:
        """As `monotonic`, and the time in which the machine was suspended counts."""
        ...


class SystemClock:
    """The machine's own clocks."""

    __slots__ = ()

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        return time.monotonic()

    def boottime(self) -> float:
        return time.clock_gettime(_BOOTTIME)

    def sleep(self, seconds: float) -> None:
        """Blocks the calling thread; for clients and tools, never for a broker's loop."""
        time.sleep(seconds)
