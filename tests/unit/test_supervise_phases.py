"""What is left when a supervisor ends in the middle of something, and what the next one makes of it."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from braidmq.platform.lock import DirectoryLock, holder_of
from braidmq.platform.processes import Process, start
from braidmq.supervise import Child, Supervisor
from unit.supervised import plan
from unit.test_supervise import Running, _importable, until

__all__ = ["_importable"]


def test_a_broker_that_was_started_just_before_its_supervisor_was_killed_is_kept(tmp_path: Path) -> None:
    """W2: it takes its directory after the next supervisor has looked; that is no reason to give up."""

    async def story() -> None:
        (tmp_path / "1").mkdir()
        (tmp_path / "1" / "mood").write_text("late")
        running = Running(plan(tmp_path, brokers=1))
        await until(lambda: not (tmp_path / "1" / "mood").exists())
        orphan = subprocess.Popen(
            running.supervisor.command(running.supervisor.children[0]), stdout=subprocess.DEVNULL
        )
        reaping = asyncio.ensure_future(asyncio.to_thread(orphan.wait))
        try:
            await running.ready()
            assert running.pids == [orphan.pid]
            await running.stop()
            assert await reaping == 0
        finally:
            orphan.kill()

    asyncio.run(story())


def test_a_broker_is_started_again_whatever_went_wrong_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """W2: a defect in what the supervisor does for one broker does not leave it dead without a word."""
    failures = iter([True, True])
    after_end = Supervisor._after_end

    async def sometimes(self: Supervisor, child: Child, process: Process, code: int | None) -> None:
        if next(failures, False):
            raise ValueError("planted")
        await after_end(self, child, process, code)

    monkeypatch.setattr(Supervisor, "_after_end", sometimes)

    async def story() -> None:
        running = await Running(plan(tmp_path, brokers=1)).ready()
        child, pid = running.supervisor.children[0], running.pids[0]
        os.kill(pid, signal.SIGKILL)
        await until(lambda: child.ready.is_set() and running.pids[0] not in (0, pid))
        await running.stop()

    asyncio.run(story())


def test_the_holder_of_a_directory_has_its_lock_open(tmp_path: Path) -> None:
    """W2: the number of a process that was given away again is nobody to be stopped."""
    lock = DirectoryLock(tmp_path)
    assert holder_of(tmp_path) == os.getpid()
    innocent = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        (tmp_path / "lock").write_text(f"{innocent.pid}\n")
        assert holder_of(tmp_path) == 0
    finally:
        innocent.kill()
        innocent.communicate()
    (tmp_path / "lock").write_text(f"{innocent.pid}\n")
    assert holder_of(tmp_path) == 0, "a process that has ended"
    lock.release()
    assert holder_of(tmp_path) is None


def test_a_process_that_has_ended_is_not_signalled() -> None:
    """W2: also when nobody has noticed its end yet; no descriptor stays open."""

    async def story() -> None:
        before = _open_descriptors()
        process = start([sys.executable, "-c", ""], lambda _: None, holds_stdin=False, environment={})
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        process.signal(signal.SIGTERM)
        assert await process.wait() == 0
        assert _open_descriptors() == before

    asyncio.run(story())


def _open_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))
