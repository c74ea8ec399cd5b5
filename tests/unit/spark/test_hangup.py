"""What Spark's forked processes print when a query ends."""

from __future__ import annotations

import sys
import traceback
from importlib.machinery import ModuleSpec
from types import ModuleType

import pytest

from braidmq.spark.hangup import expect_hang_ups


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
    expect_hang_ups()
    try:
        raise error
    except Exception:
        daemon.traceback.print_exc()
    assert (str(error) in capsys.readouterr().err) is is_told


def test_other_programs_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """S1: a user's own main module keeps what it has."""
    program = ModuleType("__main__")
    program.traceback = traceback  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "__main__", program)
    expect_hang_ups()
    assert program.traceback is traceback
