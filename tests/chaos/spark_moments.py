"""At which moment of a batch a Spark driver was: what its checkpoint and the broker tell from outside.

Spark writes a batch's number into `offsets` before it runs and into `commits` when it is through. In between
each task opens a transaction, the driver decides the batch in the query's ledger, and then ends the tasks'
transactions. All of that outlives the driver, so it can be looked at while it is stopped, to kill it at a
chosen moment, and after the kill, to know which one it was.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from braidmq.client import Cluster
from braidmq.client.transactional import TransactionalClient
from braidmq.client.transactions import ONGOING, TransactionAdmin
from braidmq.spark.sink.ledger import Decision, Ledger

PREFIX = "braid-spark"
TIMEOUT_MS = 60_000


class Moment(StrEnum):
    STARTING = "before it did anything"
    BETWEEN = "between batches"
    READING = "before a task wrote"
    WRITING = "while tasks wrote"
    WRITTEN = "after the tasks' writes"
    DECIDING = "in the decision"
    DECIDED = "in the commit"
    COMMITTED = "after the commit"
    """Of the sink; Spark has not noted it."""


MID_BATCH = tuple(each for each in Moment if each not in (Moment.STARTING, Moment.BETWEEN))


@dataclass(frozen=True, slots=True)
class Seen:
    """The state a driver has brought things to."""

    planned: int
    noted: int
    is_deciding: bool
    decision: Decision | None
    open_ids: frozenset[str]


class Watch:
    """Looks at one run of a query with so many tasks to a batch; made before the driver starts."""

    def __init__(self, cluster: Cluster, checkpoint: Path, tasks: int) -> None:
        self._checkpoint = checkpoint
        self._tasks = tasks
        self._client = TransactionalClient(cluster)
        self._cluster = cluster
        self._transactions = TransactionAdmin(cluster)
        # What an earlier run left open; its other ids are used again.
        self._old_ids = {each.transactional_id for each in self._transactions.all(states=[ONGOING])}
        self._start = self._look()

    def moment(self) -> Moment:
        seen = self._look()
        if seen == self._start:
            return Moment.STARTING
        if seen.planned == seen.noted:
            return Moment.BETWEEN
        if seen.is_deciding:
            return Moment.DECIDING
        if seen.decision is not None and seen.decision.batch == seen.planned:
            return Moment.DECIDED if self._is_open(seen.decision) else Moment.COMMITTED
        if not seen.open_ids:
            return Moment.READING
        return Moment.WRITTEN if len(seen.open_ids) >= self._tasks else Moment.WRITING

    def _look(self) -> Seen:
        scope = _scope(self._checkpoint)
        # In the order of events backwards, so that what is seen last cannot be younger than what is first.
        opened = frozenset(
            each.transactional_id
            for each in self._transactions.all(states=[ONGOING])
            if scope and each.transactional_id.startswith(f"{scope}/")
        )
        chief = self._client.described([scope]).get(scope) if scope else None
        is_deciding = chief is not None and chief.transaction_state == ONGOING
        decision = None
        if scope and not is_deciding:
            # While it is, a reader would wait for the outcome.
            decision = Ledger(self._cluster, self._client, scope, TIMEOUT_MS).read()
        noted = last_batch(self._checkpoint, "commits")
        planned = last_batch(self._checkpoint, "offsets")
        return Seen(planned, noted, is_deciding, decision, opened - self._old_ids)

    def _is_open(self, decision: Decision) -> bool:
        identities = [each.identity for each in decision.tasks.values()]
        states = self._client.described([each.transactional_id for each in identities])
        return any(
            (state := states.get(each.transactional_id)) is not None
            and state.transaction_state == ONGOING
            and (state.producer_id, state.producer_epoch) == (each.producer_id, each.producer_epoch)
            for each in identities
        )


def last_batch(checkpoint: Path, log: str) -> int:
    """The highest number in one of the checkpoint's logs, or -1."""
    if not (checkpoint / log).is_dir():
        return -1
    return max((int(path.name) for path in (checkpoint / log).iterdir() if path.name.isdigit()), default=-1)


def _scope(checkpoint: Path) -> str:
    """The name of the query's ledger; nothing before its first start."""
    metadata = checkpoint / "metadata"
    text = metadata.read_text() if metadata.exists() else ""
    return f"{PREFIX}-{json.loads(text)['id']}" if text else ""
