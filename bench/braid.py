"""Braid as a server under test: this checkout or another one, its defaults, one process or several."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import time
from pathlib import Path

import braidmq

from .server import Durability, Server, free_port

READY_SECONDS_MAX = 60


class Braid(Server):
    name = "braid"

    @staticmethod
    def version() -> str:
        return braidmq.__version__

    def launch(self) -> None:
        self.address = ("127.0.0.1", free_port())
        serve = [sys.executable, "-m", "braidmq", "serve", *self._arguments()]
        command = [*serve, "--data", str(self.directory / "data"), "--listen", self.bootstrap]
        with open(self.directory / "output", "ab") as output:
            self.process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=output, env=self._environment()
            )

    def wait_ready(self) -> None:
        assert self.process is not None
        output = self.process.stdout
        assert output is not None
        deadline = time.monotonic() + READY_SECONDS_MAX
        while time.monotonic() < deadline:
            self.check_alive()
            if select.select([output], [], [], 0.1)[0] and output.readline().startswith(b"ready"):
                return
        raise RuntimeError(f"braid was not ready within {READY_SECONDS_MAX} s")

    def topic_config(self, durability: Durability) -> dict[str, str]:
        return {"flush": "sync" if durability is Durability.SYNCED else "async"}

    def _arguments(self) -> list[str]:
        return []

    def _environment(self) -> dict[str, str]:
        return dict(os.environ)


class OtherCheckout(Braid):
    """Braid as it is in another directory, to see what a change costs."""

    name = "other"

    def __init__(self, directory: Path, root: Path) -> None:
        super().__init__(directory)
        self._root = root

    def _environment(self) -> dict[str, str]:
        return {**os.environ, "PYTHONPATH": str(self._root / "src")}


class Brokers(Braid):
    """Several brokers of this checkout on this machine; their cost is that of all their processes."""

    name = "brokers"
    leads_everything = False

    def __init__(self, directory: Path, count: int) -> None:
        super().__init__(directory)
        self._count = count

    def _arguments(self) -> list[str]:
        return ["--brokers", str(self._count)]

    def cpu_seconds(self) -> float:
        return sum(self.cpu_seconds_of(pid) for pid in self._pids())

    def _status_kb(self, field: str) -> int:
        return sum(self.status_kb_of(pid, field) for pid in self._pids())

    def _pids(self) -> list[int]:
        children = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()
        return [self.pid, *map(int, children)]
