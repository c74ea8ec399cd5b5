"""The machine that a broker runs on, as one value: clock, disk, network, threads, and which machine it is.

Randomness has one source for the whole process (`platform/randomness.py`).
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from braidmq.platform.clock import Clock, SystemClock
from braidmq.platform.disk import Disk, RealDisk
from braidmq.platform.network import Network, SocketNetwork
from braidmq.platform.threads import DiskThreads


def _boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


@dataclass(frozen=True, slots=True)
class Host:
    """What a broker stands on; by default the machine itself."""

    clock: Clock = field(default_factory=SystemClock)
    disk: Disk = field(default_factory=RealDisk)
    network: Network = field(default_factory=SocketNetwork)
    threads: Callable[[asyncio.AbstractEventLoop, int], DiskThreads] = DiskThreads
    """Makes a pool of so many threads."""
    name: str = field(default_factory=socket.gethostname)
    boot_id: str = field(default_factory=_boot_id)
    """Another one after every start of the machine; empty where the system does not tell."""
