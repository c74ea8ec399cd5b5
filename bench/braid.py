"""Braid as a server under test: this checkout, its defaults, one process."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import time

import braidmq

from .server import Durability, Server, free_port

READY_SECONDS_MAX = 60


class Braid(Server):
    name = "braid"

    def version(self) -> str:
        return braidmq.__version__

    def launch(self) -> None:
        self.address = ("127.0.0.1", free_port())
        output = open(self.directory / "output", "ab")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "braidmq", "serve", "--data", str(self.directory / "data"),
             "--listen", f"127.0.0.1:{self.address[1]}"],
            stdout=subprocess.PIPE, stderr=output, env=os.environ | {"PYTHONUNBUFFERED": "1"},
        )  # fmt: skip
        output.close()

    def wait_ready(self) -> None:
        assert self.process is not None and self.process.stdout is not None
        deadline = time.monotonic() + READY_SECONDS_MAX
        while time.monotonic() < deadline:
            self.check_alive()
            if select.select([self.process.stdout], [], [], 0.1)[0] and b"ready" in self.process.stdout.readline():
                return
        raise RuntimeError(f"braid was not ready within {READY_SECONDS_MAX} s")

    def topic_config(self, durability: Durability) -> dict[str, str]:
        return {"flush": "sync" if durability is Durability.SYNCED else "async"}
