"""Transactions under producers, delays, failures and crashes in any order: what must always hold.

Three producers of protocol 2 share two transactional ids, so they take each other's place. Their batches
stay on the way for as long as hypothesis likes. A `serial` names a transaction as its producer sees it:
everything it sends between two ends. Whatever happens, the batches between two markers have one serial, a
serial has one outcome everywhere, and it is the one its producer was told.
"""

from __future__ import annotations

from itertools import count

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from braidmq.log.transactions import EndMarker, Outcome
from braidmq.txn.events import NO_EPOCH, NO_PRODUCER_ID, End, Ended, Init, Initialized, Place
from braidmq.txn.records import transaction_record
from braidmq.txn.settings import TransactionSettings
from braidmq.txn.transaction import LAST_EPOCH_OF_PRODUCERS, PREPARED, State, Transaction
from braidmq.wire.errors import ErrorCode
from unit.txn.small_broker import Produce, SmallBroker, SmallPartition, batch_of

PRODUCERS = st.integers(0, 2)
PLACES = st.sampled_from([("a", 0), ("a", 1), ("b", 0)])
NUMBERS = st.integers(0, 1_000)
TIMEOUT_MS = 10_000
Serial = int


class Producer:
    """What a process knows: nothing more than the answers it has seen."""

    def __init__(self, transactional_id: str) -> None:
        self.transactional_id = transactional_id
        self.producer_id = NO_PRODUCER_ID
        self.epoch = NO_EPOCH
        self.serial: Serial = -1
        self.written: set[Place] = set()
        self.asked: bool | None = None
        """Whether it has asked to commit, or to abort; it may only ask the same again."""

    @property
    def ready(self) -> bool:
        return self.epoch != NO_EPOCH


class TransactionModel(RuleBasedStateMachine):
    """A broker that works step by step, and producers that wait for no one."""

    @initialize(first_epoch=st.sampled_from([0, LAST_EPOCH_OF_PRODUCERS - 2]))
    def begin(self, first_epoch: int) -> None:
        self.broker = SmallBroker(TransactionSettings(retry_ms=100))
        if first_epoch:
            self.begin_with_old_ids(first_epoch)
        self.producers = [Producer("x"), Producer("x"), Producer("y")]
        self.serials, self.tokens = count(), count()
        self.waiting: dict[object, tuple[Producer, Init | End, Serial]] = {}
        self.sent: list[Produce] = []
        self.told: dict[Serial, bool] = {}
        self.given: dict[str, list[tuple[int, int]]] = {"x": [], "y": []}

    def begin_with_old_ids(self, epoch: int) -> None:
        """As if the ids had been in use until few of their epochs are left."""
        for name in ("x", "y"):
            producer_id = next(self.broker.producer_ids)
            self.broker.log.append(transaction_record(Transaction(name, producer_id, epoch, TIMEOUT_MS)))
        self.broker.start()

    # Producers

    @rule(number=PRODUCERS, goes_on=st.booleans())
    def init(self, number: int, goes_on: bool) -> None:
        producer = self.producers[number]
        who = (producer.producer_id, producer.epoch) if goes_on else (NO_PRODUCER_ID, NO_EPOCH)
        request = Init(producer.transactional_id, TIMEOUT_MS, *who)
        self.ask(producer, request)

    @rule(number=PRODUCERS, committed=st.booleans())
    def end(self, number: int, committed: bool) -> None:
        producer = self.producers[number]
        if not producer.ready:
            return
        if producer.asked is None:
            producer.asked = committed
        request = End(
            producer.transactional_id, producer.producer_id, producer.epoch, producer.asked, version=5
        )
        self.ask(producer, request)

    def ask(self, producer: Producer, request: Init | End) -> None:
        token = next(self.tokens)
        self.waiting[token] = (producer, request, producer.serial)
        if isinstance(request, Init):
            self.broker.take(self.broker.transactions.init(request, token, self.broker.now))
        else:
            self.broker.take(self.broker.transactions.end(request, token, self.broker.now))

    @rule(number=PRODUCERS, place=PLACES)
    def send(self, number: int, place: Place) -> None:
        """A producer that has asked for the end sends nothing more."""
        producer = self.producers[number]
        if not producer.ready or producer.asked is not None or place in producer.written:
            return
        producer.written.add(place)
        batch = batch_of(producer.producer_id, producer.epoch)
        self.sent.append(
            Produce(self.broker, producer.transactional_id, place, batch, producer.serial, protocol=2)
        )

    @precondition(lambda self: self.sent)
    @rule(number=NUMBERS)
    def land(self, number: int) -> None:
        """A batch arrives, maybe long after everybody has forgotten it."""
        produce = self.sent[number % len(self.sent)]
        if not produce.waits:
            self.sent.remove(produce)
            produce.finish()

    @precondition(lambda self: any(token in self.broker.answers for token in self.waiting))
    @rule(number=NUMBERS, lost=st.booleans())
    def hear(self, number: int, lost: bool) -> None:
        """An answer arrives at its producer, or is lost on the way."""
        answered = [token for token in self.waiting if token in self.broker.answers]
        token = answered[number % len(answered)]
        producer, request, serial = self.waiting.pop(token)
        answer = self.broker.answers[token]
        if answer.code is not ErrorCode.NONE:
            return
        assert isinstance(answer, Initialized | Ended)
        if isinstance(request, End):
            assert self.told.setdefault(serial, request.committed) == request.committed
        if lost or serial != producer.serial:
            return
        producer.producer_id, producer.epoch = answer.producer_id, answer.producer_epoch
        producer.serial, producer.asked = next(self.serials), None
        producer.written.clear()

    # The broker

    @precondition(lambda self: self.broker.stores)
    @rule(number=NUMBERS, fails=st.sampled_from([False, False, False, True]))
    def write_record(self, number: int, fails: bool) -> None:
        chosen = number % len(self.broker.stores)
        if fails:
            self.broker.fail_record(chosen)
        else:
            self.broker.write_record(chosen)

    @precondition(lambda self: self.broker.markers)
    @rule(number=NUMBERS, fails=st.sampled_from([False, False, False, True]))
    def write_marker(self, number: int, fails: bool) -> None:
        chosen = number % len(self.broker.markers)
        if fails:
            self.broker.fail_marker(chosen)
        else:
            self.broker.write_marker(chosen)

    @rule(passed_ms=st.sampled_from([1, 150, TIMEOUT_MS]))
    def pass_time(self, passed_ms: int) -> None:
        self.broker.pass_time(self.broker.now.steady_ms + passed_ms)

    @rule()
    def crash(self) -> None:
        """kill -9 and a restart; who waits is not answered, what was on its way to a partition is gone."""
        self.waiting.clear()
        self.sent.clear()
        self.broker.start()

    @rule()
    def write_all(self) -> None:
        self.broker.write_all()

    # What holds

    @invariant()
    def no_batch_slips_into_another_transaction(self) -> None:
        for partition in self.partitions():
            for batches, _ in partition.rounds():
                assert len({one.label for one in batches}) == 1, batches

    @invariant()
    def a_transaction_has_one_outcome(self) -> None:
        outcomes: dict[Serial, bool] = dict(self.told)
        for partition in self.partitions():
            for batches, marker in partition.rounds():
                if marker is not None:
                    serial = batches[0].label
                    assert isinstance(serial, int)
                    assert outcomes.setdefault(serial, _commits(marker)) == _commits(marker)

    @invariant()
    def epochs_only_go_up(self) -> None:
        for one in self.broker.transactions:
            given = self.given[one.transactional_id]
            now = (one.producer_id, one.producer_epoch)
            assert not given or now >= given[-1], (given[-1], now)
            if not given or now != given[-1]:
                given.append(now)

    @invariant()
    def readers_see_committed_batches_only(self) -> None:
        for partition in self.partitions():
            expected = {
                batches[0].label
                for batches, marker in partition.rounds()
                if marker is not None and _commits(marker)
            }
            seen = partition.committed()
            assert set(seen) <= expected
            assert len(seen) == len(set(seen))

    def teardown(self) -> None:
        """In the end, after one more crash, everything that was decided is finished everywhere."""
        if not hasattr(self, "broker"):
            return
        self.broker.start()
        self.broker.write_all()
        self.broker.pass_time(self.broker.now.steady_ms + 2 * TIMEOUT_MS)
        self.broker.write_all()
        assert all(one.state not in PREPARED | {State.ONGOING} for one in self.broker.transactions)
        for partition in self.partitions():
            assert not partition.transactions.open_transactions()
            assert partition.transactions.last_stable_offset(partition.end_offset) == partition.end_offset
        self.a_transaction_has_one_outcome()
        self.no_batch_slips_into_another_transaction()

    def partitions(self) -> list[SmallPartition]:
        return list(self.broker.partitions.values())


def _commits(marker: EndMarker) -> bool:
    return marker.outcome is Outcome.COMMIT


TransactionModel.TestCase.settings = settings(max_examples=80, stateful_step_count=60, deadline=None)


class TestTransactionsKeepTheirPromisesInAnyOrder(TransactionModel.TestCase):  # type: ignore[misc]
    """T2: see the invariants above."""
