"""The copier: makes one record of `copies` of each of `orders`, in transactions that hold its position.

Some it aborts. A life of it ends with the first thing that goes wrong; the next one fences it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from tests.history.exactly_once import Fate, Place, Stamp, Work
from tests.sim.client import Client, Found, Kind, Refused, check
from tests.sim.invariants import PARTITIONS, Judge

from braidmq.wire.errors import ErrorCode
from braidmq.wire.messages.producers import InitProducerIdRequest, InitProducerIdResponse
from braidmq.wire.messages.transactions import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
    EndTxnRequest,
    EndTxnResponse,
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
)
from braidmq.wire.records import build_batch

IDLE_S = 0.1
ADD_TRIES = 20
TRANSACTION_TIMEOUT_MS = 5000
COPIER = "copier"


class Copier:
    """One life of the copier: a producer id, and transactions until something goes wrong."""

    def __init__(self, client: Client, judge: Judge, life: int, chance: Any) -> None:
        self._client = client
        self._judge = judge
        self._life = life
        self._chance = chance
        self._id, self._epoch, self._sequences = -1, -1, [0] * PARTITIONS
        self._is_old = chance.random() < 0.5
        """Whether it is a client from before KIP-890: it adds partitions itself, and keeps its epoch."""

    async def work(self, ended: Callable[[], bool], hurries: Callable[[], bool]) -> None:
        request = InitProducerIdRequest(
            transactional_id=COPIER, transaction_timeout_ms=TRANSACTION_TIMEOUT_MS
        )
        self._take(good(await (await self._coordinator()).call(request, InitProducerIdResponse, 5)))
        positions = [
            max(0, await self._client.committed(COPIER, "orders", index)) for index in range(PARTITIONS)
        ]
        number = 0
        while not ended():
            index = self._chance.randrange(PARTITIONS)
            page = await self._client.fetch("orders", index, positions[index], committed=False, wait_ms=50)
            some = page.records[: 100 if hurries() else self._chance.choice((1, 2, 5, 40))]
            if not some:
                await asyncio.sleep(IDLE_S)
                continue
            number += 1
            fate = Fate.ABORT if self._chance.random() < 0.25 else Fate.COMMIT
            work = Work(self._life, number)
            await self._write(some, index, work, fate)
            await self._commit_position(index, some[-1].offset + 1)
            await self._end(work, fate)
            if fate is Fate.COMMIT:
                positions[index] = some[-1].offset + 1

    async def _coordinator(self) -> Client:
        return await self._client.to_coordinator(Kind.TRANSACTION, COPIER)

    def _take(self, given: InitProducerIdResponse | EndTxnResponse) -> None:
        self._judge.given_producer_id(given.producer_id, COPIER)
        self._id, self._epoch, self._sequences = given.producer_id, given.producer_epoch, [0] * PARTITIONS

    async def _write(self, some: list[Found], index: int, work: Work, fate: Fate) -> None:
        """Two batches, in both partitions, where there are that many records."""
        for target in range(PARTITIONS):
            rows = [
                (None, _stamped(found, index, work, len(some), fate), [], 1_700_000_000_000)
                for found in some
                if found.offset % PARTITIONS == target
            ]
            if rows:
                batch = build_batch(
                    rows, base_sequence=self._sequences[target], producer_id=self._id,
                    producer_epoch=self._epoch, transactional=True,
                )  # fmt: skip
                if self._is_old:
                    await self._add(target)
                await self._client.produce("copies", target, bytes(batch), COPIER, 11 if self._is_old else 12)
                self._sequences[target] += len(rows)

    async def _add(self, target: int) -> None:
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=COPIER,
            v3_and_below_producer_id=self._id,
            v3_and_below_producer_epoch=self._epoch,
            v3_and_below_topics=[AddPartitionsToTxnTopic(name="copies", partitions=[target])],
        )
        for _ in range(ADD_TRIES):
            answer = await (await self._coordinator()).call(request, AddPartitionsToTxnResponse, 3)
            code = answer.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code
            if code != ErrorCode.CONCURRENT_TRANSACTIONS:
                break
            await asyncio.sleep(IDLE_S)
        check(code)

    async def _add_group(self) -> None:
        request = AddOffsetsToTxnRequest(
            transactional_id=COPIER, producer_id=self._id, producer_epoch=self._epoch, group_id=COPIER
        )
        good(await (await self._coordinator()).call(request, AddOffsetsToTxnResponse, 3))

    async def _commit_position(self, index: int, offset: int) -> None:
        part = TxnOffsetCommitRequestPartition(
            partition_index=index, committed_offset=offset, committed_metadata=""
        )
        request = TxnOffsetCommitRequest(
            transactional_id=COPIER,
            group_id=COPIER,
            producer_id=self._id,
            producer_epoch=self._epoch,
            topics=[TxnOffsetCommitRequestTopic(name="orders", partitions=[part])],
        )
        if self._is_old:
            await self._add_group()
        group = await self._client.to_coordinator(Kind.GROUP, COPIER)
        answer = await group.call(request, TxnOffsetCommitResponse, 4 if self._is_old else 5)
        code = answer.topics[0].partitions[0].error_code
        if code:
            raise Refused(code)

    async def _end(self, work: Work, fate: Fate) -> None:
        request = EndTxnRequest(
            transactional_id=COPIER,
            producer_id=self._id,
            producer_epoch=self._epoch,
            committed=fate is Fate.COMMIT,
        )
        version = 4 if self._is_old else 5
        ended = good(await (await self._coordinator()).call(request, EndTxnResponse, version))
        if not self._is_old:
            self._take(ended)
        self._judge.acked += 1
        self._judge.copies.told(work, fate)


def good(answer: Any) -> Any:
    if answer.error_code:
        raise Refused(answer.error_code)
    return answer


def order(found: Found) -> tuple[int, int]:
    sender, number, filling = found.value.split(b",", 2)
    assert not filling.strip(b"."), f"offset {found.offset} is not what anybody has sent: {found.value!r}"
    return int(sender), int(number)


def content_of(found: Found) -> int:
    sender, number = order(found)
    return sender << 32 | number


def _stamped(found: Found, index: int, work: Work, size: int, fate: Fate) -> bytes:
    return b"%d,%d,%d,%d,%d,%d,%d" % (content_of(found), index, found.offset, *work, size, fate)


def stamp(found: Found) -> Stamp:
    content, index, offset, life, number, size, fate = map(int, found.value.split(b","))
    return Stamp(content, Place(index, offset), Work(life, number), size, Fate(fate))
