"""Reads a range of a partition over the network: the next Fetch is under way while one is decoded.

The batch headers of a response say where the next one begins, so the next request is sent before the records
are decoded; the broker and the socket buffers work meanwhile. Responses are large, since a task reads one
partition only, but not larger than the rest of the range: a micro-batch of a hundred records does not wait
for megabytes of later ones.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from braidmq.client.cluster import Attempt, Cluster, TopicPartition
from braidmq.client.connection import Connection, FrameRoom
from braidmq.client.errors import ClientError, TimedOut, Unreachable
from braidmq.spark.options import Isolation
from braidmq.spark.source.data_loss import RecordsLost
from braidmq.wire.batch_walker import check_batches, find_batches
from braidmq.wire.checksum import crc32c
from braidmq.wire.errors import ApiError, ErrorCode
from braidmq.wire.messages.fetch import (
    AbortedTransaction,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
)
from braidmq.wire.records import CONTROL, BatchHeader, fault, parse_header, records

# From version 13 on topics have ids; names save a lookup.
FETCH_VERSION_MAX = 12
FETCH_BYTES = 4 * 1024 * 1024
FETCH_BYTES_MIN = 64 * 1024
RECORD_BYTES = 1024
"""The assumed size of a record before any was read."""
CHECKED_BYTES = 256 * 1024
"""CRCs are checked for this much before it is decoded, so that it is still in the cache then."""
WAIT_MS = 500
WATERMARK_PATIENCE_S = 10.0
"""How long a partition may end before the wanted offset: after a change of leader it does for a moment."""
NO_SESSION_EPOCH = -1
ABORT_MARKER = b"\x00\x00\x00\x00"
"""The key of the control record that ends an aborted transaction: version 0, type 0 (KIP-98)."""


class StoredBatch(NamedTuple):
    """One record batch as it is stored."""

    header: BatchHeader
    view: memoryview


class RangeFetch:
    """Reads batches of one partition from `start` until `end` is reached."""

    def __init__(
        self,
        cluster: Cluster,
        at: TopicPartition,
        start: int,
        end: int,
        isolation: Isolation,
        fetch_bytes: int = FETCH_BYTES,
    ) -> None:
        self._cluster = cluster
        self._at = at
        self._end = end
        self._isolation = isolation
        self._fetch_bytes = fetch_bytes
        self._room = FrameRoom()
        self._asked: tuple[Connection, int] | None = None
        self._record_bytes = RECORD_BYTES
        self._progress_s = cluster.clock.monotonic()
        self.position = start

    def batches(self) -> Iterator[memoryview]:
        """All batches of the range that the isolation level allows, with checked CRCs.

        Some at a time, back to back; each view is valid until the next one is requested.

        RecordsLost when the broker no longer has `position`; ClientError or ApiError when the partition
        cannot be read within the cluster's timeout.
        """
        while self.position < self._end:
            answer = self._next_answer()
            view = memoryview(answer.records or b"")
            first, end, last = find_batches(view, self.position) if view else (-1, 0, -1)
            if first < 0:
                raise ClientError(f"{self._at}: the response has no batch from offset {self.position} on")
            newest = parse_header(view, last)
            self.position = newest.next_offset
            if self.position < self._end:
                self._record_bytes = 1 + newest.size // max(1, newest.record_count)
                self._ask_ahead()
            if answer.aborted_transactions and self._isolation is Isolation.READ_COMMITTED:
                for batch in committed(split_batches(view[first:end]), answer.aborted_transactions):
                    yield from self._checked(batch.view)
            else:
                yield from self._checked(view[first:end])

    def _checked(self, view: memoryview) -> Iterator[memoryview]:
        """The batches of the range without markers, in chunks whose CRCs were checked."""
        at = 0
        while at < len(view):
            end, _ = check_batches(view, at, self._end, CONTROL, CHECKED_BYTES, crc32c)
            if end > at:
                yield view[at:end]
                at = end
                continue
            header = parse_header(view, at)
            if header.base_offset >= self._end:
                return
            if not header.is_control:
                trouble = fault(view, at, len(view))
                raise ClientError(f"{self._at}: damaged batch at offset {header.base_offset}: {trouble}")
            at += header.size

    def _next_answer(self) -> PartitionData:
        """The response to the pending request, or to a new one if that failed or was empty."""
        for attempt in self._cluster.attempts():
            try:
                answer = self._receive()
            except (ApiError, Unreachable, TimedOut) as error:
                self._lose_route()
                attempt.failed(error, retriable=_may_pass(error))
                continue
            if self._check(answer, attempt):
                self._progress_s = self._cluster.clock.monotonic()
                return answer
        raise AssertionError("attempts end by raising")

    def _check(self, answer: PartitionData, attempt: Attempt) -> bool:
        code = ErrorCode(answer.error_code)
        if code is ErrorCode.NONE:
            if answer.records:
                return True
            behind_s = self._cluster.clock.monotonic() - self._progress_s
            if answer.high_watermark < self._end and behind_s > WATERMARK_PATIENCE_S:
                raise RecordsLost(self._at, self.position, self._end, ends=answer.high_watermark)
            # The broker has nothing yet; a new leader may say so for a moment.
            attempt.failed(TimedOut(f"{self._at}: nothing at offset {self.position}"), retriable=True)
        elif code is ErrorCode.OFFSET_OUT_OF_RANGE:
            raise RecordsLost(self._at, self.position, self._end)
        else:
            self._lose_route()
            why = f"{self._at} at offset {self.position}: {code.name.lower().replace('_', ' ')}"
            attempt.failed(ApiError(code, why), retriable=code.retriable)
        return False

    def _receive(self) -> PartitionData:
        if self._asked is None:
            self._ask()
        assert self._asked is not None
        (connection, version), self._asked = self._asked, None
        answer = connection.receive(
            FetchResponse, version, WAIT_MS / 1000 + self._cluster.timeout_s, self._room
        )
        if answer.error_code != ErrorCode.NONE:
            raise ApiError(ErrorCode(answer.error_code), f"fetch refused by {connection.address}")
        return answer.responses[0].partitions[0]

    def _ask_ahead(self) -> None:
        """Sends the next request ahead; if that fails, it is sent when its response is needed."""
        try:
            self._ask()
        except (ApiError, Unreachable, TimedOut):
            self._lose_route()

    def _ask(self) -> None:
        left_bytes = max(FETCH_BYTES_MIN, (self._end - self.position) * self._record_bytes)
        size = min(self._fetch_bytes, left_bytes)
        partition = FetchPartition(
            partition=self._at.partition, fetch_offset=self.position, partition_max_bytes=size
        )
        request = FetchRequest(
            max_wait_ms=WAIT_MS,
            min_bytes=1,
            max_bytes=size,
            isolation_level=int(self._isolation is Isolation.READ_COMMITTED),
            session_epoch=NO_SESSION_EPOCH,
            topics=[FetchTopic(topic=self._at.topic, partitions=[partition])],
        )
        connection = self._cluster.leader(self._at)
        version = connection.version(FetchRequest, FETCH_VERSION_MAX)
        connection.send(request, version)
        self._asked = (connection, version)

    def _lose_route(self) -> None:
        """Drops the pending request: its broker may no longer be the right one."""
        if self._asked is not None:
            self._asked[0].close()
            self._asked = None
        self._cluster.forget(self._at.topic)


def _may_pass(error: ApiError | ClientError) -> bool:
    return error.code.retriable if isinstance(error, ApiError) else isinstance(error, Unreachable)


def split_batches(view: memoryview) -> list[StoredBatch]:
    """The batches of a view, one by one; all are whole."""
    found: list[StoredBatch] = []
    at = 0
    while at < len(view):
        header = parse_header(view, at)
        found.append(StoredBatch(header, view[at : at + header.size]))
        at += header.size
    return found


def committed(batches: list[StoredBatch], aborted: list[AbortedTransaction]) -> Iterator[StoredBatch]:
    """What read_committed returns: no markers, and nothing of aborted transactions.

    `aborted` is the broker's list for these batches: which producer aborted, from which offset on.
    """
    coming = sorted(aborted, key=lambda each: each.first_offset, reverse=True)
    aborting: set[int] = set()
    for batch in batches:
        header = batch.header
        while coming and coming[-1].first_offset <= header.last_offset:
            aborting.add(coming.pop().producer_id)
        if header.is_control:
            if header.producer_id in aborting and _is_abort(batch):
                aborting.remove(header.producer_id)
        elif not (header.is_transactional and header.producer_id in aborting):
            yield batch


def _is_abort(batch: StoredBatch) -> bool:
    marker = next(records(batch.view), None)
    return marker is not None and marker.key is not None and marker.key[:4] == ABORT_MARKER
