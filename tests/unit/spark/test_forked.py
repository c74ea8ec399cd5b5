"""What Spark's forked processes collect after each request, and print when a query ends."""

from __future__ import annotations

import gc
import sys
import traceback
from collections.abc import Iterator
from importlib.machinery import ModuleSpec
from types import ModuleType

import pytest

from braidmq.spark import forked
from braidmq.spark.forked import settle_in


@pytest.mark.parametrize(
    ("error", "is_told"), [(BrokenPipeError("the JVM is gone"), False), (ValueError("a bug"), True)]
)
def test_a_broken_pipe_is_no_news_and_anything_else_is(
    error: Exception, is_told: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """S1 S3: in processes of Spark's own daemon."""
    daemon = ModuleType("__main__")
    daemon.__spec__ = ModuleSpec("pyspark.daemon", None)
    daemon.traceback = traceback  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "__main__", daemon)
    settle_in()
    try:
        raise error
    except Exception:
        daemon.traceback.print_exc()
    assert (str(error) in capsys.readouterr().err) is is_told


def test_other_programs_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """S1: a user's own main module keeps what it has."""
    program = ModuleType("__main__")
    program.traceback, program.gc = traceback, gc  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "__main__", program)
    settle_in()
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
    monkeypatch.setattr(forked, "_requests", 0)
    monkeypatch.setattr(gc, "freeze", lambda: frozen_after.append(forked._requests))
    for _ in range(200):
        knot: list[object] = []
        knot.append(knot)
        del knot
        assert forked.collect() >= 1
    assert frozen_after == [1, 2, 4, 8, 16, 32, 64]
