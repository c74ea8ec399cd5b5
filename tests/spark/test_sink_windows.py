"""Each moment in which a task, an executor or a driver can die, one by one, against a broker.

Tasks and drivers are called directly, in the order a story needs; what readers of committed records see is
asked of a stock client. `sink_commit.py` tells why each of these must come out right.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import StringType, StructField, StructType, TimestampType
from tests.spark.committed import committed

from braidmq.client import Cluster
from braidmq.client.cluster import TopicPartition as At
from braidmq.client.transactional import Identity, Offset, TransactionalClient
from braidmq.client.transactions import ONGOING, TransactionAdmin
from braidmq.platform.clock import SystemClock
from braidmq.spark.sink.columns import layout
from braidmq.spark.sink.commit import BatchCommitter, TaskOutcome, TaskResult
from braidmq.spark.sink.ledger import SinkError
from braidmq.spark.sink.options import parse_sink
from braidmq.spark.sink.task import TaskAttempt, close_sessions, session_for, write_task

ROWS = [f"row {number}" for number in range(24)]
SCHEMA = StructType([StructField("value", StringType())])
TIMED = StructType([*SCHEMA.fields, StructField("timestamp", TimestampType())])
PARTITIONS = 3


class AheadClock(SystemClock):
    """The machine's clock, set forward."""

    __slots__ = ("_ahead_ms",)

    def __init__(self, ahead_ms: int) -> None:
        self._ahead_ms = ahead_ms

    def wall_ms(self) -> int:
        return super().wall_ms() + self._ahead_ms


class Query:
    """A streaming query: its tasks and its drivers, called by hand."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self.bootstrap = bootstrap
        self.topic = topic
        self.scope = f"query-of-{topic}"
        self.family = f"{self.scope}/"
        self._options = parse_sink(
            {"bootstrap.servers": bootstrap, "topic": topic}, streaming=True, overwrite=False
        )
        self.cluster = Cluster(bootstrap)
        self._clusters = [self.cluster]

    def task(
        self,
        number: int,
        rows: list[str],
        *,
        batch: int = 0,
        run: str = "r1",
        attempt: int = 0,
        attempt_id: int = 0,
    ) -> TaskResult:
        tried = TaskAttempt(self.family, self.scope, batch, run, number, attempt, attempt_id)
        arrow = pa.record_batch([pa.array(rows, pa.string())], names=["value"])
        return write_task(self._options, layout(SCHEMA, self.topic), iter([arrow]), tried)

    def timed_task(
        self, number: int, times_us: list[int | None], *, run: str = "r1", later_ms: int = 0
    ) -> TaskResult:
        """A task whose rows have a column of times, on a clock that may be ahead."""
        tried = TaskAttempt(self.family, self.scope, 0, run, number, 0, 0)
        values = pa.array([f"row {row}" for row in range(len(times_us))])
        stamps = pa.array(times_us, pa.timestamp("us", "UTC"))
        arrow = pa.record_batch([values, stamps], names=["value", "timestamp"])
        session_for(self._options).cluster.clock = AheadClock(later_ms)
        return write_task(self._options, layout(TIMED, self.topic), iter([arrow]), tried)

    def tasks(self, count: int, rows: list[str], **which: Any) -> list[TaskResult]:
        """All rows, dealt out to that many tasks."""
        return [self.task(number, rows[number::count], **which) for number in range(count)]

    def driver(self) -> BatchCommitter:
        """A driver that knows nothing of earlier ones, on connections of its own."""
        cluster = Cluster(self.bootstrap)
        self._clusters.append(cluster)
        return BatchCommitter(cluster, TransactionalClient(cluster), 60_000, self.family, self.scope)

    def steal(self, result: TaskResult) -> None:
        """Lets a task's transaction be aborted, as a time-out would."""
        assert result.identity is not None
        TransactionalClient(self.cluster).take(result.identity.transactional_id, 60_000)

    def open_transactions(self) -> list[str]:
        rows = TransactionAdmin(self.cluster).all(states=[ONGOING])
        return [row.transactional_id for row in rows if row.transactional_id.startswith(self.family)]

    def close(self) -> None:
        for cluster in self._clusters:
            cluster.close()
        close_sessions()

    def visible(self) -> list[str]:
        return sorted(m.value().decode() for m in committed(self.bootstrap, self.topic, PARTITIONS))


@pytest.fixture
def query(bootstrap: str, new_topic: Callable[..., str]) -> Iterator[Query]:
    made = Query(bootstrap, new_topic(PARTITIONS))
    yield made
    made.close()


class Killed(BaseException):
    """The driver is no more."""


def kill_after_ending(driver: BatchCommitter, count: int) -> None:
    """Lets a driver die when it has ended so many transactions of tasks."""
    client = driver._client
    end_all = client.end_all

    def end_some(identities: Any, *, commit: bool) -> Any:
        end_all(list(identities)[:count], commit=commit)
        raise Killed

    client.end_all = end_some  # type: ignore[method-assign]


def kill_before_ending(driver: BatchCommitter) -> None:
    """Lets a driver die when it has written its decision and not committed it."""

    def end(*_: object, **__: object) -> Identity:
        raise Killed

    driver._client.end = end  # type: ignore[method-assign]


def each_once(query: Query, rows: list[str] = ROWS) -> None:
    assert Counter(query.visible()) == Counter(rows)
    assert query.open_transactions() == []


def test_nothing_is_visible_before_the_commit_and_everything_after(query: Query) -> None:
    """S3: the transactions of tasks are left open for the driver."""
    results = query.tasks(8, ROWS)
    assert {result.outcome for result in results} == {TaskOutcome.WRITTEN}
    assert query.visible() == []
    query.driver().commit(0, results)
    each_once(query)


def test_batches_follow_each_other_under_one_driver(query: Query) -> None:
    """S3: with one task less each time, and one without rows."""
    driver = query.driver()
    for batch in range(4):
        rows = [f"{batch}: {row}" for row in ROWS]
        results = [*query.tasks(4 - batch, rows, batch=batch), query.task(7, [], batch=batch)]
        driver.commit(batch, results)
    each_once(query, [f"{batch}: {row}" for batch in range(4) for row in ROWS])


def test_a_task_tried_again_after_it_wrote_counts_once(query: Query) -> None:
    """S3: the first attempt's executor died with its result."""
    query.task(0, ROWS[:10])
    again = query.task(0, ROWS[:10], attempt=1)
    query.driver().commit(0, [again, query.task(1, ROWS[10:])])
    each_once(query)


@pytest.mark.parametrize("winner", [0, 1])
def test_speculative_attempts_do_not_disturb_each_other(query: Query, winner: int) -> None:
    """S3: both write to the end; the one whose result the driver gets is visible."""
    both = [query.task(0, ROWS, attempt=attempt) for attempt in (0, 1)]
    query.driver().commit(0, [both[winner]])
    each_once(query)


@pytest.mark.parametrize("winner", [0, 1])
def test_a_stage_that_is_run_again_does_not_abort_what_was_written(query: Query, winner: int) -> None:
    """S3: Spark counts attempts anew then, and those of the earlier run go on; either may come first."""
    both = [query.task(0, ROWS, attempt_id=7), query.task(0, ROWS, attempt_id=12)]

    query.driver().commit(0, [both[winner]])

    each_once(query)
    assert query.open_transactions() == []


def test_a_task_that_fails_leaves_nothing_open(query: Query) -> None:
    """S3: readers do not wait for a transaction that nobody will end."""

    def broken() -> Iterator[pa.RecordBatch]:
        yield pa.record_batch([pa.array(ROWS)], names=["value"])
        raise OSError("the input ended early")

    tried = TaskAttempt(query.family, query.scope, 0, "r1", 0, 0, 0)
    with pytest.raises(OSError, match="early"):
        write_task(query._options, layout(SCHEMA, query.topic), broken(), tried)
    assert query.open_transactions() == []
    query.driver().commit(0, query.tasks(2, ROWS))
    each_once(query)


@pytest.mark.parametrize("tasks_before", [8, 2])
def test_a_driver_that_dies_before_the_decision_has_done_nothing(query: Query, tasks_before: int) -> None:
    """S3: the batch is written anew, by other tasks with other shares of the rows."""
    query.tasks(tasks_before, ROWS)
    query.driver().commit(0, query.tasks(5, ROWS, run="r2"))
    each_once(query)


@pytest.mark.parametrize("decided_before", [False, True])
def test_a_driver_that_dies_in_the_midst_of_its_decision_has_done_nothing(
    query: Query, decided_before: bool
) -> None:
    """S3: what it left half made is undone by the tasks that come next; they do not wait for its time-out."""
    rows, batch = [], 0
    if decided_before:
        query.driver().commit(0, query.tasks(2, ROWS))
        rows, batch = ROWS, 1
    driver = query.driver()
    kill_before_ending(driver)
    with pytest.raises(Killed):
        driver.commit(batch, query.tasks(3, ROWS, batch=batch))
    query.driver().commit(batch, query.tasks(2, ROWS, batch=batch, run="r2"))
    each_once(query, rows + ROWS)


@pytest.mark.parametrize("ended", [0, 3, 8])
@pytest.mark.parametrize("tasks_after", [8, 2, 11])
def test_a_driver_that_dies_among_the_ends_is_finished_by_the_next(
    query: Query, ended: int, tasks_after: int
) -> None:
    """S3: whatever the number of tasks is now, and although they have other rows."""
    driver = query.driver()
    kill_after_ending(driver, ended)
    with pytest.raises(Killed):
        driver.commit(0, query.tasks(8, ROWS))
    results = query.tasks(tasks_after, ROWS, run="r2")
    assert {result.outcome for result in results} == {TaskOutcome.DECIDED}
    query.driver().commit(0, results)
    each_once(query)


def test_a_driver_that_dies_before_spark_notes_the_batch_writes_it_once(query: Query) -> None:
    """S3: all was ended, and the batch comes again; also twice."""
    query.driver().commit(0, query.tasks(4, ROWS))
    for run in ("r2", "r3"):
        query.driver().commit(0, query.tasks(4, ROWS, run=run))
    each_once(query)


def test_a_transaction_that_times_out_before_the_decision_fails_the_whole_batch(query: Query) -> None:
    """S3: nothing is visible, the message names the option, and the next run writes everything."""
    driver = query.driver()
    results = query.tasks(4, ROWS)
    query.steal(results[2])
    with pytest.raises(
        SinkError, match=r"task 2 .* nothing of this batch is visible.*transaction\.timeout\.ms"
    ):
        driver.commit(0, results)
    driver.abort(0, results)
    assert query.open_transactions() == []
    assert query.visible() == []
    query.driver().commit(0, query.tasks(4, ROWS, run="r2"))
    each_once(query)


def test_a_decided_batch_is_finished_although_its_rows_are_gone(query: Query) -> None:
    """S3: the next run has nothing to write; what was decided must not time out for that."""
    driver = query.driver()
    kill_after_ending(driver, 3)
    with pytest.raises(Killed):
        driver.commit(0, query.tasks(8, ROWS))

    query.driver().commit(0, query.tasks(2, [], run="r2"))

    each_once(query)


def test_empty_batches_ask_for_the_ledger_once(query: Query) -> None:
    """S3: a quiet stream costs no more than it must."""
    driver = query.driver()
    ledger = driver._ledger
    assert ledger is not None
    reads = []
    read = ledger.read
    ledger.read = lambda: (reads.append(1), read())[1]  # type: ignore[func-returns-value, method-assign]
    for batch in range(3):
        driver.commit(batch, query.tasks(2, [], batch=batch))
    assert len(reads) == 1
    driver.commit(3, query.tasks(2, ROWS, batch=3))
    each_once(query)


def test_runs_of_a_query_share_their_transactional_ids(query: Query) -> None:
    """S3: a broker remembers every id for days; a query that starts again must not add to them."""
    for batch, run in enumerate(("r1", "r2", "r3")):
        query.driver().commit(batch, query.tasks(2, ROWS, batch=batch, run=run))
    known = [row.transactional_id for row in TransactionAdmin(query.cluster).all()]
    assert sorted(each for each in known if each.startswith(query.family)) == [
        f"{query.family}0-0",
        f"{query.family}1-0",
    ]


def test_the_id_of_an_open_transaction_is_left_to_its_holder(query: Query) -> None:
    """S3: a driver that was taken for dead commits what its tasks wrote; the next run has other ids."""
    old = query.tasks(2, ROWS)
    new = query.tasks(2, ROWS, run="r2")
    newer = query.tasks(2, ROWS, run="r3")
    query.driver().commit(0, old)
    each_once(query)
    ids = {each.identity.transactional_id for each in (*old, *new, *newer) if each.identity}
    assert len(ids) == 6


def test_rows_with_and_without_a_time_are_written_again_alike(query: Query) -> None:
    """S3: rows without a time get that of the first run, or the checksum could never match."""
    driver = query.driver()
    kill_after_ending(driver, 0)
    results = [query.timed_task(0, [None, 1_700_000_000_000_000, None])]
    with pytest.raises(Killed):
        driver.commit(0, results)
    query.steal(results[0])

    later = query.timed_task(0, [None, 1_700_000_000_000_000, None], run="r2", later_ms=5_000)

    assert later.outcome is TaskOutcome.REWRITTEN
    query.driver().commit(0, [later])
    times = sorted(m.timestamp()[1] for m in committed(query.bootstrap, query.topic, PARTITIONS))
    assert times[0] == 1_700_000_000_000
    assert times[1] == times[2] == results[0].written_ms


def lose_one_of_a_decided_batch(query: Query) -> None:
    """Eight tasks decided, three ended, and task 6 timed out while there was no driver."""
    driver = query.driver()
    kill_after_ending(driver, 3)
    results = query.tasks(8, ROWS)
    with pytest.raises(Killed):
        driver.commit(0, results)
    query.steal(results[6])


def test_a_transaction_that_times_out_after_the_decision_is_written_again(query: Query) -> None:
    """S3: by the task of the same number, and no other; and that once, too."""
    lose_one_of_a_decided_batch(query)
    results = query.tasks(8, ROWS, run="r2")
    assert [result.task for result in results if result.outcome is TaskOutcome.REWRITTEN] == [6]
    query.driver().commit(0, results)
    each_once(query)
    query.driver().commit(0, query.tasks(8, ROWS, run="r3"))
    each_once(query)


def test_a_lost_transaction_is_not_replaced_by_other_rows(query: Query) -> None:
    """S3: with another split of the rows, writing again would lose and double some; so it is refused."""
    lose_one_of_a_decided_batch(query)
    with pytest.raises(SinkError, match="has other rows now"):
        query.tasks(7, ROWS, run="r2")
    query.driver().commit(0, query.tasks(8, ROWS, run="r3"))
    each_once(query)


def test_a_lost_transaction_without_a_task_of_its_number_is_an_error(query: Query) -> None:
    """S3: never silence."""
    lose_one_of_a_decided_batch(query)
    results = query.tasks(3, ROWS, run="r2")
    with pytest.raises(SinkError, match=r"tasks 6 .* rows are missing"):
        query.driver().commit(0, results)


def test_a_zombie_executor_writes_into_nothing(query: Query) -> None:
    """S3: it finishes its task after the batch was committed without it, and in the middle of the next."""
    query.driver().commit(0, query.tasks(2, ROWS))
    zombie = query.task(1, ROWS[1::2], batch=1, attempt=0, run="r0")
    driver = query.driver()
    driver.commit(1, query.tasks(2, ["next"], batch=1))
    late = query.task(0, ROWS, batch=2, attempt=3, run="r0")
    driver.commit(2, query.tasks(2, ["last"], batch=2, attempt=1))
    assert {zombie.outcome, late.outcome} == {TaskOutcome.WRITTEN}
    each_once(query, [*ROWS, "next", "last"])


def test_a_zombie_driver_cannot_decide_what_another_has(query: Query) -> None:
    """S3: it was stopped before its decision; the other driver has long gone on."""
    zombie, driver = query.driver(), query.driver()
    zombie.commit(0, query.tasks(2, ["first"]))
    old = query.tasks(4, ROWS, batch=1)
    driver.commit(1, query.tasks(4, ROWS, batch=1, run="r2"))
    zombie.commit(1, old)
    driver.commit(2, query.tasks(2, ["more"], batch=2, run="r2"))
    each_once(query, ["first", *ROWS, "more"])
    with pytest.raises(SinkError, match="another driver runs the same query"):
        zombie.commit(1, old)


def test_a_driver_accepts_what_a_zombie_has_decided(query: Query) -> None:
    """S3: the zombie was faster; the other's transactions for the same batch are aborted."""
    zombie, driver = query.driver(), query.driver()
    zombie.commit(0, query.tasks(2, ["first"]))
    old = query.tasks(4, ROWS, batch=1)
    new = query.tasks(3, ROWS, batch=1, run="r2")
    zombie._tidy = lambda _: None  # type: ignore[method-assign]
    zombie.commit(1, old)
    driver.commit(1, new)
    each_once(query, ["first", *ROWS])


def test_an_abort_after_a_commit_that_raised_undoes_nothing(query: Query) -> None:
    """S3: Spark calls it then; what is decided stays so, and the next run ends it."""
    driver = query.driver()
    kill_after_ending(driver, 3)
    results = query.tasks(8, ROWS)
    with pytest.raises(Killed):
        driver.commit(0, results)
    query.driver().abort(0, results)
    query.driver().commit(0, query.tasks(8, ROWS, run="r2"))
    each_once(query)


def test_an_abort_before_the_decision_leaves_nothing_open(query: Query) -> None:
    """S3: not even transactions whose tasks never reported."""
    results = query.tasks(3, ROWS)
    query.driver().abort(0, results[:1])
    assert query.open_transactions() == []
    assert query.visible() == []


def test_a_batch_behind_the_ledger_is_refused(query: Query) -> None:
    """S3: a checkpoint older than the output would write batches twice."""
    driver = query.driver()
    for batch in (0, 1):
        driver.commit(batch, query.tasks(1, [str(batch)], batch=batch))
    with pytest.raises(SinkError, match="checkpoint is older than"):
        query.task(0, ROWS, batch=0)
    each_once(query, ["0", "1"])


def test_a_group_that_others_commit_to_is_noticed(query: Query) -> None:
    """S3: the ledger is not guessed at."""
    client = TransactionalClient(query.cluster)
    other = client.take("somebody", 60_000)
    client.commit_offsets(other, query.scope, {At(query.topic, 0): Offset(7, "mine")})
    client.end(other, commit=True)
    while not client.stable_offsets(query.scope):
        query.cluster.clock.sleep(0.01)  # a group's first offset does not show while its transaction is ended
    with pytest.raises(SinkError, match="not written by this sink"):
        query.task(0, ROWS, batch=8)
