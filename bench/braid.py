"""Braid as a server under test: this checkout, its defaults, one process."""

from __future__ import annotations

import select
import subprocess
import sys
import time

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
        serve = [sys.executable, "-m", "braidmq", "serve"]
        command = [*serve, "--data", str(self.directory / "data"), "--listen", self.bootstrap]
        with open(self.directory / "output", "ab") as output:
            self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=output)

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
