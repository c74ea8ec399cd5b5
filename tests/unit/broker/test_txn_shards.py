"""Transaction coordinators as shards: what happens to those who wait when another broker takes over."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.cluster import cluster

from braidmq.broker.broker import Broker
from braidmq.broker.opening import opened
from braidmq.broker.outcomes import Acks
from braidmq.broker.producer_ids import BLOCK, ProducerIds
from braidmq.broker.replica import Replica
from braidmq.broker.txn_shards import TransactionShards
from braidmq.net.txn_peer import Coordinated
from braidmq.txn.events import AddPartitions, End, Init
from braidmq.wire.errors import ApiError, ErrorCode
from braidmq.wire.records import build_batch, parse_header
from unit.embedded import embedded

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


def begin(broker: Broker, partition: Replica, producer_id: int) -> None:
    """A transaction in a partition, as if the coordinator had known it."""
    batch = build_batch(
        [(None, b"x", (), broker.clock.wall_ms())], base_sequence=0, producer_id=producer_id,
        producer_epoch=0, transactional=True,
    )  # fmt: skip
    guard = partition.begin_verification(parse_header(batch))
    partition.append_leader(memoryview(batch), broker.clock.wall_ms(), Acks.LEADER, guard)


def test_what_is_open_and_over_for_every_coordinator_is_aborted(tmp_path: Path) -> None:
    """T2 N4: only when all of them have said so, and not if the producer has a transaction anywhere."""

    async def story() -> None:
        async with cluster(tmp_path, 3) as found:
            first = found[1].broker
            partition = (await first.topics.create("t", 1, {}, [[1]])).held[0]
            await opened([partition])
            await first.transactions.ensure()
            await found.until(lambda broker: broker.transactions.exists)
            for node in found:
                await node.broker.transactions.loaded()
            shards = first.transactions
            name = next(name for at in range(1000) if shards.leader_of(name := f"id{at}") == 2)
            coordinator = found[2].broker.transactions.of(name)
            known = await coordinator.init(Init(name, 60_000))
            request = AddPartitions(name, known.producer_id, 0, frozenset({("t", 0)}), 3)
            await coordinator.add_partitions(request)
            begin(first, partition, known.producer_id)
            begin(first, partition, 77)
            await found.stop(3)
            await first.tend_transactions()
            assert len(partition.open_transactions()) == 2, "broker 3 might know them"
            await found.start(3)
            await found.complete(3)
            await found[3].broker.transactions.loaded()
            for _ in range(200):
                await first.tend_transactions()
                if len(partition.open_transactions()) == 1:
                    break
                await asyncio.sleep(0.05)
            assert [one.producer_id for one in partition.open_transactions()] == [known.producer_id]

    asyncio.run(story())


def test_a_producer_that_writes_meanwhile_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """T2 N4: while the others are asked it may have begun its next transaction, in the same epoch."""

    async def story() -> None:
        async with cluster(tmp_path, 2) as found:
            first = found[1].broker
            partition = (await first.topics.create("t", 1, {}, [[1]])).held[0]
            await opened([partition])
            await first.transactions.ensure()
            await found.until(lambda broker: broker.transactions.exists)
            for node in found:
                await node.broker.transactions.loaded()
            begin(first, partition, 77)
            peers = first._orphans._peers
            ask = peers.coordinated

            async def written_meanwhile(node_id: int, producer_ids: Sequence[int]) -> Coordinated:
                batch = build_batch(
                    [(None, b"y", (), first.clock.wall_ms())], base_sequence=1, producer_id=77,
                    producer_epoch=0, transactional=True,
                )  # fmt: skip
                partition.append_leader(memoryview(batch), first.clock.wall_ms(), Acks.LEADER)
                return await ask(node_id, producer_ids)

            with monkeypatch.context() as planted:
                planted.setattr(peers, "coordinated", written_meanwhile)
                await first.tend_transactions()
            assert len(partition.open_transactions()) == 1
            await first.tend_transactions()
            assert not partition.open_transactions()

    asyncio.run(story())


def test_two_brokers_never_give_the_same_producer_id(tmp_path: Path) -> None:
    """T2 N4: blocks are taken by compare-and-set, also when both take one at the same time."""

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
