"""A member of a classic group: joins, syncs, beats, and reads what the group's leader has given it.

The leader deals out partitions by the order of member ids. A member that is refused anything joins again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from tests.history.group_reading import GroupReading
from tests.sim.client import Client, Kind, Refused
from tests.sim.group_load import PAUSE_S
from tests.sim.invariants import PARTITIONS
from tests.sim.loop import VirtualLoop

from braidmq.wire.errors import ErrorCode
from braidmq.wire.messages.commits import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from braidmq.wire.messages.groups import (
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
    SyncGroupRequest,
    SyncGroupRequestAssignment,
    SyncGroupResponse,
)

CLASSICS = "classics"
SESSION_MS = 6000
REBALANCE_MS = 1500


class ClassicMember:
    """One member, over all its lives."""

    def __init__(
        self, loop: VirtualLoop, client: Client, reading: GroupReading, ended: Callable[[], bool]
    ) -> None:
        self._loop = loop
        self._client = client
        self._reading = reading
        self._ended = ended
        self._member_id = ""
        self._generation = -1
        self._positions: dict[int, int] = {}
        self._life = 0

    @property
    def _now(self) -> int:
        return int(self._loop.time() * 1e6)

    @property
    def _name(self) -> str:
        return f"{self._client.machine}/{self._life}"

    def begin_anew(self) -> None:
        self._client.forget()
        self._give_back()

    def _give_back(self) -> None:
        for index in list(self._positions):
            del self._positions[index]
            self._reading.revoked(self._name, self._now, index)

    async def live(self) -> None:
        await self._join()
        while not self._ended():
            if not await self._beats():
                return
            for index in list(self._positions):
                await self._read(index)
            await asyncio.sleep(PAUSE_S)

    async def _coordinator(self) -> Client:
        return await self._client.to_coordinator(Kind.GROUP, CLASSICS)

    async def _join(self) -> None:
        for _ in range(2):
            request = JoinGroupRequest(
                group_id=CLASSICS,
                session_timeout_ms=SESSION_MS,
                rebalance_timeout_ms=REBALANCE_MS,
                member_id=self._member_id,
                protocol_type="sim",
                protocols=[JoinGroupRequestProtocol(name="dealt", metadata=b"")],
            )
            joined = await (await self._coordinator()).call(request, JoinGroupResponse, 6)
            if joined.error_code != ErrorCode.MEMBER_ID_REQUIRED:
                break
            self._member_id = joined.member_id
        if joined.error_code:
            self._member_id = ""
            raise Refused(joined.error_code)
        self._member_id, self._generation = joined.member_id, joined.generation_id
        dealt: list[SyncGroupRequestAssignment] = []
        if joined.leader == joined.member_id:
            ids = sorted(member.member_id for member in joined.members)
            for at, member_id in enumerate(ids):
                given = [index for index in range(PARTITIONS) if index % len(ids) == at]
                dealt.append(SyncGroupRequestAssignment(member_id=member_id, assignment=bytes(given)))
        sync = SyncGroupRequest(
            group_id=CLASSICS,
            generation_id=self._generation,
            member_id=self._member_id,
            assignments=dealt,
        )
        synced = await (await self._coordinator()).call(sync, SyncGroupResponse, 4)
        self._check(synced.error_code)
        self._life += 1
        for index in synced.assignment:
            position = await self._client.committed(CLASSICS, "orders", index)
            self._reading.assigned(self._name, self._now, index)
            self._positions[index] = max(0, position)

    async def _beats(self) -> bool:
        """Whether it may keep what it has."""
        request = HeartbeatRequest(
            group_id=CLASSICS, generation_id=self._generation, member_id=self._member_id
        )
        answer = await (await self._coordinator()).call(request, HeartbeatResponse, 4)
        if answer.error_code == ErrorCode.REBALANCE_IN_PROGRESS:
            return False
        self._check(answer.error_code)
        return True

    async def _read(self, index: int) -> None:
        page = await self._client.fetch("orders", index, self._positions[index], committed=False, wait_ms=50)
        if not page.records:
            return
        self._reading.read(self._name, index, page.records[0].offset, page.records[-1].offset)
        self._positions[index] = page.next_offset
        self._reading.sent(self._name, self._now, index, page.next_offset)
        part = OffsetCommitRequestPartition(
            partition_index=index, committed_offset=page.next_offset, committed_metadata=""
        )
        request = OffsetCommitRequest(
            group_id=CLASSICS,
            generation_id_or_member_epoch=self._generation,
            member_id=self._member_id,
            topics=[OffsetCommitRequestTopic(name="orders", partitions=[part])],
        )
        answer = await (await self._coordinator()).call(request, OffsetCommitResponse, 8)
        self._check(answer.topics[0].partitions[0].error_code)
        self._reading.committed(self._name, self._now, index)

    def _check(self, code: int) -> None:
        if code in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID):
            self._member_id = ""
        if code:
            raise Refused(code)
