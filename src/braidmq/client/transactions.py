"""Looking after transactions: which are open and since when, what they hold up, and how to end one by force.

A transaction is ended in one of two ways. Where its coordinator knows it, another producer takes its
transactional id over (InitProducerId): that fences its holder, and the coordinator aborts what it left
open. Where only a partition knows of it (it hangs: its coordinator has forgotten it or has ended it already,
and its marker never came), the marker itself is written, into that one partition.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Self, TypeVar

from braidmq.client.cluster import Cluster, TopicPartition, topic_error
from braidmq.client.connection import Connection
from braidmq.client.errors import Unreachable
from braidmq.wire.errors import ApiError, ErrorCode
from braidmq.wire.messages.groups import FindCoordinatorRequest, FindCoordinatorResponse
from braidmq.wire.messages.producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
    PartitionResponse,
    TopicRequest,
)
from braidmq.wire.messages.transactions import (
    DescribedTransactionState,
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    ListTransactionsRequest,
    ListTransactionsResponse,
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)

TRANSACTION_KEY = 1
"""The kind of coordinator that FindCoordinator is asked for."""
ONGOING = "Ongoing"
STATES = (
    "Empty",
    ONGOING,
    "PrepareCommit",
    "PrepareAbort",
    "CompleteCommit",
    "CompleteAbort",
    "PrepareEpochFence",
    "Dead",
)
LONGER_THAN_SINCE, PATTERN_SINCE = 1, 2
"""From which version of ListTransactions on these filters exist."""
NOT_OPEN = -1

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ListedTransaction:
    """A transactional id, and the broker that coordinates it."""

    transactional_id: str
    producer_id: int
    state: str
    coordinator: int


@dataclass(frozen=True, slots=True)
class TransactionPartition:
    """A partition that takes part; `start_offset` is where it begins, None if nothing is written yet."""

    topic: str
    partition: int
    start_offset: int | None


@dataclass(frozen=True, slots=True)
class TransactionDescription:
    """`open_ms` is how long it has been open, None if no transaction is."""

    transactional_id: str
    state: str
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    open_ms: int | None
    coordinator: int
    partitions: tuple[TransactionPartition, ...]


@dataclass(frozen=True, slots=True)
class OpenProducer:
    """A producer with an open transaction, as one partition knows it."""

    topic: str
    partition: int
    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    start_offset: int
    last_timestamp_ms: int


class TransactionAdmin:
    """Administration of transactions."""

    def __init__(self, cluster: Cluster | str) -> None:
        self._owns_cluster = isinstance(cluster, str)
        self._cluster = Cluster(cluster) if isinstance(cluster, str) else cluster

    def all(
        self,
        states: Iterable[str] = (),
        producer_ids: Iterable[int] = (),
        longer_than_ms: int | None = None,
        pattern: str | None = None,
    ) -> list[ListedTransaction]:
        """Every transactional id that passes, over all brokers; `pattern` is a regular expression."""
        request = ListTransactionsRequest(
            state_filters=list(states),
            producer_id_filters=list(producer_ids),
            duration_filter=-1 if longer_than_ms is None else longer_than_ms,
            transactional_id_pattern=pattern,
        )
        self._cluster.refresh([])
        found = []
        for node_id in sorted(self._cluster.brokers):
            answer = self._listed_by(node_id, request)
            found += [
                ListedTransaction(row.transactional_id, row.producer_id, row.transaction_state, node_id)
                for row in answer.transaction_states
            ]
        return sorted(found, key=lambda row: row.transactional_id)

    def _listed_by(self, node_id: int, request: ListTransactionsRequest) -> ListTransactionsResponse:
        def ask() -> ListTransactionsResponse:
            connection = self._cluster.connection(node_id)
            _check_filters(connection, request)
            answer = connection.call(request, ListTransactionsResponse)
            _raise_for(answer.error_code, f"transactions of broker {node_id}")
            return answer

        answer = self._tried(ask)
        if answer.unknown_state_filters:
            raise ApiError(
                ErrorCode.INVALID_REQUEST,
                f"broker {node_id} knows no state {', '.join(answer.unknown_state_filters)}",
            )
        return answer

    def describe(self, transactional_id: str) -> TransactionDescription:
        """State, producer and partitions; ApiError TRANSACTIONAL_ID_NOT_FOUND where there is no such id."""
        row, coordinator = self._described(transactional_id)
        partitions = [
            TopicPartition(topic.topic, index) for topic in row.topics for index in topic.partitions
        ]
        # Topics may be deleted while they take part.
        existing = self._existing(partitions)
        starts = {
            TopicPartition(producer.topic, producer.partition): producer.start_offset
            for producer in self.open_producers(existing)
            if producer.producer_id == row.producer_id
        }
        is_open = row.transaction_start_time_ms >= 0 and row.transaction_state.startswith(
            ("Ongoing", "Prepare")
        )
        return TransactionDescription(
            row.transactional_id,
            row.transaction_state,
            row.producer_id,
            row.producer_epoch,
            row.transaction_timeout_ms,
            max(self._cluster.clock.wall_ms() - row.transaction_start_time_ms, 0) if is_open else None,
            coordinator,
            tuple(TransactionPartition(at.topic, at.partition, starts.get(at)) for at in sorted(partitions)),
        )

    def _described(self, transactional_id: str) -> tuple[DescribedTransactionState, int]:
        def ask() -> tuple[DescribedTransactionState, int]:
            node_id = self._coordinator(transactional_id)
            request = DescribeTransactionsRequest(transactional_ids=[transactional_id])
            answer = self._cluster.connection(node_id).call(request, DescribeTransactionsResponse)
            row = answer.transaction_states[0]
            if row.error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
                raise ApiError(
                    ErrorCode.TRANSACTIONAL_ID_NOT_FOUND,
                    f"there is no transactional id {transactional_id!r}; braid txn list shows them",
                )
            _raise_for(row.error_code, f"transactional id {transactional_id}")
            return row, node_id

        return self._tried(ask)

    def open_producers(self, partitions: Iterable[TopicPartition]) -> list[OpenProducer]:
        """The producers that hold a transaction open in these partitions, in order."""
        wanted = set(partitions)

        def ask() -> list[OpenProducer]:
            found: list[OpenProducer] = []
            for connection, led in self._cluster.by_leader(self._existing(wanted)):
                found += _open_producers(connection, led)
            return found

        if missing := wanted - self._existing(wanted):
            raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{min(missing)} does not exist")
        found = self._tried(ask)
        return sorted(found, key=lambda each: (each.topic, each.partition, each.start_offset))

    def _existing(self, partitions: Iterable[TopicPartition]) -> set[TopicPartition]:
        """Those that exist; their leaders are looked up again, and asking creates no topic."""
        wanted = set(partitions)
        if not wanted:
            return wanted
        answer = self._cluster.refresh(sorted({at.topic for at in wanted}))
        return wanted & {
            TopicPartition(topic.name or "", part.partition_index)
            for topic in answer.topics
            for part in topic.partitions
        }

    def hanging(self, topics: Iterable[str] | None = None) -> list[OpenProducer]:
        """Transactions open in a partition (None: of any topic) that no coordinator knows of.

        A coordinator forgets what takes part only when every marker is written; so what is unknown to it, and
        open both before and after it was asked, was never going to be ended.
        """
        partitions = self._partitions(topics)
        before = self.open_producers(partitions)
        if not before:
            return []
        known = set()
        for row in self.all(producer_ids={each.producer_id for each in before}):
            described, _ = self._described(row.transactional_id)
            known |= {
                (described.producer_id, topic.topic, index)
                for topic in described.topics
                for index in topic.partitions
            }
        unknown = [each for each in before if (each.producer_id, each.topic, each.partition) not in known]
        starts = {(each.topic, each.partition, each.start_offset) for each in self.open_producers(partitions)}
        return [each for each in unknown if (each.topic, each.partition, each.start_offset) in starts]

    def _partitions(self, topics: Iterable[str] | None) -> list[TopicPartition]:
        answer = self._cluster.refresh(None if topics is None else list(topics))
        for topic in answer.topics:
            if topic.error_code != ErrorCode.NONE:
                raise topic_error(ErrorCode(topic.error_code), topic.name or "")
        return [
            TopicPartition(topic.name or "", part.partition_index)
            for topic in answer.topics
            for part in topic.partitions
        ]

    def open_of(self, transactional_id: str) -> TransactionDescription:
        """As `describe`; ApiError INVALID_TXN_STATE if the id has no open transaction."""
        found = self.describe(transactional_id)
        if found.state != ONGOING:
            raise ApiError(
                ErrorCode.INVALID_TXN_STATE,
                f"{transactional_id!r} is in state {found.state}: there is no open transaction to abort",
            )
        return found

    def abort(self, found: TransactionDescription) -> None:
        """Aborts the open transaction of an id and fences its producer.

        It is over for readers when this returns: InitProducerId succeeds when every marker is written.
        """
        request = InitProducerIdRequest(
            transactional_id=found.transactional_id, transaction_timeout_ms=found.timeout_ms
        )

        def take_over() -> None:
            connection = self._cluster.connection(self._coordinator(found.transactional_id))
            answer = connection.call(request, InitProducerIdResponse)
            _raise_for(answer.error_code, f"transactional id {found.transactional_id}")

        self._tried(take_over)

    def open_at(self, at: TopicPartition, start_offset: int) -> OpenProducer:
        """The transaction that begins at an offset of a partition."""
        opened = self.open_producers([at])
        found = next((each for each in opened if each.start_offset == start_offset), None)
        if found is None:
            raise ApiError(ErrorCode.INVALID_TXN_STATE, f"{at}: {_what_is_open(opened, start_offset)}")
        return found

    def abort_hanging(self, found: OpenProducer) -> None:
        """Writes the abort marker of a transaction into the partition it was found in."""
        at = TopicPartition(found.topic, found.partition)
        topic = WritableTxnMarkerTopic(name=at.topic, partition_indexes=[at.partition])
        marker = WritableTxnMarker(
            producer_id=found.producer_id,
            producer_epoch=found.producer_epoch,
            transaction_result=False,
            topics=[topic],
            # -1: no marker has ever been written here, so any coordinator is young enough.
            coordinator_epoch=max(found.coordinator_epoch, 0),
        )

        def write() -> None:
            self._existing([at])
            request = WriteTxnMarkersRequest(markers=[marker])
            answer = self._cluster.leader(at).call(request, WriteTxnMarkersResponse)
            code = ErrorCode(answer.markers[0].topics[0].partitions[0].error_code)
            if code is ErrorCode.CLUSTER_AUTHORIZATION_FAILED:
                raise ApiError(
                    code,
                    f"{at}: the cluster takes no markers from this client; a Braid broker ends hanging"
                    " transactions itself, and any other is aborted by its id: braid txn abort ID",
                )
            _raise_for(code, f"{at}")

        self._tried(write)

    def close(self) -> None:
        if self._owns_cluster:
            self._cluster.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _coordinator(self, transactional_id: str) -> int:
        # Up to version 3 the key is in one field, from 4 on in the other; so is the answer.
        request = FindCoordinatorRequest(
            key=transactional_id, key_type=TRANSACTION_KEY, coordinator_keys=[transactional_id]
        )
        answer = self._cluster.call(request, FindCoordinatorResponse)
        found = answer.coordinators[0] if answer.coordinators else answer
        _raise_for(found.error_code, f"transactional id {transactional_id}")
        if found.node_id not in self._cluster.brokers:
            self._cluster.refresh([])
        return found.node_id

    def _tried(self, ask: Callable[[], T]) -> T:
        """Asks until it is answered, as long as asking again may help."""
        for attempt in self._cluster.attempts():
            try:
                return ask()
            except (ApiError, Unreachable) as error:
                attempt.failed(error, retriable=isinstance(error, Unreachable) or error.code.retriable)
        raise AssertionError("attempts end by raising")


def _check_filters(connection: Connection, request: ListTransactionsRequest) -> None:
    """A broker that does not know a filter would leave it out and answer with everything."""
    version = connection.version(ListTransactionsRequest)
    for wanted, since, what in (
        (request.duration_filter >= 0, LONGER_THAN_SINCE, "how long they run"),
        (request.transactional_id_pattern is not None, PATTERN_SINCE, "a pattern of their ids"),
    ):
        if wanted and version < since:
            raise ApiError(
                ErrorCode.UNSUPPORTED_VERSION,
                f"{connection.address} is too old to choose transactions by {what}; leave that out",
            )


def _open_producers(connection: Connection, partitions: Iterable[TopicPartition]) -> list[OpenProducer]:
    topics: dict[str, TopicRequest] = {}
    for at in partitions:
        row = topics.setdefault(at.topic, TopicRequest(name=at.topic, partition_indexes=[]))
        row.partition_indexes.append(at.partition)
    answer = connection.call(
        DescribeProducersRequest(topics=list(topics.values())), DescribeProducersResponse
    )
    found: list[OpenProducer] = []
    for topic in answer.topics:
        for part in topic.partitions:
            at = TopicPartition(topic.name, part.partition_index)
            _raise_for(part.error_code, part.error_message or f"producers of {at}")
            found += _open_in(at, part)
    return found


def _open_in(at: TopicPartition, part: PartitionResponse) -> Iterator[OpenProducer]:
    for each in part.active_producers:
        if each.current_txn_start_offset != NOT_OPEN:
            yield OpenProducer(
                at.topic,
                at.partition,
                each.producer_id,
                each.producer_epoch,
                each.coordinator_epoch,
                each.current_txn_start_offset,
                each.last_timestamp,
            )


def _what_is_open(opened: list[OpenProducer], start_offset: int) -> str:
    if not opened:
        return "no transaction is open"
    starts = ", ".join(str(each.start_offset) for each in opened)
    return f"no open transaction begins at offset {start_offset}; those there are begin at {starts}"


def _raise_for(code_number: int, about: str) -> None:
    code = ErrorCode(code_number)
    if code is not ErrorCode.NONE:
        raise ApiError(code, f"{about}: {code.name.lower().replace('_', ' ')}")
