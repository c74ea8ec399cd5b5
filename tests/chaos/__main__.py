"""kill -9 of a loaded broker, or a disk that fills up, many times, with every acked record checked."""

from __future__ import annotations

import argparse
import random
import sys
import time

from tests.chaos import full_disk, kills, recovery
from tests.chaos.kills import Plan, Progress
from tests.chaos.load import ChaosFailed

REPORT_EVERY_S = 2.0


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/chaos", description=__doc__)
    parser.add_argument("--kills", type=int, default=1_000, help="kills of the broker (default 1000)")
    parser.add_argument("--fills", type=int, help="instead of kills: fill the disk this often (needs root)")
    parser.add_argument("--recovery-gb", type=float, help="instead: time the recovery of a log of this size")
    parser.add_argument("--seconds", type=float, help="end after this long, whatever the number of kills")
    parser.add_argument("--seed", type=int, help="the moments of the kills; printed, random by default")
    parser.add_argument("--partitions", type=int, default=6)
    parser.add_argument("--senders", type=int, default=3, help="idempotent producers (default 3)")
    parser.add_argument("--flush", choices=("sync", "async"), default="sync")
    given = parser.parse_args()
    if given.recovery_gb:
        sys.stdout.write(f"{recovery.measure(given.recovery_gb)}\n")
        return 0
    seed = given.seed if given.seed is not None else random.randrange(2**32)
    plan = Plan(
        given.fills or given.kills, seed, given.seconds, given.partitions, given.senders, flush=given.flush
    )
    sys.stdout.write(f"seed {seed}\n")
    last = 0.0

    def report(progress: Progress) -> None:
        nonlocal last
        if time.monotonic() - last > REPORT_EVERY_S:
            last = time.monotonic()
            sys.stdout.write(f"{progress}\n")
            sys.stdout.flush()

    try:
        done = full_disk.run(plan, report) if given.fills else kills.run(plan, report)
    except (ChaosFailed, full_disk.CannotMountError) as failure:
        sys.stdout.write(f"FAILED: {failure}\n")
        return 1
    sys.stdout.write(f"{done}\nnothing acked was lost, doubled, reordered or changed\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
