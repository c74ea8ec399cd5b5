"""A server under test: a process with an address, and what the kernel knows of its cost."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from enum import StrEnum
from pathlib import Path

from .channel import Address

CPU_CLOCK_OF_PROCESS = 2
STOP_SECONDS_MAX = 120


def end_on_sigterm() -> None:
    """A run that is told to stop leaves by way of its `finally`s, which stop the servers."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))


class Durability(StrEnum):
    """What an ack promises. Like is compared with like."""

    CACHED = "cached"
    """The record is in the page cache: Braid flush=async, Kafka as it comes."""
    SYNCED = "synced"
    """The record is on disk: Braid flush=sync, Kafka flush.messages=1."""


class Server(ABC):
    """One kind of server; `start` may be called again after `stop`, on the same directory."""

    name: str
    leads_everything = True
    """Whether its one address serves every partition."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.directory.mkdir(parents=True, exist_ok=True)
        self.address: Address = ("127.0.0.1", 0)
        self.process: subprocess.Popen[bytes] | None = None

    @abstractmethod
    def launch(self) -> None:
        """Starts the process and returns at once; sets `process` and, where it can be known, `address`."""

    @abstractmethod
    def wait_ready(self) -> None:
        """Returns when the server says that it serves clients."""

    @abstractmethod
    def topic_config(self, durability: Durability) -> dict[str, str]: ...

    def wide_topic_config(self) -> dict[str, str]:
        """What a topic of a thousand partitions needs besides."""
        return {}

    def prepare(self) -> None:  # noqa: B027 - most servers need nothing
        """What has to be done once in a new directory, before the clock of a start runs."""

    def start(self) -> None:
        self.prepare()
        self.launch()
        self.wait_ready()

    @property
    def bootstrap(self) -> str:
        return f"{self.address[0]}:{self.address[1]}"

    @property
    def pid(self) -> int:
        if self.process is None:
            raise RuntimeError(f"{self.name} is not running")
        return self.process.pid

    def stop(self) -> None:
        if self.process is None:
            return
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()
        self.process = None

    def cpu_seconds(self) -> float:
        """User and system time of all the process's threads so far, to the nanosecond.

        /proc/PID/stat holds the same in ticks of 10 ms, too coarse for a load that takes a second. The
        number of another process's CPU clock is made of its pid, as clock_getcpuclockid(3) does it.
        """
        return self.cpu_seconds_of(self.pid)

    @staticmethod
    def cpu_seconds_of(pid: int) -> float:
        return time.clock_gettime(~pid << 3 | CPU_CLOCK_OF_PROCESS)

    def rss_mb(self) -> float:
        return self._status_kb("VmRSS") / 1000

    def rss_peak_mb(self) -> float:
        return self._status_kb("VmHWM") / 1000

    def _status_kb(self, field: str) -> int:
        return self.status_kb_of(self.pid, field)

    @staticmethod
    def status_kb_of(pid: int, field: str) -> int:
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith(field + ":"):
                return int(line.split()[1])
        raise RuntimeError(f"/proc has no {field} for process {pid}")

    def check_alive(self) -> None:
        if self.process is None or self.process.poll() is not None:
            raise RuntimeError(f"{self.name} stopped by itself; its output: {self.directory / 'output'}")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_connectable(server: Server, seconds_max: float) -> None:
    """Polls until the server's port accepts connections."""
    deadline = time.monotonic() + seconds_max
    while time.monotonic() < deadline:
        server.check_alive()
        try:
            socket.create_connection(server.address, timeout=1).close()
            return
        except OSError:
            time.sleep(0.005)
    raise RuntimeError(f"{server.name} did not accept connections within {seconds_max:.0f} s")
