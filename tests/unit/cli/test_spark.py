"""Commands on Spark where something is missing or in the way; none of them gets as far as a session."""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from unit.cli.conftest import Braid

WITHOUT_SPARK = """
import sys
sys.modules["pyspark"] = None
from braidmq.cli import main
for words in (
    ["lake", "describe", "l"],
    ["lake", "query", "l", "SELECT 1"],
    ["lake", "compact", "l"],
    ["lake", "replay", "l", "--to-topic", "orders", "--from", "1d", "--yes"],
    ["topic", "audit", "orders", "l"],
    ["topic", "report", "orders"],
    ["topic", "reshard", "orders", "--partitions", "4"],
    ["topic", "redrive", "dead", "--to-topic", "orders"],
):
    assert main(words) == 2, words
"""


def test_without_pyspark_every_command_says_how_to_get_it(tmp_path: Path) -> None:
    """S5 S6 O1: in one line."""
    program = [sys.executable, "-c", WITHOUT_SPARK]
    done = subprocess.run(program, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    lines = done.stderr.splitlines()
    assert (done.returncode, len(lines)) == (0, 8), done.stderr
    assert all("pip install 'braidmq[spark]'" in line for line in lines)


def test_a_file_in_the_way_is_one_line(
    braid: Braid, new_topic: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S5 O1: what the system says, with the name."""

    def no_session(*_: Any, **__: Any) -> Any:
        return SimpleNamespace(stop=lambda: None)

    # By its module: the package has a function of that name.
    monkeypatch.setattr(importlib.import_module("braidmq.spark.session"), "session", no_session)
    (tmp_path / "file").write_text("dear")
    for to, said in (("file", "Not a directory"), ("file/below", "Not a directory")):
        _, err = braid("lake", "archive", new_topic(), "--to-dir", str(tmp_path / to), "--once", code=2)
        assert (said in err, str(tmp_path / "file") in err, len(err.splitlines())) == (True, True, 1)
