"""TxnOffsetCommit: where a group has got to, if the transaction commits."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

from braidmq.broker.group_coordinator import Committer
from braidmq.broker.txn_gate import TxnProducer
from braidmq.faces.kafka.commits import entry
from braidmq.faces.kafka.request_context import RequestContext
from braidmq.group.offsets import Commit, TopicPartition
from braidmq.log.transactions import Guard
from braidmq.txn.versions import code_for
from braidmq.wire.api import Api
from braidmq.wire.errors import ApiError, ErrorCode
from braidmq.wire.messages.transactions import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)
from braidmq.wire.records import parse_header

if TYPE_CHECKING:
    from braidmq.faces.kafka.face import KafkaFace

_ADDS_FROM = 5
_RETRIED = (ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
"""Of the transaction's coordinator; the group's own is found before it is asked."""

Entries = Sequence[Commit]


async def txn_offset_commit(
    face: KafkaFace, request: TxnOffsetCommitRequest, context: RequestContext
) -> TxnOffsetCommitResponse:
    """Stores what can be stored; each partition gets its own result."""
    refused: dict[TopicPartition, ErrorCode] = {}
    entries: list[Commit] = []
    now_ms = face.broker.clock.wall_ms()
    for topic in request.topics:
        for part in topic.partitions:
            try:
                entries.append(entry(face, face.broker.topics.get(topic.name), part, now_ms))
            except ApiError as error:
                refused[topic.name, part.partition_index] = error.code
    code = await _commit(face, request, entries, context.version) if entries else ErrorCode.NONE
    return TxnOffsetCommitResponse(
        topics=[
            TxnOffsetCommitResponseTopic(
                name=topic.name,
                partitions=[
                    TxnOffsetCommitResponsePartition(
                        partition_index=part.partition_index,
                        error_code=int(refused.get((topic.name, part.partition_index), code)),
                    )
                    for part in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


async def _commit(
    face: KafkaFace, request: TxnOffsetCommitRequest, entries: Entries, version: int
) -> ErrorCode:
    producer = TxnProducer(
        request.transactional_id, request.producer_id, request.producer_epoch, version >= _ADDS_FROM
    )
    member = Committer(request.member_id, request.group_instance_id, request.generation_id, version)
    done: asyncio.Future[ErrorCode] = asyncio.get_running_loop().create_future()

    def append(code: ErrorCode, guard: Guard | None) -> None:
        """In the very moment of the admission, so that no marker can come between."""
        try:
            if code is not ErrorCode.NONE:
                raise ApiError(code, "the transaction does not include this group's offsets")
            coordinator.commit_in_transaction(request.group_id, batch, guard, entries, done.set_result)
        except ApiError as error:
            done.set_result(error.code)
        except Exception as error:
            # Who calls this contains it; the request must still get an end.
            done.set_exception(error)

    try:
        coordinator = await face.broker.groups.reach(request.group_id)
        partition, batch = await coordinator.begin_commit_in_transaction(
            request.group_id, member, producer, entries
        )
        if face.broker.txn_gate.is_admitted(partition, producer):
            append(ErrorCode.NONE, None)
        else:
            face.broker.txn_gate.admit(partition, producer, parse_header(batch), append)
        code = await done
    except ApiError as error:
        code = error.code
    if code in _RETRIED:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    return code_for(code, Api.TXN_OFFSET_COMMIT, version)
