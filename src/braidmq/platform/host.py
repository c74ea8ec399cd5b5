"""The machine that a broker runs on, as one value: clock, disk, network and threads.

Randomness has one source for the whole process (`platform/randomness.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from braidmq.platform.clock import Clock, SystemClock
from braidmq.platform.disk import Disk, RealDisk
from braidmq.platform.network import Network, SocketNetwork
from braidmq.platform.threads import DiskThreads


@dataclass(frozen=True, slots=True)
class Host:
    """What a broker stands on; by default the machine itself."""

    clock: Clock = field(default_factory=SystemClock)
    disk: Disk = field(default_factory=RealDisk)
    network: Network = field(default_factory=SocketNetwork)
    threads: Callable[[asyncio.AbstractEventLoop, int], DiskThreads] = DiskThreads
    """Makes a pool of so many threads."""
