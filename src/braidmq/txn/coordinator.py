"""The transactional ids of one coordinator: requests, time and reports go in, effects come out.

At most one change of an id is on its way to disk at any time; until it is reported as stored the id stays as
it was for those who look, and everybody who wants to change it gets CONCURRENT_TRANSACTIONS, which clients
retry. So there is no state in memory that a crash could take back, and what a restart reads is a state some
client may have seen. The caller sets one timer for `next_deadline` and calls `tick` when it fires,
however many transactions there are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from typing import NamedTuple

from braidmq.deadlines import Deadlines
from braidmq.txn.events import (
    NO_EPOCH,
    NO_PRODUCER_ID,
    Added,
    AddPartitions,
    Answer,
    Effect,
    End,
    Ended,
    Init,
    Initialized,
    Marker,
    Moment,
    Reply,
    Token,
    TopicPartition,
    WriteMarkers,
    WriteRecord,
)
from braidmq.txn.loading import TransactionLoader
from braidmq.txn.records import tombstone, transaction_record
from braidmq.txn.settings import TransactionSettings
from braidmq.txn.transaction import (
    COMMITTING,
    IDLE,
    PREPARED,
    PROTOCOL_2,
    EndedBy,
    NewProducerId,
    Transaction,
    TransactionState,
    check_producer,
    check_resumable,
    completed,
    initialized,
    is_repeated_end,
    prepared,
    with_partitions,
)
from braidmq.txn.versions import code_for
from braidmq.wire.api import Api
from braidmq.wire.errors import ApiError, ErrorCode

BUMPED_SINCE = 5
"""From this version of EndTxn on the client takes part in protocol 2."""
BATCHED_SINCE = 4
"""From this version on AddPartitionsToTxn comes from brokers, for clients of protocol 2."""


class PendingChange(NamedTuple):
    """A change that is being written: what the id becomes (None if it is forgotten), who waits for it."""

    ticket: int
    to: Transaction | None
    reply: Reply | None

    @property
    def state(self) -> TransactionState:
        return TransactionState.DEAD if self.to is None else self.to.state


class TxnEntry:
    """A transactional id in memory."""

    __slots__ = ("current", "due_ms", "pending", "retry_ms", "unwritten")

    def __init__(self, current: Transaction | None) -> None:
        self.current = current
        """None while the very first record is being written."""
        self.pending: PendingChange | None = None
        self.unwritten: set[TopicPartition] = set()
        """Where the markers of a prepared transaction have not been reported as written."""
        self.due_ms: int | None = None
        """When time itself ends the transaction, by the steady clock."""
        self.retry_ms: int | None = None
        """When what could not be written is tried again."""

    def next_deadline(self) -> int | None:
        return self.due_ms if self.retry_ms is None else self.retry_ms


class Transactions:
    """The transactional ids of one coordinator."""

    def __init__(
        self,
        settings: TransactionSettings,
        new_producer_id: NewProducerId,
        coordinator_epoch: int = 0,
        ids_known: Callable[[], int] | None = None,
    ) -> None:
        self.settings = settings
        self.coordinator_epoch = coordinator_epoch
        self._new_producer_id = new_producer_id
        self._entries: dict[str, TxnEntry] = {}
        self._ids_known = ids_known or self.__len__
        """How many there are of all coordinators that share the limit."""
        self._tickets = count(1)
        self._deadlines: Deadlines[str] = Deadlines()

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Transaction]:
        """What is durable of each id, as `find` shows it."""
        shown = (self.find(transactional_id) for transactional_id in self._entries)
        return (one for one in shown if one is not None)

    def find(self, transactional_id: str) -> Transaction | None:
        """What is durable of an id; one that is being forgotten is not shown."""
        entry = self._entries.get(transactional_id)
        if entry is None or (entry.pending is not None and entry.pending.state is TransactionState.DEAD):
            return None
        return entry.current

    def load(self, loading: TransactionLoader, now: Moment) -> list[Effect]:
        """Takes over what an earlier run left; decided transactions are finished with the effects."""
        effects: list[Effect] = []
        for transactional_id, transaction in loading.transactions.items():
            entry = self._entries[transactional_id] = TxnEntry(transaction)
            effects += self._entered(entry, transaction, now)
        return effects

    # Requests

    def init(self, request: Init, token: Token, now: Moment) -> list[Effect]:
        try:
            return self._init(request, token, now)
        except ApiError as error:
            code = code_for(error.code, Api.INIT_PRODUCER_ID, request.version)
            return [Reply(token, Initialized(code))]

    def _init(self, request: Init, token: Token, now: Moment) -> list[Effect]:
        self.settings.check_id(request.transactional_id)
        self.settings.check_timeout(request.timeout_ms)
        expected = _expected(request)
        entry = self._entries.get(request.transactional_id)
        if entry is None:
            return self._create(request, token, now)
        current = _settled(entry)
        if current.state in IDLE:
            to = initialized(current, request.timeout_ms, expected, self._new_producer_id, now.wall_ms)
            answer = Initialized(ErrorCode.NONE, to.producer_id, to.producer_epoch)
            return self._change(entry, to, Reply(token, answer))
        if expected is not None and expected != (current.producer_id, current.producer_epoch):
            # Kafka would abort the transaction of the producer that took its place, and then refuse it.
            check_resumable(current, *expected)
            raise ApiError(ErrorCode.CONCURRENT_TRANSACTIONS, "the transaction is about to end")
        if current.state in PREPARED:
            raise ApiError(ErrorCode.CONCURRENT_TRANSACTIONS, "the transaction is about to end")
        by = EndedBy.FENCE if expected is None else EndedBy.TIME_OUT
        to = prepared(current, False, by, self._new_producer_id, now.wall_ms)
        return self._change(entry, to, Reply(token, Initialized(ErrorCode.CONCURRENT_TRANSACTIONS)))

    def _create(self, request: Init, token: Token, now: Moment) -> list[Effect]:
        if (known := self._ids_known()) >= self.settings.transactional_ids_max:
            raise ApiError(
                ErrorCode.POLICY_VIOLATION,
                f"there are {known} transactional ids, as many as transactional.ids.max allows",
            )
        made = Transaction(
            request.transactional_id,
            self._new_producer_id(),
            producer_epoch=0,
            timeout_ms=request.timeout_ms,
            updated_ms=now.wall_ms,
        )
        entry = self._entries[request.transactional_id] = TxnEntry(None)
        answer = Initialized(ErrorCode.NONE, made.producer_id, made.producer_epoch)
        return self._change(entry, made, Reply(token, answer))

    def add_partitions(
        self, request: AddPartitions, token: Token, now: Moment, api: Api = Api.ADD_PARTITIONS_TO_TXN
    ) -> list[Effect]:
        """Partitions take part in the producer's transaction, which begins with the first of them."""
        try:
            return self._add_partitions(request, token, now, api)
        except ApiError as error:
            return [Reply(token, Added(code_for(error.code, api, request.version)))]

    def add_offsets(self, request: AddPartitions, token: Token, now: Moment) -> list[Effect]:
        """AddOffsetsToTxn: adds the partition of the offsets topic that holds the group's offsets."""
        return self.add_partitions(request, token, now, Api.ADD_OFFSETS_TO_TXN)

    def _add_partitions(self, request: AddPartitions, token: Token, now: Moment, api: Api) -> list[Effect]:
        entry = self._entry(request.transactional_id)
        current = _owned(entry, request.producer_id, request.producer_epoch)
        _settled(entry)
        if current.state in PREPARED:
            raise ApiError(ErrorCode.CONCURRENT_TRANSACTIONS, "the previous transaction has not ended yet")
        if current.state is TransactionState.ONGOING and request.partitions <= current.partitions:
            return [Reply(token, Added(ErrorCode.NONE))]
        batched = api is Api.ADD_PARTITIONS_TO_TXN and request.version >= BATCHED_SINCE
        to = with_partitions(current, request.partitions, PROTOCOL_2 if batched else 0, now.wall_ms)
        if len(to.partitions) > self.settings.transaction_partitions_max:
            raise ApiError(
                ErrorCode.POLICY_VIOLATION,
                f"the transaction would have more than {self.settings.transaction_partitions_max} partitions",
            )
        return self._change(entry, to, Reply(token, Added(ErrorCode.NONE)))

    def verify(self, request: AddPartitions) -> dict[TopicPartition, ErrorCode]:
        """AddPartitionsToTxn with verify_only: whether each partition takes part in the transaction as it is.

        Codes are for a reader of the newest version; `versions.code_for` puts them into a client's words.
        """
        try:
            current = _owned(
                self._entry(request.transactional_id), request.producer_id, request.producer_epoch
            )
            if current.state in PREPARED:
                raise ApiError(ErrorCode.CONCURRENT_TRANSACTIONS, "the transaction is about to end")
        except ApiError as error:
            return dict.fromkeys(request.partitions, error.code)
        known = current.partitions if current.state is TransactionState.ONGOING else frozenset()
        return {
            partition: ErrorCode.NONE if partition in known else ErrorCode.TRANSACTION_ABORTABLE
            for partition in request.partitions
        }

    def end(self, request: End, token: Token, now: Moment) -> list[Effect]:
        try:
            if request.version >= BUMPED_SINCE:
                return self._end_bumping(request, token, now)
            return self._end_as_of_old(request, token, now)
        except ApiError as error:
            return [Reply(token, Ended(code_for(error.code, Api.END_TXN, request.version)))]

    def _end_as_of_old(self, request: End, token: Token, now: Moment) -> list[Effect]:
        entry = self._entry(request.transactional_id)
        current = _owned(entry, request.producer_id, request.producer_epoch)
        _settled(entry)
        if current.state is TransactionState.ONGOING:
            return self._decide(entry, current, request.committed, EndedBy.OLD_CLIENT, token, now)
        return [self._ended_already(current, request, token)]

    def _end_bumping(self, request: End, token: Token, now: Moment) -> list[Effect]:
        entry = self._entry(request.transactional_id)
        current = _existing(entry)
        if is_repeated_end(current, request.producer_id, request.producer_epoch):
            _settled(entry)
            return [self._ended_already(current, request, token)]
        check_producer(current, request.producer_id, request.producer_epoch)
        _settled(entry)
        if current.state in PREPARED:
            # The end of a transaction in which nothing was done, sent while the one before is finished.
            raise ApiError(ErrorCode.CONCURRENT_TRANSACTIONS, "the previous transaction has not ended yet")
        if current.state is not TransactionState.ONGOING and request.committed:
            raise _invalid(current, request.committed)
        return self._decide(entry, current, request.committed, EndedBy.CLIENT, token, now)

    def _ended_already(self, current: Transaction, request: End, token: Token) -> Reply:
        same = request.committed == (current.state in COMMITTING)
        if current.state is TransactionState.EMPTY or not same:
            raise _invalid(current, request.committed)
        if current.state in PREPARED:
            raise ApiError(ErrorCode.CONCURRENT_TRANSACTIONS, "the markers are being written")
        return Reply(token, Ended(ErrorCode.NONE, current.producer_id, current.producer_epoch))

    def _decide(
        self, entry: TxnEntry, current: Transaction, committed: bool, by: EndedBy, token: Token, now: Moment
    ) -> list[Effect]:
        to = prepared(current, committed, by, self._new_producer_id, now.wall_ms)
        after = completed(to, now.wall_ms)
        answer = Ended(ErrorCode.NONE, after.producer_id, after.producer_epoch)
        return self._change(entry, to, Reply(token, answer))

    # Reports

    def record_written(self, transactional_id: str, ticket: int, now: Moment) -> list[Effect]:
        """The record of a `WriteRecord` is durable."""
        entry = self._entries.get(transactional_id)
        if entry is None or entry.pending is None or entry.pending.ticket != ticket:
            return []
        pending, entry.pending = entry.pending, None
        if pending.to is None:
            self._drop(transactional_id)
            return []
        effects: list[Effect] = [] if pending.reply is None else [pending.reply]
        entry.current, entry.retry_ms = pending.to, None
        return effects + self._entered(entry, pending.to, now)

    def record_failed(
        self,
        transactional_id: str,
        ticket: int,
        now: Moment,
        code: ErrorCode = ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ) -> list[Effect]:
        """The record of a `WriteRecord` could not be written; the client that waits for it gets `code`."""
        entry = self._entries.get(transactional_id)
        if entry is None or entry.pending is None or entry.pending.ticket != ticket:
            return []
        pending, entry.pending = entry.pending, None
        if entry.current is None:
            self._drop(transactional_id)
        elif pending.reply is None and pending.to is not None:
            self._retry(entry, entry.current, now)
        else:
            self._set_deadline(transactional_id, entry)
        if pending.reply is None:
            return []
        return [Reply(pending.reply.token, _failed(pending.reply.answer, code))]

    def markers_written(
        self, transactional_id: str, marker: Marker, partitions: tuple[TopicPartition, ...], now: Moment
    ) -> list[Effect]:
        """The marker is durable in these partitions, or they are gone for good (their topic was deleted)."""
        entry = self._entries.get(transactional_id)
        if entry is None or entry.current is None or not self._is_of(marker, entry.current):
            return []
        entry.unwritten.difference_update(partitions)
        return [] if entry.unwritten or entry.pending else self._complete(entry, entry.current, now)

    def markers_failed(self, transactional_id: str, marker: Marker, now: Moment) -> None:
        """Some partition could not take the marker; those that are still missing are tried again."""
        entry = self._entries.get(transactional_id)
        if entry is not None and entry.current is not None and self._is_of(marker, entry.current):
            self._retry(entry, entry.current, now)

    # Time

    def next_deadline(self) -> int | None:
        """When `tick` is to be called, by the steady clock; ask again after every other call."""
        return self._deadlines.next_ms()

    def tick(self, now: Moment) -> list[Effect]:
        """Aborts transactions whose time is over, and tries again what failed."""
        effects: list[Effect] = []
        for transactional_id in self._deadlines.pop_due(now.steady_ms):
            entry = self._entries[transactional_id]
            if entry.pending is None and entry.current is not None:
                effects += self._due(entry, entry.current, now)
        return effects

    def _due(self, entry: TxnEntry, current: Transaction, now: Moment) -> list[Effect]:
        deadline_ms = entry.next_deadline()
        if deadline_ms is None or deadline_ms > now.steady_ms:
            self._set_deadline(current.transactional_id, entry)
            return []
        entry.retry_ms = None
        if current.state in PREPARED:
            return self._finish(entry, current, now)
        try:
            to = prepared(current, False, EndedBy.TIME_OUT, self._new_producer_id, now.wall_ms)
        except ApiError:
            self._retry(entry, current, now)
            return []
        return self._change(entry, to, None)

    def expire(self, now: Moment) -> list[Effect]:
        """Forgets ids that have been idle for too long; to be asked now and then."""
        oldest_ms = now.wall_ms - self.settings.transactional_id_expiration_ms
        effects: list[Effect] = []
        for entry in self._entries.values():
            current = entry.current
            if current is None or entry.pending is not None or current.state not in IDLE:
                continue
            if current.updated_ms <= oldest_ms:
                entry.pending = PendingChange(next(self._tickets), None, None)
                record = tombstone(current.transactional_id)
                effects.append(WriteRecord(current.transactional_id, entry.pending.ticket, record))
        return effects

    # Inside

    def _entry(self, transactional_id: str) -> TxnEntry:
        self.settings.check_id(transactional_id)
        entry = self._entries.get(transactional_id)
        if entry is None:
            raise ApiError(
                ErrorCode.INVALID_PRODUCER_ID_MAPPING, f"no producer was initialised for {transactional_id!r}"
            )
        return entry

    def _change(self, entry: TxnEntry, to: Transaction, reply: Reply | None) -> list[Effect]:
        assert entry.pending is None, f"{to.transactional_id!r} is being written already"
        entry.pending = PendingChange(next(self._tickets), to, reply)
        return [WriteRecord(to.transactional_id, entry.pending.ticket, transaction_record(to))]

    def _entered(self, entry: TxnEntry, current: Transaction, now: Moment) -> list[Effect]:
        """What follows from a state that is durable."""
        entry.unwritten = set(current.partitions) if current.state in PREPARED else set()
        entry.due_ms = None
        if current.state is TransactionState.ONGOING:
            left_ms = current.started_ms + current.timeout_ms - now.wall_ms
            # A wall clock that was set back must not make a transaction last longer than it asked for.
            entry.due_ms = now.steady_ms + min(max(left_ms, 0), current.timeout_ms)
        effects = self._finish(entry, current, now) if current.state in PREPARED else []
        self._set_deadline(current.transactional_id, entry)
        return effects

    def _finish(self, entry: TxnEntry, current: Transaction, now: Moment) -> list[Effect]:
        if not entry.unwritten:
            return self._complete(entry, current, now)
        partitions = tuple(sorted(entry.unwritten))
        return [WriteMarkers(current.transactional_id, self._marker(current), partitions)]

    def _complete(self, entry: TxnEntry, current: Transaction, now: Moment) -> list[Effect]:
        entry.retry_ms = None
        return self._change(entry, completed(current, now.wall_ms), None)

    def _marker(self, current: Transaction) -> Marker:
        return Marker(
            current.producer_id,
            current.producer_epoch,
            current.state is TransactionState.PREPARE_COMMIT,
            self.coordinator_epoch,
            current.client_version,
        )

    def _is_of(self, marker: Marker, current: Transaction) -> bool:
        return current.state in PREPARED and marker == self._marker(current)

    def _retry(self, entry: TxnEntry, current: Transaction, now: Moment) -> None:
        entry.retry_ms = now.steady_ms + self.settings.retry_ms
        self._set_deadline(current.transactional_id, entry)

    def _set_deadline(self, transactional_id: str, entry: TxnEntry) -> None:
        self._deadlines.set(transactional_id, entry.next_deadline())

    def _drop(self, transactional_id: str) -> None:
        del self._entries[transactional_id]
        self._deadlines.drop(transactional_id)


def _expected(request: Init) -> tuple[int, int] | None:
    """The producer that wants to continue, if it is one."""
    named = (request.producer_id != NO_PRODUCER_ID, request.producer_epoch != NO_EPOCH)
    if named == (False, False):
        return None
    if named != (True, True):
        raise ApiError(ErrorCode.INVALID_REQUEST, "give a producer id and its epoch, or neither")
    return request.producer_id, request.producer_epoch


def _existing(entry: TxnEntry) -> Transaction:
    if entry.current is None:
        raise ApiError(ErrorCode.CONCURRENT_TRANSACTIONS, "the transactional id is being created")
    return entry.current


def _owned(entry: TxnEntry, producer_id: int, producer_epoch: int) -> Transaction:
    """What is durable of an id, if this producer owns it."""
    current = _existing(entry)
    check_producer(current, producer_id, producer_epoch)
    return current


def _settled(entry: TxnEntry) -> Transaction:
    """What is known of an id that nothing is being written of."""
    current = _existing(entry)
    if entry.pending is not None:
        raise ApiError(
            ErrorCode.CONCURRENT_TRANSACTIONS,
            f"another change of {current.transactional_id!r} is being written",
        )
    return current


def _invalid(current: Transaction, committed: bool) -> ApiError:
    verb = "committed" if committed else "aborted"
    return ApiError(
        ErrorCode.INVALID_TXN_STATE,
        f"{current.transactional_id!r} is in state {current.state.label} and cannot be {verb}",
    )


def _failed(answer: Answer, code: ErrorCode) -> Answer:
    return type(answer)(code)
