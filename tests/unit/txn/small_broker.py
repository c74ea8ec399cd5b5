"""A broker that does for transactions what `braidmq.txn` asks of one, step by step and without a disk.

Records and batches that it "wrote" are durable at once; what it has not got to yet is lost when it crashes.
Records of the internal topic and markers are written when told to, in any order a test likes.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import NamedTuple

from braidmq.log.transactions import (
    EndMarker,
    Guard,
    MarkerType,
    PartitionTransactions,
    end_marker,
    parse_end_marker,
)
from braidmq.txn.coordinator import Transactions
from braidmq.txn.events import (
    AddPartitions,
    Answer,
    Effect,
    KeyValue,
    Marker,
    Moment,
    Reply,
    Token,
    TopicPartition,
    WriteMarkers,
    WriteRecord,
)
from braidmq.txn.loading import TransactionLoader
from braidmq.txn.settings import TransactionSettings
from braidmq.wire.errors import ApiError, ErrorCode
from braidmq.wire.records import BatchHeader, build_batch, parse_header, stamp

FIRST_PRODUCER_ID = 1000
WALL_MS = 1_700_000_000_000


class Written(NamedTuple):
    """A batch in a partition: what the producer calls it, or the marker that it is."""

    offset: int
    producer_id: int
    producer_epoch: int
    label: object
    marker: EndMarker | None
    batch: bytearray


class SmallPartition:
    """A log of batches and what is known of their transactions."""

    def __init__(self) -> None:
        self.log: list[Written] = []
        self.transactions = PartitionTransactions()

    @property
    def end_offset(self) -> int:
        return len(self.log)

    def append(self, batch: bytearray, label: object, guard: Guard | None) -> None:
        """One record per batch, so offsets count batches. Raises ApiError."""
        self.transactions.check(parse_header(batch), guard)
        self._write(batch, label)

    def mark(self, marker: Marker, wall_ms: int) -> None:
        """Writes a marker, unless it is there. Raises ApiError."""
        outcome = MarkerType.COMMIT if marker.committed else MarkerType.ABORT
        control = EndMarker(marker.producer_id, marker.producer_epoch, outcome, marker.coordinator_epoch)
        if self.transactions.check_marker(control, marker.transaction_version):
            self._write(end_marker(control, wall_ms), None)

    def _write(self, batch: bytearray, label: object) -> None:
        stamp(batch, self.end_offset, 0)
        header = parse_header(batch)
        one = Written(
            header.base_offset,
            header.producer_id,
            header.producer_epoch,
            label,
            parse_end_marker(batch),
            batch,
        )
        self.log.append(one)
        self._see(one)

    def _see(self, one: Written) -> None:
        if one.marker is None:
            self.transactions.append(parse_header(one.batch), one.offset)
        else:
            self.transactions.end(one.marker, one.offset)

    def recover(self) -> None:
        """The state is made anew from the log."""
        self.transactions = PartitionTransactions()
        for one in self.log:
            self._see(one)

    def committed(self) -> list[object]:
        """What a consumer at read_committed reads, in the way clients do it: by the list of aborted ones."""
        stable = self.transactions.last_stable_offset(self.end_offset)
        aborted = self.transactions.aborted_between(0, stable)
        return [
            one.label
            for one in self.log[:stable]
            if one.marker is None
            and not any(
                each.producer_id == one.producer_id and each.first_offset <= one.offset <= each.last_offset
                for each in aborted
            )
        ]

    def rounds(self) -> Iterator[tuple[list[Written], EndMarker | None]]:
        """Per producer the batches between two markers, and the marker that ends them; None if none does."""
        opened: dict[int, list[Written]] = {}
        for one in self.log:
            if one.marker is None:
                opened.setdefault(one.producer_id, []).append(one)
            elif batches := opened.pop(one.producer_id, None):
                yield batches, one.marker
        for batches in opened.values():
            yield batches, None


class SmallBroker:
    """A coordinator, its internal topic, and partitions that come into being when they are named."""

    def __init__(self, settings: TransactionSettings | None = None) -> None:
        self.settings = settings or TransactionSettings()
        self.now = Moment(0, WALL_MS)
        self.log: list[KeyValue] = []
        self.partitions: dict[TopicPartition, SmallPartition] = {}
        self.producer_ids = count(FIRST_PRODUCER_ID)
        self.start()

    def start(self) -> None:
        """As after kill -9: nothing is left but what was written."""
        self.stores: list[WriteRecord] = []
        self.markers: list[tuple[str, Marker, TopicPartition]] = []
        self.answers: dict[Token, Answer] = {}
        self.transactions = Transactions(self.settings, lambda: next(self.producer_ids))
        for partition in self.partitions.values():
            partition.recover()
        loading = TransactionLoader()
        for key, value in self.log:
            loading.record(key, value)
        assert loading.unreadable == 0
        self.take(self.transactions.load(loading, self.now))

    def partition(self, place: TopicPartition) -> SmallPartition:
        return self.partitions.setdefault(place, SmallPartition())

    def take(self, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Reply):
                assert effect.token not in self.answers, "a client is answered once"
                self.answers[effect.token] = effect.answer
            elif isinstance(effect, WriteRecord):
                self.stores.append(effect)
            else:
                assert isinstance(effect, WriteMarkers)
                self.markers += [
                    (effect.transactional_id, effect.marker, place) for place in effect.partitions
                ]

    def write_record(self, number: int = 0) -> None:
        store = self.stores.pop(number)
        self.log.append(store.record)
        self.take(self.transactions.record_written(store.transactional_id, store.ticket, self.now))

    def fail_record(self, number: int = 0) -> None:
        store = self.stores.pop(number)
        self.take(self.transactions.record_failed(store.transactional_id, store.ticket, self.now))

    def write_marker(self, number: int = 0) -> None:
        transactional_id, marker, place = self.markers.pop(number)
        self.partition(place).mark(marker, self.now.wall_ms)
        self.take(self.transactions.markers_written(transactional_id, marker, (place,), self.now))

    def fail_marker(self, number: int = 0) -> None:
        transactional_id, marker, _ = self.markers.pop(number)
        self.transactions.markers_failed(transactional_id, marker, self.now)

    def write_all(self) -> None:
        """Until nothing is left to be written."""
        while self.stores or self.markers:
            if self.stores:
                self.write_record()
            else:
                self.write_marker()

    def pass_time(self, until_ms: int) -> None:
        """Both clocks go on to `until_ms` of the steady one, and what falls due on the way is begun."""
        while (due_ms := self.transactions.next_deadline()) is not None and due_ms <= until_ms:
            self._set_clock(max(due_ms, self.now.steady_ms))
            self.take(self.transactions.tick(self.now))
        self._set_clock(until_ms)

    def _set_clock(self, steady_ms: int) -> None:
        self.now = Moment(steady_ms, WALL_MS + steady_ms)


def batch_of(
    producer_id: int, producer_epoch: int, sequence: int = 0, transactional: bool = True
) -> bytearray:
    """A batch of one record."""
    return build_batch(
        [(None, b"v", (), 0)],
        base_sequence=sequence,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        transactional=transactional,
    )


class Produce:
    """A Produce on its way: first the coordinator is asked, then the batch is appended."""

    def __init__(
        self, broker: SmallBroker, transactional_id: str, place: TopicPartition, batch: bytearray,
        label: object, protocol: int,
    ) -> None:  # fmt: skip
        self._broker = broker
        self._place = place
        self._batch = batch
        self._label = label
        self._guard: Guard | None = None
        self._asked = False
        self.code: ErrorCode | None = None
        """None until it is decided."""
        header = parse_header(batch)
        try:
            if broker.partition(place).transactions.needs_verification(
                header.producer_id, header.producer_epoch
            ):
                self._guard = broker.partition(place).transactions.begin_verification(header)
                self._ask(transactional_id, header, protocol)
        except ApiError as error:
            self.code = error.code

    def _ask(self, transactional_id: str, header: BatchHeader, protocol: int) -> None:
        request = AddPartitions(
            transactional_id, header.producer_id, header.producer_epoch, frozenset({self._place}), version=5
        )
        transactions = self._broker.transactions
        if protocol >= 2:
            self._asked = True
            self._broker.take(transactions.add_partitions(request, self, self._broker.now))
        else:
            code = transactions.verify(request)[self._place]
            if code is not ErrorCode.NONE:
                self._refuse(code)

    def _refuse(self, code: ErrorCode) -> None:
        self.code = code
        if self._guard is not None:
            producer_id = parse_header(self._batch).producer_id
            self._broker.partition(self._place).transactions.withdraw(producer_id, self._guard)

    @property
    def waits(self) -> bool:
        """Whether the coordinator has not answered yet."""
        return self.code is None and self._asked and self not in self._broker.answers

    def finish(self) -> ErrorCode:
        """Appends the batch, if the coordinator has nothing against it."""
        answer = self._broker.answers.get(self)
        if self.code is None and answer is not None and answer.code is not ErrorCode.NONE:
            self._refuse(answer.code)
        if self.code is None:
            try:
                self._broker.partition(self._place).append(self._batch, self._label, self._guard)
                self.code = ErrorCode.NONE
            except ApiError as error:
                self.code = error.code
        return self.code
