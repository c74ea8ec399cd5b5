"""Bugs planted into a transformer, the broker, the judge or the Spark sink; each must be caught.

Every one comes with the smallest run in which it shows, and the name under which it is to be found.
`scripts/chaos --planted` goes through all of them.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from tests.chaos import kills, sabotage, server
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


MISSED = (Violation.LOST.value, "cannot be read past", "is gone")
"""What a run says of records that were acked and are not there."""
PASSED, FAILED = 0, 1
"""Exit codes of pytest."""

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


class UnderTest(NamedTuple):
    """A bug that no run of processes comes upon in a short time, and the test that must fail with it."""

    bug: str
    module: str
    test: str


PLANTED_UNDER_TESTS = {
    "compaction knows the aborts of its segments only": UnderTest(
        sabotage.compaction_knows_the_aborts_of_its_segments_only.__name__,
        "tests/unit/log/test_compacted_transactions.py",
        "test_a_committed_value_survives_an_abort_whose_marker_lies_in_a_later_segment",
    ),
    "a start removes what the metadata does not know": UnderTest(
        sabotage.a_start_removes_what_the_metadata_does_not_know.__name__,
        "tests/unit/broker/test_topic_directories.py",
        "test_older_metadata_sets_newer_topics_aside_and_newer_metadata_brings_them_back",
    ),
    "what expires is decided for all groups at once": UnderTest(
        sabotage.what_expires_is_decided_for_all_groups_at_once.__name__,
        "tests/unit/broker/test_offset_expiry.py",
        "test_a_commit_that_comes_while_another_group_expires_stays",
    ),
}

PLANTED_IN_STOPS = {
    "a close joins a new offset with an old position": (
        sabotage.a_close_joins_a_new_offset_with_an_old_position.__name__
    )
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


def catch_in_stops(name: str) -> str:
    """As above for a loaded broker that is told to stop: acked records must be missed. What was said."""
    plan = kills.Plan(kills=4, seed=1, partitions=2, senders=2, only_stops=True)
    try:
        kills.run(plan, serve=partial(server.sabotaged, PLANTED_IN_STOPS[name]))
    except ChaosFailed as failure:
        if not any(words in str(failure) for words in MISSED):
            raise ChaosFailed(f"{name}: noticed, but not as lost records: {failure}") from None
        return str(failure).splitlines()[0]
    raise ChaosFailed(f"{name}: not noticed")


def catch_under_test(name: str) -> str:
    """Runs a test with the bug and without it; ChaosFailed unless it fails with the bug alone."""
    bug, module, test = PLANTED_UNDER_TESTS[name]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--tb=line"]
    command += [f"{module}::{test}"]
    sound = subprocess.run(command, capture_output=True, text=True, check=False)
    if sound.returncode != PASSED:
        raise ChaosFailed(f"{name}: {test} fails without the bug\n{sound.stdout}")
    planted = [*command, "-p", "tests.chaos.sabotage"]
    environment = {**os.environ, sabotage.VARIABLE: bug}
    found = subprocess.run(planted, capture_output=True, text=True, check=False, env=environment)
    if found.returncode != FAILED:
        raise ChaosFailed(f"{name}: not noticed\n{found.stdout}{found.stderr}")
    return f"noticed by {test}"


def catch_in_spark(name: str) -> str:
    """As above for the sink: both judges must say that rows are doubled. What they said."""
    # Spark is needed for this one only.
    from tests.chaos import spark_kills

    aims = (spark_kills.Moment.COMMITTED,)
    # On a loaded machine a kill may miss its moment.
    plan = spark_kills.Plan(kills=3, rows=20_000, seed=1, aims=aims, sabotage=PLANTED_IN_SPARK[name])
    try:
        spark_kills.run(server.braid, plan, lambda _: None)
    except ChaosFailed as failure:
        if not all(re.search(rf"[1-9][\d,]* {word}", str(failure)) for word in ("doubled", "duplicated")):
            raise ChaosFailed(f"{name}: noticed, but not as doubled rows: {failure}") from None
        return str(failure)
    raise ChaosFailed(f"{name}: not noticed")
