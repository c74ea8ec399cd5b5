"""Transactions whose coordinator, partitions and group are on different brokers, request by request."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import pytest
from tests.cluster import Cluster, cluster

from braidmq.net.peer import PeerUnavailable
from braidmq.net.txn_peer import TxnPeers
from braidmq.txn.events import Marker
from braidmq.txn.marker_queue import Codes, MarkerKey
from braidmq.wire.errors import ErrorCode
from braidmq.wire.messages.producers import InitProducerIdRequest, InitProducerIdResponse
from braidmq.wire.messages.transactions import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    EndTxnRequest,
    EndTxnResponse,
    ListTransactionsRequest,
    ListTransactionsResponse,
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from unit.faces.spoken import Speaker
from unit.faces.txn_client import NEW, OLD, Client, fetched, offset_of, settled

both_protocols = pytest.mark.parametrize("protocol", [OLD, NEW])


class Roaming(Client):
    """A producer that asks the right broker: partition n of `t` is on broker n + 1."""

    def __init__(self, found: Cluster, transactional_id: str, protocol: int = NEW) -> None:
        self.found = found
        shards = found[1].broker.transactions
        super().__init__(
            Speaker(found[shards.leader_of(transactional_id)].broker), transactional_id, protocol
        )

    async def elsewhere(self, node_id: int, verb: Callable[[], Awaitable[object]]) -> object:
        coordinator, self.one = self.one, Speaker(self.found[node_id].broker)
        try:
            return await verb()
        finally:
            self.one = coordinator

    async def write_at(self, partition: int, count: int = 1) -> int:
        """Writes as the protocol wants it; the code of the answer."""
        if self.protocol == OLD:
            assert set((await self.add(partition)).values()) == {ErrorCode.NONE}
        answer = await self.elsewhere(partition + 1, lambda: self.produce(partition, count))
        return int(answer.error_code)  # type: ignore[attr-defined]


def run(tmp_path: Path, story: Callable[[Cluster], Awaitable[None]]) -> None:
    async def played() -> None:
        async with cluster(tmp_path) as found:
            topic = await found[1].broker.topics.create("t", 3, {}, [[1], [2], [3]])
            await found.shown(topic.id)
            await found[1].broker.transactions.ensure()
            await found[1].broker.groups.ensure()
            await found.until(lambda broker: broker.transactions.exists and broker.groups.exists)
            for node in found:
                await node.broker.transactions.loaded()
                await node.broker.groups.loaded()
            await story(found)

    asyncio.run(played())


def coordinated_by(found: Cluster, node_id: int) -> str:
    shards = found[1].broker.transactions
    return next(name for at in range(1000) if shards.leader_of(name := f"id{at}") == node_id)


async def readable_to(found: Cluster, partition: int, offset: int) -> None:
    for _ in range(500):
        if (await fetched(Speaker(found[partition + 1].broker), partition)).last_stable_offset == offset:
            return
        await asyncio.sleep(0.01)
    raise AssertionError(f"partition {partition} is not readable to {offset}")


@both_protocols
def test_partitions_of_three_brokers_commit_together(tmp_path: Path, protocol: int) -> None:
    """T2 N4: one transaction after the other, by the old protocol and by the one of KIP-890."""

    async def story(found: Cluster) -> None:
        client = Roaming(found, coordinated_by(found, 2), protocol)
        assert await client.init() is ErrorCode.NONE
        for round_ in range(3):
            for partition in range(3):
                assert await client.write_at(partition, 2) == 0
                assert await client.write_at(partition) == 0
            assert await client.end(commit=round_ != 1) is ErrorCode.NONE
        await settled(client.one, client.name)
        for partition in range(3):
            await readable_to(found, partition, 12)
            held = await fetched(Speaker(found[partition + 1].broker), partition)
            assert [one.first_offset for one in held.aborted_transactions or ()] == [4]

    run(tmp_path, story)


def test_the_next_transaction_waits_for_a_marker_that_is_on_its_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """T2 N4: its first batch overtakes the marker of the one before, and is taken all the same."""

    async def story(found: Cluster) -> None:
        client = Roaming(found, coordinated_by(found, 2))
        await client.init()
        peers = found[2].broker.markers._peers
        write, released = peers.write_markers, asyncio.Event()

        async def late(node_id: int, due: Sequence[MarkerKey]) -> Codes:
            await released.wait()
            return await write(node_id, due)

        monkeypatch.setattr(peers, "write_markers", late)
        assert await client.write_at(0) == 0
        assert await client.end(commit=True) is ErrorCode.NONE
        client.one = Speaker(found[1].broker)
        early = [asyncio.ensure_future(client.produce(0)) for _ in range(2)]
        await asyncio.sleep(0.2)
        assert found[1].broker.partition("t", 0).end_offset == 1
        released.set()
        assert [(await one).error_code for one in early] == [0, 0]
        assert found[1].broker.partition("t", 0).end_offset == 4
        client.one = Speaker(found[2].broker)
        assert await client.end(commit=False) is ErrorCode.NONE
        await readable_to(found, 0, 5)

    run(tmp_path, story)


@both_protocols
def test_offsets_of_a_group_elsewhere_are_decided_by_its_broker(tmp_path: Path, protocol: int) -> None:
    """T2 N4: they are pending while the transaction is open, and count when it has committed."""

    async def story(found: Cluster) -> None:
        client = Roaming(found, coordinated_by(found, 1), protocol)
        await client.init()
        group_at = found[1].broker.groups.leader_of("g")
        assert await client.write_at(0) == 0
        code = await client.elsewhere(group_at, lambda: _committed(client, 7))
        assert code is ErrorCode.NONE
        group = Speaker(found[group_at].broker)
        assert (await offset_of(group)).committed_offset == -1
        assert (await offset_of(group, stable=True)).error_code == ErrorCode.UNSTABLE_OFFSET_COMMIT
        assert await client.end(commit=True) is ErrorCode.NONE
        await settled(client.one, client.name)
        assert (await offset_of(group, stable=True)).committed_offset == 7

    run(tmp_path, story)


async def _committed(client: Roaming, offset: int) -> ErrorCode:
    """Offsets go to the group's broker, their announcement to the transaction's."""
    if client.protocol == OLD:
        coordinator = Speaker(client.found[client.found[1].broker.transactions.leader_of(client.name)].broker)
        request = AddOffsetsToTxnRequest(
            transactional_id=client.name,
            producer_id=client.producer_id,
            producer_epoch=client.epoch,
            group_id="g",
        )
        assert (await coordinator.ask(request, AddOffsetsToTxnResponse)).error_code == 0
        return await client.commit_announced_offset(offset)
    return await client.commit_offset(offset)


def test_another_broker_is_not_the_coordinator(tmp_path: Path) -> None:
    """T2 N4: every verb of a transactional id says so, and nothing is changed."""

    async def story(found: Cluster) -> None:
        name = coordinated_by(found, 3)
        client = Roaming(found, name)
        await client.init()
        wrong = Speaker(found[1].broker)
        who = {"transactional_id": name, "producer_id": client.producer_id, "producer_epoch": 0}
        init = InitProducerIdRequest(transactional_id=name, transaction_timeout_ms=60_000)
        topics = [AddPartitionsToTxnTopic(name="t", partitions=[0])]
        old = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=name,
            v3_and_below_producer_id=client.producer_id,
            v3_and_below_producer_epoch=0,
            v3_and_below_topics=topics,
        )
        added = await wrong.ask(old, AddPartitionsToTxnResponse, 3)
        batched = AddPartitionsToTxnRequest(
            transactions=[AddPartitionsToTxnTransaction(topics=topics, **who)]
        )
        asked = await wrong.ask(batched, AddPartitionsToTxnResponse, 5)
        described = await wrong.ask(
            DescribeTransactionsRequest(transactional_ids=[name]), DescribeTransactionsResponse
        )
        codes = [
            (await wrong.ask(init, InitProducerIdResponse)).error_code,
            added.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code,
            asked.results_by_transaction[0].topic_results[0].results_by_partition[0].partition_error_code,
            (
                await wrong.ask(AddOffsetsToTxnRequest(group_id="g", **who), AddOffsetsToTxnResponse)
            ).error_code,
            (await wrong.ask(EndTxnRequest(committed=True, **who), EndTxnResponse)).error_code,
            described.transaction_states[0].error_code,
        ]
        assert set(codes) == {ErrorCode.NOT_COORDINATOR}
        listed = [
            [one.transactional_id for one in answer.transaction_states]
            for node in found
            for answer in [
                await Speaker(node.broker).ask(ListTransactionsRequest(), ListTransactionsResponse)
            ]
        ]
        assert listed == [[], [], [name]]

    run(tmp_path, story)


@both_protocols
def test_nothing_is_appended_while_the_coordinator_is_away(tmp_path: Path, protocol: int) -> None:
    """T2 N4: the producer hears what it tries again, and succeeds when the coordinator is back."""

    async def story(found: Cluster) -> None:
        client = Roaming(found, coordinated_by(found, 3), protocol)
        await client.init()
        assert await client.write_at(0) == 0
        if protocol == OLD:
            await client.add(1)
        await found.stop(3)
        await found.complete(2)
        replica = found[2].broker.partition("t", 1)
        refused = await client.elsewhere(2, lambda: client.produce(1))
        assert refused.error_code == ErrorCode.NOT_ENOUGH_REPLICAS  # type: ignore[attr-defined]
        assert replica.end_offset == 0
        await found.start(3)
        await found.complete(3)
        await found[3].broker.transactions.loaded()
        client.one = Speaker(found[3].broker)
        client.sequences[1] = 0
        answer = await client.elsewhere(2, lambda: client.produce(1))
        assert answer.error_code == 0  # type: ignore[attr-defined]
        assert await client.end(commit=True) is ErrorCode.NONE
        for partition in (0, 1):
            await readable_to(found, partition, 2)

    run(tmp_path, story)


def test_markers_are_taken_from_brokers_alone_and_not_from_a_replaced_coordinator(tmp_path: Path) -> None:
    """T2 N4: the coordinator's epoch is in the marker, so a restart does not forget it."""

    async def story(found: Cluster) -> None:
        client = Roaming(found, coordinated_by(found, 1))
        await client.init()
        await client.write_at(1)
        topic = WritableTxnMarkerTopic(name="t", partition_indexes=[1])
        forged = WritableTxnMarker(
            producer_id=client.producer_id,
            producer_epoch=client.epoch + 1,
            transaction_result=False,
            topics=[topic],
            transaction_version=2,
        )
        answer = await Speaker(found[2].broker).ask(
            WriteTxnMarkersRequest(markers=[forged]), WriteTxnMarkersResponse
        )
        partition = answer.markers[0].topics[0].partitions[0]
        assert partition.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        peers = TxnPeers(found[1].broker.peers)
        newer = (("t", 1), Marker(client.producer_id, client.epoch + 1, False, 5, 2))
        older = (("t", 1), Marker(client.producer_id, client.epoch + 2, True, 4, 2))
        elsewhere = (("t", 0), newer[1])
        assert await peers.write_markers(2, [newer, elsewhere]) == {
            newer: ErrorCode.NONE,
            elsewhere: ErrorCode.NOT_LEADER_OR_FOLLOWER,
        }
        assert await peers.write_markers(2, [older]) == {older: ErrorCode.TRANSACTION_COORDINATOR_FENCED}
        await found.restart(2)
        await found.complete(3)
        for _ in range(100):
            codes = await _until_answered(peers, older)
            if codes:
                break
        assert codes == {older: ErrorCode.TRANSACTION_COORDINATOR_FENCED}
        assert found[2].broker.partition("t", 1).end_offset == 2

    run(tmp_path, story)


async def _until_answered(peers: TxnPeers, marker: tuple[tuple[str, int], Marker]) -> object:
    try:
        return await peers.write_markers(2, [marker])
    except PeerUnavailable:
        await asyncio.sleep(0.05)
        return {}
