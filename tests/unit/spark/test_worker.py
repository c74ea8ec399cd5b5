"""What Spark's worker processes collect after each request, and print when a query ends."""

from __future__ import annotations

import gc
import platform
import subprocess
import sys
import traceback
from collections.abc import Iterator
from importlib.machinery import ModuleSpec
from types import ModuleType

import pytest

from braidmq.spark import worker
from braidmq.spark.worker import SESSION, adapt_worker


def in_a_daemon(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """As in a process that was worker from Spark's own daemon."""
    daemon = ModuleType("__main__")
    daemon.__spec__ = ModuleSpec("pyspark.daemon", None)
    daemon.traceback, daemon.gc = traceback, gc  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "__main__", daemon)
    return daemon


@pytest.mark.parametrize(
    ("error", "is_told"), [(BrokenPipeError("the JVM is gone"), False), (ValueError("a bug"), True)]
)
def test_a_broken_pipe_is_no_news_and_anything_else_is(
    error: Exception, is_told: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """S1 S3: in processes of Spark's own daemon."""
    daemon = in_a_daemon(monkeypatch)
    monkeypatch.setenv(SESSION, "1")
    adapt_worker()
    try:
        raise error
    except Exception:
        daemon.traceback.print_exc()
    assert (str(error) in capsys.readouterr().err) is is_told


def test_sessions_of_others_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """S1: their processes import our source too, and run code that is not ours."""
    monkeypatch.delenv(SESSION, raising=False)
    monkeypatch.setattr(worker, "keep_memory", lambda: pytest.fail("memory is not ours to keep"))
    daemon = in_a_daemon(monkeypatch)
    adapt_worker()
    assert (daemon.traceback, daemon.gc) == (traceback, gc)


def test_other_programs_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """S1: a user's own main module keeps what it has."""
    program = ModuleType("__main__")
    program.traceback, program.gc = traceback, gc  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "__main__", program)
    adapt_worker()
    assert (program.traceback, program.gc) == (traceback, gc)


@pytest.fixture
def little_to_look_at() -> Iterator[None]:
    """Here too: what all the tests before have left behind takes most of a second to go through."""
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.mark.usefixtures("little_to_look_at")
def test_what_is_left_after_the_first_requests_is_not_looked_at_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """S1: after 1, 2, 4, … and 64 of them; garbage is found after every one."""
    frozen_after: list[int] = []
    monkeypatch.setattr(worker, "_requests", 0)
    monkeypatch.setattr(gc, "freeze", lambda: frozen_after.append(worker._requests))
    for _ in range(200):
        knot: list[object] = []
        knot.append(knot)
        del knot
        assert worker.collect() >= 1
    assert frozen_after == [1, 2, 4, 8, 16, 32, 64]


@pytest.mark.skipif(sys.platform != "linux" or platform.libc_ver()[0] != "glibc", reason="only glibc is told")
def test_a_buffer_that_is_freed_is_used_again() -> None:
    """S3: the next one of a megabyte does not come from the kernel page by page."""
    program = """
import resource, sys
from braidmq.spark.worker import keep_memory
if sys.argv[1] == "kept":
    keep_memory()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(50):
    buffers = [b"x" * 1_000_000 for _ in range(16)]
    del buffers
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""
    faults = {
        how: int(subprocess.run([sys.executable, "-c", program, how], capture_output=True, check=True).stdout)
        for how in ("kept", "given back")
    }
    assert faults["kept"] * 10 < faults["given back"]
