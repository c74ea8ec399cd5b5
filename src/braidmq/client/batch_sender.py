"""Sends batches that are already built, several requests under way, each batch stored once and in order.

The batches belong to one producer id, and each carries the number of its first record (`next_sequence`), so a
broker can tell a batch that comes twice and one that comes too early. That is what allows up to five requests
on a connection at a time. When one of them fails in a way that may pass, the answers to the others are
awaited first, and then everything that is not stored is sent again in the old order; a batch that was stored
although its answer got lost is recognised by the broker.

What is on its way is kept until it is acknowledged: at most `REQUESTS_MAX` requests of `REQUEST_BYTES` for
each broker.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from braidmq.client.cluster import Cluster, TopicPartition
from braidmq.client.connection import Connection
from braidmq.client.errors import ClientError, TimedOut, Unreachable
from braidmq.client.producer import Acks
from braidmq.wire.errors import ApiError, ErrorCode
from braidmq.wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)

# From version 13 on topics are named by id; from 12 on a transaction's first batch announces its partition.
VERSION_MAX = 12
VERSION_MAX_PROTOCOL_1 = 11
REQUESTS_MAX = 5
"""A broker remembers the last five batches of a producer in a partition, and no more."""
REQUEST_BYTES = 1_048_576
DELIVERY_TIMEOUT_S = 120.0
SEQUENCE_MODULUS = 2**31

# Of a batch that came after one that failed: the broker waits for that one.
OUT_OF_TURN = frozenset({ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER})


@dataclass(slots=True)
class OutgoingBatch:
    """A finished batch and its place in the order of all."""

    at: TopicPartition
    content: bytearray
    number: int


@dataclass(slots=True)
class _Request:
    version: int
    batches: dict[TopicPartition, OutgoingBatch]


class BatchSender:
    """One producer's batches on their way. Belongs to one thread."""

    def __init__(
        self,
        cluster: Cluster,
        *,
        transactional_id: str | None = None,
        acks: Acks = Acks.ALL,
        announces: bool = False,
        first_use: Callable[[Iterable[TopicPartition]], None] | None = None,
        delivery_timeout_s: float = DELIVERY_TIMEOUT_S,
    ) -> None:
        """`announces`: batches announce their partition themselves; else `first_use` is called before.

        The cluster must be the sender's own: while requests are under way, the next answer on a connection
        is theirs, and nobody else may ask a question there.
        """
        self._cluster = cluster
        self._transactional_id = transactional_id
        self._acks = acks
        self._version_max = VERSION_MAX if announces or transactional_id is None else VERSION_MAX_PROTOCOL_1
        self._first_use = first_use
        self._delivery_timeout_s = delivery_timeout_s
        self._sequences: dict[TopicPartition, int] = {}
        self._seen: set[TopicPartition] = set()
        self._gathered: dict[TopicPartition, OutgoingBatch] = {}
        self._gathered_bytes = 0
        self._under_way: dict[int, tuple[Connection, deque[_Request]]] = {}
        self._failed: list[OutgoingBatch] = []
        self._reason: ApiError | ClientError | None = None
        self._count = 0

    @property
    def partitions(self) -> frozenset[TopicPartition]:
        """Those that got a batch."""
        return frozenset(self._seen)

    def next_sequence(self, at: TopicPartition, records: int) -> int:
        """The number of the first of `records` records in the next batch for a partition."""
        sequence = self._sequences.get(at, 0)
        self._sequences[at] = (sequence + records) % SEQUENCE_MODULUS
        return sequence

    def send(self, at: TopicPartition, content: bytearray) -> None:
        """Takes a batch; it leaves with others when enough have gathered, or on `flush`."""
        if at in self._gathered:
            self._dispatch()
        self._count += 1
        self._gathered[at] = OutgoingBatch(at, content, self._count)
        self._gathered_bytes += len(content)
        if self._gathered_bytes >= REQUEST_BYTES:
            self._dispatch()

    def flush(self) -> None:
        """Returns when every batch is acknowledged; raises what stopped the first that cannot be."""
        self._dispatch()
        self._settle()

    def _dispatch(self) -> None:
        batches, self._gathered, self._gathered_bytes = self._gathered, {}, 0
        new = batches.keys() - self._seen
        if new and self._first_use is not None:
            self._first_use(sorted(new))
        self._seen |= new
        if self._failed:
            self._failed += batches.values()
        else:
            self._launch(list(batches.values()))
        if self._failed:
            self._settle()

    def _launch(self, batches: list[OutgoingBatch]) -> None:
        """Sends batches, one per partition, to their leaders; what cannot be sent joins the failed."""
        if self._cluster.is_outdated or not all(self._cluster.knows(batch.at) for batch in batches):
            # Leaders are asked for on connections that must not have other answers to come.
            self._drain()
            if self._failed:
                self._failed += batches
                return
            self._cluster.renew()
        groups: dict[int, tuple[Connection, dict[TopicPartition, OutgoingBatch]]] = {}
        for batch in batches:
            try:
                connection = self._cluster.leader(batch.at)
            except (ApiError, Unreachable, TimedOut) as error:
                self._fail([batch], error)
                continue
            groups.setdefault(id(connection), (connection, {}))[1][batch.at] = batch
        for key, (connection, group) in groups.items():
            queue = self._under_way.setdefault(key, (connection, deque()))[1]
            while len(queue) >= REQUESTS_MAX:
                self._receive(connection, queue)
            if self._failed:
                self._failed += group.values()
                continue
            try:
                version = self._send(connection, group)
            except ClientError as error:
                self._fail(group.values(), error)
                continue
            if self._acks is not Acks.NONE:
                queue.append(_Request(version, group))

    def _send(self, connection: Connection, group: dict[TopicPartition, OutgoingBatch]) -> int:
        topics: dict[str, TopicProduceData] = {}
        for (topic, partition), batch in group.items():
            entry = topics.setdefault(topic, TopicProduceData(name=topic, partition_data=[]))
            entry.partition_data.append(
                PartitionProduceData(index=partition, records=memoryview(batch.content))
            )
        request = ProduceRequest(
            transactional_id=self._transactional_id,
            acks=self._acks,
            timeout_ms=int(self._cluster.timeout_s * 1000),
            topic_data=list(topics.values()),
        )
        version = connection.version(ProduceRequest, self._version_max)
        connection.send(request, version)
        return version

    def _receive(self, connection: Connection, queue: deque[_Request]) -> None:
        """The next answer on a connection."""
        request = queue.popleft()
        try:
            answer = connection.receive(ProduceResponse, request.version)
        except ClientError as error:
            self._fail(request.batches.values(), error)
            while queue:
                self._fail(queue.popleft().batches.values(), error)
            return
        for topic in answer.responses:
            for result in topic.partition_responses:
                batch = request.batches.pop(TopicPartition(topic.name, result.index))
                code = ErrorCode(result.error_code)
                if code not in (ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER):
                    self._fail([batch], ApiError(code, f"{batch.at}: {result.error_message or code.name}"))
        if request.batches:
            self._fail(request.batches.values(), ClientError(f"{connection.address} left out partitions"))

    def _fail(self, batches: Iterable[OutgoingBatch], error: ApiError | ClientError) -> None:
        batches = list(batches)
        if isinstance(error, ApiError) and not error.code.retriable:
            waiting = {failed.at for failed in self._failed}
            if error.code not in OUT_OF_TURN or any(batch.at not in waiting for batch in batches):
                raise error
        self._failed += batches
        self._reason = error

    def _settle(self) -> None:
        """Awaits every answer, and sends again what failed until nothing has."""
        self._drain()
        for attempt in self._cluster.attempts(self._delivery_timeout_s):
            if not self._failed:
                return
            waiting, self._failed = sorted(self._failed, key=lambda batch: batch.number), []
            for at in {batch.at for batch in waiting}:
                self._cluster.forget(at.topic)
            self._again(waiting)
            if self._failed:
                attempt.failed(self._reason or ClientError("not delivered"), retriable=True)

    def _again(self, waiting: list[OutgoingBatch]) -> None:
        """Batches one after the other, each acknowledged before the next of its partition is sent."""
        while waiting and not self._failed:
            first: dict[TopicPartition, OutgoingBatch] = {}
            rest: list[OutgoingBatch] = []
            for batch in waiting:
                if batch.at in first:
                    rest.append(batch)
                else:
                    first[batch.at] = batch
            self._launch(list(first.values()))
            self._drain()
            waiting = rest
        self._failed += waiting

    def _drain(self) -> None:
        under_way, self._under_way = self._under_way, {}
        for connection, queue in under_way.values():
            while queue:
                self._receive(connection, queue)
