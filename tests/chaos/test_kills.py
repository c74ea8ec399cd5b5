"""A short slice of the chaos run; `scripts/chaos --kills 1000` is the long one."""

from __future__ import annotations

import random

import pytest
from tests.chaos import load, recovery
from tests.chaos.kills import Plan, judge, run
from tests.history.checker import History


@pytest.mark.slow
def test_nothing_acked_is_lost_doubled_or_changed_by_kill_9_under_load() -> None:
    """L6 P4: idempotent producers with acks=all under flush=sync, consumers reading along."""
    plan = Plan(kills=6, seed=random.randrange(2**32), senders=2, partitions=4)
    done = run(plan)
    assert done.recoveries > 0, f"seed {plan.seed}: no kill was noticed by the broker"
    assert done.history.acked_count > 0, f"seed {plan.seed}"


def test_a_record_that_was_acked_and_is_not_found_fails_the_run() -> None:
    """L6 P4: what the run reads at its end is held against what producers were told."""
    plan, history = Plan(kills=0, seed=1), History()
    for number in range(3):
        history.sent(0, number)
        history.acked(0, number, 0, number)
    for number in (0, 2):
        history.read(0, number, 0, number)
    history.conclude()
    with pytest.raises(load.ChaosFailed, match="lost"):
        judge(plan, history)


@pytest.mark.slow
def test_sigterm_under_load_leaves_nothing_to_recover_and_loses_nothing() -> None:
    """L6 P4: also when it comes twice; a broker that stops by itself has closed every log."""
    plan = Plan(kills=4, seed=random.randrange(2**32), senders=2, partitions=4, only_stops=True)
    assert run(plan).recoveries == 0, f"seed {plan.seed}"


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
