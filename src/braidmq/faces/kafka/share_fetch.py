"""ShareFetch: records handed to one member of a share group, each of them to nobody else (KIP-932).

Acknowledgements of earlier records ride along and are taken first, so the room they make is used at once;
the answer leaves when they are on disk. If there is nothing to hand out, the request waits: for the log to
advance, for records to come back from others, for its time to be over, or for its client to be gone. It ends
with the first record, as a consumer that waits for more would hold back what others could work on. Records
leave as ranges of files: an answer to a client that does not read costs no memory for them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, cast

from braidmq.broker.outcomes import NotReady
from braidmq.broker.replica import Replica
from braidmq.broker.share_partition import AnswerLimits, Delivered, SharePartition
from braidmq.broker.share_persister import RETRIABLE
from braidmq.broker.share_records import SharePartitionKey
from braidmq.faces.kafka.request_context import RequestContext
from braidmq.faces.kafka.share_acknowledge import (
    check_leads,
    check_names,
    confirm,
    current_leader,
    end_session,
    for_members,
    judge,
    lock_ms,
)
from braidmq.faces.kafka.share_sessions import FINAL_EPOCH, INITIAL_EPOCH, Key, ShareSession
from braidmq.log.files import FileSlice
from braidmq.net.outbox import Parts
from braidmq.wire import share_fetch as wire
from braidmq.wire.errors import ApiError, ErrorCode
from braidmq.wire.messages.share_fetch import (
    AcquiredRecords,
    ShareFetchableTopicResponse,
    ShareFetchPartitionData,
    ShareFetchRequest,
    ShareFetchResponse,
)

if TYPE_CHECKING:
    from braidmq.faces.kafka.face import KafkaFace

_EXACT = 1


class ShareFetchAnswer(NamedTuple):
    """An answer whose records are ranges of files."""

    response: ShareFetchResponse
    records: Mapping[Key, Sequence[FileSlice]]

    def encode(self, correlation_id: int) -> Parts:
        return cast(Parts, wire.encode_response(correlation_id, self.response, self.records))


async def share_fetch(
    face: KafkaFace, request: ShareFetchRequest, context: RequestContext
) -> ShareFetchResponse | ShareFetchAnswer:
    try:
        session = _session(face, request, context)
    except ApiError as error:
        return ShareFetchResponse(error_code=int(error.code), error_message=error.message)
    answer = ShareAnswer(face, request, session)
    try:
        judged = judge(face, session, request.topics, request.is_renew_ack)
        if request.share_session_epoch == FINAL_EPOCH:
            end_session(face, session)
        elif not request.is_renew_ack and request.max_records > 0:
            await _fill(face, request, session, answer)
        await confirm(face, judged)
        for key, refusal in judged.refused.items():
            answer.acknowledged(key, refusal)
        return ShareFetchAnswer(answer.response(), answer.records)
    except BaseException:
        answer.release()
        raise


def _session(face: KafkaFace, request: ShareFetchRequest, context: RequestContext) -> ShareSession:
    group_id, member_id, epoch = request.group_id or "", request.member_id or "", request.share_session_epoch
    check_names(face, group_id, member_id)
    named = [(topic.topic_id, each.partition_index) for topic in request.topics for each in topic.partitions]
    forgotten = [(it.topic_id, index) for it in request.forgotten_topics_data for index in it.partitions]
    if epoch == INITIAL_EPOCH:
        if any(each.acknowledgement_batches for topic in request.topics for each in topic.partitions):
            raise ApiError(ErrorCode.INVALID_REQUEST, "a new share session has nothing to acknowledge yet")
        session = face.share_sessions.begin(group_id, member_id, context.connection)
    else:
        session = face.share_sessions.go_on(group_id, member_id, epoch, context.connection)
    face.share_sessions.update(session, named, forgotten)
    return session


async def _fill(
    face: KafkaFace, request: ShareFetchRequest, session: ShareSession, answer: ShareAnswer
) -> None:
    """Acquires records; waits for them if there are none."""
    keys = [SharePartitionKey(session.group_id, *key) for key in session.partitions]
    try:
        failures = await face.broker.share_delivery.open(
            keys, again=request.share_session_epoch == INITIAL_EPOCH
        )
    except ApiError as error:
        failures = dict.fromkeys(keys, error)
    for failed, why in failures.items():
        answer.failed((failed.topic_id, failed.partition), _not_open(why))
    if len(failures) == len(keys) and keys:
        return
    found = answer.acquire()
    wait_ms = min(request.max_wait_ms, face.broker.config.fetch_wait_max_ms)
    if found or session.ended or (not answer.is_cold and (wait_ms <= 0 or face.draining)):
        return
    waiting = WaitingShareFetch(face, session, wait_ms / 1000)
    try:
        # As with any read of a disk, what is being read is waited for, however short the client's time.
        while not found and (answer.is_cold or not waiting.over):
            await waiting.news()
            if answer.is_cold or not waiting.over:
                found = answer.acquire()
    finally:
        waiting.stop()


class ShareAnswer:
    """What a request has got so far."""

    def __init__(self, face: KafkaFace, request: ShareFetchRequest, session: ShareSession) -> None:
        self._face = face
        self._session = session
        self._full = request.share_session_epoch == INITIAL_EPOCH
        self._exact = request.share_acquire_mode == _EXACT
        self._records_left = request.max_records
        self._bytes_left = min(request.max_bytes, face.broker.config.fetch_bytes_max)
        self._partitions: dict[Key, ShareFetchPartitionData] = {}
        self._failed: dict[Key, None] = {}
        self.records: dict[Key, list[FileSlice]] = {}
        self._has_news = False
        self.is_cold = False
        """Whether the last try met records that are being brought from the disk."""

    def acquire(self) -> bool:
        """Hands out what is there, partition by partition, as far as asked for; whether to answer now."""
        self.is_cold = False
        for key in list(self._session.partitions):
            if self._records_left <= 0 or self._bytes_left <= 0 or self._session.ended:
                break
            if key in self._failed:
                continue
            try:
                delivered = self._deliver(key)
            except NotReady:
                self.is_cold = True
                continue
            except ApiError as error:
                self.failed(key, error)
                continue
            if delivered.acquired:
                self._take(key, delivered)
        return self._has_news

    def _deliver(self, key: Key) -> Delivered:
        limits = AnswerLimits(self._records_left, self._bytes_left, self._exact, first=not self.records)
        return self._face.broker.share_delivery.acquire(
            _find(self._face, self._session, key), self._session.member_id, limits
        )

    def _take(self, key: Key, delivered: Delivered) -> None:
        self._has_news = True
        self._bytes_left -= sum(one.size for one in delivered.records)
        self.records[key] = delivered.records
        self._records_left -= sum(last - first + 1 for first, last, _ in delivered.acquired)
        self._session.move_to_end(key)
        self._of(key).acquired_records = [
            AcquiredRecords(first_offset=first, last_offset=last, delivery_count=deliveries)
            for first, last, deliveries in delivered.acquired
        ]

    def release(self) -> None:
        """Lets go of file ranges that will not be sent."""
        for records in self.records.values():
            for one in records:
                one.release()

    def failed(self, key: Key, error: ApiError) -> None:
        self._has_news = True
        self._failed[key] = None
        part = self._of(key)
        part.error_code, part.error_message = int(error.code), error.message

    def acknowledged(self, key: Key, refusal: ApiError | None) -> None:
        part = self._of(key)
        if refusal is not None:
            part.acknowledge_error_code, part.acknowledge_error_message = int(refusal.code), refusal.message

    def _of(self, key: Key) -> ShareFetchPartitionData:
        if key not in self._partitions:
            self._partitions[key] = ShareFetchPartitionData(
                partition_index=key[1],
                current_leader=current_leader(self._face, key),
                records=b"",
            )
        return self._partitions[key]

    def response(self) -> ShareFetchResponse:
        """Partitions with something to say; when a session begins, all of them."""
        if self._full:
            for key in self._session.partitions:
                self._of(key)
        topics: dict[bytes, list[ShareFetchPartitionData]] = {}
        for (topic_id, _), part in self._partitions.items():
            topics.setdefault(topic_id, []).append(part)
        return ShareFetchResponse(
            acquisition_lock_timeout_ms=lock_ms(self._face, self._session.group_id),
            responses=[
                ShareFetchableTopicResponse(topic_id=topic_id, partitions=parts)
                for topic_id, parts in topics.items()
            ],
        )


class WaitingShareFetch:
    """Wakes a request when something may have become available, or when it should give up."""

    def __init__(self, face: KafkaFace, session: ShareSession, wait_s: float) -> None:
        self._face = face
        self._session = session
        self._woken = asyncio.Event()
        self.over = False
        """Whether it is time to answer with what there is."""
        self._parts = [
            part
            for key in session.partitions
            if (part := face.broker.share_delivery.find(SharePartitionKey(session.group_id, *key)))
            is not None
        ]
        for part in self._parts:
            part.watch(self)
            part.partition.watch_high(self)
        session.waiting[self] = None
        face.waiting_fetches[self] = None
        self._timer = asyncio.get_running_loop().call_later(wait_s, self.expire)

    async def news(self) -> None:
        await self._woken.wait()
        self._woken.clear()

    def on_advanced(self, partition: Replica) -> None:  # noqa: ARG002
        self._woken.set()

    def on_available(self) -> None:
        self._woken.set()

    def expire(self) -> None:
        self.over = True
        self._woken.set()

    def stop(self) -> None:
        self._timer.cancel()
        for part in self._parts:
            part.unwatch(self)
            part.partition.unwatch(self)
        self._session.waiting.pop(self, None)
        self._face.waiting_fetches.pop(self, None)


def _find(face: KafkaFace, session: ShareSession, key: Key) -> SharePartition:
    part = face.broker.share_delivery.find(SharePartitionKey(session.group_id, *key))
    if part is not None:
        return part
    check_leads(face, key)
    raise ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "the delivery state was taken over; ask again")


def _not_open(error: ApiError) -> ApiError:
    """A coordinator that is not there is none of a member's business: it asks again."""
    if error.code in RETRIABLE:
        return ApiError(ErrorCode.OFFSET_NOT_AVAILABLE, error.message)
    return for_members(error)
