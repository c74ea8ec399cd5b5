"""A transactional producer that says exactly what it is told to, and readers that see what comes of it."""

from __future__ import annotations

import asyncio

from braidmq.wire.errors import ErrorCode
from braidmq.wire.messages.commits import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
    OffsetFetchResponsePartitions,
)
from braidmq.wire.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
)
from braidmq.wire.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from braidmq.wire.messages.producers import (
    InitProducerIdRequest,
    InitProducerIdResponse,
)
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
from unit.faces.spoken import Speaker
from unit.faces.test_produce import batch_of

READ_COMMITTED = 1
OLD, NEW = 1, 2


class Client:
    """A transactional producer that says exactly what it is told to."""

    def __init__(self, one: Speaker, transactional_id: str = "x", protocol: int = NEW) -> None:
        self.one = one
        self.name = transactional_id
        self.protocol = protocol
        self.producer_id, self.epoch = -1, -1
        self.sequences: dict[int, int] = {}

    async def init(self, timeout_ms: int = 60_000, **rest: object) -> ErrorCode:
        """Asks for as long as a transaction before is being ended, as clients do."""
        request = InitProducerIdRequest(transactional_id=self.name, transaction_timeout_ms=timeout_ms, **rest)
        for _ in range(200):
            answer = await self.one.ask(request, InitProducerIdResponse)
            if answer.error_code != ErrorCode.CONCURRENT_TRANSACTIONS:
                break
            await asyncio.sleep(0.01)
        self.producer_id, self.epoch, self.sequences = answer.producer_id, answer.producer_epoch, {}
        return ErrorCode(answer.error_code)

    async def add(self, *partitions: int, topic: str = "t") -> dict[int, ErrorCode]:
        """Asks for as long as a transaction before is being ended, as clients do."""
        for _ in range(200):
            codes = await self.add_once(*partitions, topic=topic)
            if ErrorCode.CONCURRENT_TRANSACTIONS not in codes.values():
                break
            await asyncio.sleep(0.01)
        return codes

    async def add_once(self, *partitions: int, topic: str = "t") -> dict[int, ErrorCode]:
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self.name,
            v3_and_below_producer_id=self.producer_id,
            v3_and_below_producer_epoch=self.epoch,
            v3_and_below_topics=[AddPartitionsToTxnTopic(name=topic, partitions=list(partitions))],
        )
        answer = await self.one.ask(request, AddPartitionsToTxnResponse, 3)
        found = answer.results_by_topic_v3_and_below[0].results_by_partition
        return {each.partition_index: ErrorCode(each.partition_error_code) for each in found}

    async def produce(self, partition: int = 0, count: int = 1) -> PartitionProduceResponse:
        """Writes a batch; with the old protocol the partition must have been added."""
        batch = batch_of(
            self.one, count, producer_id=self.producer_id, producer_epoch=self.epoch,
            base_sequence=self.sequences.get(partition, 0), transactional=True,
        )  # fmt: skip
        self.sequences[partition] = self.sequences.get(partition, 0) + count
        request = ProduceRequest(
            transactional_id=self.name,
            acks=-1,
            timeout_ms=1000,
            topic_data=[
                TopicProduceData(
                    name="t", partition_data=[PartitionProduceData(index=partition, records=bytes(batch))]
                )
            ],
        )
        answer = await self.one.ask(request, ProduceResponse, 12 if self.protocol == NEW else 10)
        return answer.responses[0].partition_responses[0]

    async def write(self, partition: int = 0, count: int = 1) -> PartitionProduceResponse:
        """Announces the partition where that is the client's part, and writes a batch."""
        if self.protocol == OLD:
            assert set((await self.add(partition)).values()) == {ErrorCode.NONE}
        return await self.produce(partition, count)

    async def end(self, commit: bool) -> ErrorCode:
        request = EndTxnRequest(
            transactional_id=self.name,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            committed=commit,
        )
        answer = await self.one.ask(request, EndTxnResponse, 5 if self.protocol == NEW else 4)
        if self.protocol == NEW and answer.error_code == 0:
            self.producer_id, self.epoch, self.sequences = answer.producer_id, answer.producer_epoch, {}
        return ErrorCode(answer.error_code)

    async def commit_offset(self, offset: int, group_id: str = "g") -> ErrorCode:
        if self.protocol == OLD:
            added = await self.one.ask(
                AddOffsetsToTxnRequest(
                    transactional_id=self.name,
                    producer_id=self.producer_id,
                    producer_epoch=self.epoch,
                    group_id=group_id,
                ),
                AddOffsetsToTxnResponse,
            )
            assert added.error_code == 0
        answer = await self.one.ask(
            TxnOffsetCommitRequest(
                transactional_id=self.name,
                group_id=group_id,
                producer_id=self.producer_id,
                producer_epoch=self.epoch,
                topics=[
                    TxnOffsetCommitRequestTopic(
                        name="t",
                        partitions=[
                            TxnOffsetCommitRequestPartition(
                                partition_index=0, committed_offset=offset, committed_metadata=""
                            )
                        ],
                    )
                ],
            ),
            TxnOffsetCommitResponse,
            5 if self.protocol == NEW else 3,
        )
        return ErrorCode(answer.topics[0].partitions[0].error_code)


async def fetched(one: Speaker, partition: int = 0, isolation: int = READ_COMMITTED) -> PartitionData:
    request = FetchRequest(
        max_wait_ms=0,
        min_bytes=0,
        max_bytes=1_000_000,
        isolation_level=isolation,
        session_epoch=-1,
        topics=[
            FetchTopic(
                topic="t",
                partitions=[
                    FetchPartition(partition=partition, fetch_offset=0, partition_max_bytes=1_000_000)
                ],
            )
        ],
    )
    return (await one.ask(request, FetchResponse, 12)).responses[0].partitions[0]


async def settled(one: Speaker, transactional_id: str = "x") -> None:
    """Waits until the markers of a transaction are written."""
    for _ in range(200):
        found = one.broker.transactions.of(transactional_id).transactions.find(transactional_id)
        if found is not None and not found.state.name.startswith("PREPARE"):
            return
        await asyncio.sleep(0.01)
    raise AssertionError("the transaction was never completed")


async def offset_of(one: Speaker, stable: bool = False) -> OffsetFetchResponsePartitions:
    group = OffsetFetchRequestGroup(
        group_id="g", topics=[OffsetFetchRequestTopics(name="t", partition_indexes=[0])]
    )
    request = OffsetFetchRequest(groups=[group], require_stable=stable)
    return (await one.ask(request, OffsetFetchResponse, 9)).groups[0].topics[0].partitions[0]
