"""Bugs planted into a transformer, the broker, the judge or the Spark sink; each must be caught.

Every one comes with the smallest run in which it shows, and the name under which it is to be found.
`scripts/chaos --planted` goes through all of them.
"""

from __future__ import annotations

import re
import signal
from dataclasses import dataclass
from functools import partial

from tests.chaos import sabotage, server
from tests.chaos.crew import Sleep
from tests.chaos.exactly_once import Plan, Progress, PromisesBroken, run
from tests.chaos.load import ChaosFailed
from tests.chaos.transactor import Doom, Plant, Step
from tests.history.checker import Violation


@dataclass(frozen=True, slots=True)
class Planted:
    expected: Violation
    transformer: Plant = Plant.NONE
    broker: str | None = None
    doom: Doom | None = None
    """What happens to the first transformer; without it, transactions are aborted on purpose instead."""
    sleep: Sleep = Sleep(3.0, 3.0, replaced=1.0)  # noqa: RUF009 - it is frozen
    transformers: int = 1
    reads_uncommitted: bool = False


STOPPED = Doom(3, Step.PRODUCED, signal.SIGSTOP)
UNCERTAIN = Doom(3, Step.OFFSETS_SENT, signal.SIGSTOP)
CRASHED = Doom(3, Step.OFFSETS_SENT, signal.SIGKILL)
FINISHED = Doom(3, Step.COMMITTED, signal.SIGKILL)

PLANTED = {
    "offsets are committed before the transaction": Planted(
        Violation.LOST, Plant.OFFSETS_BEFORE, doom=CRASHED
    ),
    "offsets are committed after the transaction": Planted(
        Violation.DUPLICATE, Plant.OFFSETS_AFTER, doom=FINISHED
    ),
    "the transformer reads uncommitted": Planted(Violation.PHANTOM, Plant.READS_UNCOMMITTED),
    "the transformer keeps its position after an abort": Planted(Violation.LOST, Plant.KEEPS_POSITION),
    "nobody can tell a zombie": Planted(Violation.DUPLICATE, Plant.UNFENCED, doom=STOPPED),
    "the judge reads uncommitted": Planted(Violation.ABORTED_READ, reads_uncommitted=True),
    "readers pass open transactions": Planted(
        Violation.INCONSISTENT_OFFSET, broker=sabotage.readers_pass_open_transactions.__name__, doom=CRASHED
    ),
    "readers are not told of aborts": Planted(
        Violation.ABORTED_READ, broker=sabotage.readers_are_not_told_of_aborts.__name__
    ),
    "positions count before the decision": Planted(
        Violation.LOST, broker=sabotage.positions_count_before_the_decision.__name__, doom=CRASHED
    ),
    "undecided positions are told": Planted(
        Violation.DUPLICATE,
        broker=sabotage.undecided_positions_are_told.__name__,
        doom=UNCERTAIN,
        sleep=Sleep(4.0, 4.0, replaced=0.0),
        transformers=2,
    ),
}

PLANTED_IN_SPARK = {"batches that were decided are not known": "the_ledger_is_not_read"}


def catch(name: str) -> Progress:
    """Runs with the bug of this name; ChaosFailed if it is not noticed, or as something else."""
    bug = PLANTED[name]
    plan = Plan(
        seed=1,
        messages=2_000,
        batch=100,
        aborts=0.0 if bug.doom is not None else 0.25,
        transformers=bug.transformers,
        broker_kills=0,
        feeder_kills=0,
        kills=0,
        stops=0,
        dooms=0,
        sleep=bug.sleep,
        transaction_timeout_ms=30_000,
        doom=bug.doom,
        plant=bug.transformer,
        reads_uncommitted=bug.reads_uncommitted,
    )
    try:
        run(plan, serve=partial(server.braid, bug.broker))
    except PromisesBroken as broken:
        if bug.expected not in broken.progress.transform.counts:
            raise ChaosFailed(f"{name}: noticed, but not as {bug.expected}: {broken}") from None
        return broken.progress
    raise ChaosFailed(f"{name}: not noticed")


def catch_in_spark(name: str) -> str:
    """As above for the sink: both judges must say that rows are doubled. What they said."""
    # Spark is needed for this one only.
    from tests.chaos import spark_kills

    aims = (spark_kills.Moment.COMMITTED,)
    plan = spark_kills.Plan(kills=1, rows=20_000, seed=1, aims=aims, sabotage=PLANTED_IN_SPARK[name])
    try:
        spark_kills.run(server.braid, plan, lambda _: None)
    except ChaosFailed as failure:
        if not all(re.search(rf"[1-9][\d,]* {word}", str(failure)) for word in ("doubled", "duplicated")):
            raise ChaosFailed(f"{name}: noticed, but not as doubled rows: {failure}") from None
        return str(failure)
    raise ChaosFailed(f"{name}: not noticed")
