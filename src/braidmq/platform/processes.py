"""Other processes of this machine: started by exec, watched until they end, signalled.

Never by fork: gRPC, threads and event loops do not survive one. A process that somebody else has started is
watched like a child; Linux does so with a descriptor that becomes readable when the process ends, elsewhere
it is looked at a few times a second.

A started process is in a process group of its own, so that Ctrl-C reaches only the one that started it, which
then stops the others in its own order. It writes to our stderr directly. A pipe between would break with us,
and would block the other end whenever we stand still.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

LOOK_EVERY_S = 0.1
LINE_BYTES_MAX = 64 * 1024


class Process:
    """A process that runs, or has ended."""

    def __init__(self, pid: int, child: subprocess.Popen[bytes] | None = None) -> None:
        self.pid = pid
        self._child = child
        self._ended: asyncio.Future[int | None] = asyncio.get_running_loop().create_future()
        self._descriptor = -1
        self._looking: asyncio.TimerHandle | None = None
        self._watch()

    @property
    def is_ours(self) -> bool:
        """Whether it was started here."""
        return self._child is not None

    @property
    def ended(self) -> bool:
        return self._ended.done()

    async def wait(self) -> int | None:
        """Returns when it has ended: its exit code, negative for a signal; None if it is not our child."""
        return await asyncio.shield(self._ended)

    def signal(self, number: signal.Signals) -> None:
        if self.ended:
            return
        with contextlib.suppress(ProcessLookupError):
            if self._descriptor >= 0:
                # Never another process that was given the same number meanwhile.
                signal.pidfd_send_signal(self._descriptor, number)
            else:
                os.kill(self.pid, number)

    def let_go(self) -> None:
        """Watches it no longer."""
        loop = asyncio.get_running_loop()
        if self._looking is not None:
            self._looking.cancel()
            self._looking = None
        if self._descriptor >= 0:
            loop.remove_reader(self._descriptor)
            os.close(self._descriptor)
            self._descriptor = -1
        if self._child is not None:
            if self._child.stdout is not None and not self._child.stdout.closed:
                loop.remove_reader(self._child.stdout.fileno())
                self._child.stdout.close()
            if self._child.stdin is not None:
                self._child.stdin.close()

    def _watch(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            self._descriptor = os.pidfd_open(self.pid)
        except ProcessLookupError:
            self._end(None)
        except (AttributeError, OSError):
            self._looking = loop.call_later(LOOK_EVERY_S, self._look)
        else:
            loop.add_reader(self._descriptor, self._on_end)

    def _look(self) -> None:
        if self._child is not None:
            runs = self._child.poll() is None
        else:
            runs = _exists(self.pid)
        if runs:
            self._looking = asyncio.get_running_loop().call_later(LOOK_EVERY_S, self._look)
        else:
            self._on_end()

    def _on_end(self) -> None:
        code = None
        if self._child is not None and (code := self._child.poll()) is None:
            return
        self._end(code)

    def _end(self, code: int | None) -> None:
        self.let_go()
        if not self._ended.done():
            self._ended.set_result(code)


def start(
    command: Sequence[str], on_line: Callable[[str], None], *, holds_stdin: bool, environment: dict[str, str]
) -> Process:
    """Starts a program; `on_line` gets what it writes to stdout, line by line.

    With `holds_stdin` its stdin is a pipe that closes when this process ends; else it has none.
    """
    child = subprocess.Popen(
        command,
        stdin=subprocess.PIPE if holds_stdin else subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        env=environment,
        process_group=0,
    )
    assert child.stdout is not None
    _Lines(child.stdout.fileno(), on_line)
    return Process(child.pid, child)


class _Lines:
    """Hands on the lines that arrive at a pipe, each bounded."""

    def __init__(self, descriptor: int, on_line: Callable[[str], None]) -> None:
        self._descriptor = descriptor
        self._on_line = on_line
        self._held = b""
        os.set_blocking(descriptor, False)
        asyncio.get_running_loop().add_reader(descriptor, self._read)

    def _read(self) -> None:
        try:
            found = os.read(self._descriptor, 4096)
        except BlockingIOError:
            return
        except OSError:
            found = b""
        if not found:
            asyncio.get_running_loop().remove_reader(self._descriptor)
            return
        *lines, self._held = (self._held + found)[-LINE_BYTES_MAX:].split(b"\n")
        for line in lines:
            self._on_line(line.decode(errors="replace"))


def command_of(pid: int) -> list[str] | None:
    """What a process was started with; None where the system does not tell."""
    try:
        return [os.fsdecode(word) for word in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[:-1]]
    except OSError:
        return None


def usable_cores() -> int:
    """How many cores this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:
        return os.cpu_count() or 1


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True
