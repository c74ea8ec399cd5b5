"""`braid serve` as a child process: started, killed, restarted, and never left behind.

The child holds the read end of a pipe as its stdin and stops when the other end closes, so it ends even when
the test process is killed. Its `ready` line is awaited on stdout; what it says on stderr is kept in a file
beside the data and becomes part of the exception when it does not start.
"""

from __future__ import annotations

import os
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import IO, Self

import braidmq
from braidmq.config import configure

START_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 30.0


class BrokerFailed(RuntimeError):
    """The broker did not start or did not stop; the message carries what it printed."""


class BrokerProcess:
    """One broker on one data directory. `bootstrap` stays the same over kill and restart."""

    def __init__(
        self,
        directory: Path,
        options: Mapping[str, object] | None = None,
        listen: str = "127.0.0.1:0",
        advertise: str | None = None,
    ) -> None:
        self.data = directory / "data"
        self.bootstrap = ""
        self._stderr_path = directory / "stderr.txt"
        self._listen = listen
        self._advertise = advertise
        self._settings = [f"{name}={value}" for name, value in configure(options).given.items()]
        self._child: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        if self._child is None:
            raise BrokerFailed("the broker is not running")
        return self._child.pid

    @property
    def running(self) -> bool:
        return self._child is not None and self._child.poll() is None

    @property
    def stderr(self) -> str:
        """Everything the broker has said on stderr, over all its starts."""
        return self._stderr_path.read_text(errors="replace") if self._stderr_path.exists() else ""

    def start(self) -> None:
        """Returns once clients can connect."""
        if self.running:
            raise BrokerFailed(f"the broker already runs as process {self.pid}")
        self._child = self._spawn()
        try:
            self.bootstrap = self._await_ready(self._child)
        except BaseException:
            self.kill()
            raise
        self._listen = self.bootstrap

    def stop(self) -> None:
        """SIGTERM: answers under way are finished, the log is closed cleanly."""
        child, self._child = self._child, None
        if child is None:
            return
        child.terminate()
        try:
            code = child.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
            raise BrokerFailed(f"the broker did not stop within {STOP_TIMEOUT_S} s of SIGTERM") from None
        finally:
            _close_pipes(child)
        if code not in (0, -15):
            raise BrokerFailed(f"the broker ended with exit code {code}\n{self.stderr}")

    def kill(self) -> None:
        """SIGKILL: as if the process had crashed. The data stays; `restart` recovers from it."""
        child, self._child = self._child, None
        if child is not None:
            child.kill()
            child.wait()
            _close_pipes(child)

    def restart(self) -> None:
        """Starts again on the same port and data; stops cleanly first if the broker still runs."""
        if self.running:
            self.stop()
        self.start()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.running and error is None:
            self.stop()
        else:
            self.kill()

    def _program(self) -> list[str]:
        return [sys.executable, "-m", "braidmq"]

    def _arguments(self) -> list[str]:
        """More words of the command, of whoever starts more than a single broker."""
        return []

    def _spawn(self) -> subprocess.Popen[bytes]:
        command = [*self._program(), "serve", "--stop-on-eof"]
        command += ["--data", str(self.data), "--listen", self._listen]
        if self._advertise is not None:
            command += ["--advertise", self._advertise]
        command += self._arguments()
        for setting in self._settings:
            command += ["-o", setting]
        with self._stderr_path.open("ab") as stderr:
            return subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr, env=_environment()
            )

    def _await_ready(self, child: subprocess.Popen[bytes]) -> str:
        assert child.stdout is not None
        line = _read_line(child.stdout, START_TIMEOUT_S)
        words = line.split()
        if len(words) < 2 or words[0] != "ready":
            raise BrokerFailed(f"the broker did not become ready; it said {line!r}\n{self.stderr}")
        return words[1]


def _environment() -> dict[str, str]:
    """Ours, with this very package first on the path and without BRAID_ options meant for another broker."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("BRAID_")}
    package_parent = str(Path(braidmq.__file__).parents[1])
    paths = [package_parent, *filter(None, [environment.get("PYTHONPATH")])]
    environment["PYTHONPATH"] = os.pathsep.join(paths)
    return environment


def _read_line(stream: IO[bytes], timeout_s: float) -> str:
    """The first line, or as much of it as came before the stream ended or the time was up."""
    deadline = time.monotonic() + timeout_s
    received = b""
    while b"\n" not in received:
        left_s = deadline - time.monotonic()
        if left_s <= 0 or not select.select([stream], [], [], left_s)[0]:
            break
        chunk = os.read(stream.fileno(), 4096)
        if not chunk:
            break
        received += chunk
    return received.partition(b"\n")[0].decode(errors="replace")


def _close_pipes(child: subprocess.Popen[bytes]) -> None:
    for pipe in (child.stdin, child.stdout):
        if pipe is not None:
            pipe.close()


@contextmanager
def broker(
    data: str | Path | None = None,
    listen: str = "127.0.0.1:0",
    advertise: str | None = None,
    **options: object,
) -> Iterator[BrokerProcess]:
    """A running broker; stopped, and its temporary directory removed, at the end of the `with` block.

    Options are those of `braid config` with underscores for dots (`retention_ms=1000`). With `data`, the
    log is kept in that directory and stays. With `advertise`, clients get that address: that of a proxy
    in front of the broker, say, that cuts and delays what passes.
    """
    given = {name.replace("_", "."): value for name, value in options.items()}
    with tempfile.TemporaryDirectory(prefix="braid-") as temporary:
        directory = Path(data) if data is not None else Path(temporary)
        directory.mkdir(parents=True, exist_ok=True)
        with BrokerProcess(directory, given, listen, advertise) as running:
            yield running
