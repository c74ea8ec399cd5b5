"""How a batch becomes visible once and only once, whoever dies in between.

Spark runs a batch as tasks on executors, tries a task again when it fails, may run a slow one twice, and then
calls `commit` on the driver with what the winning attempts returned. When the driver dies, the next one runs
the same batch (same number, same rows) again. It knows only whether a batch was finished, not how far it
came.

The way through, in the order of events:

1. A task writes its rows in a transaction of its own, leaves it open, and returns its identity (transactional
   id, producer id, epoch). The id names query, task and attempt, so runs of a query use the same ids, and a
   broker has few to remember. An id whose transaction is open is left to its holder: an earlier run, or an
   earlier try of the stage, whose attempts Spark counts from 0 again. The task then takes an id of its own.
2. The driver checks that all these transactions are still open, and then decides: one small transaction, the
   chief's, commits the batch's number and all identities to the query's ledger (`ledger.py`).
3. The driver commits the tasks' transactions. They need nobody's memory for that: anyone who reads the ledger
   can do it, and doing it again changes nothing.

Before the decision nothing can be seen; after it, everything will be. So each window closes:

- A task fails, its executor dies, its result is lost: its transaction is not in any decision and ends aborted
  (by the task, by the driver's sweep after the batch, or by its time-out). Another attempt has another.
- Two attempts run side by side: each writes its own, the driver gets one result. Neither fences the other;
  the loser's transaction is aborted when Spark kills it, or swept.
- The driver dies before the decision: the next one finds no decision for this batch, all is written anew.
  What was left open is swept. The rows may be spread over the tasks quite differently this time, in more or
  fewer of them: nothing of the first try counts.
- The driver dies in the midst of the decision: written, not committed. A task of the next run that finds it
  so for longer than a decision takes aborts it by taking the chief's id. That fences a driver that was only
  slow: it takes the id back, reads, and decides again.
- The driver dies after the decision, having ended three of eight transactions: tasks of the new run find the
  batch decided and write nothing, and task or driver ends what is still open by the identities in the ledger,
  whether or not there is a task of that number now.
- A transaction times out before the decision: step 2 finds it and nothing is decided. The batch fails with
  the option to raise, and is done again as a whole.
- One times out after the decision (the driver was away for longer than that): its rows are gone, those of
  others are visible. The new run's task of that number writes them again, with the time that the decision
  notes for rows without one, and must arrive at the same checksum, or the query stops: rows that come in
  another order or split cannot be told from rows that are visible. A new decision then names the new
  transaction.
- The new run has no rows for a decided batch: the driver still reads the ledger before its first batch, and
  brings the decision to its end.
- A zombie executor goes on writing: into a transaction that no decision names.
- A zombie driver decides: it holds the chief's id no longer, and is fenced. If it takes the id back, it must
  read the ledger and finds that batch decided, or decides it itself, which the other driver then accepts:
  that one aborts its own transactions and ends those of the decision.
- `commit` raises after the decision, and Spark calls `abort`: that reads the ledger first and leaves what is
  decided alone.

What must hold besides: the source gives the same rows for the same batch, and nobody deletes the ledger.
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
from braidmq.client.transactions import ONGOING, Transactions
from braidmq.spark.sink.ledger import Decision, Ledger, Overtaken, SinkError, TaskWrite
from braidmq.wire.errors import ApiError, ErrorCode
from braidmq.wire.messages.transactions import DescribedTransactionState

TIDY_INTERVAL_S = 30.0
# A broker that has forgotten an id cannot say how its last transaction ended.
FORGOTTEN = ErrorCode.INVALID_PRODUCER_ID_MAPPING


class AbortedEarly(SinkError):
    """A task's transaction ended before the batch was decided."""


class Outcome(Enum):
    """What a task did with its rows."""

    WRITTEN = "written"
    """They lie in an open transaction."""
    REWRITTEN = "rewritten"
    """As above; the transaction that was decided for them had been lost."""
    DECIDED = "decided"
    """The batch had been decided before; nothing was written."""
    EMPTY = "empty"
    """There were none."""
    SENT = "sent"
    """They are visible already: at-least-once."""


@dataclass(frozen=True)
class TaskResult(WriterCommitMessage):
    """What a task tells the driver."""

    task: int
    outcome: Outcome
    scope: str | None = None
    attempt: int = 0
    rows: int = 0
    digest: int = 0
    identity: Identity | None = None
    topic: str = ""
    """One of those it wrote to."""
    written_ms: int = 0
    """The time of rows without one."""


class Committer:
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
        """Makes a batch visible. SinkError when it was not, or not wholly; both are mended by a new run."""
        results = list(results)
        open_results = [each for each in results if each.identity is not None]
        replayed = any(each.outcome in (Outcome.DECIDED, Outcome.REWRITTEN) for each in results)
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
        """Before a first batch without rows: ends what an earlier run has decided for it."""
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
            # By another driver, which may have decided this batch; or by time, and then it is so again.
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
        """Brings a batch that is decided already to its end; False if it is not."""
        if known is None or known.batch < batch:
            return False
        rewritten = {each.task: _written(each) for each in results if each.outcome is Outcome.REWRITTEN}
        others = [each.identity for each in results if each.identity and each.outcome is Outcome.WRITTEN]
        self._client.end_all(others, commit=False)
        if known.batch > batch:
            raise SinkError(_ahead(ledger.scope, known.batch, batch))
        tasks = dict(known.tasks)
        if rewritten:
            self._check_open([each for each in results if each.outcome is Outcome.REWRITTEN])
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
        """Commits what was decided; SinkError if a transaction of it is lost."""
        lost = self._client.end_all([each.identity for each in written.values()], commit=True)
        missing = [task for task, each in written.items() if each.identity in lost]
        if missing:
            again = "start the query again: it writes them anew" if self._ledger else "the others are visible"
            raise SinkError(
                f"batch {batch}: the transactions of tasks {', '.join(map(str, missing))} were aborted after"
                f" it was decided ({next(iter(lost.values()))}), and their rows are missing; {again}"
            )

    def abort(self, batch: int, results: Iterable[TaskResult]) -> None:
        """Aborts what tasks left open, unless their batch is decided. What fails here, time-outs will do."""
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
        """Aborts what is open under our ids now that the batch is ended: nobody can want it any more.

        That is what earlier runs and failed or slower attempts have left. Brokers are asked for it after the
        first batch, after one with failed attempts, and now and then, since a slower attempt leaves no trace.
        """
        now_s = self._cluster.clock.monotonic()
        due = self._tidied_s is None or now_s - self._tidied_s >= TIDY_INTERVAL_S
        if not due and not any(each.attempt for each in results):
            return
        self._tidied_s = now_s
        try:
            self._sweep()
        except (ApiError, ClientError):
            # An old broker, or one that does not let us look; time-outs do it later.
            return

    def _sweep(self) -> None:
        for each in Transactions(self._cluster).all(states=[ONGOING]):
            if each.transactional_id.startswith(self._family):
                self._client.take(each.transactional_id, self._timeout_ms)


def finish_task(client: TransactionalClient, known: Decision, task: int) -> bool:
    """Ends a task's transaction of a decided batch; False if that transaction is lost."""
    written = known.tasks.get(task)
    if written is None:
        return True
    try:
        client.end(written.identity, commit=True)
    except ApiError as error:
        if error.code is FORGOTTEN:
            raise SinkError(
                f"batch {known.batch} was decided and its broker no longer knows how the transaction of task"
                f" {task} ended ({error}); compare the topic with the source (braid pipeline audit)"
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
            " the same task has other rows now, so writing them again would lose or double some."
            " Run with the settings of the earlier run (partitions, splits), or compare the topic with the"
            " source (braid pipeline audit) and go on under another transactionalIdPrefix"
        )


def check_not_ahead(scope: str, known: Decision | None, batch: int) -> None:
    """SinkError if the ledger is past the batch: the checkpoint is older than the output."""
    if known is not None and known.batch > batch:
        raise SinkError(_ahead(scope, known.batch, batch))


def _ahead(scope: str, known: int, batch: int) -> str:
    return (
        f"{scope} has written batch {known} and is asked to write batch {batch}: its checkpoint is older than"
        " its output (or its writeNumber went back), or another driver runs the same query. To write those"
        " rows again, set the option transactionalIdPrefix to something new"
    )


def _aborted_early(task: int, timeout_ms: int) -> str:
    return (
        f"the transaction of task {task} was aborted before all tasks were done, so nothing of this batch is"
        f" visible. Transactions may be open for {timeout_ms / 1000:g} s; if that was too short, raise"
        " .option('kafka.transaction.timeout.ms', …) (and the broker's transaction.max.timeout.ms), or write"
        " smaller batches"
    )


def _identity(state: DescribedTransactionState) -> Identity:
    return Identity(state.transactional_id, state.producer_id, state.producer_epoch)


def _written(result: TaskResult) -> TaskWrite:
    assert result.identity is not None
    return TaskWrite(result.identity, result.digest, result.written_ms)
