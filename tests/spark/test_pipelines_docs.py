"""The pages about Spark, run as they stand: one broker and one folder per page, one session for all.

Blocks are run in the order of the page. A yaml block whose first line names a file becomes that file. In sh
blocks the commands that need Spark (`braid pipeline`, `braid lake`) run in this process, with the session all
tests share; the others in a shell. tests/test_docs.py leaves these pages out.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import braidmq.spark
from braidmq.cli import main
from braidmq.testing import broker

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
ADDRESS = "127.0.0.1:9092"
PAGES = ["lake", "pipelines", "rescue"]


@pytest.fixture
def shared_session(spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever asks for a session gets a part of the shared one, and may stop it without harm."""
    from pyspark.sql import SparkSession

    monkeypatch.setattr(braidmq.spark, "session", lambda *_, **__: spark.newSession())
    monkeypatch.setattr(SparkSession, "stop", lambda _: None)


@pytest.mark.timeout(600)
@pytest.mark.usefixtures("shared_session")
@pytest.mark.parametrize("page", PAGES)
def test_what_a_page_shows_runs(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """S4 S5 S6 S7 O1: from a new topic to a pipeline of one's own, with the page alone."""
    monkeypatch.chdir(tmp_path)
    text = (ROOT / "docs" / "use" / f"{page}.md").read_text(encoding="utf-8")
    with broker() as running:
        monkeypatch.setenv("BRAID_BOOTSTRAP", running.bootstrap)
        for kind, block in BLOCK.findall(text.replace(ADDRESS, running.bootstrap)):
            if kind == "yaml" and block.startswith("# "):
                Path(block.split()[1]).write_text(block)
            elif kind == "sh":
                for line in block.strip().splitlines():
                    check_command(line, tmp_path)
            elif kind == "python":
                file = tmp_path / "example.py"
                file.write_text(block)
                exec(compile(block, str(file), "exec"), {"__name__": "__main__"})


def check_command(line: str, folder: Path) -> None:
    """Runs one command; it must succeed."""
    if re.match(r"braid (pipeline|lake|topic (audit|report|reshard|redrive)) ", line):
        assert main(shlex.split(line)[1:]) == 0, line
        return
    command = folder / "bin" / "braid"
    if not command.exists():
        command.parent.mkdir()
        command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m braidmq "$@"\n')
        command.chmod(0o755)
    path = os.pathsep.join([str(command.parent), os.environ["PATH"]])
    environment = {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(["sh", "-c", line], capture_output=True, text=True, env=environment, timeout=60)
    assert done.returncode == 0, f"{line}: {done.stderr}"
