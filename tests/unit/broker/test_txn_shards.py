"""Transaction coordinators as shards: what happens to those who wait when another broker takes over."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.cluster import cluster

from braidmq.broker.producer_ids import BLOCK, ProducerIds
from braidmq.broker.txn_shards import TransactionShards
from braidmq.txn.events import AddPartitions, End, Init
from braidmq.wire.errors import ApiError, ErrorCode
from unit.embedded import append, embedded

WAIT_S = 10.0


def resign(shards: TransactionShards) -> None:
    """As when the image says that another broker leads every partition."""
    for index in list(shards._led):
        shards._resign(index)


def test_who_waits_hears_that_the_coordinator_has_moved(tmp_path: Path) -> None:
    """T2 N4: a change that is being written, and one that waits for the transaction before."""

    async def story() -> None:
        async with embedded(tmp_path) as broker:
            await broker.topics.create("t", 1, {})
            shard = await broker.transactions.reach("x")
            made = await shard.init(Init("x", 60_000))
            who = ("x", made.producer_id, made.producer_epoch)
            adding = AddPartitions(*who, frozenset({("t", 0)}), 3)
            assert (await shard.add_partitions(adding)).code is ErrorCode.NONE
            ending = asyncio.ensure_future(shard.end(End(*who, True, 4)))
            await asyncio.sleep(0)
            waiting = asyncio.ensure_future(shard.add_partitions(adding))
            await asyncio.sleep(0)
            resign(broker.transactions)
            assert (await asyncio.wait_for(ending, WAIT_S)).code is ErrorCode.NOT_COORDINATOR
            with pytest.raises(ApiError) as refused:
                await asyncio.wait_for(waiting, WAIT_S)
            assert refused.value.code is ErrorCode.NOT_COORDINATOR
            with pytest.raises(ApiError) as refused:
                broker.transactions.of("x")
            assert refused.value.code is ErrorCode.NOT_COORDINATOR

    asyncio.run(story())


def test_the_limit_of_ids_is_that_of_the_broker(tmp_path: Path) -> None:
    """T2 N4: however many coordinators it has."""

    async def story() -> None:
        async with embedded(
            tmp_path, transactional_ids_max=3, transaction_state_log_num_partitions=4
        ) as broker:
            codes = []
            for name in "abcd":
                shard = await broker.transactions.reach(name)
                codes.append((await shard.init(Init(name, 60_000))).code)
            assert codes == [ErrorCode.NONE] * 3 + [ErrorCode.POLICY_VIOLATION]
            assert len({broker.transactions.index_of(name) for name in "abc"}) > 1

    asyncio.run(story())


def test_the_epoch_of_the_coordinator_is_that_of_its_partition(tmp_path: Path) -> None:
    """T2 N4: so that markers of the one before are refused."""

    async def story() -> None:
        async with embedded(tmp_path) as broker:
            await broker.transactions.ensure()
            broker.topics.get("__transaction_state").held[0].leader_epoch = 7
            broker.transactions._compare()
            await broker.transactions.loaded()
            assert broker.transactions.of("x").transactions.coordinator_epoch == 7

    asyncio.run(story())


def test_orphans_are_left_alone_where_another_broker_may_know_them(tmp_path: Path) -> None:
    """T2 N4: only a broker that coordinates every transactional id can say that nobody knows one."""

    async def story() -> None:
        async with cluster(tmp_path, 2) as found:
            first = found[1].broker
            topic = await first.topics.create("t", 1, {}, [[1]])
            partition = topic.held[0]
            append(partition, b"plain", first.clock.wall_ms())
            assert not first.transactions.coordinates_all
            await first.transactions.ensure()
            assert not first.transactions.coordinates_all
        async with embedded(tmp_path / "alone") as broker:
            assert broker.transactions.coordinates_all
            await broker.transactions.ensure()
            assert broker.transactions.coordinates_all

    asyncio.run(story())


def test_two_brokers_never_give_the_same_producer_id(tmp_path: Path) -> None:
    """T1 N4: blocks are taken by compare-and-set, also when both take one at the same time."""

    async def story() -> None:
        async with cluster(tmp_path, 2) as found:
            givers = [ProducerIds(node.broker.metadata.changes, node.broker.clock) for node in found]
            given: list[int] = []

            async def take(ids: ProducerIds, count: int) -> None:
                for _ in range(count):
                    given.append(await ids.take())
                    if len(given) % 100 == 0:
                        await asyncio.sleep(0)

            for _ in range(3):
                await asyncio.gather(*(take(ids, BLOCK + 1) for ids in givers))
            assert len(set(given)) == len(given) == 6 * (BLOCK + 1)

    asyncio.run(story())
