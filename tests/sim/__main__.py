"""Runs seeds of the simulation: `python -m tests.sim --seeds 1000 --start 0`, or one of them: `--seed 17`.

The order of a set of strings depends on PYTHONHASHSEED, which Python draws at its start unless it is given.
So a run is started again with a fixed one; without that a seed would not be the same run in every process.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.sim.simulation import Verdict

HASH_SEED = "0"


def main() -> int:
    if os.environ.get("PYTHONHASHSEED") != HASH_SEED:
        os.environ["PYTHONHASHSEED"] = HASH_SEED
        os.execv(sys.executable, [sys.executable, "-m", "tests.sim", *sys.argv[1:]])
    # Not before: whatever is imported makes sets.
    from tests.sim.cluster import ClusterSimulation
    from tests.sim.simulation import Simulation

    options = _parser().parse_args()

    def simulate(seed: int) -> Verdict:
        if options.nodes == 1:
            return Simulation(seed).run()
        return ClusterSimulation(seed, options.nodes).run()

    if options.seed is not None:
        return _tell(simulate(options.seed))
    failing = 0
    began = time.monotonic()
    for done, seed in enumerate(range(options.start, options.start + options.seeds), 1):
        verdict = simulate(seed)
        if verdict.findings:
            failing += 1
            print(f"\rseed {seed}: {verdict.findings[0]}")
            print(f"  to see it again: python -m tests.sim --seed {seed} --nodes {options.nodes}")
        if options.digests:
            print(seed, verdict.digest)
        else:
            _show(done, options.seeds, failing, time.monotonic() - began)
    return bool(failing)


def _tell(verdict: Verdict) -> int:
    """What happened in one run."""
    print("\n".join(verdict.told))
    print(
        f"{verdict.digest}: {verdict.callbacks} callbacks, {verdict.virtual_s:.1f} s of virtual time,"
        f" {verdict.acked} acked"
    )
    print("\n".join(verdict.findings) or "nothing found")
    return bool(verdict.findings)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.sim", description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=100, help="how many to run")
    parser.add_argument("--start", type=int, default=0, help="the first of them")
    parser.add_argument("--seed", type=int, help="run this one and tell what happened")
    parser.add_argument(
        "--nodes", type=int, default=3, help="brokers of one cluster; 1: a single broker with its own store"
    )
    parser.add_argument("--digests", action="store_true", help="print what each run hashes to")
    return parser


def _show(done: int, of: int, failing: int, seconds: float) -> None:
    width = 40
    bar = "#" * (width * done // of)
    left_s = seconds / done * (of - done)
    print(
        f"\r[{bar:<{width}}] {done}/{of}, {failing} failing, {left_s:.0f} s left ",
        end="" if done < of else "\n",
        flush=True,
    )


if __name__ == "__main__":
    sys.exit(main())
