"""Whole brokers under faults drawn from seeds; `python -m tests.sim` runs as many as wanted.

Seeds run in a process of their own, as `tests.sim.__main__` says why; so what fails here fails there as well.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SEEDS, TOGETHER = 10, 10
CLUSTER_SEEDS = 50
"""What there is time for in every run of the tests; `python -m tests.sim` runs as many as wanted."""


def simulate(*options: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join((str(ROOT / "src"), str(ROOT)))}
    command = [sys.executable, "-m", "tests.sim", *options]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


def assert_sound(done: subprocess.CompletedProcess[str]) -> None:
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]


@pytest.mark.timeout(600)
@pytest.mark.parametrize("start", range(0, SEEDS, TOGETHER))
def test_a_broker_keeps_its_promises_whatever_happens_to_it(start: int) -> None:
    """L6 L4 P4 T2 C6: power losses, stops, pauses, cuts, full and failing disks, under every kind of load."""
    assert_sound(simulate("--start", str(start), "--seeds", str(TOGETHER), "--nodes", "1"))


@pytest.mark.timeout(600)
@pytest.mark.parametrize("start", range(0, CLUSTER_SEEDS, TOGETHER))
def test_a_cluster_keeps_its_promises_whatever_happens_to_it(start: int) -> None:
    """N4 L6 T2 C6: three brokers and their store, which is away, loses answers, lags and compacts, too."""
    assert_sound(simulate("--start", str(start), "--seeds", str(TOGETHER), "--nodes", "3"))


@pytest.mark.timeout(600)
@pytest.mark.parametrize("nodes", ["1", "3"])
def test_a_seed_gives_the_same_run_again_down_to_the_last_byte(nodes: str) -> None:
    """L6: in another process, too, where everything lies at other addresses."""
    options = ("--start", "0", "--seeds", "2", "--nodes", nodes, "--digests")
    first, again = (simulate(*options) for _ in range(2))
    assert_sound(first)
    assert first.stdout.count("\n") == 2
    assert first.stdout == again.stdout
