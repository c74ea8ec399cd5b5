"""Looking after transactions, against brokers that are in states a test cannot bring a real one to."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import pytest

from braidmq.address import Address
from braidmq.client.cluster import Attempt, Cluster, TopicPartition
from braidmq.client.transactions import TransactionAdmin
from braidmq.wire.errors import ApiError, ErrorCode
from braidmq.wire.messages.groups import Coordinator, FindCoordinatorRequest, FindCoordinatorResponse
from braidmq.wire.messages.metadata import MetadataResponse, MetadataResponsePartition, MetadataResponseTopic
from braidmq.wire.messages.producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
    PartitionResponse,
    ProducerState,
    TopicResponse,
)
from braidmq.wire.messages.transactions import (
    DescribedTransactionState,
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    ListedTransactionState,
    ListTransactionsRequest,
    ListTransactionsResponse,
    TransactionTopicData,
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from braidmq.wire.schema import Message

AT = TopicPartition("orders", 0)


class Scripted(Cluster):
    """One broker that answers from a script: for each kind of request a list, the last one for ever."""

    def __init__(
        self, answers: dict[type[Message], list[Message]], topics: tuple[str, ...] = ("orders",)
    ) -> None:
        super().__init__("127.0.0.1:1")
        self.brokers = {1: Address("127.0.0.1", 1)}
        self.address = self.brokers[1]
        self.answers = {
            FindCoordinatorRequest: [FindCoordinatorResponse(coordinators=[Coordinator(key="t", node_id=1)])],
            **answers,
        }
        self.topics = topics
        self.asked: list[Message] = []
        self.newest = 2

    def attempts(self, *_: object) -> Iterator[Attempt]:
        """Five tries, without a pause."""
        for number in range(5):
            attempt = Attempt()
            yield attempt
            if attempt.error is None:
                return
            if not attempt.retriable or number == 4:
                raise attempt.error

    def call(self, request: Message, *_: object) -> Message:  # type: ignore[override]
        self.asked.append(request)
        script = self.answers[type(request)]
        return script.pop(0) if len(script) > 1 else script[0]

    def connection(self, node_id: int) -> Scripted:  # type: ignore[override]
        assert node_id == 1
        return self

    def leader(self, *_: object) -> Scripted:  # type: ignore[override]
        return self

    def version(self, *_: object) -> int:
        return self.newest

    def refresh(self, topics: Sequence[str] | None, create: bool = False) -> MetadataResponse:
        assert not create, "looking at transactions makes no topics"
        part = MetadataResponsePartition(partition_index=0, leader_id=1)
        wanted = self.topics if topics is None else topics
        return MetadataResponse(
            topics=[
                MetadataResponseTopic(name=name, partitions=[part])
                if name in self.topics
                else MetadataResponseTopic(name=name, error_code=int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
                for name in wanted
            ]
        )


def producers(*open_at: tuple[int, int]) -> Message:
    """What the partition says: (producer id, start offset) of those with an open transaction."""
    active = [
        ProducerState(producer_id=one, producer_epoch=3, current_txn_start_offset=start)
        for one, start in open_at
    ]
    return DescribeProducersResponse(
        topics=[
            TopicResponse(
                name="orders", partitions=[PartitionResponse(partition_index=0, active_producers=active)]
            )
        ]
    )


def described(state: str, *topics: str, code: ErrorCode = ErrorCode.NONE) -> Message:
    row = DescribedTransactionState(
        error_code=int(code),
        transactional_id="t",
        transaction_state=state,
        transaction_timeout_ms=1000,
        transaction_start_time_ms=5 if topics else -1,
        producer_id=7,
        topics=[TransactionTopicData(topic=name, partitions=[0]) for name in topics],
    )
    return DescribeTransactionsResponse(transaction_states=[row])


LISTED = ListTransactionsResponse(
    transaction_states=[ListedTransactionState(transactional_id="t", producer_id=7, transaction_state="x")]
)
UNLISTED = ListTransactionsResponse()


@pytest.mark.parametrize(
    ("before", "listed", "known", "after", "found"),
    [
        ([(7, 10)], UNLISTED, None, [(7, 10)], [10]),
        ([(7, 10)], LISTED, described("Ongoing", "orders"), [(7, 10)], []),
        ([(7, 10)], LISTED, described("Ongoing", "payments"), [(7, 10)], [10]),
        ([(7, 10)], LISTED, described("CompleteCommit"), [(7, 10)], [10]),
        ([(7, 10)], LISTED, described("CompleteCommit"), [], []),
        ([(7, 10)], LISTED, described("CompleteCommit"), [(7, 20)], []),
        ([], UNLISTED, None, [], []),
    ],
    ids=["nobody knows it", "it goes on", "elsewhere", "it ended without its marker", "it has just ended",
         "the next one has begun", "none is open"],
)  # fmt: skip
def test_a_transaction_hangs_if_its_coordinator_is_not_going_to_end_it(
    before: list[tuple[int, int]],
    listed: Message,
    known: Message | None,
    after: list[tuple[int, int]],
    found: list[int],
) -> None:
    """T2 O1: open in a partition, before and after the coordinator was asked, which does not know of it."""
    answers: dict[type[Message], list[Message]] = {
        DescribeProducersRequest: [producers(*before), producers(*after)],
        ListTransactionsRequest: [listed],
        DescribeTransactionsRequest: [known] if known is not None else [],
    }
    hanging = TransactionAdmin(Scripted(answers)).hanging()
    assert [one.start_offset for one in hanging] == found


def test_what_an_older_broker_cannot_choose_by_is_refused() -> None:
    """O1: it would leave the filter out, and everything be listed."""
    cluster = Scripted({ListTransactionsRequest: [LISTED]})
    transactions = TransactionAdmin(cluster)
    filters: list[Callable[[], object]] = [
        lambda: transactions.all(longer_than_ms=1),
        lambda: transactions.all(pattern="a"),
    ]
    for version, wanted in enumerate(filters):
        cluster.newest = version
        with pytest.raises(ApiError, match="too old") as refused:
            wanted()
        assert refused.value.code is ErrorCode.UNSUPPORTED_VERSION
        cluster.newest = version + 1
        wanted()


def test_a_state_that_the_broker_does_not_know_is_told() -> None:
    """O1: rather than an empty list, which would be taken for good news."""
    answer = ListTransactionsResponse(unknown_state_filters=["Open"])
    with pytest.raises(ApiError, match="no state Open"):
        TransactionAdmin(Scripted({ListTransactionsRequest: [answer]})).all(states=["Open"])


def test_a_coordinator_that_has_moved_is_asked_for_again() -> None:
    """T2: NOT_COORDINATOR and a coordinator that is loading are tried again, other errors are not."""
    moved = described("", code=ErrorCode.NOT_COORDINATOR)
    loading = described("", code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    cluster = Scripted({DescribeTransactionsRequest: [moved, loading, described("Empty")]})
    assert TransactionAdmin(cluster).describe("t").state == "Empty"
    assert sum(isinstance(one, FindCoordinatorRequest) for one in cluster.asked) == 3
    refusing = described("", code=ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    cluster = Scripted({DescribeTransactionsRequest: [refusing]})
    with pytest.raises(ApiError):
        TransactionAdmin(cluster).describe("t")
    assert len(cluster.asked) == 2


def test_a_topic_that_was_deleted_meanwhile_is_shown_without_an_offset() -> None:
    """T2 O1: its partitions still take part, and there is nobody to ask where."""
    answers: dict[type[Message], list[Message]] = {
        DescribeTransactionsRequest: [described("Ongoing", "orders", "deleted")],
        DescribeProducersRequest: [producers((7, 10), (8, 4))],
    }
    found = TransactionAdmin(Scripted(answers)).describe("t")
    assert [(one.topic, one.start_offset) for one in found.partitions] == [("deleted", None), ("orders", 10)]


def test_an_abort_waits_until_the_markers_are_written() -> None:
    """T2: InitProducerId says CONCURRENT_TRANSACTIONS until then."""
    busy = InitProducerIdResponse(error_code=int(ErrorCode.CONCURRENT_TRANSACTIONS))
    cluster = Scripted(
        {
            DescribeTransactionsRequest: [described("Ongoing")],
            InitProducerIdRequest: [busy, busy, InitProducerIdResponse()],
        }
    )
    transactions = TransactionAdmin(cluster)
    transactions.abort(transactions.open_of("t"))
    asked = [one for one in cluster.asked if isinstance(one, InitProducerIdRequest)]
    assert [(one.transactional_id, one.transaction_timeout_ms) for one in asked] == [("t", 1000)] * 3


def test_the_marker_of_a_hanging_transaction_names_its_producer_and_epoch() -> None:
    """T2: as the partition knows them, and a coordinator epoch that no later one is below."""
    written = WriteTxnMarkersResponse(
        markers=[
            WritableTxnMarkerResult(
                topics=[WritableTxnMarkerTopicResult(partitions=[WritableTxnMarkerPartitionResult()])]
            )
        ]
    )
    cluster = Scripted({DescribeProducersRequest: [producers((7, 10))], WriteTxnMarkersRequest: [written]})
    transactions = TransactionAdmin(cluster)
    transactions.abort_hanging(transactions.open_at(AT, 10))
    (request,) = [one for one in cluster.asked if isinstance(one, WriteTxnMarkersRequest)]
    (marker,) = request.markers
    assert (marker.producer_id, marker.producer_epoch, marker.transaction_result) == (7, 3, False)
    assert marker.coordinator_epoch == 0
    assert [(one.name, one.partition_indexes) for one in marker.topics] == [("orders", [0])]
