"""Taking part in transactions: a producer's identity, what belongs to its transaction, and how that ends.

A transaction belongs to a transactional id. Whoever takes the id (`take`) gets a producer id and an epoch,
and everybody who held it before is fenced; what they left open is aborted. Records are then produced under
that identity (`batch_sender.py`), offsets of groups committed under it, and `end` makes all of it visible or
none. An identity is plain values, so it can be handed over: a transaction that one process filled can be
ended by another, which is what the Spark sink does.

There are two versions of the protocol, and the cluster says which rules (its feature `transaction.version`).
In the first, partitions and groups are announced to the coordinator before they are written to. In the second
(KIP-890), the first write announces them, and every end bumps the epoch so that nothing late can slip in.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from braidmq.client.cluster import Cluster, TopicPartition
from braidmq.client.connection import Connection
from braidmq.client.coordinators import CoordinatorKind, Coordinators
from braidmq.client.errors import ClientError
from braidmq.wire.errors import ApiError, ErrorCode
from braidmq.wire.messages.commits import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchResponse,
    OffsetFetchResponseTopic,
    OffsetFetchResponseTopics,
)
from braidmq.wire.messages.producers import InitProducerIdRequest, InitProducerIdResponse
from braidmq.wire.messages.transactions import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
    DescribedTransactionState,
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    EndTxnRequest,
    EndTxnResponse,
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
)
from braidmq.wire.messages.versions import ApiVersionsRequest, ApiVersionsResponse

FEATURE = "transaction.version"
PROTOCOL_2 = 2
FEATURES_SINCE = 3
"""The first version of ApiVersions that lists features."""
# From here on a request is one of protocol 2.
OFFSETS_VERSION_2 = 5
END_VERSION_2 = 5
# From 4 on AddPartitionsToTxn is for brokers.
ADD_PARTITIONS_VERSION_MAX = 3
OFFSET_FETCH_VERSION_MAX = 9
PIPELINED_MAX = 64

FENCED = frozenset(
    {
        ErrorCode.PRODUCER_FENCED,
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        ErrorCode.INVALID_TXN_STATE,
    }
)
"""The transaction is no longer this producer's: another has taken its id, or it was aborted for its age."""


@dataclass(frozen=True, slots=True)
class Identity:
    """Who a transactional producer is: the holder of an id, until somebody takes it."""

    transactional_id: str
    producer_id: int
    producer_epoch: int


class Offset(NamedTuple):
    """A committed offset and the text that was committed with it."""

    offset: int
    text: str


class TransactionalClient:
    """The verbs of transactions, each sent to the right coordinator. Belongs to one thread."""

    def __init__(self, cluster: Cluster, coordinators: Coordinators | None = None) -> None:
        self._cluster = cluster
        self._coordinators = coordinators or Coordinators(cluster)
        self._protocol: int | None = None

    @property
    def protocol(self) -> int:
        """The version of transactions the cluster has agreed on: 0 and 1 announce partitions, 2 does not."""
        if self._protocol is None:
            connection = self._cluster.any_connection()
            version = connection.version(ApiVersionsRequest)
            answer = ApiVersionsResponse()
            if version >= FEATURES_SINCE:
                request = ApiVersionsRequest(client_software_name="braid", client_software_version="1")
                answer = connection.call(request, ApiVersionsResponse)
            levels = {row.name: row.max_version_level for row in answer.finalized_features}
            self._protocol = levels.get(FEATURE, 0)
        return self._protocol

    def take(self, transactional_id: str, timeout_ms: int) -> Identity:
        """Becomes the holder of an id. Its last holder is fenced, what that left open is aborted first."""
        request = InitProducerIdRequest(transactional_id=transactional_id, transaction_timeout_ms=timeout_ms)

        def ask(connection: Connection) -> Identity:
            answer = connection.call(request, InitProducerIdResponse)
            _raise_for(answer.error_code, f"transactional id {transactional_id}")
            return Identity(transactional_id, answer.producer_id, answer.producer_epoch)

        return self._coordinators.ask(CoordinatorKind.TRANSACTION, transactional_id, ask)

    def add_partitions(self, identity: Identity, partitions: Iterable[TopicPartition]) -> None:
        """Announces partitions before their first batch; in protocol 2 that batch does it."""
        topics: dict[str, AddPartitionsToTxnTopic] = {}
        for at in partitions:
            topics.setdefault(
                at.topic, AddPartitionsToTxnTopic(name=at.topic, partitions=[])
            ).partitions.append(at.partition)
        if self.protocol >= PROTOCOL_2 or not topics:
            return
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=identity.transactional_id,
            v3_and_below_producer_id=identity.producer_id,
            v3_and_below_producer_epoch=identity.producer_epoch,
            v3_and_below_topics=list(topics.values()),
        )

        def ask(connection: Connection) -> None:
            answer = connection.call(request, AddPartitionsToTxnResponse, ADD_PARTITIONS_VERSION_MAX)
            for topic in answer.results_by_topic_v3_and_below:
                for part in topic.results_by_partition:
                    _raise_for(part.partition_error_code, f"{topic.name}-{part.partition_index}")

        self._coordinators.ask(CoordinatorKind.TRANSACTION, identity.transactional_id, ask)

    def commit_offsets(
        self, identity: Identity, group_id: str, offsets: Mapping[TopicPartition, Offset]
    ) -> None:
        """Makes offsets of a group part of the transaction; no one sees them before it is committed."""
        if self.protocol < PROTOCOL_2:
            self._add_group(identity, group_id)
        topics: dict[str, TxnOffsetCommitRequestTopic] = {}
        for at, (offset, text) in offsets.items():
            row = TxnOffsetCommitRequestPartition(
                partition_index=at.partition, committed_offset=offset, committed_metadata=text
            )
            topic = topics.setdefault(at.topic, TxnOffsetCommitRequestTopic(name=at.topic, partitions=[]))
            topic.partitions.append(row)
        request = TxnOffsetCommitRequest(
            transactional_id=identity.transactional_id,
            group_id=group_id,
            producer_id=identity.producer_id,
            producer_epoch=identity.producer_epoch,
            topics=list(topics.values()),
        )

        def ask(connection: Connection) -> None:
            answer = connection.call(request, TxnOffsetCommitResponse, self._newest(OFFSETS_VERSION_2))
            for topic in answer.topics:
                for part in topic.partitions:
                    _raise_for(part.error_code, f"group {group_id}, {topic.name}-{part.partition_index}")

        self._coordinators.ask(CoordinatorKind.GROUP, group_id, ask)

    def _add_group(self, identity: Identity, group_id: str) -> None:
        request = AddOffsetsToTxnRequest(
            transactional_id=identity.transactional_id,
            producer_id=identity.producer_id,
            producer_epoch=identity.producer_epoch,
            group_id=group_id,
        )

        def ask(connection: Connection) -> None:
            answer = connection.call(request, AddOffsetsToTxnResponse)
            _raise_for(answer.error_code, f"transactional id {identity.transactional_id}")

        self._coordinators.ask(CoordinatorKind.TRANSACTION, identity.transactional_id, ask)

    def end(self, identity: Identity, *, commit: bool) -> Identity:
        """Commits or aborts; the same call again gives the same answer. The identity of the next one.

        ApiError with one of `FENCED` when the transaction is not this identity's any more, or has ended the
        other way.
        """

        def ask(connection: Connection) -> Identity:
            version = self._send_end(connection, identity, commit)
            return _ended(identity, connection.receive(EndTxnResponse, version))

        return self._coordinators.ask(CoordinatorKind.TRANSACTION, identity.transactional_id, ask)

    def end_all(self, identities: Iterable[Identity], *, commit: bool) -> dict[Identity, ApiError]:
        """Ends many, without waiting for one before the next is asked for; those that were fenced, and how.

        ClientError or ApiError when it cannot be known what became of one.
        """
        left = list(dict.fromkeys(identities))
        fenced: dict[Identity, ApiError] = {}
        while left:
            now, left = left[:PIPELINED_MAX], left[PIPELINED_MAX:]
            for identity in self._pipeline(now, commit, fenced):
                # Answered with something passing, or not at all: once more, alone, with pauses.
                try:
                    self.end(identity, commit=commit)
                except ApiError as error:
                    if error.code not in FENCED:
                        raise
                    fenced[identity] = error
        return fenced

    def _pipeline(
        self, identities: list[Identity], commit: bool, fenced: dict[Identity, ApiError]
    ) -> list[Identity]:
        """Asks for all at once; those to ask again."""
        again: list[Identity] = []
        sent: list[tuple[Identity, Connection, int]] = []
        for identity in identities:
            try:
                connection = self._coordinators.connection(
                    CoordinatorKind.TRANSACTION, identity.transactional_id
                )
                sent.append((identity, connection, self._send_end(connection, identity, commit)))
            except (ApiError, ClientError):
                again.append(identity)
        for identity, connection, version in sent:
            try:
                _ended(identity, connection.receive(EndTxnResponse, version))
            except ApiError as error:
                if error.code in FENCED:
                    fenced[identity] = error
                else:
                    again.append(identity)
            except ClientError:
                again.append(identity)
        return again

    def _send_end(self, connection: Connection, identity: Identity, commit: bool) -> int:
        request = EndTxnRequest(
            transactional_id=identity.transactional_id,
            producer_id=identity.producer_id,
            producer_epoch=identity.producer_epoch,
            committed=commit,
        )
        version = connection.version(EndTxnRequest, self._newest(END_VERSION_2))
        connection.send(request, version)
        return version

    def _newest(self, version_2: int) -> int | None:
        """The newest version of a verb under the protocol that rules, where `version_2` is the other's."""
        return None if self.protocol >= PROTOCOL_2 else version_2 - 1

    def described(self, transactional_ids: Iterable[str]) -> dict[str, DescribedTransactionState]:
        """What the coordinators know of these ids; those that they have never heard of are left out."""
        by_broker: dict[int, tuple[Connection, list[str]]] = {}
        found: dict[str, DescribedTransactionState] = {}
        for each in transactional_ids:
            connection = self._coordinators.ask(
                CoordinatorKind.TRANSACTION, each, lambda connection: connection
            )
            by_broker.setdefault(id(connection), (connection, []))[1].append(each)
        for _, ids in by_broker.values():
            found |= self._coordinators.ask(CoordinatorKind.TRANSACTION, ids[0], partial(_described, ids))
        return found

    def stable_offsets(self, group_id: str) -> dict[TopicPartition, Offset] | None:
        """All offsets of a group; None while a transaction that changes one is open or being ended.

        A partition's very first offset does not show meanwhile, not even as something to wait for: where
        nothing is found, ask what became of the transaction (`described`).
        """
        group = OffsetFetchRequestGroup(group_id=group_id, topics=None)
        request = OffsetFetchRequest(group_id=group_id, topics=None, groups=[group], require_stable=True)

        def ask(connection: Connection) -> dict[TopicPartition, Offset] | None:
            answer = connection.call(request, OffsetFetchResponse, OFFSET_FETCH_VERSION_MAX)
            found = answer.groups[0] if answer.groups else answer
            try:
                _raise_for(found.error_code, f"group {group_id}")
                return _offsets(group_id, found.topics)
            except ApiError as error:
                if error.code is ErrorCode.UNSTABLE_OFFSET_COMMIT:
                    return None
                raise

        return self._coordinators.ask(CoordinatorKind.GROUP, group_id, ask)


def _described(ids: list[str], connection: Connection) -> dict[str, DescribedTransactionState]:
    answer = connection.call(DescribeTransactionsRequest(transactional_ids=ids), DescribeTransactionsResponse)
    found = {}
    for row in answer.transaction_states:
        if row.error_code != ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
            _raise_for(row.error_code, f"transactional id {row.transactional_id}")
            found[row.transactional_id] = row
    return found


def _offsets(
    group_id: str, topics: Iterable[OffsetFetchResponseTopic | OffsetFetchResponseTopics]
) -> dict[TopicPartition, Offset]:
    found: dict[TopicPartition, Offset] = {}
    for topic in topics:
        for part in topic.partitions:
            _raise_for(part.error_code, f"group {group_id}, {topic.name}-{part.partition_index}")
            at = TopicPartition(topic.name, part.partition_index)
            found[at] = Offset(part.committed_offset, part.metadata or "")
    return found


def _ended(identity: Identity, answer: EndTxnResponse) -> Identity:
    _raise_for(answer.error_code, f"transactional id {identity.transactional_id}")
    if answer.producer_id < 0:
        return identity
    return Identity(identity.transactional_id, answer.producer_id, answer.producer_epoch)


def _raise_for(code_number: int, about: str) -> None:
    code = ErrorCode(code_number)
    if code is not ErrorCode.NONE:
        raise ApiError(code, f"{about}: {code.name.lower().replace('_', ' ')}")
