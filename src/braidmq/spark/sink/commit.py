"""How a batch becomes visible exactly once, whichever process dies in between.

Spark runs a batch as tasks on executors, tries a task again when it fails, may run a slow one twice, and then
calls `commit` on the driver with what the winning attempts returned. If the driver dies, the next one runs
the same batch (same number, same rows) again. It knows only whether a batch was finished, not how far it got.

The protocol, in the order of events:

1. A task writes its rows in a transaction of its own, leaves it open, and returns its identity (transactional
   id, producer id, epoch). The id names query, task and attempt, so runs of a query use the same ids, and a
   broker has few to store. An id whose transaction is open is left to its holder: an earlier run, or an
   earlier attempt of the stage, since Spark counts attempts from 0 again. The task then uses another id.
2. The driver checks that all these transactions are still open, and then decides: one small transaction, the
   chief's, commits the batch's number and all identities to the query's ledger (`ledger.py`).
3. The driver commits the tasks' transactions. That needs no state of the driver: any process that reads the
   ledger can do it, and doing it again changes nothing.

Before the decision nothing is visible; after it, everything will be. So each failure is covered:

- A task fails, its executor dies, its result is lost: its transaction is not in any decision and ends aborted
  (by the task, by the driver's sweep after the batch, or by timeout). Another attempt has its own.
- Two attempts run side by side: each writes its own, the driver gets one result. Neither fences the other;
  the loser's transaction is aborted when Spark kills it, or swept.
- The driver dies before the decision: the next one finds no decision for this batch and writes everything
  again. Open transactions are swept. The rows may be split differently over more or fewer tasks this time:
  nothing of the first run counts.
- The driver dies during the decision: written, not committed. If a task of the next run sees that for longer
  than a decision takes, it aborts the decision by taking the chief's id. That fences a driver that was only
  slow: it takes the id back, reads, and decides again.
- The driver dies after the decision, having ended three of eight transactions: tasks of the new run find the
  batch decided and write nothing, and task or driver commits what is still open by the identities in it,
  whether or not there is a task of that number now.
- A transaction times out before the decision: step 2 finds it and nothing is decided. The batch fails with
  the name of the option to raise, and runs again as a whole.
- A transaction times out after the decision (the driver was away for longer than that): its rows are gone,
  those of others are visible. In the new run the task of that number writes them again, with the time that
  the decision notes for rows without one. If its checksum differs, the query stops: rows in another order or
  split cannot be distinguished from visible ones. Otherwise a new decision names the new transaction.
- The new run has no rows for a decided batch: the driver still reads the ledger before its first batch, and
  completes the decision.
- A zombie executor keeps writing: into a transaction that no decision names.
- A zombie driver decides: it holds the chief's id no longer, and is fenced. If it takes the id back, it must
  read the ledger and finds that batch decided, or decides it itself, which the other driver then accepts:
  that one aborts its own transactions and ends those of the decision.
- `commit` raises after the decision, and Spark calls `abort`: that reads the ledger first and leaves what is
  decided alone.

Two conditions must hold: the source returns the same rows for the same batch, and the ledger is not deleted.
Brokers forget offsets of groups without members after `offsets.retention.minutes` (7 days): a query that died
between decision and commit must be started again before that.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum

from pyspark.sql.datasource import WriterCommitMessage

from braidmq.client.cluster import Cluster
from braidmq.client.errors import ClientError
from braidmq.client.transactional import FENCED, Identity, TransactionalClient
from braidmq.client.transactions import ONGOING, TransactionAdmin
from braidmq.spark.sink.ledger import Decision, Ledger, Overtaken, SinkError, TaskWrite
from braidmq.wire.errors import ApiError, ErrorCode
from braidmq.wire.messages.transactions import DescribedTransactionState

TIDY_INTERVAL_S = 30.0
# A broker that expired an id does not know how its last transaction ended.
FORGOTTEN = ErrorCode.INVALID_PRODUCER_ID_MAPPING


class AbortedEarly(SinkError):
    """A task's transaction ended before the batch was decided."""


class TaskOutcome(Enum):
    """What a task did with its rows."""

    WRITTEN = "written"
    """They are in an open transaction."""
    REWRITTEN = "rewritten"
    """As above; they replace a decided transaction that was lost."""
    DECIDED = "decided"
    """The batch was decided before; nothing was written."""
    EMPTY = "empty"
    """The task had no rows."""
    SENT = "sent"
    """They are visible already: at-least-once."""


@dataclass(frozen=True)
class TaskResult(WriterCommitMessage):
    """What a task returns to the driver."""

    task: int
    outcome: TaskOutcome
    scope: str | None = None
    attempt: int = 0
    rows: int = 0
    digest: int = 0
    identity: Identity | None = None
    topic: str = ""
    """One of the topics it wrote to."""
    written_ms: int = 0
    """The time of rows without one."""


class BatchCommitter:
    """The driver's side, for one query or named write (`scope`), or for a write without a name."""

    def __init__(
        self, cluster: Cluster, client: TransactionalClient, timeout_ms: int, family: str, scope: str | None
    ) -> None:
        """`family` is how all transactional ids of the tasks begin."""
        self._cluster = cluster
        self._client = client
        self._timeout_ms = timeout_ms
        self._ledger = None if scope is None else Ledger(cluster, client, scope, timeout_ms)
        self._family = family
        self._tidied_s: float | None = None
        self._has_read = False

    def commit(self, batch: int, results: Iterable[TaskResult]) -> None:
        """Makes a batch visible. SinkError if it is not or only partly visible; a new run repairs both."""
        results = list(results)
        open_results = [each for each in results if each.identity is not None]
        replayed = any(each.outcome in (TaskOutcome.DECIDED, TaskOutcome.REWRITTEN) for each in results)
        if not open_results and not replayed:
            self._finish_earlier(batch)
            return
        if self._ledger is None:
            self._check_open(open_results)
            self._end({each.task: _written(each) for each in open_results}, batch)
        else:
            self._commit_in_ledger(self._ledger, batch, open_results, replayed)
        self._tidy(results)

    def _finish_earlier(self, batch: int) -> None:
        """Before a first batch without rows: completes what an earlier run decided for it."""
        if self._ledger is None or self._has_read or self._ledger.is_held:
            return
        known = self._ledger.read()
        if known is not None and known.batch >= batch:
            self._go_by(self._ledger, self._ledger.hold(), batch, [])
        self._has_read = True

    def _commit_in_ledger(
        self, ledger: Ledger, batch: int, results: list[TaskResult], replayed: bool
    ) -> None:
        if (not ledger.is_held or replayed) and self._go_by(ledger, ledger.hold(), batch, results):
            return
        try:
            decision = self._decide(ledger, batch, results)
        except (AbortedEarly, Overtaken):
            # By another driver, which may have decided this batch, or by timeout, which then happens again.
            if self._go_by(ledger, ledger.hold(), batch, results):
                return
            decision = self._decide(ledger, batch, results)
        self._end(decision.tasks, batch)

    def _decide(self, ledger: Ledger, batch: int, results: list[TaskResult]) -> Decision:
        self._check_open(results)
        topic = min(each.topic for each in results)
        decision = Decision(batch, topic, {each.task: _written(each) for each in results})
        ledger.decide(decision)
        return decision

    def _go_by(self, ledger: Ledger, known: Decision | None, batch: int, results: list[TaskResult]) -> bool:
        """Completes a batch that is decided already; False if it is not."""
        if known is None or known.batch < batch:
            return False
        rewritten = {each.task: _written(each) for each in results if each.outcome is TaskOutcome.REWRITTEN}
        others = [each.identity for each in results if each.identity and each.outcome is TaskOutcome.WRITTEN]
        self._client.end_all(others, commit=False)
        if known.batch > batch:
            raise SinkError(_ahead(ledger.scope, known.batch, batch))
        tasks = dict(known.tasks)
        if rewritten:
            self._check_open([each for each in results if each.outcome is TaskOutcome.REWRITTEN])
            tasks |= rewritten
            ledger.decide(Decision(batch, known.topic, tasks))
        self._end(tasks, batch)
        return True

    def _check_open(self, results: list[TaskResult]) -> None:
        identities = {each.task: each.identity for each in results if each.identity}
        states = self._client.described([each.transactional_id for each in identities.values()])
        for task, identity in identities.items():
            state = states.get(identity.transactional_id)
            if state is None or state.transaction_state != ONGOING or _identity(state) != identity:
                raise AbortedEarly(_aborted_early(task, self._timeout_ms))

    def _end(self, written: Mapping[int, TaskWrite], batch: int) -> None:
        """Commits the decided transactions; SinkError if one is lost."""
        lost = self._client.end_all([each.identity for each in written.values()], commit=True)
        missing = [task for task, each in written.items() if each.identity in lost]
        if missing:
            again = "start the query again to write them" if self._ledger else "the others are visible"
            raise SinkError(
                f"batch {batch}: the transactions of tasks {', '.join(map(str, missing))} were aborted after"
                f" it was decided ({next(iter(lost.values()))}), and their rows are missing; {again}"
            )

    def abort(self, batch: int, results: Iterable[TaskResult]) -> None:
        """Aborts what tasks left open, unless their batch is decided. If it fails, timeouts do it."""
        identities = [each.identity for each in results if each.identity]
        try:
            if self._ledger is not None:
                known = self._ledger.hold()
                if known is not None and known.batch >= batch:
                    return
            self._client.end_all(identities, commit=False)
            self._sweep()
        except (ApiError, ClientError):
            return

    def _tidy(self, results: list[TaskResult]) -> None:
        """Aborts open transactions under our ids after the end of a batch, when they are of no use any more.

        Earlier runs and failed or slower attempts leave them. Brokers are asked for them after the first
        batch, after one with failed attempts, and now and then, since a slower attempt leaves no trace.
        """
        now_s = self._cluster.clock.monotonic()
        due = self._tidied_s is None or now_s - self._tidied_s >= TIDY_INTERVAL_S
        if not due and not any(each.attempt for each in results):
            return
        self._tidied_s = now_s
        try:
            self._sweep()
        except (ApiError, ClientError):
            # The broker is old, or does not allow it; timeouts do it later.
            return

    def _sweep(self) -> None:
        for each in TransactionAdmin(self._cluster).all(states=[ONGOING]):
            if each.transactional_id.startswith(self._family):
                self._client.take(each.transactional_id, self._timeout_ms)


def finish_task(client: TransactionalClient, known: Decision, task: int) -> bool:
    """Commits a task's transaction of a decided batch; False if that transaction is lost."""
    written = known.tasks.get(task)
    if written is None:
        return True
    try:
        client.end(written.identity, commit=True)
    except ApiError as error:
        if error.code is FORGOTTEN:
            raise SinkError(
                f"batch {known.batch} was decided and its broker no longer knows how the transaction of task"
                f" {task} ended ({error}); compare the topic with the source (braid topic audit)"
            ) from None
        if error.code not in FENCED:
            raise
        return False
    return True


def check_same_rows(known: Decision, task: int, digest: int) -> None:
    """SinkError if a task that writes a lost transaction's rows again has other rows."""
    if known.tasks[task].digest != digest:
        raise SinkError(
            f"batch {known.batch} was decided by an earlier run, the transaction of task {task} was lost, and"
            " the same task has other rows now, so writing them again would lose or duplicate some."
            " Run with the settings of the earlier run (partitions, splits), or compare the topic with the"
            " source (braid topic audit) and continue with another transactionalIdPrefix"
        )


def check_not_ahead(scope: str, known: Decision | None, batch: int) -> None:
    """SinkError if the ledger is ahead of the batch: the checkpoint is older than the output."""
    if known is not None and known.batch > batch:
        raise SinkError(_ahead(scope, known.batch, batch))


def _ahead(scope: str, known: int, batch: int) -> str:
    return (
        f"{scope} has written batch {known} and now gets batch {batch}: its checkpoint is older than"
        " its output (or its writeNumber went back), or another driver runs the same query. To write those"
        " rows again, set the option transactionalIdPrefix to a new value"
    )


def _aborted_early(task: int, timeout_ms: int) -> str:
    return (
        f"the transaction of task {task} was aborted before all tasks were done, so nothing of this batch is"
        f" visible. Transactions time out after {timeout_ms / 1000:g} s; if that is too short, raise"
        " .option('kafka.transaction.timeout.ms', …) (and the broker's transaction.max.timeout.ms), or write"
        " smaller batches"
    )


def _identity(state: DescribedTransactionState) -> Identity:
    return Identity(state.transactional_id, state.producer_id, state.producer_epoch)


def _written(result: TaskResult) -> TaskWrite:
    assert result.identity is not None
    return TaskWrite(result.identity, result.digest, result.written_ms)
