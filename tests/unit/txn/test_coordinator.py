"""The coordinator's corners: epochs that run out, limits, clocks, and what is shown of transactions."""

from __future__ import annotations

from dataclasses import replace

import pytest

from braidmq.txn.coordinator import Transactions
from braidmq.txn.events import (
    Added,
    AddPartitions,
    Answer,
    End,
    Ended,
    Init,
    Initialized,
    Moment,
    Reply,
    TopicPartition,
    WriteRecord,
)
from braidmq.txn.loading import TransactionLoader
from braidmq.txn.records import transaction_record
from braidmq.txn.settings import TransactionSettings
from braidmq.txn.transaction import (
    EPOCH_MAX,
    LAST_EPOCH_OF_PRODUCERS,
    PROTOCOL_2,
    Transaction,
    TransactionState,
)
from braidmq.txn.versions import KNOWN, code_for
from braidmq.txn.views import TransactionFilter, describe, listed, unknown_states
from braidmq.wire.api import Api
from braidmq.wire.errors import ApiError, ErrorCode
from unit.txn.small_broker import FIRST_PRODUCER_ID, SmallBroker

P0: TopicPartition = ("orders", 0)
P1: TopicPartition = ("orders", 1)
DAY_MS = 24 * 3600 * 1000


def asked(broker: SmallBroker, request: Init | AddPartitions | End) -> Answer:
    """The answer to a request, when everything that follows from it is written."""
    token = object()
    transactions = broker.transactions
    if isinstance(request, Init):
        effects = transactions.init(request, token, broker.now)
    elif isinstance(request, AddPartitions):
        effects = transactions.add_partitions(request, token, broker.now)
    else:
        effects = transactions.end(request, token, broker.now)
    broker.take(effects)
    broker.write_all()
    return broker.answers[token]


def add(
    broker: SmallBroker, producer_id: int, epoch: int, *partitions: TopicPartition, version: int = 5
) -> ErrorCode:
    request = AddPartitions("app", producer_id, epoch, frozenset(partitions), version)
    return asked(broker, request).code


def broker_with(transaction: Transaction, settings: TransactionSettings | None = None) -> SmallBroker:
    broker = SmallBroker(settings)
    next(broker.producer_ids)
    broker.log.append(transaction_record(transaction))
    broker.start()
    return broker


def found(broker: SmallBroker, transactional_id: str = "app") -> Transaction:
    transaction = broker.transactions.find(transactional_id)
    assert transaction is not None
    return transaction


def used_up(epoch: int = LAST_EPOCH_OF_PRODUCERS) -> Transaction:
    return Transaction("app", FIRST_PRODUCER_ID, epoch, 60_000)


# Epochs that run out


def test_init_takes_a_new_producer_id_when_the_epochs_are_used_up() -> None:
    """T2: the largest epoch is never given to a producer, so that it can always be fenced."""
    broker = broker_with(used_up(LAST_EPOCH_OF_PRODUCERS - 1))
    first = asked(broker, Init("app", 60_000))
    assert first == Initialized(ErrorCode.NONE, FIRST_PRODUCER_ID, LAST_EPOCH_OF_PRODUCERS)
    assert asked(broker, Init("app", 60_000)) == Initialized(ErrorCode.NONE, FIRST_PRODUCER_ID + 1, 0)


def test_a_producer_that_goes_on_with_its_last_epoch_gets_a_new_id_and_may_ask_twice() -> None:
    """T2: KIP-360 over the end of the epochs."""
    broker = broker_with(used_up())
    goes_on = Init("app", 60_000, FIRST_PRODUCER_ID, LAST_EPOCH_OF_PRODUCERS)
    assert asked(broker, goes_on) == Initialized(ErrorCode.NONE, FIRST_PRODUCER_ID + 1, 0)
    assert asked(broker, goes_on) == Initialized(ErrorCode.NONE, FIRST_PRODUCER_ID + 1, 0)
    assert asked(broker, replace(goes_on, producer_epoch=5)).code is ErrorCode.PRODUCER_FENCED


@pytest.mark.parametrize("committed", [True, False])
def test_an_end_with_the_last_epoch_changes_the_producer_id(committed: bool) -> None:
    """T2: markers carry the largest epoch; the producer is told its new id, also when it asks again."""
    broker = broker_with(used_up())
    assert add(broker, FIRST_PRODUCER_ID, LAST_EPOCH_OF_PRODUCERS, P0) is ErrorCode.NONE
    end = End("app", FIRST_PRODUCER_ID, LAST_EPOCH_OF_PRODUCERS, committed)
    renewed = Ended(ErrorCode.NONE, FIRST_PRODUCER_ID + 1, 0)
    assert asked(broker, end) == renewed
    (marker,) = (one.marker for one in broker.partition(P0).log)
    assert marker is not None
    assert (marker.producer_id, marker.producer_epoch) == (FIRST_PRODUCER_ID, EPOCH_MAX)
    assert asked(broker, end) == renewed
    broker.start()
    assert asked(broker, end) == renewed
    assert add(broker, FIRST_PRODUCER_ID + 1, 0, P0) is ErrorCode.NONE


def test_the_new_producer_id_waits_for_the_markers_of_the_old_one() -> None:
    """T2: until then it is told to try again, not that it does not exist."""
    broker = broker_with(used_up())
    add(broker, FIRST_PRODUCER_ID, LAST_EPOCH_OF_PRODUCERS, P0)
    end = End("app", FIRST_PRODUCER_ID, LAST_EPOCH_OF_PRODUCERS, True)
    broker.take(broker.transactions.end(end, "end", broker.now))
    broker.write_record()
    request = AddPartitions("app", FIRST_PRODUCER_ID + 1, 0, frozenset({P0}), 5)
    early = broker.transactions.add_partitions(request, "add", broker.now)
    assert early == [Reply("add", Added(ErrorCode.CONCURRENT_TRANSACTIONS))]
    broker.write_all()
    assert asked(broker, request) == Added(ErrorCode.NONE)


def test_fencing_with_the_last_epoch_changes_the_producer_id() -> None:
    """T2: the fenced producer has no way back, not even as one that asks again."""
    broker = broker_with(used_up())
    add(broker, FIRST_PRODUCER_ID, LAST_EPOCH_OF_PRODUCERS, P0)
    assert asked(broker, Init("app", 60_000)).code is ErrorCode.CONCURRENT_TRANSACTIONS
    assert (found(broker).state, found(broker).producer_id) == (
        TransactionState.COMPLETE_ABORT,
        FIRST_PRODUCER_ID + 1,
    )
    assert asked(broker, Init("app", 60_000)) == Initialized(ErrorCode.NONE, FIRST_PRODUCER_ID + 1, 1)
    for request in (
        End("app", FIRST_PRODUCER_ID, LAST_EPOCH_OF_PRODUCERS, False),
        Init("app", 60_000, FIRST_PRODUCER_ID, LAST_EPOCH_OF_PRODUCERS),
    ):
        fenced = (ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_ID_MAPPING)
        assert asked(broker, request).code in fenced


def test_without_producer_ids_the_client_is_told_and_a_time_out_tries_again() -> None:
    """T2: ids are reserved on a disk that may fail."""
    given = [ErrorCode.KAFKA_STORAGE_ERROR]

    def new_producer_id() -> int:
        if given:
            raise ApiError(given[0], "no ids")
        return 77

    transactions = Transactions(TransactionSettings(), new_producer_id)
    begun = replace(used_up(), state=TransactionState.ONGOING, partitions=frozenset({P0}), started_ms=0)
    loading = TransactionLoader()
    loading.record(*transaction_record(begun))
    transactions.load(loading, Moment(0, 60_000))
    assert transactions.tick(Moment(0, 60_000)) == []
    new = transactions.init(Init("other", 1), "init", Moment(0, 60_000))
    assert new == [Reply("init", Initialized(ErrorCode.KAFKA_STORAGE_ERROR))]
    given.clear()
    due_ms = transactions.next_deadline()
    assert due_ms == TransactionSettings().retry_ms
    (store,) = transactions.tick(Moment(due_ms, 61_000))
    assert isinstance(store, WriteRecord)


# Requests that are refused


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (Init("", 60_000), ErrorCode.INVALID_REQUEST),
        (Init("x" * 1_001, 60_000), ErrorCode.INVALID_REQUEST),
        (Init("app", 60_000, producer_id=4), ErrorCode.INVALID_REQUEST),
        (Init("app", 60_000, producer_epoch=4), ErrorCode.INVALID_REQUEST),
        (Init("app", -1), ErrorCode.INVALID_TRANSACTION_TIMEOUT),
        (Init("app", 60_000, FIRST_PRODUCER_ID + 9, 0), ErrorCode.PRODUCER_FENCED),
        (Init("app", 60_000, FIRST_PRODUCER_ID, 1), ErrorCode.PRODUCER_FENCED),
        (Init("app", 60_000, FIRST_PRODUCER_ID, 1, version=3), ErrorCode.INVALID_PRODUCER_EPOCH),
        (AddPartitions("", FIRST_PRODUCER_ID, 0, frozenset({P0})), ErrorCode.INVALID_REQUEST),
        (AddPartitions("who", FIRST_PRODUCER_ID, 0, frozenset({P0})), ErrorCode.INVALID_PRODUCER_ID_MAPPING),
        (AddPartitions("app", 4, 0, frozenset({P0})), ErrorCode.INVALID_PRODUCER_ID_MAPPING),
        (AddPartitions("app", FIRST_PRODUCER_ID, 1, frozenset({P0})), ErrorCode.PRODUCER_FENCED),
        (AddPartitions("app", FIRST_PRODUCER_ID, 1, frozenset({P0}), 1), ErrorCode.INVALID_PRODUCER_EPOCH),
        (End("who", FIRST_PRODUCER_ID, 0, True), ErrorCode.INVALID_PRODUCER_ID_MAPPING),
        (End("app", 4, 0, True), ErrorCode.INVALID_PRODUCER_ID_MAPPING),
        (End("app", 4, 0, True, version=2), ErrorCode.INVALID_PRODUCER_ID_MAPPING),
        (End("app", FIRST_PRODUCER_ID, 1, True), ErrorCode.PRODUCER_FENCED),
        (End("app", FIRST_PRODUCER_ID, 1, True, version=2), ErrorCode.PRODUCER_FENCED),
        (End("app", FIRST_PRODUCER_ID, 1, True, version=1), ErrorCode.INVALID_PRODUCER_EPOCH),
        (End("app", FIRST_PRODUCER_ID, 0, True), ErrorCode.INVALID_TXN_STATE),
        (End("app", FIRST_PRODUCER_ID, 0, False, version=4), ErrorCode.INVALID_TXN_STATE),
    ],
)
def test_mistakes_are_answered_with_kafkas_codes(
    request_: Init | AddPartitions | End, code: ErrorCode
) -> None:
    """T2: unknown ids, wrong producers, wrong epochs, wrong states, by the version of the request."""
    broker = SmallBroker()
    assert asked(broker, Init("app", 60_000)) == Initialized(ErrorCode.NONE, FIRST_PRODUCER_ID, 0)
    before = list(broker.log)
    assert asked(broker, request_).code is code
    assert broker.log == before


def test_codes_are_in_the_words_of_the_requests_version() -> None:
    """T2: fenced and abortable, where a client knows them."""
    for api, since in KNOWN.items():
        for code, first, older in (
            (ErrorCode.PRODUCER_FENCED, since.fenced, ErrorCode.INVALID_PRODUCER_EPOCH),
            (ErrorCode.TRANSACTION_ABORTABLE, since.abortable, ErrorCode.INVALID_TXN_STATE),
        ):
            assert (code_for(code, api, first), code_for(code, api, first - 1)) == (code, older)
    assert code_for(ErrorCode.CONCURRENT_TRANSACTIONS, Api.END_TXN, 0) is ErrorCode.CONCURRENT_TRANSACTIONS


def test_floods_of_ids_and_partitions_are_bounded() -> None:
    """T2: what is there stays usable."""
    broker = SmallBroker(TransactionSettings(transactional_ids_max=2, transaction_partitions_max=2))
    assert asked(broker, Init("app", 1)).code is ErrorCode.NONE
    assert asked(broker, Init("b", 1)).code is ErrorCode.NONE
    assert asked(broker, Init("c", 1)).code is ErrorCode.POLICY_VIOLATION
    assert add(broker, FIRST_PRODUCER_ID, 0, P0, P1) is ErrorCode.NONE
    assert add(broker, FIRST_PRODUCER_ID, 0, ("orders", 2)) is ErrorCode.POLICY_VIOLATION
    assert found(broker).partitions == {P0, P1}
    assert asked(broker, End("app", FIRST_PRODUCER_ID, 0, True)).code is ErrorCode.NONE
    assert len(broker.transactions) == 2


def test_verifying_changes_nothing() -> None:
    """T2: AddPartitionsToTxn with verify_only, of a transaction that is open, ended, or not its own."""
    broker = SmallBroker()
    asked(broker, Init("app", 60_000))
    request = AddPartitions("app", FIRST_PRODUCER_ID, 0, frozenset({P0, P1}), 5)
    abortable = dict.fromkeys([P0, P1], ErrorCode.TRANSACTION_ABORTABLE)
    assert broker.transactions.verify(request) == abortable
    add(broker, FIRST_PRODUCER_ID, 0, P0, version=3)
    before = found(broker)
    assert broker.transactions.verify(request) == {**abortable, P0: ErrorCode.NONE}
    fenced = broker.transactions.verify(replace(request, producer_epoch=1))
    assert set(fenced.values()) == {ErrorCode.PRODUCER_FENCED}
    assert set(broker.transactions.verify(replace(request, transactional_id="who")).values()) == {
        ErrorCode.INVALID_PRODUCER_ID_MAPPING
    }
    assert found(broker) == before
    asked(broker, End("app", FIRST_PRODUCER_ID, 0, True, version=3))
    assert broker.transactions.verify(request) == abortable


# Reports and time


def test_reports_of_what_is_long_over_are_no_matter() -> None:
    """T2: a slow disk or partition reports after a restart or a retry."""
    broker = SmallBroker()
    asked(broker, Init("app", 60_000))
    add(broker, FIRST_PRODUCER_ID, 0, P0)
    effects = broker.transactions.end(End("app", FIRST_PRODUCER_ID, 0, True), "end", broker.now)
    broker.take(effects)
    (store,) = broker.stores
    assert broker.transactions.record_written("app", store.ticket - 1, broker.now) == []
    assert broker.transactions.record_failed("who", store.ticket, broker.now) == []
    broker.write_record()
    assert broker.transactions.record_written("app", store.ticket, broker.now) == []
    ((_, marker, _),) = broker.markers
    late = marker._replace(committed=False)
    assert broker.transactions.markers_written("app", late, (P0,), broker.now) == []
    assert broker.transactions.markers_written("app", marker, (P1,), broker.now) == []
    broker.write_all()
    assert broker.transactions.markers_written("app", marker, (P0,), broker.now) == []
    broker.transactions.markers_failed("app", marker, broker.now)
    broker.pass_time(600_000)
    assert (found(broker).state, broker.stores, broker.markers) == (TransactionState.COMPLETE_COMMIT, [], [])
    assert broker.transactions.next_deadline() is None


def test_a_step_of_the_wall_clock_ends_no_transaction() -> None:
    """T2: an hour forward or back while one is open."""
    for step_ms in (3_600_000, -3_600_000):
        broker = SmallBroker()
        asked(broker, Init("app", 60_000))
        add(broker, FIRST_PRODUCER_ID, 0, P0)
        stepped = broker.now.wall_ms + step_ms
        assert broker.transactions.tick(Moment(59_999, stepped)) == []
        assert broker.transactions.next_deadline() == 60_000
        assert len(broker.transactions.tick(Moment(60_000, stepped))) == 1


def test_after_a_restart_a_transaction_has_the_time_that_was_left() -> None:
    """T2: never more than it asked for, even if the wall clock was set back."""
    begun = replace(
        used_up(3), state=TransactionState.ONGOING, partitions=frozenset({P0}), started_ms=100_000
    )
    for wall_ms, left_ms in ((100_000, 60_000), (140_000, 20_000), (900_000, 0), (5_000, 60_000)):
        loading = TransactionLoader()
        loading.record(*transaction_record(begun))
        transactions = Transactions(TransactionSettings(), lambda: 1)
        assert transactions.load(loading, Moment(7, wall_ms)) == []
        assert transactions.next_deadline() == 7 + left_ms


def test_a_time_out_waits_for_what_is_being_written() -> None:
    """T2: the commit that is on its way to disk wins."""
    broker = SmallBroker()
    asked(broker, Init("app", 60_000))
    add(broker, FIRST_PRODUCER_ID, 0, P0)
    broker.take(broker.transactions.end(End("app", FIRST_PRODUCER_ID, 0, True), "end", broker.now))
    broker.pass_time(70_000)
    broker.write_all()
    assert found(broker).state is TransactionState.COMPLETE_COMMIT
    add(broker, FIRST_PRODUCER_ID, 1, P0)
    broker.take(broker.transactions.end(End("app", FIRST_PRODUCER_ID, 1, True), "again", broker.now))
    broker.pass_time(140_000)
    broker.fail_record()
    broker.pass_time(140_001)
    broker.write_all()
    assert broker.answers["again"].code is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert found(broker).state is TransactionState.COMPLETE_ABORT


def test_an_end_that_cannot_be_written_down_is_tried_again() -> None:
    """T2: the markers are there, the record of completion is not."""
    broker = SmallBroker()
    asked(broker, Init("app", 60_000))
    add(broker, FIRST_PRODUCER_ID, 0, P0)
    broker.take(broker.transactions.end(End("app", FIRST_PRODUCER_ID, 0, True), "end", broker.now))
    broker.write_record()
    broker.write_marker()
    broker.fail_record()
    assert (found(broker).state, broker.stores) == (TransactionState.PREPARE_COMMIT, [])
    broker.pass_time(broker.settings.retry_ms)
    broker.write_all()
    assert found(broker).state is TransactionState.COMPLETE_COMMIT
    assert broker.partition(P0).end_offset == 1


def test_only_idle_ids_expire_and_one_that_cannot_be_forgotten_stays() -> None:
    """T2: transactional.id.expiration.ms."""
    broker = SmallBroker()
    asked(broker, Init("app", 60_000))
    asked(broker, Init("idle", 60_000))
    broker.pass_time(8 * DAY_MS)
    add(broker, FIRST_PRODUCER_ID, 0, P0)
    broker.take(broker.transactions.expire(broker.now))
    assert [store.transactional_id for store in broker.stores] == ["idle"]
    assert broker.transactions.find("idle") is None
    assert asked_while_dying(broker) is ErrorCode.CONCURRENT_TRANSACTIONS
    broker.fail_record()
    assert found(broker, "idle").state is TransactionState.EMPTY
    broker.take(broker.transactions.expire(broker.now))
    broker.write_all()
    assert [one.transactional_id for one in broker.transactions] == ["app"]
    broker.start()
    assert [one.transactional_id for one in broker.transactions] == ["app"]


def asked_while_dying(broker: SmallBroker) -> ErrorCode:
    (reply,) = broker.transactions.init(Init("idle", 1), "init", broker.now)
    assert isinstance(reply, Reply)
    return reply.answer.code


# What is shown


def test_transactions_are_described_and_listed() -> None:
    """T2: DescribeTransactions and ListTransactions, with their filters."""
    broker = SmallBroker()
    asked(broker, Init("app", 60_000))
    asked(broker, Init("b", 30_000))
    add(broker, FIRST_PRODUCER_ID, 0, P1, P0)
    started_ms = broker.now.wall_ms
    shown = describe(broker.transactions, "app")
    assert shown == ("app", "Ongoing", 60_000, started_ms, FIRST_PRODUCER_ID, 0, {"orders": [0, 1]})
    with pytest.raises(ApiError) as refused:
        describe(broker.transactions, "who")
    assert refused.value.code is ErrorCode.TRANSACTIONAL_ID_NOT_FOUND

    def ids(wanted: TransactionFilter) -> list[str]:
        later = Moment(0, started_ms + 1_000)
        return [one.transactional_id for one in listed(broker.transactions, wanted, later)]

    assert ids(TransactionFilter()) == ["app", "b"]
    assert ids(TransactionFilter(states=frozenset({"Empty"}))) == ["b"]
    assert ids(TransactionFilter(producer_ids=frozenset({FIRST_PRODUCER_ID + 1}))) == ["b"]
    assert (ids(TransactionFilter(longer_than_ms=999)), ids(TransactionFilter(longer_than_ms=1_000))) == (
        ["app"],
        [],
    )
    assert ids(TransactionFilter(named=lambda name: name.startswith("a"))) == ["app"]
    wrong = TransactionFilter(states=frozenset({"Nothing"}))
    assert (ids(wrong), unknown_states(wrong)) == ([], ["Nothing"])


def test_states_have_the_names_and_numbers_of_kafka() -> None:
    """T2: as in its records and its tools."""
    assert [(state.value, state.label) for state in TransactionState] == [
        (0, "Empty"), (1, "Ongoing"), (2, "PrepareCommit"), (3, "PrepareAbort"),
        (4, "CompleteCommit"), (5, "CompleteAbort"), (6, "Dead"), (7, "PrepareEpochFence"),
    ]  # fmt: skip


def test_a_restart_finishes_every_decided_transaction() -> None:
    """T2: commits as commits, aborts as aborts, also those without partitions."""
    broker = SmallBroker()
    for number, state in enumerate((TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT)):
        for partitions in (frozenset({P0, P1}), frozenset[TopicPartition]()):
            name = f"{state.label}{len(partitions)}"
            kept = Transaction(name, 2 * number + len(partitions), 4, 60_000, state, partitions, 5, 5)
            broker.log.append(transaction_record(replace(kept, client_version=PROTOCOL_2)))
    broker.start()
    broker.write_all()
    assert {one.transactional_id: one.state.label for one in broker.transactions} == {
        "PrepareCommit2": "CompleteCommit",
        "PrepareCommit0": "CompleteCommit",
        "PrepareAbort2": "CompleteAbort",
        "PrepareAbort0": "CompleteAbort",
    }
    assert [len(broker.partition(place).log) for place in (P0, P1)] == [2, 2]
