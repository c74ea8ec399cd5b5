"""A short slice of the exactly-once run, and bugs planted into it, which must be caught.

`scripts/chaos --exactly-once --runs 20 --messages 100000` is the long one.
"""

from __future__ import annotations

import random
import signal

import pytest
from tests.chaos import planted
from tests.chaos.exactly_once import Plan, run
from tests.chaos.load import ChaosFailed
from tests.chaos.transactor import Doom, Plant, Step, Task, packed, read_task, unpacked
from tests.history.exactly_once import Fate, Place, Stamp, Work


@pytest.mark.slow
@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_everything_is_transformed_exactly_once_whoever_dies(protocol: str) -> None:
    """T2 C4 L6: the broker is killed, a transformer killed or paused, and nothing is lost or doubled."""
    seed = random.randrange(2**32)
    plan = Plan(seed, 4_000, protocol, batch=100, broker_kills=1, feeder_kills=1, kills=0, stops=0, dooms=1)
    done = run(plan)
    assert done.transform.read_count == done.feed.read_count == plan.messages, f"seed {seed}"
    assert done.broker_kills >= 1, f"seed {seed}"


@pytest.mark.slow
@pytest.mark.parametrize(
    "bug",
    [
        "the transformer reads uncommitted",
        "nobody can tell a zombie",
        "readers are not told of aborts",
        "positions count before the decision",
    ],
)
def test_a_planted_bug_is_caught(bug: str) -> None:
    """T2: in a transformer or in the broker; `scripts/chaos --planted` goes through all there are."""
    assert planted.catch(bug).violations


def test_a_changed_byte_in_a_stamped_record_is_noticed() -> None:
    """T2: the run's own eyes are open."""
    stamp = Stamp(12_345, Place(1, 99), Work(7, 8), 250, Fate.COMMIT)
    value = bytearray(packed(stamp))
    assert unpacked(bytes(value)) == stamp
    value[-1] ^= 1
    with pytest.raises(ChaosFailed):
        unpacked(bytes(value))
    assert stamp.source.offset == 99


def test_a_task_arrives_as_it_was_given() -> None:
    """T2: what a process is told comes through its command line."""
    doom = Doom(3, Step.PRODUCED, signal.SIGSTOP)
    task = Task("feed", "b", 1, "t", "g", "s", "t", 3, "j", 5, 0.1, 100, 200, plant=Plant.UNFENCED, doom=doom)
    assert read_task(task.command()[-1]) == task
