"""Power is cut after every single disk operation of a partition's life, and the disk found in many states.

Every workload prints its seed by being a parameter: a failing case is replayed by its number.
"""

from __future__ import annotations

import random

import pytest
from tests.sim.disk import Crash, SimDisk
from tests.sim.workload import Workload, open_log

WORKLOADS = 10
STEPS = 60
IMAGES_PER_CUT = (
    Crash.LOST,
    Crash.KEPT,
    Crash.NAMES_ONLY,
    Crash.CONTENTS_ONLY,
    Crash.ZEROED,
    Crash.TORN,
    Crash.REORDERED,
    Crash.REORDERED,
)
IMAGES_MIN = 6_000
CUT_OPERATIONS = {"create", "write", "fsync", "truncate", "rename", "unlink", "mkdir", "sync directory"}


@pytest.mark.parametrize("seed", range(WORKLOADS))
def test_a_power_loss_after_any_disk_operation_loses_nothing_durable_and_serves_nothing_wrong(
    seed: int,
) -> None:
    """L6 L1 L4 P4: recovery from every crash point of produce, roll, flush, checkpoint, delete and expiry."""
    disk = SimDisk()
    workload = Workload(disk, seed)
    chance = random.Random(seed + 1_000)
    images = 0
    seen = set()

    def cut(kind: str) -> None:
        nonlocal images
        seen.add(kind)
        for crash in IMAGES_PER_CUT:
            images += 1
            workload.expectation.check(disk.crash(crash, chance), workload.clock, chance)

    disk.on_operation = cut
    workload.run(STEPS)
    assert images >= IMAGES_MIN // WORKLOADS
    assert {"create", "write", "fsync"} <= seen <= CUT_OPERATIONS


@pytest.mark.parametrize("seed", range(WORKLOADS, WORKLOADS + 4))
def test_a_power_loss_during_recovery_is_recovered_from_like_any_other(seed: int) -> None:
    """L6: recovery itself is cut after every disk operation it makes."""
    disk = SimDisk()
    workload = Workload(disk, seed)
    chance = random.Random(seed + 1_000)
    workload.run(STEPS)
    cuts = 0
    for crash in IMAGES_PER_CUT:
        for _ in range(2):
            image = disk.crash(crash, chance)

            def cut(_: str, image: SimDisk = image) -> None:
                nonlocal cuts
                cuts += 1
                for second in (Crash.LOST, Crash.KEPT, Crash.TORN, Crash.REORDERED):
                    workload.expectation.check(image.crash(second, chance), workload.clock, chance)

            image.on_operation = cut
            open_log(image, workload.clock).abandon()
    assert cuts
