"""A short slice of the exactly-once run, and bugs planted into it, which must be caught.

`scripts/chaos --exactly-once --runs 20 --messages 100000` is the long one.
"""

from __future__ import annotations

import random
import signal

import pytest
from tests.chaos.crew import Sleep
from tests.chaos.exactly_once import Plan, PromisesBroken, run
from tests.chaos.load import ChaosFailed
from tests.chaos.transactor import Doom, Plant, Step, Task, packed, read_task, unpacked
from tests.history.checker import Violation
from tests.history.exactly_once import Fate, Place, Stamp, Work

CALM = {"broker_kills": 0, "feeder_kills": 0, "kills": 0, "stops": 0, "dooms": 0}


@pytest.mark.slow
@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_everything_is_transformed_exactly_once_whoever_dies(protocol: str) -> None:
    """T2 C4 L6: the broker is killed, a transformer killed or paused, and nothing is lost or doubled."""
    seed = random.randrange(2**32)
    plan = Plan(seed, 4_000, protocol, batch=100, broker_kills=1, feeder_kills=1, kills=0, stops=0, dooms=1)
    done = run(plan)
    assert done.transform.read_count == done.feed.read_count == plan.messages, f"seed {seed}"
    assert done.broker_kills >= 1, f"seed {seed}"


PLANTED = {
    Plant.OFFSETS_BEFORE: (Doom(3, Step.OFFSETS_SENT, signal.SIGKILL), Violation.LOST),
    Plant.OFFSETS_AFTER: (Doom(3, Step.COMMITTED, signal.SIGKILL), Violation.DUPLICATE),
    Plant.READS_UNCOMMITTED: (None, Violation.PHANTOM),
    Plant.KEEPS_POSITION: (None, Violation.LOST),
    Plant.UNFENCED: (Doom(3, Step.PRODUCED, signal.SIGSTOP), Violation.DUPLICATE),
}


@pytest.mark.slow
@pytest.mark.parametrize("plant", PLANTED, ids=str)
def test_a_transformer_with_a_planted_bug_is_caught(plant: Plant) -> None:
    """T2: one broken rule of the pattern, and the run says so."""
    doom, expected = PLANTED[plant]
    aborts = 0.2 if doom is None else 0.0
    patient = {"sleep": Sleep(3, 3, replaced=1), "transaction_timeout_ms": 30_000}
    plan = Plan(1, 2_000, batch=100, aborts=aborts, transformers=1, plant=plant, doom=doom, **patient, **CALM)
    with pytest.raises(PromisesBroken) as broken:
        run(plan)
    assert expected in broken.value.progress.transform.counts
    assert not broken.value.progress.feed.counts, "the feeder has no bug"


@pytest.mark.slow
def test_a_reader_that_sees_uncommitted_records_is_caught() -> None:
    """T2: without read_committed the aborted records are there, so the run had some to hide."""
    plan = Plan(1, 1_000, batch=100, aborts=0.3, transformers=1, reads_uncommitted=True, **CALM)
    with pytest.raises(PromisesBroken) as broken:
        run(plan)
    assert Violation.ABORTED_READ in broken.value.progress.transform.counts


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
