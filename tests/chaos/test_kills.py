"""A short slice of the chaos run; `scripts/chaos --kills 1000` is the long one."""

from __future__ import annotations

import random

import pytest
from tests.chaos import load, recovery
from tests.chaos.kills import Plan, run


@pytest.mark.slow
def test_nothing_acked_is_lost_doubled_or_changed_by_kill_9_under_load() -> None:
    """L6 P4: idempotent producers with acks=all under flush=sync, consumers reading along."""
    plan = Plan(kills=6, seed=random.randrange(2**32), senders=2, partitions=4)
    done = run(plan)
    assert done.kills >= 6, f"seed {plan.seed}"
    assert done.history.read_count >= done.history.acked_count > 0, f"seed {plan.seed}"


def test_a_log_of_many_batches_comes_back_whole_after_kill_9() -> None:
    """L6: the script measures 10 GB; here a small one, to know that the measurement is true."""
    assert recovery.measure(0.05).log_bytes == 50_000_000


def test_a_changed_byte_in_a_record_is_noticed() -> None:
    """L6: the run's own eyes are open."""
    value = bytearray(load.value_of(3, 12_345))
    assert load.name_of(bytes(value)) == (3, 12_345)
    value[-1] ^= 1
    with pytest.raises(load.ChaosFailed):
        load.name_of(bytes(value))
