"""`python -m tests.chaos`: a long kill -9 run with a line of progress; see `scripts/chaos`."""

from __future__ import annotations

import argparse
import random
import sys
import time

from tests.chaos.kills import Plan, Progress, run
from tests.chaos.load import ChaosFailed

REPORT_EVERY_S = 2.0


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/chaos", description=__doc__)
    parser.add_argument("--kills", type=int, default=1_000, help="kills of the broker (default 1000)")
    parser.add_argument("--seconds", type=float, help="end after this long, whatever the number of kills")
    parser.add_argument("--seed", type=int, help="the moments of the kills; printed, random by default")
    parser.add_argument("--partitions", type=int, default=6)
    parser.add_argument("--senders", type=int, default=3, help="idempotent producers (default 3)")
    given = parser.parse_args()
    seed = given.seed if given.seed is not None else random.randrange(2**32)
    plan = Plan(given.kills, seed, given.seconds, given.partitions, given.senders)
    sys.stdout.write(f"seed {seed}\n")
    last = 0.0

    def report(progress: Progress) -> None:
        nonlocal last
        if time.monotonic() - last > REPORT_EVERY_S:
            last = time.monotonic()
            sys.stdout.write(f"{progress}\n")
            sys.stdout.flush()

    try:
        done = run(plan, report)
    except ChaosFailed as failure:
        sys.stdout.write(f"FAILED: {failure}\n")
        return 1
    sys.stdout.write(f"{done}\nnothing acked was lost, doubled, reordered or changed\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
