"""Fetch: ranges of segment files straight to the socket, now or when there are enough bytes.

A request is first read against every partition it names. If that brings fewer than min_bytes, it waits: it
watches its partitions, and when one advances, only that one is read again, at the end of the loop's turn so
that several advances are handled together. A wait ends with enough bytes, with an error, when its time is
over, or when the client is gone.

What must come from the disk first is waited for in the same way: a partition whose log is being opened, or
bytes of an earlier run that are being checked. As with any read of a disk, such a wait may take longer than
the client's time: an answer without a partition's offsets would be a wrong one. Only an incremental answer
may leave out a partition, and one that has records already does not wait for the rest.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, cast

from braidmq.broker.outcomes import Isolation, NotReady
from braidmq.broker.replica import Replica
from braidmq.faces.kafka.fetch_sessions import NO_SESSION, FetchContext, SessionPartition
from braidmq.faces.kafka.redirects import ELSEWHERE, moved
from braidmq.log.files import FileSlice
from braidmq.net.connection import PendingReply
from braidmq.net.outbox import Parts
from braidmq.wire import fetch as wire
from braidmq.wire.errors import ApiError, ErrorCode
from braidmq.wire.fetch import FetchRequest, FetchResult
from braidmq.wire.moved import Moved

if TYPE_CHECKING:
    from braidmq.faces.kafka.face import KafkaFace

_OK = int(ErrorCode.NONE)
_NO_REPLICA = -1
_READ_COMMITTED = 1
_COMMITTED = Isolation.COMMITTED
_UNCOMMITTED = Isolation.UNCOMMITTED
_EMPTY = b""
# A range keeps its file open until it is sent; an answer about ten thousand partitions must not open as many.
_RANGES_MAX = 500
_RANGES_SHARE = 4
"""Nor may it take more than this part of all files that may be open."""

Results = dict[SessionPartition, FetchResult]
Answers = dict[tuple[str | None, bytes | None], list[FetchResult]]


class FetchHandler:
    """Serves Fetch for all connections."""

    def __init__(self, face: KafkaFace) -> None:
        self._face = face
        self._topics = face.broker.topics
        self._config = face.broker.config
        self.ranges_max = max(1, min(_RANGES_MAX, self._config.log_files_open_max // _RANGES_SHARE))

    def handle(self, request: FetchRequest, version: int, correlation_id: int) -> Parts | PendingReply:
        try:
            if request.replica_id >= 0:
                raise ApiError(
                    ErrorCode.CLUSTER_AUTHORIZATION_FAILED, "only brokers of this cluster fetch as replicas"
                )
            context = self._face.fetch_sessions.begin(request)
        except ApiError as error:
            return cast(
                Parts, wire.encode_response(version, correlation_id, 0, int(error.code), NO_SESSION, [])
            )
        pass_ = FetchPass(self, request, version, correlation_id, context)
        pass_.read(context.partitions)
        wait_ms = min(request.max_wait_ms, self._config.fetch_wait_max_ms)
        if pass_.satisfied or (
            not pass_.must_wait and (wait_ms <= 0 or self._face.draining or not context.partitions)
        ):
            return pass_.answer()
        return WaitingFetch(self._face, pass_, wait_ms / 1000).pending

    def find(self, wanted: SessionPartition) -> Replica:
        """The partition, or the ApiError that says why it cannot be read."""
        if wanted.name is not None:
            topic = self._topics.find(wanted.name)
            code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        else:
            topic = self._topics.find_by_id(wanted.topic_id or b"")
            code = ErrorCode.UNKNOWN_TOPIC_ID
        if topic is None:
            raise ApiError(code, "this broker has no such topic")
        return topic.leading(wanted.part.index)

    def redirects(self, topics: Answers) -> Moved | None:
        """Who leads the partitions that are led elsewhere."""
        refused = (
            (name, topic_id, result.index)
            for (name, topic_id), results in topics.items()
            for result in results
            if result.code in ELSEWHERE
        )
        return moved(self._face.broker, refused)

    @property
    def bytes_max(self) -> int:
        return self._config.fetch_bytes_max


class FetchPass:
    """One request's results so far."""

    __slots__ = (
        "_budget",
        "_closed",
        "_cold",
        "_context",
        "_correlation_id",
        "_elsewhere",
        "_handler",
        "_ranges",
        "_request",
        "_results",
        "_size",
        "_urgent",
        "_version",
    )

    def __init__(
        self,
        handler: FetchHandler,
        request: FetchRequest,
        version: int,
        correlation_id: int,
        context: FetchContext,
    ) -> None:
        self._handler = handler
        self._request = request
        self._version = version
        self._correlation_id = correlation_id
        self._context = context
        self._results: Results = {}
        self._budget = min(request.max_bytes, handler.bytes_max)
        self._size = 0
        self._ranges = 0
        self._urgent = False
        self._elsewhere = False
        """Whether another broker leads one of the partitions."""
        self._closed: set[SessionPartition] = set()
        """Those whose log is being opened: nothing can be said of them yet."""
        self._cold: set[SessionPartition] = set()
        """Those whose records are being brought from the disk."""

    @property
    def wanted(self) -> list[SessionPartition]:
        return self._context.partitions

    @property
    def satisfied(self) -> bool:
        """Whether the answer should not wait: enough bytes, or news that cannot wait."""
        return (self._urgent or self._size >= self._request.min_bytes) and not self.must_wait

    @property
    def must_wait(self) -> bool:
        """Whether the disk has to be waited for, however long the client wants to wait."""
        if self._closed and not self._context.incremental:
            return True
        return bool(self._closed or self._cold) and self._size == 0 and not self._urgent

    def find(self, wanted: SessionPartition) -> Replica:
        return self._handler.find(wanted)

    def read(self, some: list[SessionPartition]) -> None:
        """Reads these partitions (again), within what is left of the request's bytes."""
        isolation = _COMMITTED if self._request.isolation == _READ_COMMITTED else _UNCOMMITTED
        for wanted in some:
            self._take_back(wanted)
            part = wanted.part
            max_bytes = 0
            if self._budget > 0 and self._ranges < self._handler.ranges_max:
                max_bytes = part.max_bytes if part.max_bytes < self._budget else self._budget
                if max_bytes <= 0:
                    max_bytes = 1
            try:
                partition = self._handler.find(wanted)
                found = partition.read(part.offset, max_bytes, isolation, part.leader_epoch)
            except NotReady:
                self._closed.add(wanted)
                continue
            except ApiError as error:
                self._results[wanted] = _refused(part.index, error)
                self._elsewhere = self._elsewhere or error.code in ELSEWHERE
                self._urgent = True
                continue
            records, high, stable, start, aborted, _, is_cold = found
            if is_cold:
                self._cold.add(wanted)
            if records is not None:
                if self._size > 0 and records.size > self._budget:
                    records.release()
                    records, aborted = None, ()
                else:
                    self._size += records.size
                    self._budget -= records.size
                    self._ranges += 1
            passed_over = None
            if isolation is _COMMITTED:
                passed_over = [(one.producer_id, one.first_offset) for one in aborted]
            self._results[wanted] = FetchResult(
                part.index, _OK, high, stable, start, passed_over, _NO_REPLICA,
                _EMPTY if records is None else records,
            )  # fmt: skip

    def _take_back(self, wanted: SessionPartition) -> None:
        """Forgets what an earlier reading of the partition found: there is more now."""
        if self._closed or self._cold:
            self._closed.discard(wanted)
            self._cold.discard(wanted)
        before = self._results.get(wanted)
        if before is not None and isinstance(before.records, FileSlice):
            self._size -= before.records.size
            self._budget += before.records.size
            self._ranges -= 1
            before.records.release()

    def answer(self) -> Parts:
        """The response: in a session only what is new to the client."""
        session, wanted, incremental = self._context
        topics: Answers = {}
        for each in wanted:
            result = self._results.get(each)
            if result is None or (incremental and not _is_news(each, result)):
                continue
            each.sent_high, each.sent_start = result.high_watermark, result.log_start_offset
            topics.setdefault((each.name, each.topic_id), []).append(result)
            if session is not None and result.records:
                session.move_to_end(each)
        parts = wire.encode_response(
            self._version,
            self._correlation_id,
            0,
            _OK,
            NO_SESSION if session is None else session.id,
            [(name, topic_id, results) for (name, topic_id), results in topics.items()],
            self._handler.redirects(topics) if self._elsewhere else None,
        )
        return cast(Parts, parts)

    def release(self) -> None:
        """Lets go of file ranges that will not be sent."""
        for result in self._results.values():
            if isinstance(result.records, FileSlice):
                result.records.release()


class WaitingFetch:
    """A fetch that found too little and waits for its partitions to advance."""

    __slots__ = (
        "_advanced", "_face", "_late", "_loop", "_pass", "_scheduled", "_timer", "_twins", "_watched",
        "pending",
    )  # fmt: skip

    def __init__(self, face: KafkaFace, fetch_pass: FetchPass, wait_s: float) -> None:
        self.pending = PendingReply()
        self.pending.on_abandoned = self._give_up
        self._face = face
        self._pass = fetch_pass
        self._loop = asyncio.get_running_loop()
        self._advanced: dict[Replica, None] = {}
        self._scheduled: asyncio.Handle | None = None
        self._late = False
        self._watched: dict[Replica, SessionPartition] = {}
        self._twins: list[tuple[Replica, SessionPartition]] = []
        """Partitions that were named more than once."""
        for wanted in fetch_pass.wanted:
            try:
                partition = fetch_pass.find(wanted)
            except ApiError:
                continue
            if self._watched.setdefault(partition, wanted) is not wanted:
                self._twins.append((partition, wanted))
            partition.watch_high(self)
        self._timer = self._loop.call_later(wait_s, self.expire)
        face.waiting_fetches[self] = None

    def on_advanced(self, partition: Replica) -> None:
        self._advanced[partition] = None
        if self._scheduled is None:
            self._scheduled = self._loop.call_soon(self._read_again)

    def _read_again(self) -> None:
        self._scheduled = None
        advanced, self._advanced = self._advanced, {}
        again = [self._watched[partition] for partition in advanced]
        self._pass.read(again + [wanted for partition, wanted in self._twins if partition in advanced])
        if self._pass.satisfied or (self._late and not self._pass.must_wait):
            self._finish()

    def expire(self) -> None:
        """Answers with what there is, as soon as it can be read."""
        self._late = True
        if not self._pass.must_wait:
            self._finish()

    def _finish(self) -> None:
        self._unwatch()
        self.pending.complete(self._pass.answer())

    def _give_up(self) -> None:
        self._unwatch()
        self._pass.release()

    def _unwatch(self) -> None:
        self._timer.cancel()
        if self._scheduled is not None:
            self._scheduled.cancel()
            self._scheduled = None
        for partition in self._watched:
            partition.unwatch(self)
        self._face.waiting_fetches.pop(self, None)


def _is_news(wanted: SessionPartition, result: FetchResult) -> bool:
    return (
        bool(result.records)
        or result.code != _OK
        or result.high_watermark != wanted.sent_high
        or result.log_start_offset != wanted.sent_start
    )


def _refused(index: int, error: ApiError) -> FetchResult:
    return FetchResult(index, int(error.code), -1, -1, -1, None, _NO_REPLICA, _EMPTY)
