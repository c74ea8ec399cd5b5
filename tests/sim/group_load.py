"""Members of groups that read `orders`: of a consumer group (KIP-848) and of a share group.

They read everything and commit or accept all of it; after an error they begin anew, as clients do.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from tests.sim.client import Client, Kind, Lost, Refused
from tests.sim.invariants import Judge
from tests.sim.loop import VirtualLoop

from braidmq.wire.errors import ErrorCode
from braidmq.wire.messages.commits import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from braidmq.wire.messages.consumer_groups import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    HeartbeatTopicPartitions,
)
from braidmq.wire.messages.metadata import MetadataRequest, MetadataResponse
from braidmq.wire.messages.share_fetch import (
    AcknowledgementBatch,
    AcknowledgePartition,
    AcknowledgeTopic,
    ShareFetchRequest,
    ShareFetchResponse,
)
from braidmq.wire.messages.share_groups import ShareGroupHeartbeatRequest, ShareGroupHeartbeatResponse

READERS = "readers"
SHARERS = "sharers"
PAUSE_S = 0.2
FIRED = (
    ErrorCode.UNKNOWN_MEMBER_ID,
    ErrorCode.FENCED_MEMBER_EPOCH,
    ErrorCode.STALE_MEMBER_EPOCH,
    ErrorCode.GROUP_ID_NOT_FOUND,
    ErrorCode.SHARE_SESSION_NOT_FOUND,
    ErrorCode.INVALID_SHARE_SESSION_EPOCH,
    ErrorCode.INVALID_RECORD_STATE,
    ErrorCode.UNKNOWN_TOPIC_ID,
    ErrorCode.ILLEGAL_GENERATION,
    ErrorCode.REBALANCE_IN_PROGRESS,
)
"""What a member is told that has to begin anew."""
ACCEPT = 1


async def lived(
    live: Callable[[], Any],
    what: str,
    judge: Judge,
    ended: Callable[[], bool],
    begin_anew: Callable[[], None],
) -> None:
    """One life of a member after the other."""
    while not ended():
        try:
            await live()
        except Lost:
            pass
        except Refused as refusal:
            if refusal.code not in FIRED:
                judge.refused(what, refusal.code)
        begin_anew()
        await asyncio.sleep(PAUSE_S)


async def topic_id(client: Client, topic: str) -> bytes:
    """The id of a topic; Refused while there is none."""
    answer = await client.call(MetadataRequest(topics=None), MetadataResponse, 12)
    for found in answer.topics:
        if found.name == topic:
            return bytes(found.topic_id)
    raise Refused(ErrorCode.UNKNOWN_TOPIC_ID)


class GroupMember:
    """Reads what it is assigned, and commits after every page."""

    def __init__(self, loop: VirtualLoop, client: Client, judge: Judge, ended: Callable[[], bool]) -> None:
        self._loop = loop
        self._client = client
        self._reading = judge.group
        self._ended = ended
        self._epoch = 0
        self._positions: dict[int, int] = {}
        """Of the partitions that it has."""

    @property
    def _now(self) -> int:
        return int(self._loop.time() * 1e6)

    def begin_anew(self) -> None:
        self._epoch = 0
        self._client.forget()
        for index in list(self._positions):
            self._give_back(index)

    def _give_back(self, index: int) -> None:
        del self._positions[index]
        self._reading.revoked(self._client.machine, self._now, index)

    async def live(self) -> None:
        orders = await topic_id(self._client, "orders")
        while not self._ended():
            await self._beat(orders)
            for index in list(self._positions):
                await self._read(index)
            await asyncio.sleep(PAUSE_S)

    async def _beat(self, orders: bytes) -> None:
        first = self._epoch == 0
        owned = [HeartbeatTopicPartitions(topic_id=orders, partitions=list(self._positions))]
        request = ConsumerGroupHeartbeatRequest(
            group_id=READERS,
            member_id=self._client.machine,
            member_epoch=self._epoch,
            rebalance_timeout_ms=5000 if first else -1,
            subscribed_topic_names=["orders"] if first else None,
            topic_partitions=[] if first else owned if self._positions else [],
        )
        group = await self._client.to_coordinator(Kind.GROUP, READERS)
        answer = await group.call(request, ConsumerGroupHeartbeatResponse, 1)
        if answer.error_code:
            raise Refused(answer.error_code)
        self._epoch = answer.member_epoch
        if answer.assignment is not None:
            given = {index for each in answer.assignment.topic_partitions for index in each.partitions}
            for index in sorted(self._positions.keys() - given):
                self._give_back(index)
            for index in sorted(given - self._positions.keys()):
                position = await self._client.committed(READERS, "orders", index)
                self._reading.assigned(self._client.machine, self._now, index)
                self._positions[index] = max(0, position)

    async def _read(self, index: int) -> None:
        page = await self._client.fetch("orders", index, self._positions[index], committed=False, wait_ms=100)
        if not page.records:
            return
        member = self._client.machine
        self._reading.read(member, index, page.records[0].offset, page.records[-1].offset)
        self._positions[index] = page.next_offset
        self._reading.sent(member, self._now, index, page.next_offset)
        part = OffsetCommitRequestPartition(
            partition_index=index, committed_offset=page.next_offset, committed_metadata=""
        )
        request = OffsetCommitRequest(
            group_id=READERS,
            generation_id_or_member_epoch=self._epoch,
            member_id=member,
            topics=[OffsetCommitRequestTopic(name="orders", partitions=[part])],
        )
        group = await self._client.to_coordinator(Kind.GROUP, READERS)
        answer = await group.call(request, OffsetCommitResponse, 9)
        code = answer.topics[0].partitions[0].error_code
        if code:
            raise Refused(code)
        self._reading.committed(member, self._now, index)


class ShareMember:
    """Accepts whatever it is given, with its next fetch."""

    def __init__(
        self, loop: VirtualLoop, client: Client, judge: Judge, partitions: int, ended: Callable[[], bool]
    ) -> None:
        self._loop = loop
        self._client = client
        self._judge = judge
        self._partitions = partitions
        self._ended = ended
        self._epoch = 0
        self._sessions: dict[str, int] = {}
        """By broker: the epoch of its session there."""
        self._given: dict[int, list[tuple[int, int]]] = {}
        """By partition: ranges that are to be accepted."""

    @property
    def _now(self) -> int:
        return int(self._loop.time() * 1e6)

    def begin_anew(self) -> None:
        self._epoch = 0
        self._sessions.clear()
        self._given.clear()
        self._client.close()
        self._client.forget()

    async def live(self) -> None:
        orders = await topic_id(self._client, "orders")
        while not self._ended():
            await self._beat()
            for _ in range(2):
                await self._fetch(orders)
            await asyncio.sleep(PAUSE_S)

    async def _beat(self) -> None:
        request = ShareGroupHeartbeatRequest(
            group_id=SHARERS,
            member_id=self._client.machine,
            member_epoch=self._epoch,
            subscribed_topic_names=["orders"] if self._epoch == 0 else None,
        )
        group = await self._client.to_coordinator(Kind.GROUP, SHARERS)
        answer = await group.call(request, ShareGroupHeartbeatResponse, 1)
        if answer.error_code:
            raise Refused(answer.error_code)
        self._epoch = answer.member_epoch

    async def _fetch(self, orders: bytes) -> None:
        """One request to each broker that leads something; a partition that moved begins anew there."""
        led: dict[str, tuple[Client, list[int]]] = {}
        for index in range(self._partitions):
            leader = await self._client.to_leader("orders", index)
            led.setdefault(leader.broker, (leader, []))[1].append(index)
        for leader, indexes in led.values():
            try:
                await self._fetch_from(leader, orders, indexes)
            except (Lost, Refused) as error:
                if len(led) == 1:
                    raise
                # What others have given it it keeps.
                leader.close()
                self._client.forget()
                self._sessions.pop(leader.broker, None)
                for index in indexes:
                    self._given.pop(index, None)
                if isinstance(error, Refused) and error.code not in FIRED:
                    self._judge.refused("a sharer", error.code)

    async def _fetch_from(self, leader: Client, orders: bytes, indexes: list[int]) -> None:
        accepted = {index: self._given.pop(index) for index in indexes if index in self._given}
        for index, offset in _each(accepted):
            self._judge.shares[index].accepting(offset)
        session = self._sessions.get(leader.broker, 0)
        request = ShareFetchRequest(
            group_id=SHARERS,
            member_id=self._client.machine,
            share_session_epoch=session,
            max_wait_ms=100,
            min_bytes=1,
            max_records=20,
            batch_size=20,
            topics=[
                AcknowledgeTopic(
                    topic_id=orders, partitions=[_accepting(index, accepted) for index in indexes]
                )
            ],
        )
        self._judge.may_be_delivered(indexes)
        asked_at = self._now
        answer = await leader.call(request, ShareFetchResponse, 1)
        if answer.error_code:
            raise Refused(answer.error_code)
        self._sessions[leader.broker] = session + 1
        parts = [part for each in answer.responses for part in each.partitions]
        settled = {part.partition_index: part.acknowledge_error_code == 0 for part in parts}
        for index, offset in _each(accepted):
            if settled.get(index):
                self._judge.accepted(self._client.machine, index, self._now, offset)
        self._judge.was_answered(indexes)
        for part in parts:
            self._take(part, asked_at)
        for part in parts:
            if part.error_code:
                raise Refused(part.error_code)

    def _take(self, part: Any, asked_at: int) -> None:
        for acquired in part.acquired_records:
            first, last = acquired.first_offset, acquired.last_offset
            self._given.setdefault(part.partition_index, []).append((first, last))
            for offset in range(first, last + 1):
                self._judge.delivered(
                    self._client.machine, part.partition_index, asked_at, offset, acquired.delivery_count
                )


def _each(ranges: dict[int, list[tuple[int, int]]]) -> list[tuple[int, int]]:
    return [
        (index, offset)
        for index, some in ranges.items()
        for first, last in some
        for offset in range(first, last + 1)
    ]


def _accepting(index: int, accepted: dict[int, list[tuple[int, int]]]) -> AcknowledgePartition:
    batches = [
        AcknowledgementBatch(first_offset=first, last_offset=last, acknowledge_types=[ACCEPT])
        for first, last in accepted.get(index, ())
    ]
    return AcknowledgePartition(partition_index=index, acknowledgement_batches=batches)
